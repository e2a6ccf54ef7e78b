//! Tests of spans: their attributes, their parents and the sampling.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SimpleSpanProcessor, SpanData, SpanExporter};
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::config::settings::{LogFormat, OtlpProtocol, OtlpSettings, Secret, TelemetrySettings};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::core::model::time::Tick;
use crate::telemetry::Telemetry;
use crate::telemetry::summary::{
    CallFacts, LastDispatch, RequestIds, RequestOutcome, RequestSummary, TokenFacts,
};
use crate::telemetry::trace::{EngineCall, RequestPhase, TraceStart, Tracer};

const POST: &str = "POST /v1/chat/completions";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Memory {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

fn recording(sample: f64) -> (Tracer, Memory) {
    let memory = Memory::default();
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample)));
    (Tracer::with_processor(SimpleSpanProcessor::new(memory.clone()), sampler, Some("penstock")), memory)
}

fn start(headers: &HeaderMap) -> TraceStart<'_> {
    let (arrived, now) = (Tick::from_millis(1_000), Tick::from_millis(1_003));
    TraceStart { headers, operation: "chat", model: Some("llama"), arrived, now }
}

fn client_headers(parent: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_static(parent));
    headers.insert("tracestate", HeaderValue::from_static("vendor=1"));
    headers
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|pair| pair.key.as_str() == key).map(|pair| pair.value.to_string())
}

fn millis(from: SystemTime, to: SystemTime) -> u128 {
    to.duration_since(from).unwrap().as_millis()
}

fn call(url: &Uri, number: u32) -> EngineCall<'_> {
    EngineCall {
        url: Some(url),
        path: "/v1/chat/completions",
        pool: "a100",
        replica: "a100/http://10.0.0.1:8000",
        number,
    }
}

fn at(millis: u64) -> Tick {
    Tick::from_millis(millis)
}

