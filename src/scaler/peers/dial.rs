//! Peer connections: one stream of reports from each place at which a gateway should be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::config::settings::Settings;
use crate::config::settings::scale::PeerAddress;
use crate::core::autoscale::peers::{LIVE, MAX_PEERS, ReportOutcome};
use crate::protocol::ids::random;
use crate::scaler::proto::gateways::WatchRequest;
use crate::scaler::proto::gateways::gateways_client::GatewaysClient;
use crate::telemetry::event::{PeerHeard, PeerLost};

use super::wire::{MAX_REPORT, decode, encode_id};
use crate::scaler::peers::exchange::{PeerExchange, shown};

/// Limit for a connection with its handshake, and for the head of the first answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Shortest and longest pause before a place is tried again.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3)];
/// Pause before a place that turned out to be this gateway is tried again.
const OWN_PLACE_PAUSE: Duration = Duration::from_secs(60);

/// Places of the peers, and the settings of connections to them.
pub struct PeerRules {
    /// Places as they change; absent until DNS has answered.
    pub places: watch::Receiver<Option<BTreeSet<PeerAddress>>>,
    /// Settings in force; connections use their `scale.peers.tls`.
    pub settings: Arc<ArcSwap<Settings>>,
}

impl fmt::Debug for PeerRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerRules").field("places", &*self.places.borrow()).finish_non_exhaustive()
    }
}

/// Reason why a peer's stream ended.
enum PeerStreamEnd {
    /// The peer said goodbye.
    Left,
    /// The place is this gateway.
    OwnGateway,
    /// The connection failed; the text says why.
    Lost(String),
}

/// Keeps a stream from every place until dropped.
pub(in crate::scaler) async fn listen(exchange: Arc<PeerExchange>, rules: PeerRules) {
    let PeerRules { mut places, settings } = rules;
    let mut running: BTreeMap<PeerAddress, PeerTask> = BTreeMap::new();
    loop {
        let listed = places.borrow_and_update().clone();
        if let Some(listed) = listed {
            let listed: BTreeSet<PeerAddress> = listed.into_iter().take(MAX_PEERS).collect();
            exchange.set_places(&listed);
            running.retain(|_, task| !task.0.is_finished());
            for place in &listed {
                running.entry(place.clone()).or_insert_with(|| {
                    let caller = PeerCaller {
                        exchange: Arc::clone(&exchange),
                        key: place.to_string(),
                        place: place.clone(),
                        settings: Arc::clone(&settings),
                    };
                    PeerTask(tokio::spawn(caller.run()))
                });
            }
        }
        if places.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Task that is aborted when its owner drops it.
struct PeerTask(JoinHandle<()>);

impl Drop for PeerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Caller of one place.
struct PeerCaller {
    exchange: Arc<PeerExchange>,
    key: String,
    place: PeerAddress,
    settings: Arc<ArcSwap<Settings>>,
}

impl PeerCaller {
    /// Calls the place again and again, until it is no longer expected.
    async fn run(self) {
        let (mut pause, mut lost) = (RETRY_PAUSES[0], false);
        loop {
            let mut heard = false;
            let end = self.session(&mut heard).await;
            if heard {
                (pause, lost) = (RETRY_PAUSES[0], false);
            }
            if !self.exchange.expects(&self.key) {
                return;
            }
            match end {
                PeerStreamEnd::OwnGateway => sleep(OWN_PLACE_PAUSE).await,
                PeerStreamEnd::Left => sleep(jittered(RETRY_PAUSES[0])).await,
                PeerStreamEnd::Lost(problem) => {
                    let first = !std::mem::replace(&mut lost, true);
                    let (place, problem) = (&*self.key, &*problem);
                    PeerLost { place, problem, first }.emit(&self.exchange.telemetry);
                    sleep(jittered(pause)).await;
                    pause = (pause * 2).min(RETRY_PAUSES[1]);
                }
            }
        }
    }

    /// One connection, from its start to its end. Sets `heard` when a report arrives.
    async fn session(&self, heard: &mut bool) -> PeerStreamEnd {
        let lost = |what: &dyn fmt::Display| PeerStreamEnd::Lost(what.to_string());
        let late = || PeerStreamEnd::Lost("no answer in time".to_owned());
        let channel = match timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(problem)) => return PeerStreamEnd::Lost(problem),
            Err(_) => return late(),
        };
        let mut client = GatewaysClient::new(channel).max_decoding_message_size(MAX_REPORT);
        let request = WatchRequest { from: Some(encode_id(self.exchange.me)) };
        let mut stream = match timeout(CONNECT_TIMEOUT, client.watch(request)).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return lost(&status),
            Err(_) => return late(),
        };
        loop {
            let sent = match timeout(LIVE, stream.message()).await {
                Ok(Ok(Some(sent))) => sent,
                Ok(Ok(None)) => return lost(&"it ended the stream"),
                Ok(Err(status)) => return lost(&status),
                Err(_) => return lost(&"it says nothing"),
            };
            let Some(report) = decode(sent) else { return lost(&"it does not say who it is") };
            let (from, leaving) = (report.from, report.leaving);
            match self.exchange.receive(&self.key, report) {
                ReportOutcome::Own => return PeerStreamEnd::OwnGateway,
                _ if leaving => return PeerStreamEnd::Left,
                ReportOutcome::Stale | ReportOutcome::Stored | ReportOutcome::Urgent => {}
            }
            if !std::mem::replace(heard, true) {
                PeerHeard { place: &self.key, id: &shown(from) }.emit(&self.exchange.telemetry);
            }
        }
    }

    async fn connect(&self) -> Result<Channel, String> {
        let endpoint =
            Endpoint::from_shared(format!("http://{}", self.place)).map_err(|error| error_chain(&error))?;
        let tls = self.settings.load().scale.peers.as_ref().and_then(|peers| peers.tls.clone());
        let dial = PeerConnector { place: self.place.clone(), tls: tls.map(|tls| tls.config) };
        endpoint.connect_with_connector(dial).await.map_err(|error| error_chain(&error))
    }
}

/// Text of an error and its causes. tonic's own text only says that there was an error.
fn error_chain(error: &tonic::transport::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Random pause of 0.75 to 1 times `pause`, so that many gateways do not call at the same moment.
fn jittered(pause: Duration) -> Duration {
    let [random] = random::buffered_bytes();
    pause.mul_f64(0.75 + f64::from(random) / 1024.0)
}

/// Connector to one place, whatever host the URL names.
#[derive(Clone)]
struct PeerConnector {
    place: PeerAddress,
    tls: Option<Arc<ClientConfig>>,
}

impl PeerConnector {
    async fn open(self) -> io::Result<TokioIo<Box<dyn PeerIo>>> {
        let tcp = TcpStream::connect((&*self.place.host, self.place.port)).await?;
        let _ = tcp.set_nodelay(true);
        let Some(certified) = self.place.certified else { return Ok(TokioIo::new(Box::new(tcp))) };
        let config = self.tls.ok_or_else(|| io::Error::other("no authority is known"))?;
        let name = ServerName::try_from(certified).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, tcp).await?;
        Ok(TokioIo::new(Box::new(stream)))
    }
}

/// A byte stream, with TLS or without.
trait PeerIo: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> PeerIo for T {}

impl Service<Uri> for PeerConnector {
    type Response = TokioIo<Box<dyn PeerIo>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().open())
    }
}
