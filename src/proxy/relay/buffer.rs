//! Relay buffer: the part of a stream that the engine has sent and the client has not read yet. The
//! pump fills the buffer, and the client's body empties it.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::proxy::relay::memory::AnswerShare;

/// End of a stream, as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum BufferEnd {
    /// The stream is complete.
    Whole,
    /// The stream broke off. Its last bytes give the reason.
    Broken,
}

/// Error of a stream that broke after its client had seen part of it. After an error event, the
/// connection is closed without a proper end.
#[derive(Debug, thiserror::Error)]
#[error("the engine's stream broke")]
pub struct RelayBroken;

/// Creates a buffer of `limit` bytes and returns its two ends.
pub(in crate::proxy) fn stream_buffer(share: AnswerShare, limit: usize) -> (BufferWriter, ClientStream) {
    let buffer = StreamBuffer {
        pieces: VecDeque::new(),
        bytes: 0,
        limit,
        share,
        end: None,
        reader: None,
        reader_waits: false,
        writer: None,
    };
    let buffer = Arc::new(Mutex::new(buffer));
    (BufferWriter(Arc::clone(&buffer)), ClientStream { buffer, filling: None, flushed: false })
}

#[derive(Debug)]
struct StreamBuffer {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    limit: usize,
    share: AnswerShare,
    end: Option<BufferEnd>,
    reader: Option<Waker>,
    reader_waits: bool,
    writer: Option<Waker>,
}

impl StreamBuffer {
    /// Whether the engine should be read. An empty buffer always has room, so every stream proceeds
    /// as fast as its client reads.
    fn has_room(&self) -> bool {
        self.pieces.is_empty() || self.bytes < self.limit && self.share.has_room()
    }

    fn wake_reader(&mut self) -> Option<Waker> {
        let waits = std::mem::take(&mut self.reader_waits);
        self.reader.clone().filter(|_| waits)
    }
}

/// The pump's end of the buffer. Dropping the writer ends the stream as broken, unless the stream
/// has already ended.
#[derive(Debug)]
pub(in crate::proxy) struct BufferWriter(Arc<Mutex<StreamBuffer>>);

impl BufferWriter {
    /// Appends `pieces`, even if the buffer is full. Returns whether there is room for more.
    pub(in crate::proxy) fn push(&self, pieces: impl Iterator<Item = Bytes>) -> bool {
        let mut inner = self.0.lock();
        let before = inner.pieces.len();
        inner.pieces.extend(pieces);
        if inner.pieces.len() == before {
            return inner.has_room();
        }
        let new: usize = inner.pieces.range(before..).map(Bytes::len).sum();
        inner.bytes += new;
        let bytes = inner.bytes;
        inner.share.set(bytes);
        let (room, waker) = (inner.has_room(), inner.wake_reader());
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
        room
    }

    /// Whether the client has read everything.
    pub(in crate::proxy) fn is_empty(&self) -> bool {
        self.0.lock().pieces.is_empty()
    }

    /// Ends the stream. A second call has no effect.
    pub(in crate::proxy) fn end(&self, end: BufferEnd) {
        let mut inner = self.0.lock();
        inner.end.get_or_insert(end);
        let waker = inner.wake_reader();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits until there is room.
    pub(in crate::proxy) async fn room(&self) {
        loop {
            // Registered before the check, so that memory freed after the check is not missed.
            let freed = self.0.lock().share.freed();
            tokio::select! {
                biased;
                () = poll_fn(|cx| self.poll_room(cx)) => return,
                () = freed => {}
            }
        }
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.lock();
        if inner.has_room() {
            return Poll::Ready(());
        }
        inner.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for BufferWriter {
    fn drop(&mut self) {
        self.end(BufferEnd::Broken);
    }
}

/// The client's end of the buffer. An early drop means that the client left, and aborts the task that
/// fills the buffer.
pub struct ClientStream {
    buffer: Arc<Mutex<StreamBuffer>>,
    filling: Option<AbortHandle>,
    /// Whether the last event of a broken stream was passed on and the transport had a turn to
    /// flush it.
    flushed: bool,
}

impl ClientStream {
    /// Sets the task that fills the buffer.
    pub(in crate::proxy) fn filled_by(mut self, filling: AbortHandle) -> Self {
        self.filling = Some(filling);
        self
    }

    /// The next frame of the answer's body.
    pub(in crate::proxy) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayBroken>>> {
        match ready!(self.poll_next(cx)) {
            Ok(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            Err(BufferEnd::Whole) => Poll::Ready(None),
            Err(BufferEnd::Broken) if self.flushed => Poll::Ready(Some(Err(RelayBroken))),
            Err(BufferEnd::Broken) => {
                self.flushed = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// The next piece, or the end of the stream.
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, BufferEnd>> {
        let mut inner = self.buffer.lock();
        if let Some(piece) = inner.pieces.pop_front() {
            inner.bytes -= piece.len();
            let bytes = inner.bytes;
            inner.share.set(bytes);
            let waker = if inner.has_room() { inner.writer.take() } else { None };
            drop(inner);
            waker.into_iter().for_each(Waker::wake);
            return Poll::Ready(Ok(piece));
        }
        if let Some(end) = inner.end {
            return Poll::Ready(Err(end));
        }
        if !inner.reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            inner.reader = Some(cx.waker().clone());
        }
        inner.reader_waits = true;
        Poll::Pending
    }
}

/// The client has left: the task that relays the stream ends, and with it `Pump`, which records what
/// the client got.
impl Drop for ClientStream {
    fn drop(&mut self) {
        if let Some(filling) = &self.filling {
            filling.abort();
        }
    }
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("flushed", &self.flushed).finish_non_exhaustive()
    }
}
