//! Replica demand of each pool now, as scalers read it.

use std::time::Duration;

use crate::model::ids::PoolId;

/// Replica demand of one pool, and what it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaDemand {
    pub pool: PoolId,
    /// Desired replicas in all, including those in service and those that start. `None` means not
    /// known, which is never 0.
    pub desired: Option<u32>,
    /// Reason of `desired`, as a stable name.
    pub reason: &'static str,
    /// True when the pool must not go to zero although no job waits or runs.
    pub keep_above_zero: bool,
    /// Replicas in service.
    pub ready: u32,
    /// Waiting jobs that may go to the pool, including held ones, without those of paused tenants.
    pub queued: u64,
    /// True when the waiting jobs have to be served now, or may as well be served because the pool
    /// is warm or cheap. When false, the jobs wait for their time and are no reason to start the
    /// pool.
    pub due: bool,
    /// Tokens of the queued jobs: prompts and requested output.
    pub queued_tokens: u64,
    /// Jobs that run there.
    pub in_flight: u64,
    /// Mean time of recent starts; absent before the first.
    pub cold_start: Option<Duration>,
}

impl ReplicaDemand {
    /// Whether jobs run in the pool, or wait for it and are due.
    pub const fn is_busy(&self) -> bool {
        self.has_due_jobs_above(0) || self.in_flight > 0
    }

    /// Whether more than this many due jobs wait for the pool.
    pub const fn has_due_jobs_above(&self, jobs: u64) -> bool {
        self.due && self.queued > jobs
    }
}
