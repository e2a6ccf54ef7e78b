//! Engine stream: the event stream of an engine, read frame by frame and checked as it arrives.

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

/// Longest accepted event, in bytes.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Result of reading a piece of the stream.
#[derive(Debug)]
pub(in crate::proxy) enum StreamStep {
    /// The stream continues.
    More,
    /// The piece contains only comments. An engine's HTTP server can send comments while the part
    /// that generates tokens hangs.
    KeepAlive,
    /// The answer is complete.
    Complete(JobUsage),
    /// The stream failed. The usage is that of the failed stream.
    Failed(EngineError, JobUsage),
}

/// An engine's stream, with the bytes that wait to be relayed.
#[derive(Debug)]
pub(in crate::proxy) struct EngineStream {
    exchange: Option<UpstreamExchange>,
    scanner: SseScanner,
    classifier: StreamClassifier,
    out: VecDeque<Bytes>,
    /// Usage of the complete answer.
    complete: Option<JobUsage>,
}

impl EngineStream {
    pub(in crate::proxy) fn new(exchange: UpstreamExchange, classifier: StreamClassifier) -> Self {
        let scanner = SseScanner::new(MAX_EVENT_BYTES);
        Self { exchange: Some(exchange), scanner, classifier, out: VecDeque::new(), complete: None }
    }

    /// Whether the first real token, or the end of a choice, has arrived.
    pub(in crate::proxy) fn has_output(&self) -> bool {
        self.classifier.has_output()
    }

    /// The reason of the first choice that ended.
    pub(in crate::proxy) fn finish_reason(&self) -> Option<&'static str> {
        self.classifier.finish_reason()
    }

    /// Number of events with output so far.
    pub(in crate::proxy) fn outputs(&self) -> u64 {
        self.classifier.outputs()
    }

    /// Whether the answer has exactly one choice.
    pub(in crate::proxy) fn is_single(&self) -> bool {
        self.classifier.is_single()
    }

    /// The usage of the answer, if the answer is complete.
    pub(in crate::proxy) const fn complete(&self) -> Option<JobUsage> {
        self.complete
    }

    /// The usage known so far.
    pub(in crate::proxy) fn usage_so_far(&self) -> JobUsage {
        self.classifier.usage()
    }

    /// The partial answer that another engine can continue; absent when none can.
    pub(in crate::proxy) fn to_partial_answer(&self) -> Option<PartialAnswer> {
        self.classifier.to_partial_answer()
    }

    /// Bytes held for the client.
    pub(in crate::proxy) fn held_bytes(&self) -> usize {
        self.out.iter().map(Bytes::len).sum()
    }

    /// The next bytes for the client.
    pub(in crate::proxy) fn next_out(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }

    pub(in crate::proxy) fn close_connection(&mut self) {
        self.exchange = None;
    }

    /// Closes the engine's connection, and ends the stream with a last event for the client.
    pub(in crate::proxy) fn break_off(&mut self, last: Bytes) {
        self.close_connection();
        self.out.push_back(last);
    }

    /// Reads the next piece of the stream.
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

    /// Reads the frames of a chunk. If all frames pass unchanged, the chunk is relayed in one
    /// piece.
    fn chunk(&mut self, chunk: Bytes) -> StreamStep {
        let starts_frame = self.scanner.leftover() == 0;
        let mut run = FrameRun { chunk: starts_frame.then(|| chunk.clone()), frames: 0, news: false };
        self.scanner.push(chunk);
        loop {
            let frame = match self.scanner.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_too_long) => {
                    let usage = self.classifier.usage();
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
        let verdict = self.classifier.classify(frame);
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
            StreamEventKind::Done => Some(self.end_event()),
            StreamEventKind::Error(error) => Some(StreamStep::Failed(error, self.classifier.usage())),
            _ => None,
        }
    }

    /// Ends the stream after the protocol's end event. The bytes that follow belong to the
    /// connection, not to the answer.
    fn end_event(&mut self) -> StreamStep {
        if let Some(exchange) = self.exchange.take() {
            exchange.finish_in_background();
        }
        self.end(ConnectionEnd::Clean)
    }

    fn end(&mut self, ended: ConnectionEnd) -> StreamStep {
        self.exchange = None;
        match self.classifier.final_verdict(ended) {
            StreamVerdict::Success { usage } => {
                self.complete = Some(usage);
                StreamStep::Complete(usage)
            }
            StreamVerdict::Failed { fault, usage } => StreamStep::Failed(EngineError::Fault(fault), usage),
            StreamVerdict::Refused { error, usage } => StreamStep::Failed(EngineError::Client(error), usage),
        }
    }
}

/// Run of frames of one chunk that pass unchanged. `chunk` is `None` if the chunk cannot be relayed
/// in one piece.
struct FrameRun {
    chunk: Option<Bytes>,
    frames: usize,
    /// Whether a frame of the chunk is more than a comment.
    news: bool,
}

impl FrameRun {
    /// Replaces the frames in `out` by the one chunk that contains them.
    fn join(self, out: &mut VecDeque<Bytes>) {
        if let Some(chunk) = self.chunk
            && self.frames > 1
        {
            out.truncate(out.len() - self.frames);
            out.push_back(chunk);
        }
    }
}
