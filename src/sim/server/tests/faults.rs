//! Tests of faults: every fault of a request or of the whole engine, as a
//! client sees it.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{
    CLOSE, End, Open, Reply, chat, fixture, get, has_done, open, options, post, reach, recovers, request,
    start,
};
use crate::faults::{Fault, FaultKind, ResetPoint};
use crate::server::{SimConnections, SimHandle, SimOptions, SimState};

const CHAT: &str = "/v1/chat/completions";

/// An engine with one fault that hits one request.
async fn with(kind: FaultKind) -> SimHandle {
    let engine = start(options()).await;
    engine.control().add(Fault::from(kind).times(1)).unwrap();
    engine
}

async fn stream(engine: &SimHandle) -> Reply {
    post(engine.addr, CHAT, &chat(20, true)).await
}

async fn plain(engine: &SimHandle) -> Reply {
    post(engine.addr, CHAT, &chat(20, false)).await
}

fn words(reply: &Reply) -> usize {
    let events = reply.events();
    let deltas = events.iter().filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str());
    deltas.flat_map(str::split_whitespace).count()
}

#[tokio::test]
async fn an_engine_that_refuses_from_its_start_accepts_nobody() {
    let engine = start(options()).await;
    // The accepting task has not run yet.
    engine.control().add(FaultKind::Refuse).unwrap();
    let refused = async {
        while TcpStream::connect(engine.addr).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), refused).await.unwrap();
}

#[tokio::test]
async fn a_connection_in_the_backlog_gets_no_answer_once_the_port_is_closed() {
    let engine = start(options()).await;
    let control = engine.control();
    for _ in 0..16 {
        reach(&control, "open", |state| state.listening).await;
        while TcpStream::connect(engine.addr).await.is_err() {
            tokio::task::yield_now().await;
        }
        // The accepting task has not run since: it finds the fault and the
        // connection at once.
        let waiting = std::net::TcpStream::connect(engine.addr).unwrap();
        control.add(FaultKind::Refuse).unwrap();
        waiting.set_nonblocking(true).unwrap();
        let mut waiting = TcpStream::from_std(waiting).unwrap();
        let _ = waiting.write_all(&request("GET", "/health", CLOSE, b"")).await;
        let mut answer = Vec::new();
        let _ = waiting.read_to_end(&mut answer).await;
        assert_eq!(String::from_utf8_lossy(&answer), "");
        control.clear();
    }
}

#[tokio::test]
async fn refuse_closes_the_port_and_keeps_open_streams() {
    let engine = start(options()).await;
    let control = engine.control();
    let mut running = open(engine.addr, CHAT, &chat(1500, true)).await;
    running.until("\"role\"").await;
    control.add(FaultKind::Refuse).unwrap();
    let mut refused = TcpStream::connect(engine.addr).await;
    for _ in 0..1000 {
        // Connections in the backlog when the port closed are reset.
        if refused.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        refused = TcpStream::connect(engine.addr).await;
    }
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(running.end().await.end, End::Whole);
    control.clear();
    while TcpStream::connect(engine.addr).await.is_err() {
        tokio::task::yield_now().await;
    }
    recovers(&engine).await;
}

