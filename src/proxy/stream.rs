//! An engine's event stream, read frame by frame and judged as it comes.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::core::event::Fault;
use crate::core::job::Usage;
use crate::proxy::upstream::Exchange;
use crate::wire::judge::refusal::EngineError;
use crate::wire::judge::so_far::SoFar;
use crate::wire::judge::stream::{Ended, EventKind, Forward, StreamEnd, StreamJudge};
use crate::wire::sse::{Frame, Scanner};

/// The longest single event that is accepted, in bytes.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// What a piece of the stream brought.
#[derive(Debug)]
pub(super) enum Step {
    /// The stream goes on.
    More,
    /// The engine says that it is there, and nothing else: its server can say
    /// so while what generates tokens hangs.
    KeepAlive,
    /// The answer is whole.
    Complete(Usage),
    /// It failed, and this was consumed for it.
    Failed(EngineError, Usage),
}

/// The stream and what of it waits to be relayed.
#[derive(Debug)]
pub(super) struct EngineStream {
    exchange: Option<Exchange>,
    scanner: Scanner,
    judge: StreamJudge,
    out: VecDeque<Bytes>,
}

impl EngineStream {
    pub(super) fn new(exchange: Exchange, judge: StreamJudge) -> Self {
        let scanner = Scanner::new(MAX_EVENT_BYTES);
        Self { exchange: Some(exchange), scanner, judge, out: VecDeque::new() }
    }

    /// Whether the first real token (or the end of a choice) has come.
    pub(super) fn has_output(&self) -> bool {
        self.judge.has_output()
    }

    /// Why the first choice that ended did so.
    pub(super) fn finish_reason(&self) -> Option<&'static str> {
        self.judge.finish_reason()
    }

    /// Events with output so far.
    pub(super) fn outputs(&self) -> u64 {
        self.judge.outputs()
    }

    /// Whether the answer has one choice only.
    pub(super) fn is_single(&self) -> bool {
        self.judge.is_single()
    }

    /// What is known of the consumption so far.
    pub(super) fn usage_so_far(&self) -> Usage {
        self.judge.usage()
    }

    /// What another engine needs to go on with the answer; absent when it
    /// cannot.
    pub(super) fn interrupted(&self) -> Option<SoFar> {
        self.judge.interrupted()
    }

    /// Bytes held for the client.
    pub(super) fn held_bytes(&self) -> usize {
        self.out.iter().map(Bytes::len).sum()
    }

    /// The next bytes for the client.
    pub(super) fn next_out(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }

    /// Closes the engine's connection.
    pub(super) fn let_go(&mut self) {
        self.exchange = None;
    }

    /// Ends the stream with a last event for the client; the engine's
    /// connection is closed.
    pub(super) fn break_off(&mut self, last: Bytes) {
        self.let_go();
        self.out.push_back(last);
    }

    /// Reads on.
    pub(super) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Some(exchange) = self.exchange.as_mut() else {
            return Poll::Ready(self.end(Ended::Cut));
        };
        match exchange.poll_data(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(chunk))) => Poll::Ready(self.chunk(chunk)),
            Poll::Ready(Some(Err(_))) => Poll::Ready(self.end(Ended::Cut)),
            Poll::Ready(None) => Poll::Ready(self.end(Ended::Clean)),
        }
    }

    /// A chunk whose frames all pass as they came is passed on in one piece.
    fn chunk(&mut self, chunk: Bytes) -> Step {
        let starts_frame = self.scanner.leftover() == 0;
        let mut run = Run { chunk: starts_frame.then(|| chunk.clone()), frames: 0, news: false };
        self.scanner.push(chunk);
        loop {
            let frame = match self.scanner.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_too_long) => {
                    let usage = self.judge.usage();
                    return Step::Failed(EngineError::Fault(Fault::Malformed), usage);
                }
            };
            if let Some(end) = self.frame(&frame, &mut run) {
                return end;
            }
        }
        if self.scanner.leftover() == 0 {
            let news = run.news;
            run.join(&mut self.out);
            return if news { Step::More } else { Step::KeepAlive };
        }
        Step::More
    }

    fn frame(&mut self, frame: &Frame, run: &mut Run) -> Option<Step> {
        let verdict = self.judge.frame(frame);
        run.news |= verdict.kind != EventKind::Comment;
        match verdict.forward {
            Forward::AsIs => {
                self.out.push_back(frame.bytes().clone());
                run.frames += 1;
            }
            Forward::Replace(bytes) => {
                self.out.push_back(bytes);
                run.chunk = None;
            }
            Forward::Drop => run.chunk = None,
        }
        match verdict.kind {
            EventKind::Done => Some(self.complete()),
            EventKind::Error(error) => Some(Step::Failed(error, self.judge.usage())),
            _ => None,
        }
    }

    /// The protocol's end was seen. The bytes that follow it belong to the
    /// connection, not to the answer.
    fn complete(&mut self) -> Step {
        if let Some(exchange) = self.exchange.take() {
            exchange.finish_in_background();
        }
        self.end(Ended::Clean)
    }

    fn end(&mut self, ended: Ended) -> Step {
        self.exchange = None;
        match self.judge.end(ended) {
            StreamEnd::Success { usage } => Step::Complete(usage),
            StreamEnd::Failed { fault, usage } => Step::Failed(EngineError::Fault(fault), usage),
            StreamEnd::Refused { error, usage } => Step::Failed(EngineError::Client(error), usage),
        }
    }
}

/// Frames of one chunk that pass as they came.
struct Run {
    chunk: Option<Bytes>,
    frames: usize,
    /// Whether one of them says something.
    news: bool,
}

impl Run {
    /// Puts the chunk in the place of its frames.
    fn join(self, out: &mut VecDeque<Bytes>) {
        if let Some(chunk) = self.chunk
            && self.frames > 1
        {
            out.truncate(out.len() - self.frames);
            out.push_back(chunk);
        }
    }
}
