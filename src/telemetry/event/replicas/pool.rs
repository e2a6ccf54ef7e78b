//! Pool events: cold starts, and pools that lost their last replica in service.

use std::time::Duration;

use tracing::{info, warn};

use crate::core::model::event::EngineFault;
use crate::core::model::ids::PoolId;
use crate::telemetry::Telemetry;
use crate::telemetry::text::millis;

/// A request is held for a pool that has no replica.
#[derive(Debug, Clone, Copy)]
pub struct PoolWanted {
    pub pool: PoolId,
    /// Expected time of the pool's start; absent = unknown.
    pub expected: Option<Duration>,
}

impl PoolWanted {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (pool, expected_ms) = (policy.pools.name(self.pool), self.expected.map(millis));
        telemetry.changed("pool_wanted", pool, || "requests are held until it starts".to_owned());
        telemetry.log(|| info!(pool, expected_ms, "requests are held until the pool starts"));
    }
}

/// The last replica in service of a pool was ejected.
#[derive(Debug, Clone, Copy)]
pub struct PoolDown {
    pub pool: PoolId,
    /// Fault of the ejected replica.
    pub fault: EngineFault,
}

impl PoolDown {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (pool, fault) = (policy.pools.name(self.pool), self.fault.name());
        telemetry.changed("pool_down", pool, || fault.to_owned());
        telemetry.log(|| warn!(pool, fault, "pool is down: its last replica in service was ejected"));
        telemetry.metrics().pool_emptied(&policy, self.pool);
    }
}

/// A pool that requests were held for sent its first token.
#[derive(Debug, Clone, Copy)]
pub struct PoolStarted {
    pub pool: PoolId,
    /// Time from the first held request to the first token.
    pub took: Duration,
}

impl PoolStarted {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let pool = policy.pools.name(self.pool);
        telemetry.changed("pool_started", pool, || format!("in {} ms", self.took.as_millis()));
        telemetry.log(|| info!(pool, took_ms = millis(self.took), "pool started"));
    }
}
