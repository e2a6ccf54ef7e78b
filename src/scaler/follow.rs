//! Refresh of the signal cache: every 250 ms, and at once when a request
//! arrives while an idle pool has no replica, here or at another gateway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::scaler::pool_signal::PoolSignal;
use crate::scaler::signal_cache::{SignalCache, SignalView};
use crate::scaler::source::DemandSource;
use crate::telemetry::event::DesiredChanged;

/// Time from the start of a refresh to the next one, while no pool without replicas waits for an arrival.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
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
        let has_idle = refresh(&source, &cache);
        let pause_ends = Instant::now() + (began.elapsed() * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE);
        let arrival = async { if has_idle { source.arrival().await } else { std::future::pending().await } };
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
        let _in_time = timeout(REFRESH_INTERVAL, either).await;
    }
}

/// Refreshes the cache once. Returns whether a pool without replicas is idle: the next arrival is to
/// start it.
pub(super) fn refresh(source: &DemandSource, cache: &SignalCache) -> bool {
    let (now, before) = (Instant::now(), cache.view());
    let mut pools = BTreeMap::new();
    let (needs, fleet) = match &cache.exchange {
        None => (source.demands(), None),
        Some(exchange) => {
            let (needs, fleet) = exchange.refresh(source, now);
            (needs, Some(fleet))
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
    let has_idle = pools.values().any(|row| row.demand.ready == 0 && !row.demand.is_busy());
    cache.publish(SignalView { as_of: now, pools, peers: fleet });
    has_idle
}
