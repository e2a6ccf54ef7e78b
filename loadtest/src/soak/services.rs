//! Services that gateways depend on: trace collector, identity provider, Kubernetes API server and
//! name server, each small and able to go away.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Poller, Poll};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use penstock::telemetry::wall;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};

/// How long a token holds, back and forth: longer than any jump of a clock.
const TOKEN_HOLDS: Duration = Duration::from_secs(40 * 86_400);

type Answers = Arc<dyn Fn(&str) -> Option<Value> + Send + Sync>;

/// A server of JSON answers. `None` as an answer is a body that never ends.
pub(super) struct JsonService {
    pub(super) address: SocketAddr,
    answers: Answers,
    silent: Arc<AtomicBool>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for JsonService {
    fn drop(&mut self) {
        self.go_away();
    }
}

impl JsonService {
    pub(super) async fn start(
        answers: impl Fn(&str) -> Option<Value> + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port is free")?;
        let address = listener.local_addr()?;
        let (answers, silent): (Answers, _) = (Arc::new(answers), Arc::<AtomicBool>::default());
        let serving = tokio::spawn(serve(listener, Arc::clone(&answers), Arc::clone(&silent)));
        Ok(Self { address, answers, silent, serving: Mutex::new(Some(serving)) })
    }

    /// Nobody listens any more, and every connection breaks.
    pub(super) fn go_away(&self) {
        if let Some(serving) = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take() {
            serving.abort();
        }
    }

    /// Takes requests and answers none.
    pub(super) fn fall_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Answers again.
    pub(super) async fn come_back(&self) -> Result<()> {
        self.silent.store(false, Ordering::Relaxed);
        if self.serving.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let listener = TcpListener::bind(self.address).await.context("a port was taken meanwhile")?;
        let serving = tokio::spawn(serve(listener, Arc::clone(&self.answers), Arc::clone(&self.silent)));
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving);
        Ok(())
    }
}

async fn serve(listener: TcpListener, answers: Answers, silent: Arc<AtomicBool>) {
    // Dropped with this task, and their connections with them.
    let mut open = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (answers, silent) = (Arc::clone(&answers), Arc::clone(&silent));
        open.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (answers, silent) = (Arc::clone(&answers), Arc::clone(&silent));
                async move {
                    let path = request.uri().to_string();
                    let _sent = request.into_body().collect().await;
                    if silent.load(Ordering::Relaxed) {
                        std::future::pending::<()>().await;
                    }
                    let body = match answers(&path) {
                        Some(value) => http_body_util::Full::new(Bytes::from(value.to_string())).boxed(),
                        None => BoxBody::new(Endless),
                    };
                    Ok::<_, Infallible>(Response::new(body))
                }
            });
            let _ended = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// A body of which nothing comes.
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Poller<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// An identity provider, and a token of it that opens the tenant `app`.
pub(super) async fn identity() -> Result<(JsonService, String)> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("no signing key")?;
    let key = EncodingKey::from_ec_der(&pair.serialize_der());
    let mut public = serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::ES256)?)?;
    public["kid"] = "soak".into();
    public["use"] = "sig".into();
    let service = JsonService::start(move |_| Some(json!({ "keys": [public] }))).await?;
    let now = wall::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let claims = json!({
        "iss": format!("http://{}", service.address), "aud": "penstock", "sub": "soak", "tenant": "app",
        "nbf": (now - TOKEN_HOLDS).as_secs(), "exp": (now + TOKEN_HOLDS).as_secs(),
    });
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("soak".to_owned());
    let token = jsonwebtoken::encode(&header, &claims, &key)?;
    Ok((service, token))
}

/// An API server with one EndpointSlice for each engine.
pub(super) async fn cluster(ports: &[u16]) -> Result<JsonService> {
    let slice = |port: &u16| {
        json!({
            "metadata": {"name": format!("s{port}"), "resourceVersion": "1"}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        })
    };
    let items: Vec<Value> = ports.iter().map(slice).collect();
    let list = json!({"metadata": {"resourceVersion": "1"}, "items": items});
    JsonService::start(move |path| (!path.contains("watch=true")).then(|| list.clone())).await
}

/// How the name server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    Away,
    Failing,
}

/// A name server that knows where some engines are (SRV).
#[derive(Debug)]
pub(super) struct NameServer {
    pub(super) address: SocketAddr,
    mood: Arc<Mutex<Mood>>,
    serving: JoinHandle<()>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl NameServer {
    pub(super) async fn start(ports: Vec<u16>) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.context("no port is free")?;
        let (address, mood) = (socket.local_addr()?, Arc::new(Mutex::new(Mood::Well)));
        let shared = Arc::clone(&mood);
        let serving = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let mood = *shared.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(answer) = look_up(&buffer[..length], &ports, mood) {
                    let _sent = socket.send_to(&answer, peer).await;
                }
            }
        });
        Ok(Self { address, mood, serving })
    }

    pub(super) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }
}

fn look_up(question: &[u8], ports: &[u16], mood: Mood) -> Option<Vec<u8>> {
    if mood == Mood::Away {
        return None;
    }
    let question = Message::from_vec(question).ok()?;
    let query = question.queries.first()?.clone();
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    answer.metadata.authoritative = true;
    answer.add_query(query.clone());
    if mood == Mood::Failing {
        answer.metadata.response_code = ResponseCode::ServFail;
        return answer.to_vec().ok();
    }
    let host = Name::from_str("host.engines.test.").ok()?;
    let data: Vec<RData> = match query.query_type() {
        RecordType::SRV => ports.iter().map(|port| RData::SRV(SRV::new(1, 1, *port, host.clone()))).collect(),
        RecordType::A => vec![RData::A(A(Ipv4Addr::LOCALHOST))],
        _ => Vec::new(),
    };
    answer.add_answers(data.into_iter().map(|data| Record::from_rdata(query.name().clone(), 1, data)));
    answer.to_vec().ok()
}