#[tokio::test]
async fn resets_are_resets() {
    let engine = with(FaultKind::Reset { at: ResetPoint::Accept }).await;
    let sent = Open::send(engine.addr, &request("POST", CHAT, CLOSE, b"{}")).await;
    match sent {
        Ok(open) => assert_eq!((open.end().await.status), 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    recovers(&engine).await;
    let engine = with(FaultKind::Reset { at: ResetPoint::Request }).await;
    let reply = stream(&engine).await;
    assert_eq!((reply.status, reply.end), (0, End::Reset));
    recovers(&engine).await;
    let engine = with(FaultKind::Reset { at: ResetPoint::Head }).await;
    let mut open = open(engine.addr, CHAT, &chat(20, true)).await;
    open.until("\r\n\r\n").await;
    let reply = open.end().await;
    assert_eq!((reply.status, reply.end, reply.chunks.len()), (200, End::Reset, 0));
    recovers(&engine).await;
}

#[tokio::test]
async fn cuts_end_without_a_last_chunk() {
    let engine = with(FaultKind::Cut { after_tokens: 3 }).await;
    let reply = stream(&engine).await;
    assert_eq!((reply.end, words(&reply), has_done(&reply)), (End::Short, 3, false));
    recovers(&engine).await;
    let engine = with(FaultKind::Cut { after_tokens: 0 }).await;
    let reply = stream(&engine).await;
    assert_eq!((reply.status, reply.end, reply.chunks.len()), (200, End::Short, 0));
    recovers(&engine).await;
    let engine = with(FaultKind::Cut { after_tokens: 3 }).await;
    let reply = plain(&engine).await;
    assert_eq!((reply.status, reply.end), (200, End::Short));
    recovers(&engine).await;
}

#[tokio::test]
async fn malformed_bytes_come_where_they_are_asked_for() {
    let engine = with(FaultKind::MalformedChunk { after_tokens: 2 }).await;
    let reply = stream(&engine).await;
    assert_eq!((reply.end, words(&reply)), (End::Malformed, 2));
    recovers(&engine).await;
    let engine = with(FaultKind::MalformedChunk { after_tokens: 0 }).await;
    assert_eq!(plain(&engine).await.end, End::Malformed);
    let engine = with(FaultKind::MalformedSse { after_tokens: 2 }).await;
    let reply = stream(&engine).await;
    assert!(reply.end == End::Whole && std::str::from_utf8(&reply.body()).is_err() && !has_done(&reply));
    recovers(&engine).await;
    let engine = with(FaultKind::MalformedJson { after_tokens: 2 }).await;
    let reply = stream(&engine).await;
    let broken = reply.events().iter().filter(|event| event.is_string()).count();
    assert_eq!((reply.end, broken, words(&reply)), (End::Whole, 2, 20), "broken event and [DONE]");
    let engine = with(FaultKind::MalformedJson { after_tokens: 2 }).await;
    let reply = plain(&engine).await;
    assert!(reply.end == End::Whole && serde_json::from_slice::<Value>(&reply.body()).is_err());
    recovers(&engine).await;
}

#[tokio::test]
async fn statuses_are_answered_as_often_as_asked() {
    let engine = start(options()).await;
    let control = engine.control();
    let busy = FaultKind::Status { status: 429, retry_after: Some(7), message: Some("later".into()) };
    control.add(Fault::from(busy).times(2)).unwrap();
    for _ in 0..2 {
        let reply = stream(&engine).await;
        assert_eq!((reply.status, reply.header("retry-after")), (429, Some("7")));
        assert_eq!(reply.json()["error"]["message"], "later");
    }
    recovers(&engine).await;
    control.add(FaultKind::Status { status: 503, retry_after: None, message: None }).unwrap();
    for _ in 0..3 {
        let reply = plain(&engine).await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, None));
        assert_eq!(get(engine.addr, "/health").await.status, 200, "only work is hit");
    }
    control.clear();
    recovers(&engine).await;
}

#[tokio::test]
async fn the_admission_race_and_a_dead_engine_look_as_recorded() {
    let engine = with(FaultKind::ErrorEvent { after_tokens: 0, status: 503 }).await;
    let reply = stream(&engine).await;
    assert_eq!(reply.text(), fixture("err/admission_race_200_then_error_event").1.text());
    recovers(&engine).await;
    let engine = with(FaultKind::ErrorEvent { after_tokens: 0, status: 503 }).await;
    assert_eq!(plain(&engine).await.status, 503);
    let engine = with(FaultKind::EngineDead { after_tokens: 0 }).await;
    let reply = stream(&engine).await;
    assert_eq!(reply.text(), fixture("crash/SIGKILL_core_waiting_stream").1.text());
    let engine = with(FaultKind::EngineDead { after_tokens: 4 }).await;
    let reply = stream(&engine).await;
    assert_eq!((words(&reply), has_done(&reply)), (4, true));
    assert!(reply.events()[reply.events().len() - 2]["error"]["code"] == 500);
    let engine = with(FaultKind::EngineDead { after_tokens: 4 }).await;
    let reply = plain(&engine).await;
    let recorded = fixture("crash/SIGKILL_core_nonstream").1;
    assert_eq!((reply.status, reply.text()), (500, recorded.text()));
    recovers(&engine).await;
}

