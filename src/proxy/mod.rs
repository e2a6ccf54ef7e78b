//! The request path: everything between a client's socket and an engine's.

pub mod answer_memory;
pub mod auth;
pub mod clock;
pub mod gate;
pub mod grace;
pub mod handler;
pub mod intake;
pub mod measure;
pub mod models;
pub mod pace;
pub mod retries;
pub mod server;
pub mod shadow;
pub mod upstream;

mod attempt;
mod body;
mod candidates;
mod continuation;
mod early;
mod gather;
mod local;
mod order;
mod pump;
mod record;
mod resets;
mod respond;
mod session;
mod stream;
mod stream_buffer;
mod tokenize;
mod window;
