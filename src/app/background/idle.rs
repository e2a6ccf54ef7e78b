//! Idle-time task: writes the idle time of each pool's replicas to the usage journal.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::interval;

use crate::core::billing::bill::IdleTime;
use crate::core::model::policy::Policy;
use crate::core::placement::rules::Price;
use crate::proxy::Proxy;
use crate::telemetry::wall;
use crate::usage::row::{RowKind, UsageRow};

/// Time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// Writes idle rows every [`WRITE_INTERVAL`], until dropped.
pub(in crate::app) async fn follow(proxy: Arc<Proxy>) {
    let mut every = interval(WRITE_INTERVAL);
    loop {
        every.tick().await;
        write(&proxy);
    }
}

/// Writes the idle time since the last call.
pub(in crate::app) fn write(proxy: &Proxy) {
    let Some(journal) = &proxy.journal else { return };
    let policy = proxy.telemetry.policy();
    for idle in proxy.dispatcher.take_idle() {
        journal.record(row(&idle, &policy));
    }
}

fn row(idle: &IdleTime, policy: &Policy) -> UsageRow {
    UsageRow {
        pool: policy.pools.name(idle.pool).into(),
        gpu_ns: u64::try_from(idle.time.as_nanos()).unwrap_or(u64::MAX),
        price_per_hour: idle.price.map_or(0.0, Price::units),
        money_nano: idle.money,
        ..UsageRow::new(RowKind::Idle, wall::now())
    }
}
