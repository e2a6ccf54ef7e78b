//! Accept loop: accepts connections up to a limit, and closes them at shutdown.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::auth::ConnectedClient;
use crate::config::settings::ListenerLimits;
use crate::proxy::body::progress::BodyProgress;
use crate::proxy::listener::answer::BoxError;
use crate::proxy::listener::client_address::{ClientAddresses, ConnectionDenied};
use crate::proxy::listener::conn_state::{ConnState, ListenerMetrics};
use crate::proxy::listener::connection;
use crate::proxy::listener::http2::resets::AddressResets;
use crate::proxy::listener::open_connections::{ListenerShutdown, OpenConnections};
use crate::proxy::listener::workers::Workers;
use crate::telemetry::Telemetry;
use crate::tls::{CertificateSource, Handshakes};

/// Connections that the kernel queues while the connection limit is reached.
const BACKLOG: u32 = 1024;
/// TCP keepalive: idle time before the first probe, and interval of further probes. Keepalive
/// notices a client that lost its power.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest and longest wait after an accept that failed for lack of file descriptors or memory.
const MIN_BACK_OFF: Duration = Duration::from_millis(5);
const MAX_BACK_OFF: Duration = Duration::from_secs(1);
/// Longest wait of a newcomer for the place of a connection that was told to end, before another is
/// told.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// A client's connection, as the service sees it.
#[derive(Debug, Clone)]
pub struct ClientConnection {
    /// Whose it is.
    pub client: ConnectedClient,
    /// Where the service reports how its request bodies arrive.
    pub bodies: Arc<BodyProgress>,
}

/// Binds `address` and listens with the listener's backlog.
///
/// # Errors
/// The error of the operating system: the address is in use, belongs to another machine, or needs
/// more rights.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until `shutdown`, plain or over TLS according to `tls`. Serves HTTP/1.1,
/// HTTP/1.0 and HTTP/2 (by ALPN or with prior knowledge). `make_service` is called once per
/// connection.
///
/// Each connection is one task on one of the `workers`, which also runs its requests. A request
/// whose client leaves is dropped at once. Returns when every connection has ended.
pub async fn serve<M, S, B>(
    listener: TcpListener,
    workers: Arc<Workers>,
    limits: ListenerLimits,
    tls: CertificateSource,
    shutdown: ListenerShutdown,
    telemetry: Telemetry,
    make_service: M,
) where
    M: Fn(ClientConnection) -> S + Clone + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let free = Arc::new(Semaphore::new(limits.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let handshakes = Arc::new(Handshakes::new(limits.max_address_handshakes, limits.handshake_timeout));
    let addresses = Arc::new(ClientAddresses::new(&limits));
    let resets = AddressResets::new();
    let limits = Arc::new(limits);
    let metrics = Arc::new(ListenerMetrics::new(telemetry));
    let mut connections = OpenConnections::new(workers);
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = shutdown.drain.cancelled() => break,
            () = shutdown.abort.cancelled() => break,
            () = connections.join_finished(), if !connections.tasks.is_empty() => continue,
            entry = accept(&listener, &metrics) => entry,
        };
        let owner = match addresses.owner(peer.ip()) {
            Ok(owner) => owner,
            Err(denied) => {
                metrics.refused(denied.label());
                continue;
            }
        };
        let Some(permit) = permit(&free, &mut connections, &shutdown).await else { break };
        let state = Arc::new(ConnState::new(Arc::clone(&metrics)));
        let visit = ConnectionGuard { _permit: permit, metrics: Arc::clone(&metrics) };
        metrics.accepted();
        let (config, handshakes, limits) = (tls(), Arc::clone(&handshakes), Arc::clone(&limits));
        let (make_service, drain) = (make_service.clone(), shutdown.drain.clone());
        let (addresses, resets, told) = (Arc::clone(&addresses), Arc::clone(&resets), Arc::clone(&state));
        connections.spawn(state, async move {
            let visit = visit;
            // From now on the worker's runtime watches the socket.
            let Ok(mut stream) = TcpStream::from_std(stream) else { return };
            // Boxed, so that the connection does not keep its room.
            let welcome = Box::pin(async {
                let (client, place) = addresses.find_client(owner, &mut stream, peer).await?;
                Ok((client, place, handshakes.accept(stream, client.ip(), config).await))
            });
            let welcome = tokio::select! {
                biased;
                welcome = welcome => welcome,
                () = drain.cancelled() => return,
            };
            match welcome {
                Ok((address, place, Ok((stream, names)))) => {
                    // A load balancer holds no place: its streams are those of many addresses.
                    let resets = resets.of(place.is_some().then(|| address.ip()));
                    let client = ConnectedClient { address, names };
                    let service = make_service(ClientConnection { client, bodies: Arc::clone(&told.bodies) });
                    connection::serve(stream, service, limits, told, resets).await;
                }
                Ok((_, _, Err(trouble))) => visit.metrics.handshake_failed(trouble),
                Err(denied) => visit.metrics.refused(ConnectionDenied::label(denied)),
            }
        });
    }
    drop(listener);
    connections.drain(&shutdown).await;
}

/// Waits for a client.
async fn accept(listener: &TcpListener, metrics: &ListenerMetrics) -> (std::net::TcpStream, SocketAddr) {
    let mut back_off = MIN_BACK_OFF;
    loop {
        let accepted = listener.accept().await;
        match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => {
                prepare(&stream);
                return (stream, peer);
            }
            Err(error) if is_client_abort(&error) => {}
            Err(error) => {
                metrics.accept_failed(&error);
                sleep(back_off).await;
                back_off = (back_off * 2).min(MAX_BACK_OFF);
            }
        }
    }
}

/// A permit under the connection limit. At the limit, connections without work, or with slow request
/// bodies, end for it, one after the other; where all have work, the newcomer waits.
async fn permit(
    free: &Arc<Semaphore>,
    connections: &mut OpenConnections,
    shutdown: &ListenerShutdown,
) -> Option<OwnedSemaphorePermit> {
    loop {
        if let Ok(permit) = Arc::clone(free).try_acquire_owned() {
            return Some(permit);
        }
        connections.make_room();
        tokio::select! {
            biased;
            () = shutdown.drain.cancelled() => return None,
            () = shutdown.abort.cancelled() => return None,
            () = connections.join_finished() => {}
            () = sleep(ROOM_PAUSE) => {}
        }
    }
}

/// Sets socket options. Failures are ignored: a socket that refuses these options is about to fail
/// anyway.
fn prepare(stream: &std::net::TcpStream) {
    let _ = stream.set_nodelay(true);
    let probing = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL);
    let _ = SockRef::from(stream).set_tcp_keepalive(&probing);
}

/// Whether an accept failed only because its client left before it was accepted.
fn is_client_abort(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// One connection's permit under the connection limit. Dropping the guard counts the connection as
/// closed.
struct ConnectionGuard {
    _permit: OwnedSemaphorePermit,
    metrics: Arc<ListenerMetrics>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.metrics.closed();
    }
}
