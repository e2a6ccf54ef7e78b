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
use tokio::net::TcpStream;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::settings::identity::ClientTls;
use crate::protocol::request::edit::EditedBody;
use crate::proxy::upstream::waker::OwnWaker;
use crate::tls::MaybeTlsStream;

/// Most idle connections that a runtime keeps to one engine. Further ones are closed after use.
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

/// Idle connections to one engine. A runtime uses the connections that it opened: only it watches
/// their sockets.
#[derive(Debug, Default)]
pub(super) struct IdlePool(Mutex<Vec<RuntimeConns>>);

/// Idle connections of one runtime, the longest unused first.
#[derive(Debug)]
struct RuntimeConns {
    runtime: runtime::Id,
    idle: VecDeque<IdleConn>,
}

#[derive(Debug)]
struct IdleConn {
    conn: UpstreamConn,
    since: Instant,
}

impl IdlePool {
    /// Takes the connection that this runtime used last. `None` if all its connections have been
    /// unused for `keep_alive` or were closed by the engine.
    pub(super) fn take(&self, keep_alive: Duration) -> Option<UpstreamConn> {
        let runtime = Handle::current().id();
        let mut pool = self.0.lock();
        let idle = &mut pool.iter_mut().find(|conns| conns.runtime == runtime)?.idle;
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

    /// Keeps a connection that this runtime can use again.
    pub(super) fn put(&self, conn: UpstreamConn) {
        let runtime = Handle::current().id();
        let new = IdleConn { conn, since: Instant::now() };
        let mut pool = self.0.lock();
        match pool.iter_mut().find(|conns| conns.runtime == runtime) {
            Some(conns) if conns.idle.len() < MAX_IDLE => conns.idle.push_back(new),
            Some(_full) => {}
            None => pool.push(RuntimeConns { runtime, idle: VecDeque::from([new]) }),
        }
    }

    /// Closes connections that were not used for `keep_alive`.
    pub(super) fn close_idle(&self, keep_alive: Duration) {
        for RuntimeConns { idle, .. } in self.0.lock().iter_mut() {
            while idle.front().is_some_and(|idle| idle.since.elapsed() >= keep_alive) {
                idle.pop_front();
            }
        }
    }
}

/// The byte stream of a connection to an engine.
pub(super) type UpstreamStream = MaybeTlsStream<TlsStream<TcpStream>>;

/// TLS of connections to one engine.
#[derive(Debug)]
pub(super) struct UpstreamTls {
    /// The name that its certificate must have.
    pub(super) name: Box<str>,
    /// TLS of its pool. `None` = the system's authorities.
    pub(super) own: Option<ClientTls>,
}

/// Opens a connection. `tls` = `None` means plain TCP.
pub(super) async fn connect(address: &str, tls: Option<&UpstreamTls>) -> io::Result<UpstreamStream> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let Some(UpstreamTls { name, own }) = tls else {
        return Ok(UpstreamStream::Plain(tcp));
    };
    let name = ServerName::try_from(name.to_string()).map_err(io::Error::other)?;
    let config = own.as_ref().map_or_else(tls_config, |own| Ok(Arc::clone(&own.config)))?;
    let stream = TlsConnector::from(config).connect(name, tcp).await?;
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
