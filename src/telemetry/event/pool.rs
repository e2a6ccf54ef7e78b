//! Events in the life of a pool.

use std::time::Duration;

use tracing::{info, warn};

use crate::core::model::event::EngineFault;
use crate::core::model::ids::PoolId;
use crate::telemetry::Telemetry;
use crate::telemetry::event::millis;

/// A request is held for a pool that has no replica.
#[derive(Debug, Clone, Copy)]
pub struct PoolWanted {
    /// The pool.
    pub pool: PoolId,
    /// How long its start is expected to take; absent = nothing is known.
    pub expected: Option<Duration>,
}

impl PoolWanted {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (pool, expected_ms) = (policy.pools.name(self.pool), self.expected.map(millis));
        telemetry.log(|| info!(pool, expected_ms, "requests are held until the pool starts"));
    }
}

/// The last replica of a pool that was in service was ejected.
#[derive(Debug, Clone, Copy)]
pub struct PoolDown {
    /// The pool.
    pub pool: PoolId,
    /// What was wrong with that replica.
    pub fault: EngineFault,
}

impl PoolDown {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (pool, fault) = (policy.pools.name(self.pool), self.fault.name());
        telemetry.log(|| warn!(pool, fault, "pool is down: its last replica in service was ejected"));
        telemetry.metrics().pool_emptied(&policy, self.pool);
    }
}

/// A pool that requests were held for gave its first token.
#[derive(Debug, Clone, Copy)]
pub struct PoolStarted {
    /// The pool.
    pub pool: PoolId,
    /// Time from the first request that was held to that token.
    pub took: Duration,
}

impl PoolStarted {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let pool = policy.pools.name(self.pool);
        telemetry.log(|| info!(pool, took_ms = millis(self.took), "pool started"));
    }
}
