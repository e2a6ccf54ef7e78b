//! Adapter slots of the simulated engine.

use std::time::Duration;

/// Adapter slots of one engine.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    /// Loaded adapters, the least recently used first.
    pub(super) held: Vec<u32>,
    /// Time that the adapter loads of the planned step take.
    pub(super) loading: Duration,
    pub(super) loads: u64,
    /// Whether any request so far named an adapter.
    pub(super) in_use: bool,
}
