//! Token feed: the progress of one request, written by the stepping task and
//! read by the task of the request's connection. Tokens that come while the
//! reader is busy are merged into one event, as a loaded engine does.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;

use penstock_core::model::time::Tick;

/// One generated sequence.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GeneratedChoice {
    pub(crate) tokens: u32,
    pub(crate) done: bool,
    pub(crate) scheduled: Option<Tick>,
    pub(crate) first_token: Tick,
    pub(crate) last_token: Tick,
}

/// Reason why no more tokens follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FeedEnd {
    /// Every sequence is complete.
    Complete,
    /// `finish_reason: "abort"`, or none when no token was generated.
    Aborted,
    /// The last event has no finish reason.
    NoFinish,
    /// An error event.
    Failed(Failure),
    /// The connection ends without a last chunk.
    Cut,
}

/// An error that shows in the middle of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) message: &'static str,
}

impl Failure {
    pub(crate) const ENGINE_DEAD: Self = Self {
        status: 500,
        kind: "InternalServerError",
        message: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    };
    pub(crate) const BUSY: Self = Self {
        status: 503,
        kind: "Service Unavailable",
        message: "The engine is currently busy and cannot accept new requests. \
                  Please try again later or on a different instance.",
    };
    pub(crate) const DRAINING: Self = Self {
        status: 500,
        kind: "InternalServerError",
        message: "cannot schedule new futures after shutdown",
    };
}

/// Progress of a request as its reader sees it.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    pub(crate) choices: SmallVec<[GeneratedChoice; 1]>,
    pub(crate) cached_tokens: u32,
    pub(crate) end: Option<FeedEnd>,
}

impl Progress {
    /// Tokens of all sequences.
    pub(crate) fn tokens(&self) -> u64 {
        self.choices.iter().map(|choice| u64::from(choice.tokens)).sum()
    }
}

#[derive(Debug)]
struct FeedState {
    progress: Progress,
    fresh: bool,
    waker: Option<Waker>,
}

/// Token feed of one request.
#[derive(Debug)]
pub(crate) struct TokenFeed {
    pub(crate) arrived: Tick,
    inner: Mutex<FeedState>,
}

impl TokenFeed {
    pub(crate) fn new(arrived: Tick, choices: usize) -> Self {
        let choices = SmallVec::from_elem(GeneratedChoice::default(), choices);
        let progress = Progress { choices, cached_tokens: 0, end: None };
        Self { arrived, inner: Mutex::new(FeedState { progress, fresh: false, waker: None }) }
    }

    /// Changes one sequence and returns the waker to wake.
    pub(crate) fn update(
        &self,
        choice: usize,
        change: impl FnOnce(&mut GeneratedChoice, &mut u32),
    ) -> Option<Waker> {
        let mut inner = self.inner.lock();
        let FeedState { progress, fresh, waker } = &mut *inner;
        if progress.end.is_some() {
            return None;
        }
        change(progress.choices.get_mut(choice)?, &mut progress.cached_tokens);
        if progress.choices.iter().all(|choice| choice.done) {
            progress.end = Some(FeedEnd::Complete);
        }
        *fresh = true;
        waker.take()
    }

    /// Ends the request early, unless the request has already ended.
    pub(crate) fn end(&self, end: FeedEnd) {
        let mut inner = self.inner.lock();
        if inner.progress.end.is_none() {
            inner.progress.end = Some(end);
            inner.fresh = true;
            let waker = inner.waker.take();
            drop(inner);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// The progress, if it changed since the last call.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Progress> {
        let mut inner = self.inner.lock();
        if !std::mem::take(&mut inner.fresh) {
            inner.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(inner.progress.clone())
    }

    /// Makes the next poll return the progress again.
    pub(crate) fn refresh(&self) {
        self.inner.lock().fresh = true;
    }

    /// Whether these choices are complete.
    pub(crate) fn done(&self, choices: std::ops::Range<usize>) -> bool {
        self.inner.lock().progress.choices[choices].iter().all(|choice| choice.done)
    }

    pub(crate) fn progress(&self) -> Progress {
        self.inner.lock().progress.clone()
    }
}
