//! The request path: everything between a client's socket and an engine's.

pub mod body;
pub mod context;
pub mod handler;
pub mod listener;
pub mod shadow;
pub mod upstream;

mod attempt;
mod models_api;
pub mod relay;
mod request;
mod response;
mod summary;
