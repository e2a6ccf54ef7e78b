//! Upstream connection: HTTP/1.1 to an engine, read and written by the task that uses it. The
//! connection has no task and no buffer of its own: a relayed chunk wakes one task, and a stream
//! that waits holds no memory for what it may read.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::response::Parts;
use memchr::memchr_iter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::has_budget_remaining;

use crate::protocol::http1::answer::{AnswerFrame, AnswerHead, MAX_HEAD_BYTES, MalformedAnswer};
use crate::proxy::upstream::connect::UpstreamStream;

/// Most bytes of one read, and with it of one piece of an answer.
const READ_BYTES: usize = 64 * 1024;
/// Most parts of a request that one system call writes.
const MAX_SLICES: usize = 16;

thread_local! {
    /// What this thread reads goes through here and leaves in pieces of its own size.
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Failure before the head of an answer.
#[derive(Debug)]
pub(super) struct NoHead {
    pub(super) error: ExchangeError,
    /// Whether the engine had sent a part of its answer: it has got the request.
    pub(super) had_begun: bool,
}

/// Reason why an exchange on a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection broke.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The engine closed the connection before the answer was whole.
    #[error("the engine closed the connection before its answer was whole")]
    Closed,
    /// The engine's bytes are no HTTP.
    #[error(transparent)]
    Malformed(#[from] MalformedAnswer),
}

/// A connection that can take a request.
pub(super) struct UpstreamConn {
    stream: UpstreamStream,
    outgoing: Outgoing,
    /// Data that arrived together with the head.
    early: Bytes,
    body: AnswerFrame,
    /// Whether the connection can take another request after this answer.
    keep_alive: bool,
}

impl UpstreamConn {
    pub(super) fn new(stream: UpstreamStream) -> Self {
        let (outgoing, early) = (Outgoing::done(), Bytes::new());
        Self { stream, outgoing, early, body: AnswerFrame::Length(0), keep_alive: true }
    }

    /// Sends the request and waits for the answer's head. An engine may answer before it has the
    /// whole request; the rest is then sent while the answer is read.
    pub(super) async fn send(&mut self, parts: Vec<Bytes>) -> Result<Parts, NoHead> {
        self.outgoing = Outgoing::new(parts);
        let mut arrived = Vec::new();
        let head = poll_fn(|cx| self.poll_head(cx, &mut arrived)).await;
        head.map_err(|error| NoHead { error, had_begun: !arrived.is_empty() })
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        arrived: &mut Vec<u8>,
    ) -> Poll<Result<Parts, ExchangeError>> {
        self.poll_rest_of_request(cx);
        loop {
            let found = ready!(poll_read(&mut self.stream, cx, |bytes| read_head(bytes, arrived)));
            if let Some((head, early)) = found?? {
                (self.body, self.early) = (head.body, early);
                self.keep_alive &= head.keep_alive;
                return Poll::Ready(Ok(head.parts));
            }
        }
    }

    /// Writes what the engine takes. An engine that takes no more may have answered all the same, so
    /// the reading side says how the exchange ends.
    fn poll_rest_of_request(&mut self, cx: &mut Context<'_>) {
        if let Poll::Ready(Err(_)) = self.outgoing.poll_write(&mut self.stream, cx) {
            (self.outgoing, self.keep_alive) = (Outgoing::done(), false);
        }
    }

    /// The next piece of the body; `None` at its proper end.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ExchangeError>>> {
        if !self.early.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.early))));
        }
        self.poll_rest_of_request(cx);
        while !self.body.has_ended() {
            let Self { stream, body, keep_alive, .. } = self;
            if let Some(error) = body.broken() {
                return Poll::Ready(Some(Err(MalformedAnswer::from(error).into())));
            }
            match ready!(poll_read(stream, cx, |bytes| read_data(bytes, body, keep_alive))) {
                Ok(Ok(data)) if data.is_empty() => {}
                Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Err(error)) => return Poll::Ready(Some(Err(error))),
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
        Poll::Ready(None)
    }

    /// Reads from the socket, and returns whether the connection can take another request now. An idle
    /// connection wakes no task.
    pub(super) fn check_reusable(&mut self) -> bool {
        // Neither the connection's end nor a byte may have arrived.
        let is_quiet =
            |stream| poll_read(stream, &mut Context::from_waker(Waker::noop()), |_| ()).is_pending();
        self.keep_alive
            && self.body.has_ended()
            && self.early.is_empty()
            && self.outgoing.is_flushed
            // Without budget every read is pending.
            && has_budget_remaining()
            && is_quiet(&mut self.stream)
    }
}

