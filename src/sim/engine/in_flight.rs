//! Step in flight: what the engine computes until the step ends.

use crate::engine::seq::PriorityKey;
use penstock_core::model::time::Tick;

/// The step that is being computed.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) end: Tick,
    /// One for each sequence.
    pub(super) chunks: Vec<StepChunk>,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepChunk {
    pub(super) key: PriorityKey,
    /// Tokens that the step computes.
    pub(super) tokens: u32,
}
