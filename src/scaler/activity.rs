//! Activity streams of `external-push` triggers: whether a pool is active, sent at once and at each
//! change.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::scaler::proto::{GetMetricSpecResponse, IsActiveResponse};
use crate::scaler::rpc::{Answers, gone, spec_of};
use crate::scaler::signal_cache::{SignalCache, SignalView};
use crate::scaler::trigger::TriggerQuery;

/// Permit of one open stream. `scale.max_streams` bounds the number of permits.
pub(super) type StreamPermit = OwnedSemaphorePermit;

/// Time after which the stream repeats that an active pool has no replicas. KEDA drops the message
/// while it does not know the metric's name.
const AGAIN: Duration = Duration::from_secs(10);

struct ActivityStream {
    board: Arc<SignalCache>,
    ask: TriggerQuery,
    views: watch::Receiver<Arc<SignalView>>,
    ending: watch::Receiver<bool>,
    /// The last value sent, and when.
    said: Option<(bool, Instant)>,
    over: bool,
    _permit: StreamPermit,
}

/// Next step of a stream at one moment.
enum ActivitySignal {
    Say(bool),
    /// Sends nothing before this moment, unless the signal changes.
    Wait(Option<Instant>),
    Gone,
}

impl ActivityStream {
    fn new(board: Arc<SignalCache>, ask: TriggerQuery, permit: StreamPermit) -> Self {
        let (views, ending) = (board.follow(), board.ending());
        Self { board, ask, views, ending, said: None, over: false, _permit: permit }
    }

    fn is_gone(&self) -> bool {
        let policy = &self.board.settings().policy;
        policy.pools.id(&self.ask.pool).and_then(|id| policy.pools.get(id)).is_none()
    }

    fn word(&mut self, now: Instant) -> ActivitySignal {
        self.views.mark_unchanged();
        if self.is_gone() {
            return ActivitySignal::Gone;
        }
        // When the signal is missing, the stream sends nothing and its last value stays in force.
        let Ok((active, row)) = self.board.activity(&self.ask, now) else {
            return ActivitySignal::Wait(None);
        };
        match self.said {
            Some((said, at)) if said == active => {
                let again = (active && row.need.ready == 0).then(|| at + AGAIN);
                if again.is_some_and(|again| again <= now) {
                    ActivitySignal::Say(true)
                } else {
                    ActivitySignal::Wait(again)
                }
            }
            _ => ActivitySignal::Say(active),
        }
    }

    async fn next(&mut self) -> Option<Result<IsActiveResponse, Status>> {
        while !self.over {
            let now = Instant::now();
            match self.word(now) {
                ActivitySignal::Gone => {
                    self.over = true;
                    return Some(Err(gone(&self.ask.pool)));
                }
                ActivitySignal::Say(result) => {
                    self.said = Some((result, now));
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
            _ = self.ending.wait_for(|ending| *ending) => self.over = true,
            _ = self.views.changed() => {}
            () = again => {}
        }
    }
}

/// Stream of whether the pool is active: the value at once, then each change.
pub(super) fn stream(
    board: Arc<SignalCache>,
    ask: TriggerQuery,
    permit: StreamPermit,
) -> Answers<IsActiveResponse> {
    let watcher = ActivityStream::new(board, ask, permit);
    Box::pin(unfold(watcher, |mut watcher| async move { watcher.next().await.map(|word| (word, watcher)) }))
}

/// Stream of the pool's metric: sent once, because its target never changes.
pub(super) fn specs(
    board: Arc<SignalCache>,
    ask: TriggerQuery,
    permit: StreamPermit,
) -> Answers<GetMetricSpecResponse> {
    let watcher = ActivityStream::new(board, ask, permit);
    Box::pin(unfold((watcher, true), |(mut watcher, first)| async move {
        if first {
            let spec = spec_of(&watcher.ask);
            return Some((Ok(spec), (watcher, false)));
        }
        while !watcher.over {
            if watcher.is_gone() {
                watcher.over = true;
                return Some((Err(gone(&watcher.ask.pool)), (watcher, false)));
            }
            watcher.wait(None).await;
        }
        None
    }))
}
