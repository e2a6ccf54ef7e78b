//! Relay: an engine's answer on its way to the client. A client that leaves drops its
//! `ClientStream` (`buffer.rs`).

pub(super) mod buffer;
pub mod engine_signals;
pub(super) mod engine_stream;
pub(super) mod live_stream;
pub mod memory;
pub(super) mod pump;
