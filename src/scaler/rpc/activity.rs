//! Activity streams of `external-push` triggers: whether a pool is active, sent at once and at each
//! change.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::scaler::proto::{GetMetricSpecResponse, IsActiveResponse};
use crate::scaler::rpc::answers::{Answers, pool_removed, spec_of};
use crate::scaler::signal_cache::{SignalCache, SignalView};
use crate::scaler::trigger::TriggerQuery;

/// Permit of one open stream. `scale.max_streams` bounds the number of permits.
pub(in crate::scaler) type StreamPermit = OwnedSemaphorePermit;

/// Time after which the stream repeats that an active pool has no replicas. KEDA drops the message
/// while it does not know the metric's name.
const RESEND_AFTER: Duration = Duration::from_secs(10);

struct ActivityStream {
    cache: Arc<SignalCache>,
    query: TriggerQuery,
    views: watch::Receiver<Arc<SignalView>>,
    ending: watch::Receiver<bool>,
    last_sent: Option<SentActivity>,
    is_done: bool,
    _permit: StreamPermit,
}

/// A value that a stream sent.
#[derive(Debug, Clone, Copy)]
struct SentActivity {
    active: bool,
    at: Instant,
}

/// Next step of a stream at one moment.
enum ActivitySignal {
    Send(bool),
    /// Sends nothing before this moment, unless the signal changes.
    Wait(Option<Instant>),
    PoolRemoved,
}

impl ActivityStream {
    fn new(cache: Arc<SignalCache>, ask: TriggerQuery, permit: StreamPermit) -> Self {
        let (views, ending) = (cache.subscribe(), cache.ending());
        Self { cache, query: ask, views, ending, last_sent: None, is_done: false, _permit: permit }
    }

    fn is_pool_removed(&self) -> bool {
        let policy = &self.cache.settings().policy;
        policy.pools.id(&self.query.pool).and_then(|id| policy.pools.get(id)).is_none()
    }

    fn next_signal(&mut self, now: Instant) -> ActivitySignal {
        self.views.mark_unchanged();
        if self.is_pool_removed() {
            return ActivitySignal::PoolRemoved;
        }
        // When the signal is missing, the stream sends nothing and its last value stays in force.
        let Ok((active, row)) = self.cache.activity(&self.query, now) else {
            return ActivitySignal::Wait(None);
        };
        match self.last_sent {
            Some(sent) if sent.active == active => {
                let again = (active && row.demand.ready == 0).then(|| sent.at + RESEND_AFTER);
                if again.is_some_and(|again| again <= now) {
                    ActivitySignal::Send(true)
                } else {
                    ActivitySignal::Wait(again)
                }
            }
            _ => ActivitySignal::Send(active),
        }
    }

    async fn next(&mut self) -> Option<Result<IsActiveResponse, Status>> {
        while !self.is_done {
            let now = Instant::now();
            match self.next_signal(now) {
                ActivitySignal::PoolRemoved => {
                    self.is_done = true;
                    return Some(Err(pool_removed(&self.query.pool)));
                }
                ActivitySignal::Send(result) => {
                    self.last_sent = Some(SentActivity { active: result, at: now });
                    return Some(Ok(IsActiveResponse { result }));
                }
                ActivitySignal::Wait(until) => self.wait(until).await,
            }
        }
        None
    }

    /// Waits until the signal changes, `until` is reached, or the streams are to end.
    async fn wait(&mut self, until: Option<Instant>) {
        let again = async {
            match until {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.ending.wait_for(|ending| *ending) => self.is_done = true,
            _ = self.views.changed() => {}
            () = again => {}
        }
    }
}

/// Stream of whether the pool is active: the value at once, then each change.
pub(in crate::scaler) fn activity_stream(
    cache: Arc<SignalCache>,
    ask: TriggerQuery,
    permit: StreamPermit,
) -> Answers<IsActiveResponse> {
    let watcher = ActivityStream::new(cache, ask, permit);
    Box::pin(unfold(watcher, |mut watcher| async move { watcher.next().await.map(|word| (word, watcher)) }))
}

/// Stream of the pool's metric: sent once, because its target never changes.
pub(in crate::scaler) fn spec_stream(
    cache: Arc<SignalCache>,
    ask: TriggerQuery,
    permit: StreamPermit,
) -> Answers<GetMetricSpecResponse> {
    let watcher = ActivityStream::new(cache, ask, permit);
    Box::pin(unfold((watcher, true), |(mut watcher, first)| async move {
        if first {
            let spec = spec_of(&watcher.query);
            return Some((Ok(spec), (watcher, false)));
        }
        while !watcher.is_done {
            if watcher.is_pool_removed() {
                watcher.is_done = true;
                return Some((Err(pool_removed(&watcher.query.pool)), (watcher, false)));
            }
            watcher.wait(None).await;
        }
        None
    }))
}
