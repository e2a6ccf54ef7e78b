//! Early response heads: streams whose head is sent while the request is held for a pool that has
//! to start.

use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use serde_json::{Value, json};

use crate::support::client::{Call, H2, Raw};
use crate::support::gateway::{
    MODEL, PATIENCE, Rig, TENANT, chat, head, pool_lines, soon, tenant_lines, until,
};

const CHAT: &str = "/v1/chat/completions";
const COMMENT: &str = ": waiting for a replica\n\n";
const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

fn file(urls: &[String], class: &str) -> String {
    head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, "")
        + "pools:\n"
        + &pool_lines("main", "engine: vllm\nmodels: [sim]\nmax_seqs: 8\ncold_start: 1s", urls)
        + "requests: {keepalive: 20ms}\n"
        + &format!("classes: {{standard: {{rank: 0, max_wait: 10m, {class}}}}}\n")
}

const EARLY: &str = "early_head: true, cold_start_tolerance: 9m";

async fn rig(class: &str, engines: usize) -> (Rig, Vec<String>) {
    let engines = start_fleet(vec![SimOptions::default(); engines]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    (Rig::with_file(&file(&[], class), engines, [TENANT]).await, urls)
}

/// The pool starts with these replicas.
async fn start(rig: &Rig, urls: &[String]) {
    rig.put(&file(urls, EARLY));
    soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.expect("a report");
}

/// The calls that stream, with their bodies and their ends.
fn calls() -> [(&'static str, Value, &'static str); 4] {
    let prompt = json!({"model": MODEL, "prompt": "tell me", "max_tokens": 3, "stream": true});
    let input = json!({"model": MODEL, "input": "tell me", "max_output_tokens": 3, "stream": true});
    let message = json!({
        "model": MODEL, "max_tokens": 3, "stream": true, "messages": [{"role": "user", "content": "tell me"}],
    });
    [
        (CHAT, chat(3, true), "[DONE]"),
        ("/v1/completions", prompt, "[DONE]"),
        ("/v1/responses", input, "response.completed"),
        ("/v1/messages", message, "message_stop"),
    ]
}

fn sign(path: &str) -> &'static str {
    if path == "/v1/messages" { PING } else { COMMENT }
}

/// Sends the call and reads up to the second sign of life.
async fn held(rig: &Rig, path: &str, body: &Value) -> (Raw, String) {
    alive(rig, path, body, 2).await
}

/// Sends the call and reads so many signs of life, the first of which comes with the head.
async fn alive(rig: &Rig, path: &str, body: &Value, signs: usize) -> (Raw, String) {
    let mut raw = Raw::open(rig.address()).await;
    let call =
        Call::post(path, body).key(rig.key(TENANT)).header("x-request-id", &path[1..].replace('/', "-"));
    raw.write(call.header("connection", "close").bytes()).await.unwrap();
    let mut text = String::new();
    while text.matches(sign(path)).count() < signs {
        text += &soon("a sign of life", raw.read_past("\n\n")).await.unwrap();
    }
    (raw, text)
}

#[tokio::test]
async fn every_kind_of_stream_gets_its_head_while_it_waits_and_then_its_answer() {
    let (rig, urls) = rig(EARLY, 2).await;
    let mut streams = Vec::new();
    for (path, body, end) in calls() {
        let (raw, text) = held(&rig, path, &body).await;
        let head = text.to_ascii_lowercase();
        assert!(
            head.starts_with("http/1.1 200") && head.contains("content-type: text/event-stream"),
            "{text}"
        );
        assert!(head.contains("x-request-id: v1-") && !head.contains("x-penstock-model"), "{text}");
        streams.push((raw, path, end));
    }
    // The first replica fails them all: behind the head they are tried again.
    rig.engine(0).add(FaultKind::Status { status: 500, retry_after: None, message: None }).unwrap();
    start(&rig, &urls).await;
    for (mut raw, path, end) in streams {
        let rest = raw.read_to_end().await;
        assert!(rest.contains(end) && !rest.contains("\"error\""), "{path}: {rest}");
        assert!(rest.trim_end().ends_with("\r\n0"), "{path}: a proper end");
        let line = rig.line_of(&path[1..].replace('/', "-")).await;
        assert_eq!((&line["outcome"], &line["status"]), (&json!("success"), &json!(200)), "{line}");
    }
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_failure_behind_the_head_is_an_error_event_and_a_cut() {
    let class = "early_head: true, cold_start_tolerance: 1500ms";
    for (path, body, _) in calls() {
        let (rig, _) = rig(class, 0).await;
        let (mut raw, _) = alive(&rig, path, &body, 1).await;
        let rest = raw.read_to_end().await;
        assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "{path}: {rest}");
        assert!(!rest.trim_end().ends_with("\r\n0"), "{path}: no proper end: {rest}");
        let typed = matches!(path, "/v1/responses" | "/v1/messages");
        assert_eq!(rest.contains("event: error\n"), typed, "{path}: {rest}");
        let line = rig.line_of(&path[1..].replace('/', "-")).await;
        let seen = ["outcome", "reason", "status"].map(|key| &line[key]);
        assert_eq!(json!(seen), json!(["rejected", "cold_start", 200]), "{line}");
        rig.emptied_within(PATIENCE).await;
    }
}

