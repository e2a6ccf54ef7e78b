//! Sleep policy of a pool, and the result of an order to sleep or wake.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Sleep settings of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepPolicy {
    /// Idle time since the last wake after which a replica may sleep; not zero.
    pub after_idle: Duration,
    /// Replicas of the pool that stay awake, however idle they are.
    pub keep_awake: u32,
    /// Time after which a wake counts as failed.
    pub wake_timeout: Duration,
}

/// Result of an order to sleep or to wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SleepResult {
    /// The replica sleeps.
    Asleep,
    /// The replica is awake.
    Awake,
    /// The result is not known.
    Failed,
    /// The engine does not know the order.
    Unable,
}
