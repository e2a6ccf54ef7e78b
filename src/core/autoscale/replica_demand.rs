//! Replica demand of each pool now, as scalers read it.

use std::time::Duration;

use crate::core::model::ids::PoolId;

/// What one pool needs now, and what that is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaDemand {
    /// Which.
    pub pool: PoolId,
    /// Replicas that demand needs in all, those that are there or starting
    /// included; `None` = not known, which is never 0.
    pub desired: Option<u32>,
    /// Where that number comes from, as a stable name.
    pub reason: &'static str,
    /// Whether the pool must not go to zero, though nothing waits or runs.
    pub keep: bool,
    /// Replicas in service.
    pub ready: u32,
    /// Jobs that wait and may go there, held ones included, those of paused tenants
    /// not.
    pub queued: u64,
    /// Whether they have to be served now, or may as well be: the pool is warm or
    /// cheap. Else they wait for their time, and are no reason to start it.
    pub due: bool,
    /// Their tokens: prompts and asked output.
    pub queued_tokens: u64,
    /// Jobs that run there.
    pub in_flight: u64,
    /// How long its starts took as of late; absent before the first.
    pub cold_start: Option<Duration>,
}

impl ReplicaDemand {
    /// Whether anything runs in the pool or waits for it, and not for its time.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.calls_for_more_than(0) || self.in_flight > 0
    }

    /// Whether more than so many jobs wait for the pool, and not for their time.
    #[must_use]
    pub const fn calls_for_more_than(&self, jobs: u64) -> bool {
        self.due && self.queued > jobs
    }
}
