//! Streams: whether a pool is active, as it changes; its metric, which never
//! does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::scale::ask::Ask;
use crate::scale::board::{Board, View};
use crate::scale::proto::{GetMetricSpecResponse, IsActiveResponse};
use crate::scale::rpc::{Answers, gone, spec_of};

/// A stream's place among those that may be open.
pub(super) type Permit = OwnedSemaphorePermit;

/// After so long an active pool without replicas is told of again: KEDA drops
/// the word while it does not know the metric's name.
const AGAIN: Duration = Duration::from_secs(10);

/// One stream.
struct Watcher {
    board: Arc<Board>,
    ask: Ask,
    views: watch::Receiver<Arc<View>>,
    ending: watch::Receiver<bool>,
    /// What was said last, and when.
    said: Option<(bool, Instant)>,
    over: bool,
    _permit: Permit,
}

/// What there is to say at a moment.
enum Word {
    Say(bool),
    /// Nothing before this moment, unless something changes.
    Wait(Option<Instant>),
    Gone,
}

impl Watcher {
    fn new(board: Arc<Board>, ask: Ask, permit: Permit) -> Self {
        let (views, ending) = (board.follow(), board.ending());
        Self { board, ask, views, ending, said: None, over: false, _permit: permit }
    }

    fn is_gone(&self) -> bool {
        let policy = &self.board.settings().policy;
        policy.pools.id(&self.ask.pool).and_then(|id| policy.pools.get(id)).is_none()
    }

    fn word(&mut self, now: Instant) -> Word {
        self.views.mark_unchanged();
        if self.is_gone() {
            return Word::Gone;
        }
        // What is not known is not said; the last word holds.
        let Ok((active, row)) = self.board.activity(&self.ask, now) else { return Word::Wait(None) };
        match self.said {
            Some((said, at)) if said == active => {
                let again = (active && row.need.ready == 0).then(|| at + AGAIN);
                if again.is_some_and(|again| again <= now) { Word::Say(true) } else { Word::Wait(again) }
            }
            _ => Word::Say(active),
        }
    }

    async fn next(&mut self) -> Option<Result<IsActiveResponse, Status>> {
        while !self.over {
            let now = Instant::now();
            match self.word(now) {
                Word::Gone => {
                    self.over = true;
                    return Some(Err(gone(&self.ask.pool)));
                }
                Word::Say(result) => {
                    self.said = Some((result, now));
                    return Some(Ok(IsActiveResponse { result }));
                }
                Word::Wait(until) => self.wait(until).await,
            }
        }
        None
    }

    /// Until there may be something to say, or it is over.
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

/// Whether the pool is active: at once, then as it changes.
pub(super) fn stream(board: Arc<Board>, ask: Ask, permit: Permit) -> Answers<IsActiveResponse> {
    let watcher = Watcher::new(board, ask, permit);
    Box::pin(unfold(watcher, |mut watcher| async move { watcher.next().await.map(|word| (word, watcher)) }))
}

/// The pool's metric, at once. Its target never changes.
pub(super) fn specs(board: Arc<Board>, ask: Ask, permit: Permit) -> Answers<GetMetricSpecResponse> {
    let watcher = Watcher::new(board, ask, permit);
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
