//! The store of a cluster: its servers, which of them has a key, and the scripts that run there.

pub(super) mod connection;
pub(super) mod scripts;
mod sentinels;
pub(super) mod server;
mod slots;
