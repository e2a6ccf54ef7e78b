//! Answers as clients and operators see them: no usage that nobody asked for, the engine's own
//! status, the reason of the end.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock::app::Gateway;
use penstock::config::settings::{LogFormat, OtlpSettings, TelemetrySettings};
use penstock::config::watch::Reloader;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimOptions, SimServer, VllmFlags};
use penstock::telemetry::Telemetry;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::support::client::{Answer, Call};
use crate::support::gateway::{
    MODEL, Rig, RigOptions, TENANT, chat, head, key_of, pool_lines, soon, tenant_lines,
};

const CHAT: &str = "/v1/chat/completions";

/// An engine that tells usage in every event, whoever asks for what.
async fn forced() -> Rig {
    let vllm = VllmFlags { force_include_usage: true, ..VllmFlags::default() };
    Rig::start(RigOptions {
        engines: vec![SimOptions { vllm, ..SimOptions::default() }],
        ..RigOptions::default()
    })
    .await
}

fn told(answer: &Answer) -> Vec<bool> {
    answer.events().iter().map(|event| event["usage"].is_object()).collect()
}

#[tokio::test]
async fn usage_that_an_engine_forces_on_everybody_is_for_those_who_asked() {
    let rig = forced().await;
    for path in [CHAT, "/v1/completions"] {
        let mut body = chat(5, true);
        body["prompt"] = "how high is the water?".into();
        let answer = rig.post(path, &body).await.ok();
        assert!(answer.is_done(), "{answer:?}");
        assert!(!answer.text().contains("usage"), "{path}: {answer:?}");

        body["stream_options"] = json!({"continuous_usage_stats": true});
        let answer = rig.post(path, &body).await.ok();
        assert!(!answer.text().contains("usage"), "{path}: {answer:?}");

        body["stream_options"] = json!({"include_usage": true});
        let answer = rig.post(path, &body).await.ok();
        let events = answer.events();
        let (last, others) = events.split_last().unwrap();
        assert!(answer.is_done() && last["choices"] == json!([]), "{answer:?}");
        assert_eq!(last["usage"]["completion_tokens"], 5, "{path}: {answer:?}");
        assert!(others.iter().all(|event| event["usage"].is_null()), "{path}: {answer:?}");

        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let answer = rig.post(path, &body).await.ok();
        assert!(answer.is_done() && told(&answer).iter().all(|told| *told), "{path}: {answer:?}");
    }
    for line in rig.finished() {
        assert_eq!((&line["usage"], &line["output_tokens"]), (&json!("exact"), &json!(5)), "{line}");
    }
}

#[tokio::test]
async fn an_engine_s_422_stays_one() {
    let rig = Rig::start(RigOptions::default()).await;
    let message = Some("the tool `level` has no name".to_owned());
    rig.engine(0).add(FaultKind::Status { status: 422, retry_after: None, message }).unwrap();
    for stream in [false, true] {
        let answer = rig.post(CHAT, &chat(5, stream)).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, error["type"].as_str()),
            (422, Some("invalid_request_error")),
            "{answer:?}"
        );
        assert_eq!(error["message"], "the tool `level` has no name");
        assert_eq!(answer.header("x-should-retry"), "false");
    }
    let answer = rig.post("/v1/messages", &chat(5, false)).await;
    assert_eq!((answer.status, answer.json()["type"].as_str()), (422, Some("error")), "{answer:?}");
    assert_eq!(rig.metric("penstock_requeues_total").await, 0.0);
}

#[tokio::test]
async fn the_log_says_why_an_answer_ended() {
    let rig = Rig::start(RigOptions::default()).await;
    let ends = |max_tokens: u32, stream: bool| {
        let mut body = chat(max_tokens, stream);
        body["prompt"] = "how high is the water?".into();
        body["input"] = body["prompt"].clone();
        body["max_output_tokens"] = max_tokens.into();
        body
    };
    for (path, body, reason) in [
        (CHAT, ends(5, true), "length"),
        (CHAT, ends(5, false), "length"),
        ("/v1/completions", ends(5, true), "length"),
        ("/v1/completions", ends(5, false), "length"),
        ("/v1/messages", ends(5, true), "max_tokens"),
        ("/v1/messages", ends(5, false), "max_tokens"),
        ("/v1/responses", ends(5, true), "incomplete"),
        ("/v1/responses", ends(5, false), "incomplete"),
    ] {
        let id = format!("{path}-{}", body["stream"]).replace('/', "-");
        let call = Call::post(path, &body).key(rig.key(TENANT)).header("x-request-id", &id);
        call.send(rig.address()).await.ok();
        assert_eq!(rig.line_of(&id).await["finish_reason"], reason, "{path}");
    }
    let mut body = ends(5, false);
    body["ignore_eos"] = false.into();
    body["max_tokens"] = 4000.into();
    let call = Call::post(CHAT, &body).key(rig.key(TENANT)).header("x-request-id", "stopped");
    let said = call.send(rig.address()).await.ok().json()["choices"][0]["finish_reason"].clone();
    assert_eq!(rig.line_of("stopped").await["finish_reason"], said);
    let embeds = json!({"model": MODEL, "input": "the water"});
    let call = Call::post("/v1/embeddings", &embeds).key(rig.key(TENANT)).header("x-request-id", "embeds");
    call.send(rig.address()).await.ok();
    assert_eq!(rig.line_of("embeds").await["finish_reason"], Value::Null);
}

/// A collector of traces that answers every call and gives the bodies.
async fn collector() -> (String, mpsc::UnboundedReceiver<Bytes>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (calls, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: Request<Incoming>| {
            let calls = calls.clone();
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let _test_is_over = calls.send(body);
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                let frames = [Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(trailers)];
                let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, Infallible>)));
                let answer = Response::builder().header("content-type", "application/grpc").body(body);
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ended = server.serve_connection(TokioIo::new(stream), service).await;
    });
    (endpoint, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_says_why_an_answer_ended() {
    let (endpoint, mut calls) = collector().await;
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("penstock.yaml");
    let text = head("")
        + &format!("tenants:\n{}", tenant_lines(TENANT, ""))
        + &format!("pools:\n{}", pool_lines("main", "engine: vllm\nmodels: [sim]", &[engine.url()]));
    std::fs::write(&path, text).unwrap();
    let telemetry = Telemetry::new(&TelemetrySettings {
        log_format: LogFormat::Json,
        log_level: "info".to_owned(),
        client_address: Default::default(),
        refusals_per_second: 10,
        otlp: OtlpSettings { endpoint: Some(endpoint), sample: Some(1.0), ..OtlpSettings::default() },
    })
    .unwrap();
    let (reloader, _) = Reloader::start(path).unwrap_or_else(|report| panic!("{report}"));
    let gateway = Gateway::start(reloader, telemetry.clone()).await.unwrap();
    for stream in [true, false] {
        let call = Call::post(CHAT, &chat(5, stream)).key(&key_of(TENANT).text);
        call.send(gateway.address()).await.ok();
    }
    telemetry.shutdown(Duration::from_secs(10)).await;
    let mut found = 0;
    while found < 2 {
        let body = soon("the spans of two requests", calls.recv())
            .await
            .expect("both are sent before shutdown ends");
        let parts = |text: &str| body.windows(text.len()).filter(|part| *part == text.as_bytes()).count();
        let ends = parts("gen_ai.response.finish_reasons");
        assert_eq!(ends, parts("length"), "{body:?}");
        found += ends;
    }
    drop((gateway, engine));
}
