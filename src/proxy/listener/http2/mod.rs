//! HTTP/2 connection. The streams run in the connection's own task, and end with the connection.

pub(super) mod checks;
pub(super) mod resets;

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
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use crate::config::settings::ListenerLimits;
use crate::proxy::listener::answer::BoxError;
use crate::proxy::listener::answer::GuardedService;
use crate::proxy::listener::clock::{ConnClock, ConnWait, Delivery, SendProgress};
use crate::proxy::listener::conn_state::ConnState;
use crate::proxy::listener::http2::resets::{ClientResets, StreamResets, TooManyResets};
use crate::proxy::listener::socket::ClientSocket;

const MAX_STREAMS: u32 = 256;
/// Most bytes of request bodies that wait unread, per stream and per connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Most bytes of an answer that wait unsent, per stream.
const MAX_SEND_BYTES: usize = 64 * 1024;
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// SETTINGS without a setting, and GOAWAY up to the last byte of its error code: no stream was taken.
const NO_STREAMS: [u8; 25] = *b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0";
/// Error codes of RFC 9113, 7.
pub(super) const PROTOCOL_ERROR: u8 = 0x1;
pub(super) const ENHANCE_YOUR_CALM: u8 = 0xb;
/// Longest time in which the client must take these.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves requests until the connection ends. `held` holds the bytes that were already read from
/// the socket.
pub(super) async fn serve<T, S, B>(
    socket: T,
    held: BytesMut,
    mut clock: ConnClock,
    service: S,
    limits: &ListenerLimits,
    state: Arc<ConnState>,
    client: ClientResets,
) where
    T: ClientSocket,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let crew = StreamExecutor { state: Arc::clone(&state), fresh: Arc::default() };
    let tally = StreamCounts::new(&state);
    let progress = SendProgress::new(limits);
    let io = TokioIo::new(ReplayIo { socket, held, progress: progress.fresh() });
    let guarded = GuardedService::new(service, Arc::clone(&state));
    let connection = Builder::new(crew.clone())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MAX_SEND_BYTES)
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(io, guarded);
    let mut connection = pin!(connection);
    let mut streams = FuturesUnordered::new();
    let mut resets = StreamResets::new(MAX_STREAMS, client);
    let mut told = false;
    poll_fn(|cx| {
        if !told && state.poll_draining(cx).is_ready() {
            told = true;
            clock.clear();
            connection.as_mut().graceful_shutdown();
        }
        // The connection's result is ignored: each stream reports its own end.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let fresh = crew.take();
        let opened = fresh.len();
        streams.extend(
            fresh.map(|(work, delivery)| AnswerStream::new(work, delivery, progress.fresh(), &tally)),
        );
        while let Poll::Ready(Some(())) = streams.poll_next_unpin(cx) {}
        // After GOAWAY, only its own resets cut a connection off: its streams may be those of others
        // behind the same address.
        let too_many = resets.note(opened, tally.take_reset());
        if too_many.is_some_and(|whose| !told || whose == TooManyResets::Connection) {
            state.metrics.refused("stream_resets");
        } else if tally.take_moved() || streams.len() > tally.stalled() {
            // Streams whose clients take no bytes do not keep the connection open.
            clock.clear();
            return Poll::Pending;
        } else {
            // A client has the time limit of a head to react to GOAWAY.
            let wait = if told { ConnWait::Head } else { ConnWait::Idle };
            ready!(clock.poll_overdue(cx, wait));
        }
        // GOAWAY lets the running streams end. A client that does not heed it is cut off.
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

/// Ends a connection before its first stream, with the error code `code`.
pub(super) async fn refuse<T: ClientSocket>(mut socket: T, code: u8) {
    let telling = async {
        socket.write_all(&NO_STREAMS).await?;
        socket.write_all(&[code]).await?;
        socket.shutdown().await
    };
    // A client that does not take it is left.
    let _ = timeout(FAREWELL, telling).await;
}

type StreamWork = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A stream that does not run yet, with the delivery progress of its answer.
type NewStream = (StreamWork, Arc<Delivery>);

/// Executor that collects hyper's new streams for the connection's task to run. hyper passes a
/// stream as soon as hyper has called the service for it.
#[derive(Clone)]
struct StreamExecutor {
    state: Arc<ConnState>,
    fresh: Arc<Mutex<Vec<NewStream>>>,
}

impl StreamExecutor {
    fn take(&self) -> impl ExactSizeIterator<Item = NewStream> {
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
        f.debug_struct("StreamExecutor").field("fresh", &self.fresh.lock().len()).finish_non_exhaustive()
    }
}

/// Counters that the streams of one connection share. All streams run in the connection's task, so
/// relaxed loads and stores suffice.
#[derive(Clone)]
struct StreamCounts {
    state: Arc<ConnState>,
    /// Number of streams with bytes that their clients have not taken.
    stalled: Arc<AtomicUsize>,
    /// Whether a client has taken bytes since the last check.
    moved: Arc<AtomicBool>,
    /// Streams that ended before their answers began, since the last check: their clients reset them.
    reset: Arc<AtomicUsize>,
}

impl StreamCounts {
    fn new(state: &Arc<ConnState>) -> Self {
        Self {
            state: Arc::clone(state),
            stalled: Arc::default(),
            moved: Arc::default(),
            reset: Arc::default(),
        }
    }

    fn stalled(&self) -> usize {
        self.stalled.load(Ordering::Relaxed)
    }

    fn take_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    fn take_reset(&self) -> usize {
        self.reset.swap(0, Ordering::Relaxed)
    }
}

/// One stream, with the delivery progress of its answer. When the stream ends before its answer,
/// HTTP/2 sends a reset to the client.
struct AnswerStream {
    work: StreamWork,
    delivery: Arc<Delivery>,
    progress: SendProgress,
    /// Bytes of the answer that the client has taken, as last seen.
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

    /// Ready when the client takes the waiting bytes too slowly.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let taken = self.delivery.taken();
        if taken > self.taken {
            self.progress.took(taken - self.taken);
            self.taken = taken;
            self.tally.moved.store(true, Ordering::Relaxed);
        }
        let waits = self.delivery.waits();
        self.set_stalled(waits);
        if waits {
            return self.progress.poll_overdue(cx);
        }
        self.progress.pause();
        Poll::Pending
    }
}

impl Future for AnswerStream {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let me = self.get_mut();
        if me.work.as_mut().poll(cx).is_ready() {
            if !me.delivery.has_begun() {
                me.tally.reset.fetch_add(1, Ordering::Relaxed);
            }
            return Poll::Ready(());
        }
        ready!(me.poll_late(cx));
        me.tally.state.metrics.cut_off();
        Poll::Ready(())
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        self.set_stalled(false);
    }
}

/// A socket whose first bytes were already read.
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
    /// Measures the client's progress by a write. The write fails when the client is too slow.
    fn timed(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match write {
            Poll::Ready(Ok(bytes)) => self.progress.took(bytes as u64),
            Poll::Pending if self.progress.poll_overdue(cx).is_ready() => {
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
