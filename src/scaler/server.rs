//! Scaler server: the threads and the listener. They are separate from the data path, so that KEDA
//! gets its answers while the data path is saturated.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::config::settings::Settings;
use crate::core::autoscale::peers::MAX_PEERS;
use crate::scaler::follow::{keep_fresh, refresh};
use crate::scaler::peers::{self, PeerRules};
use crate::scaler::proto::DESCRIPTORS;
use crate::scaler::proto::external_scaler_server::{ExternalScalerServer, SERVICE_NAME};
use crate::scaler::rpc::ScalerService;
use crate::scaler::signal_cache::SignalCache;
use crate::scaler::source::DemandSource;
use crate::telemetry::event::{ConnectionRefused, HandshakeFailed};
use crate::tls::{CertificateNames, CertificateSource, ConnectionPlace, ConnectionPlaces, Handshakes};

/// Most connections open at once. KEDA has one from its operator and one from its metrics adapter.
/// Each peer has one.
const MAX_CONNECTIONS: usize = 64 + MAX_PEERS;
/// Most connections of one address. For one more, its oldest idle one ends.
const MAX_ADDRESS_CONNECTIONS: usize = 32;
/// Streams allowed on a connection in addition to `scale.max_streams`.
const EXTRA_STREAMS: usize = 256;
/// Most bytes of one request, which is mostly trigger metadata.
const MAX_REQUEST: usize = 64 * 1024;
const MAX_HEAD: u32 = 16 * 1024;
/// Most bytes buffered: unread ones of requests, and unsent ones of answers.
const WINDOW: u32 = 64 * 1024;
const MAX_SEND_BYTES: usize = 64 * 1024;
/// The server sends pings, because KEDA sends none: a lost client shows only by a missing pong.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for the last answers of a shutdown.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Pause after a failed accept (out of file descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Two threads: one may wait for the scheduler while the other answers.
const THREADS: usize = 2;

pub struct ScalerListener {
    pub address: SocketAddr,
    /// Source of the certificate for each new connection.
    pub tls: CertificateSource,
    pub handshakes: Handshakes,
    /// Time from the handshake to the first call. Later the pings show whether the client is there.
    pub first_call_timeout: Duration,
}

