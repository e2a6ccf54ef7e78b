//! Refresh of the signal cache: every 250 ms, or every second while no pool has work, and at once
//! when a request arrives that ends such a time or for which an idle pool has no replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::scaler::pool_signal::PoolSignal;
use crate::scaler::signal_cache::{SignalCache, SignalView};
use crate::scaler::source::DemandSource;
use crate::telemetry::event::DesiredChanged;

/// Time from the start of a refresh to the next one, unless an arrival comes first.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// The same while no pool has work.
const QUIET_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest pause after a refresh, and its upper bound when refreshes are slow.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(40);
/// A refresh is followed by a pause of 50 times its own duration, up to `MAX_PAUSE`. Refreshes thus
/// take at most about 1 / 50 of the time, unless one takes longer than 0.8 ms.
const PAUSE_FACTOR: u32 = 50;

/// Refreshes the signal cache until dropped.
pub async fn keep_fresh(source: DemandSource, cache: Arc<SignalCache>) {
    loop {
        let began = Instant::now();
        // Before the refresh, so that no arrival between the two is missed.
        source.expect_arrival();
        let load = refresh(&source, &cache);
        let stale_after = cache.settings().scale.stale_after;
        let quiet = QUIET_INTERVAL.min(stale_after / 2).max(REFRESH_INTERVAL);
        let interval = if load.is_quiet { quiet } else { REFRESH_INTERVAL };
        let pause_ends = Instant::now() + (began.elapsed() * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE);
        let awaited = load.is_quiet || load.has_idle_pool;
        let arrival = async { if awaited { source.arrival().await } else { std::future::pending().await } };
        let news = async {
            match &cache.exchange {
                Some(exchange) => exchange.next_news().await,
                None => std::future::pending().await,
            }
        };
        let either = async {
            tokio::select! {
                () = arrival => {}
                () = news => {}
            }
            sleep_until(pause_ends).await;
        };
        let _in_time = timeout(interval, either).await;
    }
}

/// What a refresh found, as far as it decides about the next one.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefreshedLoad {
    /// Whether a pool without replicas is idle: the next arrival is to start it.
    has_idle_pool: bool,
    /// Whether no pool has work.
    is_quiet: bool,
}

/// Refreshes the cache once.
pub(super) fn refresh(source: &DemandSource, cache: &SignalCache) -> RefreshedLoad {
    let (now, before) = (Instant::now(), cache.view());
    let mut pools = BTreeMap::new();
    let (needs, peers) = match &cache.exchange {
        None => (source.demands(), None),
        Some(exchange) => {
            let (needs, peers) = exchange.refresh(source, now);
            (needs, Some(peers))
        }
    };
    for (name, need) in needs {
        let old = before.pools.get(&name);
        let last_busy = if need.is_busy() { Some(now) } else { old.and_then(|row| row.last_busy) };
        let was = old.and_then(|row| row.demand.desired);
        if let (Some(to), false) = (need.desired, need.desired == was) {
            let (pool, reason) = (&*name, need.reason);
            DesiredChanged { pool, from: was, to, reason, ready: need.ready }.emit(&cache.telemetry);
        }
        pools.insert(name, PoolSignal { demand: need, last_busy });
    }
    let load = RefreshedLoad {
        has_idle_pool: pools.values().any(|row| row.demand.ready == 0 && !row.demand.is_busy()),
        is_quiet: pools.values().all(|row| !row.demand.is_busy() && row.demand.queued == 0),
    };
    cache.publish(SignalView { as_of: now, pools, peers });
    load
}
