//! One HTTP/2 connection. Its streams run in the connection's own task, so
//! they end with it.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2::Builder;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::server::BoxError;
use crate::proxy::server::answer::Guarded;
use crate::proxy::server::clock::{Clock, StallGuard, Wait};
use crate::proxy::server::socket::Socket;
use crate::proxy::server::state::ConnState;

const MAX_STREAMS: u32 = 256;
/// Bytes of request bodies that may wait unread, per stream and connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of answers that may wait unsent, per stream.
const MAX_SEND_BYTES: usize = 64 * 1024;
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves requests until the connection ends. `held` has what was read from
/// the socket before.
pub(super) async fn serve<T, S, B>(
    socket: T,
    held: BytesMut,
    mut clock: Clock,
    service: S,
    max_head_bytes: usize,
    state: Arc<ConnState>,
) where
    T: Socket,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let crew = Crew::default();
    let io = TokioIo::new(Replay { socket, held, stall: StallGuard::default() });
    let guarded = Guarded::new(service, Arc::clone(&state));
    let connection = Builder::new(crew.clone())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MAX_SEND_BYTES)
        .max_header_list_size(u32::try_from(max_head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(io, guarded);
    let mut connection = pin!(connection);
    let mut streams = FuturesUnordered::new();
    let mut told = false;
    poll_fn(|cx| {
        if !told && state.is_draining(cx) {
            told = true;
            clock.clear();
            connection.as_mut().graceful_shutdown();
        }
        // How it ended is of no interest: the streams know their own fate.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        streams.extend(crew.0.lock().drain(..));
        while let Poll::Ready(Some(())) = streams.poll_next_unpin(cx) {}
        if !streams.is_empty() {
            clock.clear();
            return Poll::Pending;
        }
        // A client that answers no GOAWAY gets a head's time to do so.
        let wait = if told { Wait::Head } else { Wait::Idle };
        if !clock.overdue(cx, wait) {
            return Poll::Pending;
        }
        if told {
            return Poll::Ready(());
        }
        told = true;
        connection.as_mut().graceful_shutdown();
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes hyper's new streams for the connection's task to run.
#[derive(Clone, Default)]
struct Crew(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Crew {
    fn execute(&self, stream: F) {
        self.0.lock().push(Box::pin(stream));
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("new", &self.0.lock().len()).finish()
    }
}

/// A socket whose first bytes were read before.
#[derive(Debug)]
struct Replay<T> {
    socket: T,
    held: BytesMut,
    stall: StallGuard,
}

impl<T: Socket> AsyncRead for Replay<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, out);
        }
        let count = self.held.len().min(out.remaining());
        out.put_slice(&self.held[..count]);
        self.held.advance(count);
        if self.held.is_empty() {
            self.held = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Socket> AsyncWrite for Replay<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        let write = Pin::new(&mut me.socket).poll_write(cx, bytes);
        me.stall.check(cx, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        let write = Pin::new(&mut me.socket).poll_write_vectored(cx, bytes);
        me.stall.check(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
