//! Upkeep: what a gateway does once a second. One task does it all, since each timer wakes an idle machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::interval;

use crate::app::background::{memory, refusals};
use crate::proxy::Proxy;

/// Time between two turns.
const INTERVAL: Duration = Duration::from_secs(1);
/// Turns after which free pages are looked for. They are returned after three looks at most.
const TURNS_A_RELEASE: u64 = 3;

/// Keeps the process in order. Runs until dropped.
pub(in crate::app) async fn run(proxy: Arc<Proxy>) {
    let mut every = interval(INTERVAL);
    for turn in 1_u64.. {
        every.tick().await;
        proxy.telemetry.upkeep();
        refusals::report(&proxy);
        let keep_alive = proxy.settings.load().edge.upstream.keep_alive;
        proxy.upstreams.close_idle(keep_alive);
        proxy.guardrails.close_idle(keep_alive);
        if turn.is_multiple_of(TURNS_A_RELEASE) {
            memory::release_free_pages();
        }
    }
}