/// The spans of a request whose first attempt fails, and the headers that the engines got.
fn two_attempts() -> (Vec<SpanData>, [HeaderMap; 2]) {
    let (tracer, memory) = recording(0.0);
    let mut trace = tracer.start(start(&client_headers(PARENT)));
    assert_eq!(trace.trace_id().as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
    let (mut first, mut second) = (client_headers(PARENT), client_headers(PARENT));
    let [secure, plain] =
        ["https://engine.example.com/base", "http://10.0.0.1:8000"].map(|url| url.parse::<Uri>().unwrap());
    trace.phase(RequestPhase::Queue, at(1_004), at(1_104));
    trace.attempt(&call(&secure, 1), at(1_104));
    trace.inject(&mut first);
    trace.phase(RequestPhase::Connect, at(1_105), at(1_106));
    trace.attempt_ended(Some("reset"), at(1_110));
    trace.attempt(&call(&plain, 2), at(1_120));
    trace.inject(&mut second);
    trace.attempt_answered(StatusCode::OK);
    trace.phase(RequestPhase::FirstToken, at(1_120), at(1_270));
    let usage = Some(JobUsage::Exact(TokenCounts { input: 9, cached: Some(4), output: 2 }));
    let event = RequestSummary {
        call: CallFacts { operation: "chat", ..CallFacts::default() },
        dispatch: LastDispatch { engine: Some("vllm"), ..LastDispatch::default() },
        status: 502,
        tokens: TokenFacts { usage, ..TokenFacts::default() },
        reason: Some("upstream_failed"),
        finish_reason: Some("stop"),
        ..RequestSummary::default()
    };
    trace.finish(&event, &Telemetry::for_tests().policy(), at(2_000));
    let spans = memory.0.lock().clone();
    (spans, [first, second])
}

#[test]
fn a_request_becomes_a_span_under_the_clients_with_one_for_each_wait_and_attempt() {
    let (spans, headers) = two_attempts();
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["queue", "connect", POST, "first_token", POST, "chat llama"]);
    let [queue, connect, broken, first_token, last, server] = &spans[..] else { panic!("{names:?}") };
    assert_eq!(server.span_kind, SpanKind::Server);
    assert_eq!(server.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
    assert_eq!(server.status, Status::error("upstream_failed"));
    assert_eq!(millis(server.start_time, server.end_time), 1_000);
    for (child, parent) in
        [(queue, server), (broken, server), (last, server), (connect, broken), (first_token, last)]
    {
        assert_eq!(child.parent_span_id, parent.span_context.span_id(), "{}", child.name);
        assert_eq!(child.span_context.trace_id(), server.span_context.trace_id());
    }
    assert_eq!(millis(server.start_time, queue.start_time), 4);
    assert_eq!(millis(first_token.start_time, first_token.end_time), 150);
    assert_eq!((&broken.span_kind, &broken.status), (&SpanKind::Client, &Status::error("reset")));
    assert_eq!(
        (millis(broken.start_time, broken.end_time), millis(last.start_time, last.end_time)),
        (6, 880)
    );
    for (headers, span) in headers.iter().zip([broken, last]) {
        let own = span.span_context.span_id();
        assert_eq!(headers["traceparent"], format!("00-0af7651916cd43dd8448eb211c80319c-{own}-01"));
        assert_eq!(headers["tracestate"], "vendor=1");
    }
}

#[test]
fn the_operation_is_one_span_and_each_attempt_an_http_call() {
    let (spans, _) = two_attempts();
    let [_, _, broken, _, last, server] = &spans[..] else { panic!("{spans:?}") };
    for (span, key, value) in [
        (server, "gen_ai.operation.name", "chat"),
        (server, "gen_ai.provider.name", "vllm"),
        (server, "gen_ai.usage.input_tokens", "9"),
        (server, "gen_ai.usage.cache_read.input_tokens", "4"),
        (server, "gen_ai.response.finish_reasons", "[\"stop\"]"),
        (server, "error.type", "upstream_failed"),
        (server, "http.response.status_code", "502"),
        (broken, "error.type", "reset"),
        (broken, "server.address", "engine.example.com"),
        (broken, "server.port", "443"),
        (broken, "url.full", "https://engine.example.com/base/v1/chat/completions"),
        (last, "server.port", "8000"),
        (last, "http.response.status_code", "200"),
        (last, "http.request.resend_count", "1"),
        (last, "error.type", "upstream_failed"),
    ] {
        assert_eq!(attribute(span, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(attribute(server, "penstock.tenant"), None);
    assert_eq!(attribute(last, "gen_ai.operation.name"), None, "the operation is one span");
}

#[test]
fn an_unsampled_request_records_nothing_but_tells_the_engine() {
    let (tracer, memory) = recording(0.0);
    let mut trace = tracer.start(start(&client_headers("00-nonsense-01")));
    assert_eq!(trace.trace_id(), None);
    let mut upstream = client_headers("00-nonsense-01");
    trace.inject(&mut upstream);
    trace.phase(RequestPhase::Queue, Tick::ZERO, Tick::from_millis(5));
    trace.attempt(&call(&"http://10.0.0.1:8000".parse().unwrap(), 1), at(5));
    trace.finish(&RequestSummary::default(), &Telemetry::for_tests().policy(), Tick::from_millis(9));
    assert!(memory.0.lock().is_empty());
    let parent = upstream["traceparent"].to_str().unwrap();
    assert!(parent.len() == 55 && parent.ends_with("-00"), "{parent}");
    assert!(!upstream.contains_key("tracestate"));
}

#[test]
fn without_traces_the_clients_context_passes_through() {
    let trace = Tracer::disabled().start(start(&client_headers(PARENT)));
    let mut upstream = HeaderMap::new();
    trace.inject(&mut upstream);
    assert_eq!(
        (&upstream["traceparent"], &upstream["tracestate"]),
        (&PARENT.parse().unwrap(), &"vendor=1".parse().unwrap())
    );
    assert_eq!(trace.trace_id(), None);
}

#[test]
fn a_span_that_is_dropped_still_ends() {
    let (tracer, memory) = recording(1.0);
    drop(tracer.start(start(&HeaderMap::new())));
    assert_eq!(memory.0.lock().len(), 1);
}

fn settings(endpoint: &str) -> TelemetrySettings {
    TelemetrySettings {
        log_format: LogFormat::Json,
        log_level: "info".into(),
        client_address: Default::default(),
        refusals_per_second: 10,
        otlp: OtlpSettings { endpoint: Some(endpoint.into()), sample: Some(1.0), ..OtlpSettings::default() },
    }
}

#[tokio::test]
async fn a_bad_endpoint_is_named() {
    for endpoint in ["not a url", "collector:4317", "ftp://collector", ""] {
        let problem = Telemetry::new(&settings(endpoint)).unwrap_err().to_string();
        assert!(problem.starts_with("telemetry.otlp.endpoint: "), "{problem}");
        assert!(problem.contains("http://host:port"), "{problem}");
    }
}

#[test]
fn traces_without_a_runtime_are_an_error_and_no_panic() {
    let problem = Telemetry::new(&settings("http://127.0.0.1:4317")).unwrap_err().to_string();
    assert!(problem.contains("tokio runtime"), "{problem}");
}

type SeenCall = (String, HeaderMap, Bytes);

/// A collector that answers the calls of one connection with an empty message and reports path,
/// headers and body. With a TLS configuration, it takes nothing else.
async fn collector(
    protocol: OtlpProtocol,
    tls: Option<ServerConfig>,
) -> (String, mpsc::UnboundedReceiver<SeenCall>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://localhost:{}", listener.local_addr().unwrap().port());
    let (calls, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: Request<Incoming>| {
            let calls = calls.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                calls.send((head.uri.path().to_owned(), head.headers, body)).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                let (kind, frames) = match protocol {
                    OtlpProtocol::HttpProtobuf => ("application/x-protobuf", Vec::new()),
                    OtlpProtocol::Grpc => (
                        "application/grpc",
                        vec![Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(trailers)],
                    ),
                };
                let frames = frames.into_iter().map(Ok::<_, Infallible>);
                let body = StreamBody::new(futures_util::stream::iter(frames));
                Ok::<_, Infallible>(Response::builder().header("content-type", kind).body(body).unwrap())
            }
        });
        let stream: Box<dyn BothWays> = match tls {
            None => Box::new(stream),
            Some(config) => Box::new(TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap()),
        };
        let io = TokioIo::new(stream);
        let _ended = match protocol {
            OtlpProtocol::Grpc => {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                server.serve_connection(io, service).await
            }
            OtlpProtocol::HttpProtobuf => {
                hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
            }
        };
    });
    (endpoint, seen)
}

trait BothWays: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> BothWays for T {}

/// Sends one span with a client and a server span, and returns the call that the collector got.
async fn send_one(otlp: OtlpSettings, calls: &mut mpsc::UnboundedReceiver<SeenCall>) -> SeenCall {
    let telemetry = Telemetry::new(&TelemetrySettings { otlp, ..settings("") }).unwrap();
    let mut trace = telemetry.tracer().start(start(&HeaderMap::new()));
    trace.attempt(&call(&"http://10.0.0.1:8000".parse().unwrap(), 1), at(1_010));
    let event = RequestSummary {
        ids: RequestIds { request: "req-over-the-wire", ..RequestIds::default() },
        outcome: RequestOutcome::Success,
        ..RequestSummary::default()
    };
    trace.finish(&event, &telemetry.policy(), at(1_030));
    telemetry.shutdown(Duration::from_secs(10)).await;
    calls.try_recv().expect("shutdown returns after the export")
}

fn holds(body: &[u8], texts: &[&str]) {
    for text in texts {
        let found = body.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(found, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_reach_a_collector_over_grpc_before_shutdown_ends() {
    let (endpoint, mut calls) = collector(OtlpProtocol::Grpc, None).await;
    let (path, _, body) = send_one(settings(&endpoint).otlp, &mut calls).await;
    assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    // gRPC framing: not compressed, then the length of the message.
    assert_eq!(body[0], 0);
    assert_eq!(u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize, body.len() - 5);
    holds(&body, &["chat llama", "server.port", "req-over-the-wire", "service.name", "penstock"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_travel_over_tls_with_headers_by_either_protocol() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (protocol, alpn, path) in [
        (OtlpProtocol::Grpc, "h2", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
        (OtlpProtocol::HttpProtobuf, "http/1.1", "/v1/traces"),
    ] {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let (endpoint, mut calls) = collector(protocol, Some(tls)).await;
        let otlp = OtlpSettings {
            protocol: Some(protocol),
            headers: [("x-api-key".to_owned(), Secret::new("of-the-collector"))].into(),
            ca: Some(made.cert.pem().into_bytes()),
            ..settings(&endpoint).otlp
        };
        let (called, headers, body) = send_one(otlp, &mut calls).await;
        assert_eq!((&*called, &headers["x-api-key"]), (path, &HeaderValue::from_static("of-the-collector")));
        holds(&body, &["req-over-the-wire", "penstock"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_with_a_dead_collector_ends_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let telemetry = Telemetry::new(&settings(&endpoint)).unwrap();
    drop(telemetry.tracer().start(start(&HeaderMap::new())));
    let shutdown = telemetry.shutdown(Duration::from_millis(50));
    tokio::time::timeout(Duration::from_secs(4), shutdown).await.expect("bounded");
}
