//! What each pool needs now, as scalers are told it.

use std::time::Duration;

use crate::core::ids::PoolId;

/// What one pool needs now, and what that is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
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
    /// Their tokens: prompts and asked output.
    pub queued_tokens: u64,
    /// Jobs that run there.
    pub in_flight: u64,
    /// How long its starts took as of late; absent before the first.
    pub cold_start: Option<Duration>,
}

impl Need {
    /// Whether anything waits for the pool or runs there.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.queued > 0 || self.in_flight > 0
    }
}
