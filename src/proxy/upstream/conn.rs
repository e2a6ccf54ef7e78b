//! Upstream connection: HTTP/1.1 to an engine, driven by the task that uses it. The connection has
//! no task of its own, so a relayed chunk wakes one task instead of two. The idle connections to one
//! engine are a pool.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::protocol::request::edit::EditedBody;
use crate::proxy::upstream::waker::OwnWaker;

/// Most idle connections that are kept. Further connections are closed after use.
const MAX_IDLE: usize = 1024;

type Driver = Pin<Box<Connection<TokioIo<UpstreamStream>, EditedBody>>>;

/// A connection that can take a request.
pub(super) struct UpstreamConn {
    sender: SendRequest<EditedBody>,
    link: ConnIo,
}

/// The side of a connection that reads and writes, driven by the task that uses it.
struct ConnIo {
    driver: Driver,
    open: bool,
    waker: OwnWaker,
}

impl fmt::Debug for UpstreamConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConn").field("open", &self.link.open).finish_non_exhaustive()
    }
}

impl UpstreamConn {
    pub(super) async fn handshake(stream: UpstreamStream) -> hyper::Result<Self> {
        let (sender, driver) =
            http1::Builder::new().max_buf_size(64 * 1024).handshake(TokioIo::new(stream)).await?;
        let link = ConnIo { driver: Box::pin(driver), open: true, waker: OwnWaker::new() };
        Ok(Self { sender, link })
    }

    /// Sends the request and waits for the answer's head.
    pub(super) async fn send(&mut self, request: Request<EditedBody>) -> hyper::Result<Response<Incoming>> {
        let Self { sender, link } = self;
        poll_fn(|cx| link.poll(cx, |cx| sender.poll_ready(cx))).await?;
        let mut response = std::pin::pin!(sender.send_request(request));
        poll_fn(|cx| link.poll(cx, |cx| response.as_mut().poll(cx))).await
    }

    /// The next piece of the body; `None` at its proper end.
    pub(super) fn poll_data(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Bytes>>> {
        loop {
            let frame = ready!(self.link.poll(cx, |cx| Pin::new(&mut *body).poll_frame(cx)));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                Some(Ok(Err(_trailers))) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    /// Whether the connection can take another request now. An idle connection wakes no task.
    pub(super) fn is_reusable(&mut self) -> bool {
        self.link.drive_idle();
        self.link.open && self.sender.is_ready()
    }
}

impl ConnIo {
    /// Polls `ask`, which makes progress only while the connection is driven.
    fn poll<T>(&mut self, cx: &Context<'_>, ask: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let Self { driver, open, waker } = self;
        waker.poll(cx, ask, |cx| *open = *open && driver.as_mut().poll(cx).is_pending())
    }

    /// Drives the connection once without a task to wake, so that its state is current.
    fn drive_idle(&mut self) {
        let _pending = self.poll(&Context::from_waker(Waker::noop()), |_| Poll::<()>::Pending);
        self.waker.forget();
    }
}

/// Idle connections, the longest unused first.
#[derive(Debug, Default)]
pub(super) struct IdlePool(Mutex<VecDeque<IdleConn>>);

#[derive(Debug)]
struct IdleConn {
    conn: UpstreamConn,
    since: Instant,
}

impl IdlePool {
    /// Takes the connection that was used last. `None` if all connections have been unused for
    /// `keep_alive` or were closed by the engine.
    pub(super) fn take(&self, keep_alive: Duration) -> Option<UpstreamConn> {
        let mut idle = self.0.lock();
        while let Some(IdleConn { mut conn, since }) = idle.pop_back() {
            if since.elapsed() >= keep_alive {
                // The other connections have been unused for even longer.
                idle.clear();
                return None;
            }
            if conn.is_reusable() {
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection that can be used again.
    pub(super) fn put(&self, conn: UpstreamConn) {
        let mut idle = self.0.lock();
        if idle.len() < MAX_IDLE {
            idle.push_back(IdleConn { conn, since: Instant::now() });
        }
    }

    /// Closes connections that were not used for `keep_alive`.
    pub(super) fn close_idle(&self, keep_alive: Duration) {
        let mut idle = self.0.lock();
        while idle.front().is_some_and(|idle| idle.since.elapsed() >= keep_alive) {
            idle.pop_front();
        }
    }
}

/// A connected byte stream.
#[derive(Debug)]
pub(super) enum UpstreamStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Opens a connection. `tls` is the host name that the engine's certificate must have; `None` =
/// plain TCP.
pub(super) async fn connect(address: &str, tls: Option<&str>) -> io::Result<UpstreamStream> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let Some(host) = tls else {
        return Ok(UpstreamStream::Plain(tcp));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(tls_config()?).connect(name, tcp).await?;
    Ok(UpstreamStream::Tls(Box::new(stream)))
}

fn tls_config() -> io::Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        // An error here only means that a provider is already installed.
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        ClientConfig::with_platform_verifier().map(Arc::new).map_err(|error| error.to_string())
    });
    config.clone().map_err(io::Error::other)
}

impl AsyncRead for UpstreamStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
