//! Leaks: clients learn nothing of what engines say of themselves.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::SimOptions;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::before::{assert_good, calls};
use super::reply::{End, Reply};
use super::setup::{ENGINE_MODEL, MODEL, Rig, Setup, chat, engine, tgi};
use crate::support::gateway::TENANT;

/// Nothing in the answer tells where, or what, the engine is.
fn assert_discreet(rig: &Rig, what: &str, reply: &Reply) {
    let whole = format!("{:?}\n{}", reply.headers, reply.text());
    let mut secrets = vec![ENGINE_MODEL.to_owned(), "uvicorn".into(), "hypercorn".into(), "10.9.8.7".into()];
    secrets.extend(rig.engines.iter().map(|engine| engine.addr.to_string()));
    for secret in secrets {
        assert!(!whole.contains(&secret), "{what}: {secret} in {whole}");
    }
    for name in ["server", "location", "www-authenticate"] {
        assert_eq!(reply.header(name), None, "{what}: {whole}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn good_answers_do_not_name_the_engine() {
    let rig = Rig::start(Setup::default()).await;
    for (path, body) in calls() {
        let reply = rig.post(path, &body).await;
        assert_good(path, &reply);
        assert_discreet(&rig, path, &reply);
        let names_model = reply.text().contains(&format!("\"model\":\"{MODEL}\""));
        assert!(names_model, "{path}: {}", reply.text());
    }
    let rig = Rig::start(Setup { engines: vec![tgi()], ..Setup::default() }).await;
    let body = json!({"inputs": "tell me", "parameters": {"max_new_tokens": 4, "details": true}});
    for path in ["/generate", "/generate_stream"] {
        let reply = rig.post(path, &body).await;
        assert_good(path, &reply);
        assert_discreet(&rig, path, &reply);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_do_not_name_the_engine() {
    let rig = Rig::start(Setup { engines: vec![engine()], ..Setup::default() }).await;
    let long = chat(4, false).to_string().replace("tell me something", &"word ".repeat(20_000));
    let long: Value = serde_json::from_str(&long).unwrap();
    let reply = rig.post("/v1/chat/completions", &long).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &"context_length_exceeded".into()));
    assert_discreet(&rig, "too long", &reply);

    let message =
        format!("The model `{ENGINE_MODEL}` does not exist, see http://{}/docs", rig.engines[0].addr);
    for status in [400, 404, 422, 500, 502] {
        let fault = FaultKind::Status { status, retry_after: None, message: Some(message.clone()) };
        rig.engine(0).clear();
        rig.engine(0).add(fault).unwrap();
        let stream = status % 2 == 0;
        let reply = rig.post("/v1/chat/completions", &chat(4, stream)).await;
        let told = match status {
            400 | 404 | 422 => status,
            _ => 502,
        };
        assert_eq!((reply.status, reply.end), (told, End::Whole), "{}", reply.text());
        assert_discreet(&rig, &status.to_string(), &reply);
        let own_words = format!("The model `{MODEL}` does not exist, see ...");
        assert_eq!(reply.text().contains(&own_words), matches!(told, 400 | 422), "{}", reply.text());
    }
}

/// Pings and metrics are fine; all work is sent elsewhere, to this very place.
async fn redirecting() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move |request: Request<Body>| async move {
        let builder = Response::builder().header("server", "uvicorn");
        let path = request.uri().path().to_owned();
        let response = if path.starts_with("/v1/chat") {
            let to = format!("http://{address}{path}/");
            builder.status(StatusCode::TEMPORARY_REDIRECT).header("location", to).body(Body::from("10.9.8.7"))
        } else {
            builder.body(Body::empty())
        };
        response.unwrap()
    };
    let app = Router::new().fallback(answer);
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (format!("http://{address}"), server)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_neither_followed_nor_passed_on() {
    let (url, server) = redirecting().await;
    let alone = Setup { engines: Vec::new(), more_replicas: vec![url.clone()], ..Setup::default() };
    let rig = Rig::start(alone).await;
    for stream in [false, true] {
        let reply = rig.post("/v1/chat/completions", &chat(4, stream)).await;
        assert_eq!((reply.status, reply.end), (502, End::Whole), "{}", reply.text());
        assert_discreet(&rig, "redirect", &reply);
        assert!(!format!("{reply:?}").contains(&url["http://".len()..]), "{reply:?}");
    }

    let both = Setup { engines: vec![engine()], more_replicas: vec![url], ..Setup::default() };
    let rig = Rig::start(both).await;
    for job in 0..6 {
        assert_good("chat", &rig.post("/v1/chat/completions", &chat(4, job % 2 == 0)).await);
    }
    assert!(rig.log("request requeued").iter().any(|line| line["fault"] == "malformed"));
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_for_the_engine_is_not_the_clients_fault() {
    let guarded = || SimOptions { api_key: Some("engine-secret".into()), ..engine() };
    let rig = Rig::start(Setup { engines: vec![guarded()], ..Setup::default() }).await;
    for stream in [false, true] {
        let reply = rig.post("/v1/chat/completions", &chat(4, stream)).await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (502, &"upstream_failed".into()));
        assert_discreet(&rig, "401", &reply);
    }
    let rig = Rig::start(Setup { engines: vec![guarded(), engine()], ..Setup::default() }).await;
    for job in 0..6 {
        assert_good("chat", &rig.post("/v1/chat/completions", &chat(4, job % 2 == 0)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_key_does_not_reach_the_engine() {
    // This engine takes nobody but holders of the client's key, and is not
    // shown it.
    let mut key = String::new();
    for round in 0..2 {
        let guarded = SimOptions { api_key: (round == 1).then(|| key.clone()), ..engine() };
        let rig = Rig::start(Setup { engines: vec![guarded], ..Setup::default() }).await;
        rig.key(TENANT).clone_into(&mut key);
        let reply = rig.post("/v1/chat/completions", &chat(4, false)).await;
        assert_eq!(reply.status, if round == 0 { 200 } else { 502 }, "{}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_does_not_name_the_engine() {
    let rig = Rig::start(Setup { engines: vec![engine()], ..Setup::default() }).await;
    for fault in [FaultKind::EngineDead { after_tokens: 2 }, FaultKind::Cut { after_tokens: 2 }] {
        rig.engine(0).add(Fault::from(fault)).unwrap();
        let reply = rig.post("/v1/chat/completions", &chat(30, true)).await;
        rig.engine(0).clear();
        assert!(reply.text().contains("upstream_"), "{}", reply.text());
        assert_discreet(&rig, "broken", &reply);
        assert!(!reply.text().contains("EngineCore"), "{}", reply.text());
    }
}
