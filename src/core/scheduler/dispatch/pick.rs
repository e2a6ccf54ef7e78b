//! Picks: the job and the replica that one decision of the scheduler has found.

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::placement::choose::PlacementReason;
use crate::core::queue::order::Candidate;

/// A job and its destination.
#[derive(Debug, Clone, Copy)]
pub(in crate::core::scheduler) struct DispatchPick {
    pub(super) chosen: Candidate,
    pub(super) replica: ReplicaId,
    pub(super) pool: PoolId,
    pub(super) choice: PlacementReason,
    /// Whether the replica was held for the job.
    pub(super) held: bool,
    /// Whether the job goes before the head of its lane; see [`super::warm`].
    pub(super) warm: bool,
    /// Tokens of the prompt that the replica is expected to have cached.
    pub(super) cached: u64,
}

/// The pick whose turn it is, while warm jobs are looked for.
#[derive(Debug)]
pub(super) struct DeferredPick {
    pub(super) pick: DispatchPick,
    /// Heads that were looked at since, the first included.
    pub(super) heads: usize,
}
