//! Step in flight: what the engine computes until the step ends.

use crate::engine::seq::PriorityKey;
use penstock_core::model::time::Tick;

/// The step that is being computed.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) end: Tick,
    /// Tokens computed for each sequence.
    pub(super) chunks: Vec<(PriorityKey, u32)>,
}