#[tokio::test]
async fn aborts_look_like_success() {
    let engine = with(FaultKind::Abort { after_tokens: 5 }).await;
    let reply = stream(&engine).await;
    assert_eq!((reply.status, words(&reply), has_done(&reply)), (200, 5, true));
    assert!(reply.text().contains("\"finish_reason\":\"abort\""));
    recovers(&engine).await;
    let engine = with(FaultKind::Abort { after_tokens: 0 }).await;
    let reply = stream(&engine).await;
    assert_eq!((reply.events().len(), has_done(&reply)), (2, true), "role event and [DONE]");
    assert!(!reply.text().contains("abort"));
    for tokens in [0, 5] {
        let engine = with(FaultKind::Abort { after_tokens: tokens }).await;
        let reply = plain(&engine).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "abort");
        assert_eq!(reply.json()["usage"]["completion_tokens"], tokens);
    }
    let engine = with(FaultKind::NoFinish { after_tokens: 5 }).await;
    let reply = stream(&engine).await;
    assert_eq!((words(&reply), has_done(&reply)), (5, true));
    assert!(
        reply
            .events()
            .iter()
            .all(|event| event.pointer("/choices/0/finish_reason").is_none_or(Value::is_null))
    );
    recovers(&engine).await;
}

#[tokio::test]
async fn silence_lasts_until_the_client_leaves() {
    for (before_head, after_tokens) in [(true, 0), (false, 0), (false, 3)] {
        let engine = with(FaultKind::Silent { after_tokens, before_head }).await;
        let mut silent = open(engine.addr, CHAT, &chat(20, true)).await;
        match (before_head, after_tokens) {
            (true, _) => {}
            (false, 0) => silent.until("\r\n\r\n").await,
            (false, _) => silent.until("\"content\":\" ").await,
        }
        while !silent.is_silent().await {}
        assert_eq!(silent.raw.is_empty(), before_head);
        assert!(!silent.text().contains("[DONE]"));
        drop(silent);
        recovers(&engine).await;
    }
}

#[tokio::test]
async fn a_frozen_engine_is_healthy_and_stands_still() {
    let engine = start(options()).await;
    let control = engine.control();
    let mut running = open(engine.addr, CHAT, &chat(1500, true)).await;
    running.until("\"role\"").await;
    control.add(FaultKind::Freeze).unwrap();
    while !running.is_silent().await {}
    let before = get(engine.addr, "/metrics").await.text();
    let mut waiting = open(engine.addr, CHAT, &chat(2, true)).await;
    waiting.until("\r\n\r\n").await;
    assert_eq!(get(engine.addr, "/health").await.status, 200);
    assert_eq!(get(engine.addr, "/metrics").await.text(), before);
    assert!(before.contains("num_requests_running{engine=\"0\",model_name=\"tiny\"} 1.0"));
    control.clear();
    assert_eq!(running.end().await.end, End::Whole);
    assert_eq!(waiting.end().await.end, End::Whole);
}

#[tokio::test]
async fn slow_stretches_time_and_ends_by_itself() {
    let engine = start(options()).await;
    let fault = Fault::from(FaultKind::Slow { factor: 40.0 }).lasting(Duration::from_millis(150));
    engine.control().add(fault).unwrap();
    let started = tokio::time::Instant::now();
    stream(&engine).await;
    let slow = started.elapsed();
    // Without the end of the fault: 20 tokens of 20 ms each.
    assert!(slow >= Duration::from_millis(100), "{slow:?}");
    assert!(engine.control().faults().is_empty());
}

#[tokio::test]
async fn drain_refuses_new_work_only() {
    let engine = start(options()).await;
    let mut running = open(engine.addr, CHAT, &chat(1000, true)).await;
    running.until("\"role\"").await;
    engine.control().add(FaultKind::Drain).unwrap();
    let reply = stream(&engine).await;
    let recorded = fixture("crash/SIGTERM_api_drain20_new_request").1;
    assert_eq!((reply.status, reply.text()), (500, recorded.text()));
    assert_eq!(get(engine.addr, "/health").await.status, 200);
    assert_eq!(running.end().await.end, End::Whole);
    engine.control().clear();
    recovers(&engine).await;
}