impl fmt::Debug for ScalerListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalerListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Running scaler. Dropping the handle stops the scaler without waiting.
pub struct ScalerHandle {
    address: Option<SocketAddr>,
    cache: Arc<SignalCache>,
    health: HealthReporter,
    stop: watch::Sender<bool>,
    places: Arc<ConnectionPlaces>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for ScalerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalerHandle").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Starts the refresh of the signal cache, and the server if there is a listener. `others` are the
/// gateways that serve the same demand.
///
/// # Errors
/// The address cannot be bound, or a thread cannot be started.
pub fn start(
    cache: Arc<SignalCache>,
    source: DemandSource,
    listener: Option<ScalerListener>,
    others: Option<PeerRules>,
) -> io::Result<ScalerHandle> {
    let threads = if listener.is_some() { THREADS } else { 1 };
    let runtime =
        Builder::new_multi_thread().worker_threads(threads).thread_name("scale").enable_all().build()?;
    refresh(&source, &cache);
    let (stop, stopped) = watch::channel(false);
    let places = ConnectionPlaces::new(MAX_CONNECTIONS, MAX_ADDRESS_CONNECTIONS);
    let (health, health_server) = health_reporter();
    let mut address = None;
    if let Some(rules) = listener {
        let socket = StdListener::bind(rules.address)?;
        socket.set_nonblocking(true)?;
        address = Some(socket.local_addr()?);
        let socket = {
            let _inside = runtime.enter();
            TcpListener::from_std(socket)?
        };
        let routes = routes(&cache, health_server)?;
        let reporter = health.clone();
        runtime.spawn(async move { reporter.set_service_status(SERVICE_NAME, ServingStatus::Serving).await });
        let door = ScalerServer {
            rules,
            cache: Arc::clone(&cache),
            routes,
            max_streams: cache.settings().scale.max_streams.saturating_add(EXTRA_STREAMS),
            stopped,
            places: Arc::clone(&places),
        };
        runtime.spawn(Arc::new(door).serve(socket));
    }
    if let (Some(exchange), Some(rules)) = (&cache.exchange, others) {
        runtime.spawn(peers::listen(Arc::clone(exchange), rules));
    }
    runtime.spawn(keep_fresh(source, Arc::clone(&cache)));
    Ok(ScalerHandle { address, cache, health, stop, places, runtime: Some(runtime) })
}

/// Whether a client whose certificate has these names may connect. `names` is `None` when the
/// client showed no certificate.
fn is_allowed(settings: &Settings, names: Option<&CertificateNames>) -> bool {
    let Some(allowed) = &settings.scale.names else { return true };
    names.is_some_and(|names| names.iter().any(|name| allowed.contains(name)))
}

/// Routes of the external scaler, health, peers and reflection.
fn routes(
    cache: &Arc<SignalCache>,
    health: tonic_health::pb::health_server::HealthServer<impl tonic_health::pb::health_server::Health>,
) -> io::Result<Router> {
    let scaler =
        ExternalScalerServer::new(ScalerService(Arc::clone(cache))).max_decoding_message_size(MAX_REQUEST);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = Routes::new(scaler).add_service(health);
    if let Some(exchange) = cache.exchange.as_ref().filter(|exchange| !exchange.has_store()) {
        routes = routes.add_service(peers::service(exchange));
    }
    let routes = routes
        .add_service(reflection().build_v1().map_err(io::Error::other)?)
        .add_service(reflection().build_v1alpha().map_err(io::Error::other)?);
    Ok(routes.prepare().into_axum_router())
}

impl ScalerHandle {
    /// Address of the listener. When port 0 was configured, this is the real port.
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Ends all streams without an error, so that clients look for another gateway. Other calls are
    /// still answered.
    pub fn drain(&self) {
        self.cache.end_streams();
        let health = self.health.clone();
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                health.set_service_status("", ServingStatus::NotServing).await;
                health.set_service_status(SERVICE_NAME, ServingStatus::NotServing).await;
            });
        }
    }

    /// Says goodbye to the other gateways. The demand of this one no longer counts.
    pub fn leave(&self) {
        if let Some(exchange) = &self.cache.exchange {
            exchange.leave();
        }
    }

    /// Closes the listener and waits up to 2 s for running calls to end.
    pub async fn stop(mut self) {
        self.cache.end_streams();
        self.leave();
        self.stop.send_replace(true);
        let _in_time = tokio::time::timeout(STOP_GRACE, self.places.all_left()).await;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for ScalerHandle {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// State shared by the listener's connections.
struct ScalerServer {
    rules: ScalerListener,
    cache: Arc<SignalCache>,
    routes: Router,
    max_streams: usize,
    stopped: watch::Receiver<bool>,
    places: Arc<ConnectionPlaces>,
}

impl ScalerServer {
    async fn serve(self: Arc<Self>, socket: TcpListener) {
        let mut stopped = self.stopped.clone();
        loop {
            let accepted = tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => return,
                accepted = socket.accept() => accepted,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Some(place) = self.places.enter(peer.ip()).map(Arc::new) else {
                ConnectionRefused { reason: "address" }.emit(&self.cache.telemetry);
                continue;
            };
            let server = Arc::clone(&self);
            tokio::spawn(async move {
                tokio::select! {
                    () = Arc::clone(&server).connection(stream, peer, Arc::clone(&place)) => {}
                    () = place.taken() => {
                        ConnectionRefused { reason: "place_needed" }.emit(&server.cache.telemetry);
                    }
                }
            });
        }
    }

    fn refused(&self, reason: &'static str) {
        HandshakeFailed { listener: "scale", reason }.emit(&self.cache.telemetry);
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, place: Arc<ConnectionPlace>) {
        let _ = stream.set_nodelay(true);
        let (stream, names) = match self.rules.handshakes.accept(stream, peer.ip(), (self.rules.tls)()).await
        {
            Ok(welcome) => welcome,
            Err(error) => return self.refused(error.label()),
        };
        if !is_allowed(&self.cache.settings(), names.as_deref()) {
            return self.refused("not_allowed");
        }
        let called = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&called);
        let routes = self.routes.clone().layer(middleware::from_fn(move |call: Request, next: Next| {
            seen.store(true, Ordering::Relaxed);
            place.begin_call().run(call, next)
        }));
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(u32::try_from(self.max_streams).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_send_buf_size(MAX_SEND_BYTES)
            .max_header_list_size(MAX_HEAD)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
        let mut connection = pin!(connection);
        let mut stopped = self.stopped.clone();
        let is_silent = async {
            tokio::time::sleep(self.rules.first_call_timeout).await;
            if called.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = connection.as_mut() => return,
            () = is_silent => return,
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(STOP_GRACE, connection).await;
    }
}
