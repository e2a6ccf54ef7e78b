//! Tests of spans: their attributes, their parents and the sampling.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SimpleSpanProcessor, SpanData, SpanExporter};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::config::settings::{LogFormat, TelemetrySettings};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::core::model::time::Tick;
use crate::telemetry::Telemetry;
use crate::telemetry::summary::{CallFacts, LastDispatch, RequestOutcome, RequestSummary, TokenFacts};
use crate::telemetry::trace::{RequestPhase, TraceStart, Tracer};

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
    (Tracer::with_processor(SimpleSpanProcessor::new(memory.clone()), sample), memory)
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

#[test]
fn a_request_becomes_a_span_under_the_clients_with_a_child_for_each_phase() {
    let (tracer, memory) = recording(0.0);
    let trace = tracer.start(start(&client_headers(PARENT)));
    assert_eq!(trace.trace_id().as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
    let mut upstream = client_headers(PARENT);
    trace.inject(&mut upstream);
    trace.phase(RequestPhase::Queue, Tick::from_millis(1_004), Tick::from_millis(1_104));
    trace.phase(RequestPhase::FirstToken, Tick::from_millis(1_104), Tick::from_millis(1_254));
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
    trace.finish(&event, &Telemetry::for_tests().policy(), Tick::from_millis(2_000));

    let spans = memory.0.lock();
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["queue", "first_token", "chat llama"]);
    let server = &spans[2];
    assert_eq!(server.span_kind, SpanKind::Server);
    assert_eq!(server.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
    assert_eq!(server.status, Status::error("upstream_failed"));
    assert_eq!(millis(server.start_time, server.end_time), 1_000);
    for child in &spans[..2] {
        assert_eq!(child.parent_span_id, server.span_context.span_id());
        assert_eq!(child.span_context.trace_id(), server.span_context.trace_id());
    }
    assert_eq!(millis(server.start_time, spans[0].start_time), 4);
    assert_eq!(millis(spans[1].start_time, spans[1].end_time), 150);
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "vllm"),
        ("gen_ai.usage.input_tokens", "9"),
        ("gen_ai.usage.cache_read.input_tokens", "4"),
        ("gen_ai.response.finish_reasons", "[\"stop\"]"),
        ("error.type", "upstream_failed"),
        ("http.response.status_code", "502"),
    ] {
        assert_eq!(attribute(server, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(attribute(server, "penstock.tenant"), None);

    let own = server.span_context.span_id();
    assert_eq!(upstream["traceparent"], format!("00-0af7651916cd43dd8448eb211c80319c-{own}-01"));
    assert_eq!(upstream["tracestate"], "vendor=1");
}

#[test]
fn an_unsampled_request_records_nothing_but_tells_the_engine() {
    let (tracer, memory) = recording(0.0);
    let trace = tracer.start(start(&client_headers("00-nonsense-01")));
    assert_eq!(trace.trace_id(), None);
    let mut upstream = client_headers("00-nonsense-01");
    trace.inject(&mut upstream);
    trace.phase(RequestPhase::Queue, Tick::ZERO, Tick::from_millis(5));
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
        otlp_endpoint: Some(endpoint.into()),
        trace_sample: 1.0,
    }
}

#[tokio::test]
async fn a_bad_endpoint_is_named() {
    for endpoint in ["https://collector:4317", "not a url", "collector:4317", "ftp://collector", ""] {
        let problem = Telemetry::new(&settings(endpoint)).unwrap_err().to_string();
        assert!(problem.starts_with("telemetry.otlp_endpoint: "), "{problem}");
        assert!(problem.contains("http://host:port"), "{problem}");
    }
}

#[test]
fn traces_without_a_runtime_are_an_error_and_no_panic() {
    let problem = Telemetry::new(&settings("http://127.0.0.1:4317")).unwrap_err().to_string();
    assert!(problem.contains("tokio runtime"), "{problem}");
}

/// A collector that answers every call with an empty message and reports
/// path and body.
async fn collector() -> (String, mpsc::UnboundedReceiver<(String, Bytes)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (calls, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: Request<Incoming>| {
            let calls = calls.clone();
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                calls.send((path, body)).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                let frames = [Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(trailers)];
                let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, Infallible>)));
                Ok::<_, Infallible>(
                    Response::builder().header("content-type", "application/grpc").body(body).unwrap(),
                )
            }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    });
    (endpoint, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_reach_a_collector_over_grpc_before_shutdown_ends() {
    let (endpoint, mut calls) = collector().await;
    let telemetry = Telemetry::new(&settings(&endpoint)).unwrap();
    let trace = telemetry.tracer().start(start(&HeaderMap::new()));
    trace.phase(RequestPhase::Stream, Tick::from_millis(1_010), Tick::from_millis(1_020));
    let event = RequestSummary {
        request_id: "req-over-the-wire",
        outcome: RequestOutcome::Success,
        ..RequestSummary::default()
    };
    trace.finish(&event, &telemetry.policy(), Tick::from_millis(1_030));
    telemetry.shutdown(Duration::from_secs(10)).await;

    let (path, body) = calls.try_recv().expect("shutdown returns after the export");
    assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    // gRPC framing: not compressed, then the length of the message.
    assert_eq!(body[0], 0);
    assert_eq!(u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize, body.len() - 5);
    for text in ["chat llama", "stream", "req-over-the-wire", "service.name", "penstock"] {
        let found = body.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(found, "{text}");
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
