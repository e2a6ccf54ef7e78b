//! Strict byte stream: the bytes that hyper's HTTP/1 connection reads. Only whole, valid heads and
//! valid body bytes pass, one message at a time.
//!
//! The stream holds a message's bytes back until the answer to the message before it has been
//! written. hyper's own buffer is therefore empty while a request runs, hyper's read notices when
//! the client leaves, and a bad message cannot cut short the answer to a good one.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use crate::proxy::listener::clock::{ConnClock, ConnWait, SendProgress};
use crate::proxy::listener::conn_state::ConnState;
use crate::proxy::listener::http1::framing::Framing;
use crate::proxy::listener::rejected::RequestRejected;
use crate::proxy::listener::socket::{ClientSocket, READ_BYTES, poll_append};

/// Limits, in time and bytes, within which a closing connection still reads the client's input. A
/// reset would destroy the answer on its way to the client. A client may send a body that is much
/// too long, and read the answer only after its last byte.
const LINGER: Duration = Duration::from_secs(30);
const LINGER_BYTES: usize = 256 * 1024 * 1024;
/// Longest wait of a closing connection for more input, and for its own last bytes to be sent.
const LINGER_SILENCE: Duration = Duration::from_secs(5);

/// A client's HTTP/1 byte stream.
#[derive(Debug)]
pub(in crate::proxy::listener) struct StrictIo<T> {
    socket: T,
    state: Arc<ConnState>,
    framing: Framing,
    /// Bytes read from the socket and not yet passed to hyper.
    held: BytesMut,
    /// Number of bytes in `held` that may be passed to hyper.
    approved: usize,
    /// Whether a request runs: from the approval of its head until its answer is written.
    in_flight: bool,
    /// Whether the client has closed its side or the socket has failed.
    ended: bool,
    /// Reason why the current head was refused. [`Self::finish`] sends the answer.
    refusal: Option<RequestRejected>,
    /// Whether hyper waits for a read, so that the socket wakes hyper.
    reading: bool,
    clock: ConnClock,
    progress: SendProgress,
}

impl<T: ClientSocket> StrictIo<T> {
    /// `held` holds the bytes that were already read from the socket.
    pub(in crate::proxy::listener) fn new(
        socket: T,
        held: BytesMut,
        clock: ConnClock,
        progress: SendProgress,
        max_head_bytes: usize,
        state: Arc<ConnState>,
    ) -> Self {
        Self {
            socket,
            state,
            framing: Framing::new(max_head_bytes),
            held,
            approved: 0,
            in_flight: false,
            ended: false,
            refusal: None,
            reading: false,
            clock,
            progress,
        }
    }

    fn poll_release(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.approved > 0 {
                self.pass_approved(out);
                return Poll::Ready(Ok(()));
            }
            if self.refusal.is_some() {
                return Poll::Ready(Ok(()));
            }
            if self.framing.is_whole() {
                return self.poll_disconnected(cx).map(Ok);
            }
            if !self.held.is_empty() {
                match self.framing.advance(&self.held) {
                    Ok(0) => {}
                    Ok(approved) => {
                        self.approve();
                        self.approved = approved;
                        continue;
                    }
                    Err(refusal) => return Poll::Ready(self.refuse(refusal)),
                }
            }
            if self.ended {
                return Poll::Ready(self.end_of_input());
            }
            match self.poll_more(cx, out) {
                Poll::Ready(Ok(true)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_overdue(cx),
            }
        }
    }

