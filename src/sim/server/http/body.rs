//! Response bodies, the broken ones included.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::conn::BusyGuard;
use crate::server::http::job::{ClientJob, ConnectionFailure};

/// Turns progress into events. Called once for each change, and never again
/// after a progress with an end.
pub(crate) trait Render: Send {
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>);
}

/// Error that makes hyper end the connection.
#[derive(Debug)]
pub(crate) struct BrokenBody;

impl fmt::Display for BrokenBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is broken on purpose")
    }
}

impl Error for BrokenBody {}

/// Time between the last tokens and the failure: hyper flushes its buffer,
/// and the reader sees the tokens before it sees the failure.
const FLUSH: Duration = Duration::from_millis(50);

/// A body that marks its connection as busy.
pub(crate) struct SimBody {
    kind: BodyKind,
    pub(crate) busy: Option<BusyGuard>,
}

enum BodyKind {
    Full(Option<Bytes>),
    Stream(Box<EventBody>),
    /// Half of the announced bytes, then the end of the connection.
    Half {
        bytes: Option<Bytes>,
        claimed: u64,
        flush: Option<Pin<Box<Sleep>>>,
    },
    /// No bytes, for ever; the request stays inside the engine.
    Hang(#[allow(dead_code, reason = "held for its drop")] Box<ClientJob>),
}

impl SimBody {
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self { kind: BodyKind::Full(Some(bytes.into())), busy: None }
    }

    pub(crate) fn stream(job: ClientJob, render: Box<dyn Render>, keep_alive: Option<Duration>) -> Self {
        let keep_alive = keep_alive.map(|every| SseKeepAlive { every, timer: Box::pin(sleep(every)) });
        let queue = VecDeque::new();
        let body = EventBody { job, render, queue, stage: BodyStage::Live, keep_alive };
        Self { kind: BodyKind::Stream(Box::new(body)), busy: None }
    }

    /// The first half of `bytes`, with the length of all of them announced.
    pub(crate) fn half(bytes: &Bytes) -> Self {
        let half = Some(bytes.slice(..bytes.len() / 2));
        Self { kind: BodyKind::Half { bytes: half, claimed: bytes.len() as u64, flush: None }, busy: None }
    }

    pub(crate) fn hang(job: ClientJob) -> Self {
        Self { kind: BodyKind::Hang(Box::new(job)), busy: None }
    }
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = BrokenBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        match &mut self.kind {
            BodyKind::Full(bytes) => Poll::Ready(
                bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))),
            ),
            BodyKind::Stream(stream) => stream.poll(cx).map(|item| item.map(|item| item.map(Frame::data))),
            BodyKind::Half { bytes, flush, .. } => {
                if let Some(bytes) = bytes.take().filter(|bytes| !bytes.is_empty()) {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                let flush = flush.get_or_insert_with(|| Box::pin(sleep(FLUSH)));
                ready!(flush.as_mut().poll(cx));
                Poll::Ready(Some(Err(BrokenBody)))
            }
            BodyKind::Hang(_) => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            BodyKind::Stream(_) | BodyKind::Half { .. } | BodyKind::Hang(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            BodyKind::Half { claimed, .. } => SizeHint::with_exact(*claimed),
            BodyKind::Stream(_) | BodyKind::Hang(_) => SizeHint::default(),
        }
    }
}

enum BodyStage {
    Live,
    /// The stream ends after the queued events.
    Over,
    /// After the flush, the end of this progress is shown.
    Fail(Pin<Box<Sleep>>, Progress),
    /// No further bytes, for ever.
    Hang,
    /// The stream breaks after the flush.
    Break(Pin<Box<Sleep>>),
    /// After the flush, bytes that are no chunk are sent; then the stream
    /// breaks.
    Corrupt(Pin<Box<Sleep>>),
}

struct EventBody {
    job: ClientJob,
    render: Box<dyn Render>,
    queue: VecDeque<Bytes>,
    stage: BodyStage,
    keep_alive: Option<SseKeepAlive>,
}

/// Comments in a stream without events.
struct SseKeepAlive {
    every: Duration,
    timer: Pin<Box<Sleep>>,
}

impl SseKeepAlive {
    fn restart(&mut self) {
        self.timer.as_mut().reset(Instant::now() + self.every);
    }
}

/// Bytes that are neither a field nor UTF-8.
const BAD_SSE: &[u8] = b"dat\xff\xfe {\"choices\"\r\r";
const BAD_JSON: &[u8] =
    b"data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ka\n\n";

impl EventBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        loop {
            if let Some(bytes) = self.queue.pop_front() {
                return Poll::Ready(Some(Ok(bytes)));
            }
            match &mut self.stage {
                BodyStage::Live => match self.job.poll_progress(cx) {
                    Poll::Ready((progress, act)) => self.apply_progress(&progress, act),
                    Poll::Pending => ready!(self.poll_keep_alive(cx)),
                },
                BodyStage::Over => return Poll::Ready(None),
                BodyStage::Fail(flush, progress) => {
                    ready!(flush.as_mut().poll(cx));
                    self.render.render(progress, &mut self.queue);
                    self.stage = BodyStage::Over;
                }
                BodyStage::Hang => return Poll::Pending,
                BodyStage::Break(flush) => {
                    ready!(flush.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(BrokenBody)));
                }
                BodyStage::Corrupt(flush) => {
                    ready!(flush.as_mut().poll(cx));
                    self.job.conn.corrupt();
                    self.queue.push_back(Bytes::from_static(BAD_JSON));
                    self.stage = BodyStage::Break(Box::pin(sleep(FLUSH)));
                }
            }
        }
    }

    fn apply_progress(&mut self, progress: &Progress, act: Option<ConnectionFailure>) {
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.restart();
        }
        if progress.end == Some(FeedEnd::Cut) {
            self.stage = BodyStage::Break(Box::pin(sleep(FLUSH)));
            return;
        }
        if matches!(progress.end, Some(FeedEnd::Failed(_))) && progress.tokens() > 0 {
            let tokens = Progress { end: None, ..progress.clone() };
            self.render.render(&tokens, &mut self.queue);
            self.stage = BodyStage::Fail(Box::pin(sleep(FLUSH)), progress.clone());
            return;
        }
        self.render.render(progress, &mut self.queue);
        if progress.end.is_some() {
            self.stage = BodyStage::Over;
        }
        match act {
            None => {}
            Some(ConnectionFailure::Cut) => self.stage = BodyStage::Break(Box::pin(sleep(FLUSH))),
            Some(ConnectionFailure::Reset) => {
                self.job.conn.reset();
                self.stage = BodyStage::Break(Box::pin(sleep(FLUSH)));
            }
            Some(ConnectionFailure::Silent) => self.stage = BodyStage::Hang,
            Some(ConnectionFailure::BadChunk) => self.stage = BodyStage::Corrupt(Box::pin(sleep(FLUSH))),
            Some(ConnectionFailure::BadSse) => {
                self.queue.push_back(Bytes::from_static(BAD_SSE));
                self.stage = BodyStage::Over;
            }
            Some(ConnectionFailure::BadJson) => self.queue.push_back(Bytes::from_static(BAD_JSON)),
        }
    }

    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(keep_alive) = &mut self.keep_alive else { return Poll::Pending };
        ready!(keep_alive.timer.as_mut().poll(cx));
        keep_alive.restart();
        self.queue.push_back(Bytes::from_static(b": keep-alive\n\n"));
        Poll::Ready(())
    }
}