/// Without what is sent and read: keys, prompts and answers.
impl fmt::Debug for UpstreamConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConn").field("keep_alive", &self.keep_alive).finish_non_exhaustive()
    }
}

/// Reads into the thread's buffer and hands the bytes to `take`: none at the connection's end.
fn poll_read<T>(
    stream: &mut UpstreamStream,
    cx: &mut Context<'_>,
    take: impl FnOnce(&mut [u8]) -> T,
) -> Poll<io::Result<T>> {
    READ_BUFFER.with_borrow_mut(|buffer| {
        let mut read = ReadBuf::new(buffer);
        ready!(Pin::new(stream).poll_read(cx, &mut read))?;
        Poll::Ready(Ok(take(read.filled_mut())))
    })
}

/// Reads the head, which begins with what has `arrived`, and the data behind it. `None` if the head
/// is not whole.
fn read_head(bytes: &mut [u8], arrived: &mut Vec<u8>) -> Result<Option<(AnswerHead, Bytes)>, ExchangeError> {
    if bytes.is_empty() {
        return Err(ExchangeError::Closed);
    }
    if !arrived.is_empty() {
        // A head that comes byte by byte is not parsed at each byte.
        let from = arrived.len().saturating_sub(3);
        arrived.extend_from_slice(bytes);
        let may_end = memchr_iter(b'\n', &arrived[from..])
            .any(|at| matches!(arrived[from + at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]));
        return if may_end || arrived.len() >= MAX_HEAD_BYTES { split_head(arrived) } else { Ok(None) };
    }
    let found = split_head(bytes)?;
    if found.is_none() {
        arrived.extend_from_slice(bytes);
    }
    Ok(found)
}

fn split_head(bytes: &mut [u8]) -> Result<Option<(AnswerHead, Bytes)>, ExchangeError> {
    let Some(mut head) = AnswerHead::parse(bytes)? else { return Ok(None) };
    let behind = &mut bytes[head.length..];
    let early = match behind.len() {
        0 => Bytes::new(),
        _ => read_data(behind, &mut head.body, &mut head.keep_alive)?,
    };
    Ok(Some((head, early)))
}

/// The data in the next bytes of the body. Bytes behind the answer make the connection unusable.
fn read_data(
    bytes: &mut [u8],
    body: &mut AnswerFrame,
    keep_alive: &mut bool,
) -> Result<Bytes, ExchangeError> {
    if bytes.is_empty() {
        return if body.close() { Ok(Bytes::new()) } else { Err(ExchangeError::Closed) };
    }
    let taken = body.decode(bytes);
    *keep_alive &= taken.all == bytes.len();
    Ok(Bytes::copy_from_slice(&bytes[..taken.data]))
}

/// The parts of a request that are not written yet.
struct Outgoing {
    parts: Vec<Bytes>,
    /// Parts that are written.
    written: usize,
    /// Written bytes of the next part.
    offset: usize,
    is_flushed: bool,
}

impl Outgoing {
    const fn new(parts: Vec<Bytes>) -> Self {
        Self { parts, written: 0, offset: 0, is_flushed: false }
    }

    const fn done() -> Self {
        Self { parts: Vec::new(), written: 0, offset: 0, is_flushed: true }
    }

    fn is_empty(&self) -> bool {
        self.written == self.parts.len()
    }

    fn poll_write(&mut self, stream: &mut UpstreamStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let left = &self.parts[self.written..];
            let count = left.len().min(MAX_SLICES);
            for (slice, part) in slices.iter_mut().zip(left) {
                *slice = IoSlice::new(part);
            }
            slices[0] = IoSlice::new(&left[0][self.offset..]);
            match ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.advance(bytes),
            }
        }
        if !self.is_flushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            *self = Self::done();
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
        while let Some(part) = self.parts.get_mut(self.written).filter(|part| part.len() <= self.offset) {
            self.offset -= part.len();
            // A written part is not held any longer.
            *part = Bytes::new();
            self.written += 1;
        }
    }
}
