//! Request path: everything between a client's socket and an engine's.

pub mod body;
pub mod context;
mod data_plane;
pub mod handler;
pub mod listener;
pub mod shadow;
pub mod upstream;

mod attempt;
pub mod relay;
mod request;
mod response;
mod summary;