#[tokio::test]
async fn who_leaves_behind_the_head_leaves_nothing() {
    let (rig, _) = rig(EARLY, 0).await;
    let (raw, _) = held(&rig, CHAT, &chat(3, true)).await;
    assert_eq!(rig.waiting(), 1);
    drop(raw);
    rig.emptied_within(PATIENCE).await;
    let line = rig.line_of("v1-chat-completions").await;
    assert_eq!((&line["outcome"], &line["status"]), (&json!("client_gone"), &json!(200)), "{line}");
}

#[tokio::test]
async fn a_drain_ends_what_is_held_with_an_event() {
    let (rig, _) = rig(EARLY, 0).await;
    let (mut raw, _) = held(&rig, CHAT, &chat(3, true)).await;
    rig.gateway.proxy().dispatcher.shutdown().end();
    let rest = raw.read_to_end().await;
    assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "{rest}");
    rig.emptied_within(PATIENCE).await;
    assert_eq!(rig.line_of("v1-chat-completions").await["reason"], "draining");
}

#[tokio::test]
async fn the_head_stays_back_where_it_is_not_allowed_or_not_a_stream_or_not_held() {
    // Not allowed: the answer is an honest 503.
    let (plain, _) = rig("cold_start_tolerance: 1200ms", 0).await;
    assert_eq!(plain.post(CHAT, &chat(3, true)).await.status, 503);
    // Not a stream.
    let class = "early_head: true, cold_start_tolerance: 1200ms";
    let (early, urls) = rig(class, 1).await;
    assert_eq!(early.post(CHAT, &chat(3, false)).await.status, 503);
    // Told at once: the start takes longer than it can wait.
    let (short, _) = rig("early_head: true, cold_start_tolerance: 500ms", 0).await;
    assert_eq!(short.post(CHAT, &chat(3, true)).await.status, 503);
    // Served at once: with the engine's head.
    start(&early, &urls).await;
    let answer = early.post(CHAT, &chat(3, true)).await;
    assert!(answer.is_done() && !answer.text().contains(COMMENT), "{answer:?}");
    assert!(answer.headers.contains_key("server-timing"));
    until("all is over", || early.waiting() == 0).await;
    tokio::time::sleep(Duration::ZERO).await;
}

/// The request goes on whether or not its client reads.
#[tokio::test]
async fn who_gives_no_window_behind_the_head_holds_no_replica() {
    let (rig, urls) = rig(EARLY, 2).await;
    let mut h2 = H2::with_window(rig.address(), 0).await;
    let call = Call::post(CHAT, &chat(30, true)).key(rig.key(TENANT)).header("x-request-id", "deaf");
    let body = BoxBody::new(Full::new(call.body.clone()).map_err(|never| match never {}));
    soon("room for a request", h2.sender.ready()).await.unwrap();
    let answer = soon("the head", h2.sender.send_request(call.http2(body))).await.unwrap();
    assert_eq!((answer.status().as_u16(), rig.waiting()), (200, 1));
    start(&rig, &urls).await;
    let line = rig.line_of("deaf").await;
    assert_eq!((&line["outcome"], &line["output_tokens"]), (&json!("success"), &json!(30)), "{line}");
    rig.emptied_within(PATIENCE).await;
    let states = [rig.engine(0).state(), rig.engine(1).state()];
    assert_eq!(states.map(|state| state.total).iter().sum::<u64>(), 1, "one engine saw it, once");
    assert!(rig.metric("penstock_ejections_total").await.abs() < 0.5);
    drop((answer, h2));
    until("the memory is given back", || rig.gateway.proxy().memory.answers.held() == 0).await;
}
