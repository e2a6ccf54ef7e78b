//! Relay: an engine's answer on its way to the client.

pub(super) mod buffer;
pub(super) mod engine_stream;
pub mod itl;
pub(super) mod live_stream;
pub mod memory;
pub(super) mod pump;