#[tokio::test]
async fn an_idle_connection_closes_as_the_next_request_arrives() {
    for reset in [false, true] {
        let engine = start(options()).await;
        engine.control().add(Fault::from(FaultKind::CloseIdle { reset }).times(1)).unwrap();
        let body = chat(2, false).to_string();
        let keep = request("POST", CHAT, "Content-Type: application/json\r\n", body.as_bytes());
        let mut open = Open::send(engine.addr, &keep).await.unwrap();
        open.until("\"metrics\":null}").await;
        open.again(&keep).await.unwrap();
        let reply = open.end().await;
        assert_eq!((reply.status, reply.end), (0, if reset { End::Reset } else { End::Short }));
        assert_eq!(engine.control().state().total, 1, "the second request did no work");
        recovers(&engine).await;
    }
}

#[tokio::test]
async fn metrics_lie_freeze_and_vanish() {
    let engine = start(options()).await;
    let control = engine.control();
    let page = || async { get(engine.addr, "/metrics").await.text() };
    let lie = FaultKind::LyingMetrics { running: Some(99), waiting: None, kv_usage: Some(0.5) };
    let id = control.add(lie).unwrap();
    let lying = page().await;
    assert!(lying.contains("num_requests_running{engine=\"0\",model_name=\"tiny\"} 99.0"));
    assert!(lying.contains("kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.5"));
    assert!(control.remove(id) && !control.remove(id));
    control.add(FaultKind::FrozenMetrics).unwrap();
    let frozen = page().await;
    stream(&engine).await;
    assert_eq!(page().await, frozen);
    control.clear();
    assert_ne!(page().await, frozen);
    control.add(FaultKind::MissingMetrics { names: vec!["vllm:num_requests_waiting".into()] }).unwrap();
    let partial = page().await;
    assert!(
        !partial.contains("vllm:num_requests_waiting{") && partial.contains("vllm:num_requests_running{")
    );
    control.add(FaultKind::MissingMetrics { names: vec![] }).unwrap();
    assert_eq!(page().await, "");
}

#[tokio::test]
async fn faults_are_steered_over_http() {
    let connections = SimConnections { control: Some(([127, 0, 0, 1], 0).into()), ..Default::default() };
    let options = SimOptions { connections, ..options() };
    let engine = start(options).await;
    let side = engine.control_addr.unwrap();
    let fault = json!({"kind": "abort", "after_tokens": 1, "times": 1});
    let id = post(engine.addr, "/sim/faults", &fault).await.json()["id"].as_u64().unwrap();
    assert!(stream(&engine).await.text().contains("\"abort\""));
    let listed = get(engine.addr, "/sim/faults").await.json();
    assert_eq!(
        (&listed[0]["id"], &listed[0]["kind"], &listed[0]["shown"]),
        (&json!(id), &json!("abort"), &json!(1))
    );
    let delete = request("DELETE", "/sim/faults", CLOSE, b"");
    assert_eq!(Open::send(engine.addr, &delete).await.unwrap().end().await.status, 200);
    assert_eq!(get(engine.addr, "/sim/faults").await.json(), json!([]));
    let error = post(engine.addr, "/sim/faults", &json!({"kind": "cut", "afer_tokens": 1})).await;
    assert!(error.status == 400 && error.text().contains("afer_tokens"), "{}", error.text());
    let error = post(engine.addr, "/sim/terminate", &json!({"mode": "sigterm", "grace_ms": 1})).await;
    assert!(error.status == 400 && error.text().contains("grace_ms"), "{}", error.text());
    assert_eq!(post(side, "/sim/faults", &json!({"kind": "refuse"})).await.status, 200);
    reach(&engine.control(), "closed", |state| !state.listening).await;
    let state: SimState = serde_json::from_value(get(side, "/sim/state").await.json()).unwrap();
    assert_eq!((state.total, state.serving), (1, true));
    assert_eq!(Open::send(side, &delete).await.unwrap().end().await.status, 200);
    assert_eq!(get(side, "/health").await.status, 404, "the side door serves /sim/ only");
    while TcpStream::connect(engine.addr).await.is_err() {
        tokio::task::yield_now().await;
    }
    recovers(&engine).await;
}
