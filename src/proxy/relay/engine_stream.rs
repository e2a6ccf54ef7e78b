//! An engine's event stream, read frame by frame and judged as it comes.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::core::model::event::EngineFault;
use crate::core::model::job::JobUsage;
use crate::protocol::response::engine_error::EngineError;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::protocol::response::stream::{
    ConnectionEnd, Forward, StreamClassifier, StreamEventKind, StreamVerdict,
};
use crate::protocol::sse::{SseFrame, SseScanner};
use crate::proxy::upstream::UpstreamExchange;

/// The longest single event that is accepted, in bytes.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// What a piece of the stream brought.
#[derive(Debug)]
pub(in crate::proxy) enum StreamStep {
    /// The stream goes on.
    More,
    /// The engine says that it is there, and nothing else: its server can say
    /// so while what generates tokens hangs.
    KeepAlive,
    /// The answer is whole.
    Complete(JobUsage),
    /// It failed, and this was consumed for it.
    Failed(EngineError, JobUsage),
}

/// The stream and what of it waits to be relayed.
#[derive(Debug)]
pub(in crate::proxy) struct EngineStream {
    exchange: Option<UpstreamExchange>,
    scanner: SseScanner,
    judge: StreamClassifier,
    out: VecDeque<Bytes>,
}

impl EngineStream {
    pub(in crate::proxy) fn new(exchange: UpstreamExchange, judge: StreamClassifier) -> Self {
        let scanner = SseScanner::new(MAX_EVENT_BYTES);
        Self { exchange: Some(exchange), scanner, judge, out: VecDeque::new() }
    }

    /// Whether the first real token (or the end of a choice) has come.
    pub(in crate::proxy) fn has_output(&self) -> bool {
        self.judge.has_output()
    }

    /// Why the first choice that ended did so.
    pub(in crate::proxy) fn finish_reason(&self) -> Option<&'static str> {
        self.judge.finish_reason()
    }

    /// Events with output so far.
    pub(in crate::proxy) fn outputs(&self) -> u64 {
        self.judge.outputs()
    }

    /// Whether the answer has one choice only.
    pub(in crate::proxy) fn is_single(&self) -> bool {
        self.judge.is_single()
    }

    /// What is known of the consumption so far.
    pub(in crate::proxy) fn usage_so_far(&self) -> JobUsage {
        self.judge.usage()
    }

    /// What another engine needs to go on with the answer; absent when it
    /// cannot.
    pub(in crate::proxy) fn interrupted(&self) -> Option<PartialAnswer> {
        self.judge.interrupted()
    }

    /// Bytes held for the client.
    pub(in crate::proxy) fn held_bytes(&self) -> usize {
        self.out.iter().map(Bytes::len).sum()
    }

    /// The next bytes for the client.
    pub(in crate::proxy) fn next_out(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }

    /// Closes the engine's connection.
    pub(in crate::proxy) fn let_go(&mut self) {
        self.exchange = None;
    }

    /// Ends the stream with a last event for the client; the engine's
    /// connection is closed.
    pub(in crate::proxy) fn break_off(&mut self, last: Bytes) {
        self.let_go();
        self.out.push_back(last);
    }

    /// Reads on.
    pub(in crate::proxy) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<StreamStep> {
        let Some(exchange) = self.exchange.as_mut() else {
            return Poll::Ready(self.end(ConnectionEnd::Cut));
        };
        match exchange.poll_data(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(chunk))) => Poll::Ready(self.chunk(chunk)),
            Poll::Ready(Some(Err(_))) => Poll::Ready(self.end(ConnectionEnd::Cut)),
            Poll::Ready(None) => Poll::Ready(self.end(ConnectionEnd::Clean)),
        }
    }

    /// A chunk whose frames all pass as they came is passed on in one piece.
    fn chunk(&mut self, chunk: Bytes) -> StreamStep {
        let starts_frame = self.scanner.leftover() == 0;
        let mut run = FrameRun { chunk: starts_frame.then(|| chunk.clone()), frames: 0, news: false };
        self.scanner.push(chunk);
        loop {
            let frame = match self.scanner.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_too_long) => {
                    let usage = self.judge.usage();
                    return StreamStep::Failed(EngineError::Fault(EngineFault::Malformed), usage);
                }
            };
            if let Some(end) = self.frame(&frame, &mut run) {
                return end;
            }
        }
        if self.scanner.leftover() == 0 {
            let news = run.news;
            run.join(&mut self.out);
            return if news { StreamStep::More } else { StreamStep::KeepAlive };
        }
        StreamStep::More
    }

    fn frame(&mut self, frame: &SseFrame, run: &mut FrameRun) -> Option<StreamStep> {
        let verdict = self.judge.frame(frame);
        run.news |= verdict.kind != StreamEventKind::Comment;
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
            StreamEventKind::Done => Some(self.complete()),
            StreamEventKind::Error(error) => Some(StreamStep::Failed(error, self.judge.usage())),
            _ => None,
        }
    }

    /// The protocol's end was seen. The bytes that follow it belong to the
    /// connection, not to the answer.
    fn complete(&mut self) -> StreamStep {
        if let Some(exchange) = self.exchange.take() {
            exchange.finish_in_background();
        }
        self.end(ConnectionEnd::Clean)
    }

    fn end(&mut self, ended: ConnectionEnd) -> StreamStep {
        self.exchange = None;
        match self.judge.end(ended) {
            StreamVerdict::Success { usage } => StreamStep::Complete(usage),
            StreamVerdict::Failed { fault, usage } => StreamStep::Failed(EngineError::Fault(fault), usage),
            StreamVerdict::Refused { error, usage } => StreamStep::Failed(EngineError::Client(error), usage),
        }
    }
}

/// Frames of one chunk that pass as they came.
struct FrameRun {
    chunk: Option<Bytes>,
    frames: usize,
    /// Whether one of them says something.
    news: bool,
}

impl FrameRun {
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
