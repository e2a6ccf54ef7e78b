//! Relay buffer: the part of a stream that the engine has sent and the client has not read yet. The
//! pump fills the buffer, and the client's body empties it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::proxy::relay::memory::AnswerShare;

/// End of a stream, as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum BufferEnd {
    /// The stream is complete.
    Whole,
    /// The stream broke off. Its last bytes give the reason.
    Broken,
}

/// Creates a buffer of `limit` bytes and returns its two ends.
pub(in crate::proxy) fn stream_buffer(share: AnswerShare, limit: usize) -> (BufferWriter, BufferReader) {
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
    (BufferWriter(Arc::clone(&buffer)), BufferReader(buffer))
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

/// The client's end of the buffer.
#[derive(Debug)]
pub(in crate::proxy) struct BufferReader(Arc<Mutex<StreamBuffer>>);

impl BufferReader {
    /// The next piece, or the end of the stream.
    pub(in crate::proxy) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, BufferEnd>> {
        let mut inner = self.0.lock();
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
