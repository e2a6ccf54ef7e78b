//! An engine's event stream, read frame by frame and judged as it comes.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::core::event::Fault;
use crate::core::job::Usage;
use crate::proxy::upstream::Exchange;
use crate::wire::judge::{EngineError, Forward, FrameKind, Judge, StreamEnd, Transport};
use crate::wire::sse::Scanner;

/// The longest single event that is accepted, in bytes.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// What a piece of the stream brought.
#[derive(Debug)]
pub(super) enum Step {
    /// Something to relay, or nothing visible; the stream goes on.
    More,
    /// The answer is whole.
    Complete(Usage),
    /// It failed.
    Failed(EngineError),
}

/// The stream and what of it may be relayed.
#[derive(Debug)]
pub(super) struct EngineStream {
    exchange: Option<Exchange>,
    scanner: Scanner,
    judge: Judge,
    out: VecDeque<Bytes>,
}

impl EngineStream {
    pub(super) fn new(exchange: Exchange, judge: Judge) -> Self {
        let scanner = Scanner::new(MAX_EVENT_BYTES);
        Self { exchange: Some(exchange), scanner, judge, out: VecDeque::new() }
    }

    /// Bytes for the client, in order.
    pub(super) fn next_out(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }

    /// Whether the first real token (or finish) has come.
    pub(super) fn has_token(&self) -> bool {
        self.judge.has_token()
    }

    /// What is known of the consumption so far.
    pub(super) fn usage_so_far(&self) -> Usage {
        self.judge.usage_so_far()
    }

    /// Bytes held for the client.
    pub(super) fn held_bytes(&self) -> usize {
        self.out.iter().map(Bytes::len).sum()
    }

    /// Reads on.
    pub(super) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Some(exchange) = self.exchange.as_mut() else {
            return Poll::Ready(Step::Failed(EngineError::Fault(Fault::Reset)));
        };
        match exchange.poll_data(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(chunk))) => Poll::Ready(self.chunk(&chunk)),
            Poll::Ready(Some(Err(_))) => Poll::Ready(self.end(Transport::Cut)),
            Poll::Ready(None) => Poll::Ready(self.end(Transport::Clean)),
        }
    }

    fn chunk(&mut self, chunk: &Bytes) -> Step {
        todo!()
    }

    fn end(&mut self, transport: Transport) -> Step {
        self.exchange = None;
        match self.judge.end(transport) {
            StreamEnd::Success(usage) => Step::Complete(usage),
            StreamEnd::Failed(error) => Step::Failed(error),
        }
    }
}