    /// Reads once, straight into `out` if `held` is empty. Returns whether `out` got approved
    /// bytes.
    fn poll_more(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<bool>> {
        if !self.held.is_empty() {
            let read = ready!(poll_append(&mut self.socket, cx, &mut self.held))?;
            self.ended = read == 0;
            return Poll::Ready(Ok(false));
        }
        let before = out.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, out))?;
        let fresh = &out.filled()[before..];
        if fresh.is_empty() {
            self.ended = true;
            return Poll::Ready(Ok(false));
        }
        // The next check of the held bytes finds a refusal again.
        let approved = self.framing.advance(fresh).unwrap_or(0);
        self.held.extend_from_slice(&fresh[approved..]);
        out.set_filled(before + approved);
        if approved > 0 {
            self.approve();
        }
        Poll::Ready(Ok(approved > 0))
    }

    fn approve(&mut self) {
        self.in_flight = true;
        self.clock.clear();
        if self.framing.is_whole() {
            self.state.set_request_whole();
        }
    }

    fn pass_approved(&mut self, out: &mut ReadBuf<'_>) {
        let count = self.approved.min(out.remaining());
        out.put_slice(&self.held[..count]);
        self.held.advance(count);
        self.approved -= count;
        if self.held.is_empty() {
            self.held = BytesMut::new();
        }
    }

    /// Gives up on the input. A bad head looks like the end of input to hyper, and [`Self::finish`]
    /// answers it. A bad body fails hyper's read, and the refusal replaces the service's answer.
    fn refuse(&mut self, refusal: RequestRejected) -> io::Result<()> {
        if !self.in_flight {
            self.refuse_head(refusal);
            return Ok(());
        }
        if self.state.fault().is_none() {
            self.state.metrics.refused(refusal.label());
            self.state.set_fault(refusal);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, refusal))
    }

    /// Marks the current head as refused. [`Self::finish`] sends the answer.
    pub(in crate::proxy::listener) fn refuse_head(&mut self, refusal: RequestRejected) {
        self.state.metrics.refused(refusal.label());
        self.refusal = Some(refusal);
    }

    fn end_of_input(&mut self) -> io::Result<()> {
        if self.in_flight { self.refuse(RequestRejected::BodyCutShort) } else { Ok(()) }
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (wait, refusal) = match (self.in_flight, self.held.is_empty()) {
            (true, _) => (ConnWait::Body, Some(RequestRejected::BodyTimeout)),
            (false, false) => (ConnWait::Head, Some(RequestRejected::HeadTimeout)),
            (false, true) => (ConnWait::Idle, None),
        };
        ready!(self.clock.poll_overdue(cx, wait));
        Poll::Ready(refusal.map_or(Ok(()), |refusal| self.refuse(refusal)))
    }

    /// Ready when the client has left while its request runs. One buffer holds what the client sends
    /// after its request. While the request is not whole, or the buffer is full, the socket is not
    /// read but watched: hyper reads a body straight from the socket.
    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.ended {
            if self.framing.is_whole() && self.held.len() < READ_BYTES {
                let read = ready!(poll_append(&mut self.socket, cx, &mut self.held));
                self.ended = matches!(read, Ok(0) | Err(_));
            } else if ready!(self.socket.poll_disconnected(cx)) {
                self.ended = true;
            } else {
                ready!(self.clock.poll_overdue(cx, ConnWait::Watch));
                self.clock.clear();
            }
        }
        Poll::Ready(())
    }

    /// Measures the client's progress by a write. The write fails when the client is too slow.
    fn timed(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match write {
            Poll::Ready(Ok(bytes)) => self.progress.took(bytes as u64),
            Poll::Ready(Err(_)) => {}
            Poll::Pending if self.progress.poll_overdue(cx).is_ready() => {
                self.state.metrics.cut_off();
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending => {}
        }
        write
    }

    /// Called after all of hyper's pending output is written.
    fn flushed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let reading = mem::take(&mut self.reading);
        if !self.in_flight {
            return Poll::Ready(Ok(()));
        }
        if self.state.is_answered() && self.framing.is_whole() && self.approved == 0 {
            self.in_flight = false;
            self.clock.clear();
            self.framing.next_message();
            self.state.next_request();
            self.progress.begins();
            // hyper may not read until it is woken: by input that is already here, or by the end of
            // the idle time.
            if self.ended || !self.held.is_empty() || self.clock.poll_overdue(cx, ConnWait::Idle).is_ready() {
                cx.waker().wake_by_ref();
            }
        } else if !reading && self.poll_disconnected(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the connection: answers a refused head, closes the sending side, and reads the client's
    /// remaining input for a short time.
    pub(in crate::proxy::listener) async fn finish(mut self) {
        if let Some(refusal) = self.refusal {
            let answer = refusal.wire();
            if !matches!(timeout(LINGER_SILENCE, self.socket.write_all(&answer)).await, Ok(Ok(()))) {
                return;
            }
        }
        if !matches!(timeout(LINGER_SILENCE, self.socket.shutdown()).await, Ok(Ok(()))) || self.ended {
            return;
        }
        if self.in_flight || self.refusal.is_some() || !self.held.is_empty() {
            let _ = timeout(LINGER, self.discard()).await;
        }
    }

    /// Reads and discards input until the client ends, stalls, or reaches the byte limit.
    async fn discard(&mut self) {
        let mut left = LINGER_BYTES;
        self.held = BytesMut::with_capacity(READ_BYTES);
        while let Ok(Ok(read @ 1..)) = timeout(LINGER_SILENCE, self.socket.read_buf(&mut self.held)).await {
            self.held.clear();
            left = left.saturating_sub(read);
            if left == 0 {
                return;
            }
        }
    }
}

impl<T: ClientSocket> AsyncRead for StrictIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        let read = me.poll_release(cx, out);
        me.reading = read.is_pending();
        read
    }
}

impl<T: ClientSocket> AsyncWrite for StrictIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        let write = Pin::new(&mut me.socket).poll_write(cx, bytes);
        me.timed(cx, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        let write = Pin::new(&mut me.socket).poll_write_vectored(cx, bytes);
        me.timed(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        let flush = Pin::new(&mut me.socket).poll_flush(cx);
        let flush = flush.map_ok(|()| 0);
        ready!(me.timed(cx, flush))?;
        me.flushed(cx)
    }

    /// Does nothing. [`StrictIo::finish`] shuts the socket down, after its other steps.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
