//! Instant engine: a fake OpenAI engine that costs as little CPU as possible.
//!
//! It stands behind a gateway that is being measured, so it holds no model
//! and no timing beyond a fixed delay and a fixed pace.

mod answers;
mod body;
mod peek;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::engine::answers::Answers;
use crate::engine::body::{Answer, Paced};
use crate::engine::peek::Wish;

/// Largest request body the engine takes.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Arguments of `loadtest engine`.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long)]
    pub port: u16,
    /// Time before a plain answer, or before a stream's first event.
    #[arg(long, default_value_t = 0)]
    pub delay_ms: u64,
    /// Tokens of an answer whose request does not limit them lower.
    #[arg(long, default_value_t = 20)]
    pub tokens: u32,
    /// Time between two token events; 0 sends them at once.
    #[arg(long, default_value_t = 0)]
    pub interval_ms: u64,
    /// Bytes of one token event; vLLM's have about 220.
    #[arg(long, default_value_t = 220)]
    pub chunk_bytes: usize,
    /// Model name in answers and in /v1/models.
    #[arg(long, default_value = "m")]
    pub model: String,
}

impl EngineArgs {
    /// An engine on a free loopback port with no delay and 20 tokens.
    pub fn instant() -> Self {
        EngineArgs {
            host: std::net::Ipv4Addr::LOCALHOST.into(),
            port: 0,
            delay_ms: 0,
            tokens: 20,
            interval_ms: 0,
            chunk_bytes: 220,
            model: "m".to_owned(),
        }
    }
}

/// What the engine has seen so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Answers in progress.
    pub running: AtomicU64,
    /// Requests to a generating route.
    pub requests: AtomicU64,
    /// Answers that were dropped before their end.
    pub aborted: AtomicU64,
}

/// Holds one place in [`Counts::running`]; counts an abort unless finished.
#[derive(Debug)]
pub(crate) struct Running {
    counts: Arc<Counts>,
    finished: bool,
}

impl Running {
    fn start(counts: &Arc<Counts>) -> Self {
        counts.running.fetch_add(1, Ordering::Relaxed);
        counts.requests.fetch_add(1, Ordering::Relaxed);
        Running { counts: Arc::clone(counts), finished: false }
    }

    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.finished {
            self.counts.aborted.fetch_add(1, Ordering::Relaxed);
        }
        self.counts.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A bound engine, ready to serve.
#[derive(Debug)]
pub struct Engine {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    answers: Arc<Answers>,
    counts: Arc<Counts>,
    delay: Duration,
    pace: Arc<Pace>,
}

/// Length and speed of the answers; a change counts for requests that come after it.
#[derive(Debug)]
pub struct Pace {
    tokens: AtomicU32,
    interval_micros: AtomicU64,
}

impl Pace {
    /// Tokens of an answer whose request does not limit them lower, and the time between two
    /// token events; 0 sends them at once.
    pub fn new(tokens: u32, interval: Duration) -> Self {
        let pace = Pace { tokens: AtomicU32::new(0), interval_micros: AtomicU64::new(0) };
        pace.set(tokens, interval);
        pace
    }

    /// Changes both.
    pub fn set(&self, tokens: u32, interval: Duration) {
        self.tokens.store(tokens, Ordering::Relaxed);
        let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
        self.interval_micros.store(micros, Ordering::Relaxed);
    }

    fn tokens(&self) -> u32 {
        self.tokens.load(Ordering::Relaxed)
    }

    fn interval(&self) -> Duration {
        Duration::from_micros(self.interval_micros.load(Ordering::Relaxed))
    }
}

impl Engine {
    /// Binds the engine's port.
    ///
    /// # Errors
    /// When the port cannot be bound.
    pub async fn bind(args: &EngineArgs) -> Result<Self> {
        let address = SocketAddr::new(args.host, args.port);
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let shared = Shared {
            answers: Arc::new(Answers::new(&args.model, args.chunk_bytes)),
            counts: Arc::default(),
            delay: Duration::from_millis(args.delay_ms),
            pace: Arc::new(Pace::new(args.tokens, Duration::from_millis(args.interval_ms))),
        };
        Ok(Engine { listener, shared: Arc::new(shared) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the operating system cannot tell.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Its counters, alive after the engine has moved into a task.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.shared.counts)
    }

    /// Its pace, to change it after the engine has moved into a task.
    pub fn pace(&self) -> Arc<Pace> {
        Arc::clone(&self.shared.pace)
    }

    /// Accepts and serves until the future is dropped.
    pub async fn serve(self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(serve_connection(stream, Arc::clone(&self.shared)));
                }
                Err(error) => {
                    eprintln!("accept failed: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Runs `loadtest engine`.
///
/// # Errors
/// When the port cannot be bound.
pub async fn command(args: &EngineArgs) -> Result<()> {
    let engine = Engine::bind(args).await?;
    println!("listening on http://{}", engine.address()?);
    engine.serve().await;
    Ok(())
}

async fn serve_connection(stream: TcpStream, shared: Arc<Shared>) {
    // Without it a paced event could wait for an acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let service = service_fn(move |request| answer(Arc::clone(&shared), request));
    // A client that goes away ends the connection with an error; that is
    // counted by `Running` and needs no log line.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let path = request.uri().path();
    let response = match (request.method(), path) {
        (&Method::POST, "/v1/chat/completions") => generate(&shared, request, Shape::Openai).await,
        (&Method::POST, "/v1/messages") => generate(&shared, request, Shape::Anthropic).await,
        (&Method::GET, "/health") => full(StatusCode::OK, "text/plain", Bytes::new()),
        (&Method::GET, "/v1/models") => {
            full(StatusCode::OK, "application/json", shared.answers.models.clone())
        }
        (&Method::GET, "/metrics") => {
            full(StatusCode::OK, "text/plain; version=0.0.4", shared.answers.metrics(&shared.counts))
        }
        _ => full(
            StatusCode::NOT_FOUND,
            "application/json",
            Bytes::from_static(br#"{"error":{"message":"Not Found","type":"NotFoundError","code":404}}"#),
        ),
    };
    Ok(response)
}

/// The API an answer is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `/v1/chat/completions`
    Openai,
    /// `/v1/messages`
    Anthropic,
}

async fn generate(shared: &Arc<Shared>, request: Request<Incoming>, shape: Shape) -> Response<Answer> {
    let mut running = Running::start(&shared.counts);
    let Ok(collected) = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await else {
        return full(StatusCode::PAYLOAD_TOO_LARGE, "text/plain", Bytes::from_static(b"body too large"));
    };
    let wish = Wish::read(&collected.to_bytes());
    let script = shared.answers.script(shape, &wish, shared.pace.tokens());
    if wish.stream {
        let interval = shared.pace.interval();
        let body = Paced::new(Arc::clone(&shared.answers), script, shared.delay, interval, running);
        return respond(StatusCode::OK, "text/event-stream; charset=utf-8", Answer::Stream(body));
    }
    if !shared.delay.is_zero() {
        tokio::time::sleep(shared.delay).await;
    }
    running.finish();
    full(StatusCode::OK, "application/json", shared.answers.plain(&script))
}

fn full(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Answer> {
    respond(status, kind, Answer::Full(body))
}

fn respond(status: StatusCode, kind: &'static str, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
