//! HTTP/2 connection. Its streams run in the connection's own task, so they end with it.

pub(super) mod checks;

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

use crate::proxy::listener::answer::BoxError;
use crate::proxy::listener::answer::GuardedService;
use crate::proxy::listener::clock::{ConnClock, ConnWait};
use crate::proxy::listener::conn_state::ConnState;
use crate::proxy::listener::progress::{Delivery, SendProgress};
use crate::proxy::listener::socket::ClientSocket;

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
    (socket, held): (T, BytesMut),
    (mut clock, progress): (ConnClock, SendProgress),
    service: S,
    max_head_bytes: usize,
    state: Arc<ConnState>,
) where
    T: ClientSocket,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let crew = StreamExecutor { state: Arc::clone(&state), fresh: Arc::default() };
    let tally = StreamCounts::new(&state);
    let io = TokioIo::new(ReplayIo { socket, held, progress: progress.fresh() });
    let guarded = GuardedService::new(service, Arc::clone(&state));
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
        let fresh = crew.take();
        streams.extend(
            fresh.map(|(work, delivery)| AnswerStream::new(work, delivery, progress.fresh(), &tally)),
        );
        while let Poll::Ready(Some(())) = streams.poll_next_unpin(cx) {}
        // Streams whose clients take nothing do not keep the connection.
        if tally.has_moved() || streams.len() > tally.stalled() {
            clock.clear();
            return Poll::Pending;
        }
        // A client that answers no GOAWAY gets a head's time to do so.
        let wait = if told { ConnWait::Head } else { ConnWait::Idle };
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

type StreamWork = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A stream that nobody runs yet, and how its client takes the answer.
type NewStream = (StreamWork, Arc<Delivery>);

/// Takes hyper's new streams for the connection's task to run. hyper hands one
/// over as soon as it has called the service for it.
#[derive(Clone)]
struct StreamExecutor {
    state: Arc<ConnState>,
    fresh: Arc<Mutex<Vec<NewStream>>>,
}

impl StreamExecutor {
    fn take(&self) -> impl Iterator<Item = NewStream> {
        std::mem::take(&mut *self.fresh.lock()).into_iter()
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let delivery = self.state.take_delivery();
        self.fresh.lock().push((Box::pin(stream), delivery));
    }
}

impl fmt::Debug for StreamExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("fresh", &self.fresh.lock().len()).finish_non_exhaustive()
    }
}

/// What the streams of one connection have in common. All run in its task, so
/// plain loads and stores order well.
#[derive(Clone)]
struct StreamCounts {
    state: Arc<ConnState>,
    /// Streams whose clients have not taken what waits for them.
    stalled: Arc<AtomicUsize>,
    /// Whether a client has taken something since this was last asked.
    moved: Arc<AtomicBool>,
}

impl StreamCounts {
    fn new(state: &Arc<ConnState>) -> Self {
        Self { state: Arc::clone(state), stalled: Arc::default(), moved: Arc::default() }
    }

    fn stalled(&self) -> usize {
        self.stalled.load(Ordering::Relaxed)
    }

    fn has_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }
}

/// One stream, and how its client takes the answer. When it ends before its
/// answer has, HTTP/2 tells the client by a reset.
struct AnswerStream {
    work: StreamWork,
    delivery: Arc<Delivery>,
    progress: SendProgress,
    /// Bytes of the answer that the client was seen to take.
    taken: u64,
    is_stalled: bool,
    tally: StreamCounts,
}

impl AnswerStream {
    fn new(work: StreamWork, delivery: Arc<Delivery>, progress: SendProgress, tally: &StreamCounts) -> Self {
        Self { work, delivery, progress, taken: 0, is_stalled: false, tally: tally.clone() }
    }

    fn set_stalled(&mut self, is_stalled: bool) {
        if self.is_stalled != is_stalled {
            self.is_stalled = is_stalled;
            let others = self.tally.stalled();
            let now = if is_stalled { others + 1 } else { others.saturating_sub(1) };
            self.tally.stalled.store(now, Ordering::Relaxed);
        }
    }

    /// Whether the client is too late with what waits for it.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let taken = self.delivery.taken();
        if taken > self.taken {
            self.progress.took(taken - self.taken);
            self.taken = taken;
            self.tally.moved.store(true, Ordering::Relaxed);
        }
        let waits = self.delivery.waits();
        self.set_stalled(waits);
        if !waits {
            self.progress.rests();
        }
        waits && self.progress.overdue(cx)
    }
}

impl Future for AnswerStream {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let me = self.get_mut();
        if me.work.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if me.is_late(cx) {
            me.tally.state.metrics.cut_off();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        self.set_stalled(false);
    }
}

/// A socket whose first bytes were read before.
#[derive(Debug)]
struct ReplayIo<T> {
    socket: T,
    held: BytesMut,
    progress: SendProgress,
}

impl<T: ClientSocket> AsyncRead for ReplayIo<T> {
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

impl<T> ReplayIo<T> {
    /// Times the client by a write of so many bytes; one that it is too late
    /// with fails.
    fn timed(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match write {
            Poll::Ready(Ok(bytes)) => self.progress.took(bytes as u64),
            Poll::Pending if self.progress.overdue(cx) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending | Poll::Ready(Err(_)) => {}
        }
        write
    }
}

impl<T: ClientSocket> AsyncWrite for ReplayIo<T> {
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
