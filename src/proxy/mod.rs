//! The request path: everything between a client's socket and an engine's.

pub mod server;
