//! Response bodies: one whole answer, or a paced stream of events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::engine::Running;
use crate::engine::answers::{Answers, Script};

/// What the engine sends.
#[derive(Debug)]
pub(crate) enum Answer {
    /// All at once; empty when it was taken.
    Full(Bytes),
    /// Event by event.
    Stream(Paced),
}

/// Sends each event as a frame of its own, on an absolute schedule: a late
/// event does not delay the ones after it.
#[derive(Debug)]
pub(crate) struct Paced {
    answers: Arc<Answers>,
    script: Script,
    at: At,
    due: Instant,
    interval: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    running: Running,
}

#[derive(Debug, Clone, Copy)]
enum At {
    Opening,
    Token(u32),
    Closing(u8),
}

impl Paced {
    pub(crate) fn new(
        answers: Arc<Answers>,
        script: Script,
        delay: Duration,
        interval: Duration,
        running: Running,
    ) -> Self {
        let due = Instant::now() + delay;
        let timed = !(delay.is_zero() && interval.is_zero());
        let timer = timed.then(|| Box::pin(sleep_until(due)));
        Paced { answers, script, at: At::Opening, due, interval, timer, running }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(cx));
        }
        let (event, next) = match self.at {
            At::Opening => (Some(self.answers.opening(&self.script)), At::Token(0)),
            At::Token(n) if n < self.script.tokens => {
                (Some(self.answers.token(&self.script)), At::Token(n + 1))
            }
            At::Token(_) => (self.answers.closing(&self.script, 0), At::Closing(1)),
            At::Closing(step) => (self.answers.closing(&self.script, step), At::Closing(step + 1)),
        };
        if event.is_none() {
            self.running.finish();
            return Poll::Ready(None);
        }
        self.at = next;
        self.wait_for_next();
        Poll::Ready(event)
    }

    /// Only token events after the first are paced; the rest follows at once.
    fn wait_for_next(&mut self) {
        let paced = matches!(self.at, At::Token(n) if n > 0 && n < self.script.tokens);
        if !paced || self.interval.is_zero() {
            return;
        }
        self.due += self.interval;
        if let Some(timer) = &mut self.timer {
            timer.as_mut().reset(self.due);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Answer::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Answer::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Answer::Stream(paced) => {
                paced.poll_event(cx).map(|event| event.map(|data| Ok(Frame::data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Full(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Answer::Stream(_) => SizeHint::default(),
        }
    }
}
