//! Server of the admin listener, on a thread and a runtime of its own. Operators and Prometheus
//! therefore get answers while the data path is saturated.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request};
use axum::middleware::{self, Next};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::telemetry::Telemetry;
use crate::telemetry::event::{ConnectionRefused, HandshakeFailed};
use crate::tls::{CertificateSource, ConnectionPlaces, Handshakes};

/// Most connections open at once. For one more, an idle one or one of a greedy address ends.
const MAX_CONNECTIONS: usize = 256;
/// Most connections of one address. For one more, its oldest idle one ends.
const MAX_ADDRESS_CONNECTIONS: usize = 32;
/// Limit for a request head, and for the pause between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a request head.
const MAX_HEAD: usize = 16 * 1024;
/// Longest life of a connection, so that a stalled reader cannot hold one for ever.
const MAX_LIFE: Duration = Duration::from_secs(300);
/// Time for the last answer after a connection is told to end.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// Pause after a failed accept (out of file descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Running admin listener. Dropping the handle stops the listener without waiting.
#[derive(Debug)]
pub struct AdminHandle {
    addr: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// TLS of the admin listener.
pub struct AdminTls {
    /// Source of the certificate for each new connection.
    pub source: CertificateSource,
    pub handshakes: Handshakes,
    /// Telemetry that receives failed handshakes.
    pub telemetry: Telemetry,
}

impl std::fmt::Debug for AdminTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminTls").field("handshakes", &self.handshakes).finish_non_exhaustive()
    }
}

/// Binds `addr` and serves `router` there until the handle is stopped.
///
/// # Errors
/// The address cannot be bound, or the thread cannot be started.
pub fn spawn(addr: SocketAddr, router: Router, tls: AdminTls) -> io::Result<AdminHandle> {
    let listener = StdListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    let addr = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _inside = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let thread = std::thread::Builder::new()
        .name("admin".into())
        .spawn(move || runtime.block_on(serve(listener, router, Arc::new(tls), stopped)))?;
    Ok(AdminHandle { addr, stop, thread: Some(thread) })
}

impl AdminHandle {
    /// Address of the listener. When port 0 was configured, this is the real port.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes the listener and waits up to about 2 s for running requests to end.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for AdminHandle {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Arc<AdminTls>,
    mut stopped: watch::Receiver<bool>,
) {
    let places = ConnectionPlaces::new(MAX_CONNECTIONS, MAX_ADDRESS_CONNECTIONS);
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(place) = places.enter(peer.ip()).map(Arc::new) else {
            ConnectionRefused { reason: "address" }.emit(&tls.telemetry);
            continue;
        };
        let router = router.clone().layer(Extension(ConnectInfo(peer))).layer(middleware::from_fn({
            let place = Arc::clone(&place);
            move |request: Request, next: Next| place.begin_call().run(request, next)
        }));
        let (tls, stopped) = (Arc::clone(&tls), stopped.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(stream, peer, router, Arc::clone(&tls), stopped) => {}
                () = place.taken() => ConnectionRefused { reason: "place_needed" }.emit(&tls.telemetry),
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(LAST_ANSWER, places.all_left()).await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    mut router: Router,
    tls: Arc<AdminTls>,
    mut stopped: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let (stream, names) = match tls.handshakes.accept(stream, peer.ip(), (tls.source)()).await {
        Ok(welcome) => welcome,
        Err(error) => {
            return HandshakeFailed { listener: "admin", reason: error.label() }.emit(&tls.telemetry);
        }
    };
    if let Some(names) = names {
        router = router.layer(Extension(names));
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopped.wait_for(|stop| *stop) => {}
        () = tokio::time::sleep(MAX_LIFE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(LAST_ANSWER, connection).await;
}
