//! Tests of request lifecycles: requests that wait, leave, are paused or
//! aborted, and idle connections.

use std::time::Duration;

use serde_json::json;

use super::client::{End, Open, chat, fixture, get, open, options, post, reach, request, slow, start};
use crate::faults::FaultKind;
use crate::server::{SimConnections, SimOptions, VllmFlags, start_fleet};

const CHAT: &str = "/v1/chat/completions";

/// One sequence at a time, and 20 s for a stream of 2,000 tokens.
fn one_slot() -> SimOptions {
    let mut options = slow();
    options.engine.max_seqs = Some(1);
    options
}

#[tokio::test]
async fn a_queued_stream_has_its_head_at_once_and_its_first_event_with_the_first_token() {
    let engine = start(one_slot()).await;
    let control = engine.control();
    let mut first = open(engine.addr, CHAT, &chat(2000, true)).await;
    first.until("\"role\"").await;
    let mut second = open(engine.addr, CHAT, &chat(3, true)).await;
    second.until("\r\n\r\n").await;
    let state = control.state();
    assert_eq!((state.running, state.waiting), (1, 1));
    assert!(second.text().starts_with("HTTP/1.1 200 OK") && second.text().ends_with("\r\n\r\n"));
    let load = get(engine.addr, "/load").await.json();
    assert_eq!(load, json!({"server_load": 2}));
    drop(first);
    let reply = second.end().await;
    assert_eq!(reply.events()[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    reach(&control, "idle", |state| state.running + state.waiting + state.inside == 0).await;
    assert_eq!(control.state().cancelled, 1);
}

#[tokio::test]
async fn a_client_that_leaves_is_forgotten_in_any_phase() {
    let engine = start(one_slot()).await;
    let control = engine.control();
    let mut running = open(engine.addr, CHAT, &chat(2000, true)).await;
    running.until("\"role\"").await;
    let waiting = open(engine.addr, CHAT, &chat(2000, true)).await;
    let plain = open(engine.addr, CHAT, &chat(2000, false)).await;
    let pooled = open(engine.addr, "/v1/embeddings", &json!({"input": "ka"})).await;
    reach(&control, "all inside", |state| state.inside == 4).await;
    drop((waiting, plain, pooled));
    reach(&control, "the waiting gone", |state| state.waiting == 0 && state.inside == 1).await;
    drop(running);
    reach(&control, "empty", |state| state.running == 0 && state.inside == 0).await;
    let state = control.state();
    assert_eq!((state.cancelled, state.kv_blocks_used, state.total), (4, 0, 4));
    reach(&control, "closed", |state| state.connections == 0).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time() {
    let body = chat(2, false).to_string();
    let keep = request("POST", CHAT, "Content-Type: application/json\r\n", body.as_bytes());
    let patient = start(options()).await;
    let mut open = Open::send(patient.addr, &keep).await.unwrap();
    for _ in 0..3 {
        open.until("\"metrics\":null}").await;
        open.again(&keep).await.unwrap();
    }
    open.until("\"metrics\":null}").await;
    let connections = SimConnections { keep_alive: Duration::from_millis(60), ..Default::default() };
    let engine = start(SimOptions { connections, ..options() }).await;
    let open = Open::send(engine.addr, &keep).await.unwrap();
    let reply = open.end().await;
    assert_eq!(reply.end, End::Whole, "closed cleanly after the last answer");
    // A connection that sent no request is not closed, as with uvicorn.
    let mut fresh = Open::send(engine.addr, b"").await.unwrap();
    assert!(fresh.is_silent().await);
}

#[tokio::test]
async fn abort_ends_running_and_waiting_streams_as_recorded() {
    let engine = start(one_slot()).await;
    let body = |name: &str| {
        let mut body = chat(2000, true);
        body["request_id"] = json!(name);
        body["stream_options"] = json!({"include_usage": true});
        body
    };
    let mut running = open(engine.addr, CHAT, &body("q-1")).await;
    running.until("\"role\"").await;
    let mut waiting = open(engine.addr, CHAT, &body("q-2")).await;
    waiting.until("\r\n\r\n").await;
    let plain = open(engine.addr, CHAT, &chat(2000, false)).await;
    reach(&engine.control(), "three inside", |state| state.inside == 3).await;
    let ids = json!({"request_ids": ["chatcmpl-q-1", "chatcmpl-q-2", "chatcmpl-no"]});
    let answer = post(engine.addr, "/abort_requests", &ids).await.json();
    assert_eq!(answer, json!({"status": "aborted", "aborted": 2}));
    let events = running.end().await.events();
    assert_eq!(events[events.len() - 3]["choices"][0]["finish_reason"], "abort");
    let events = waiting.end().await.events();
    let recorded = fixture("crash/SIGTERM_api_waiting_stream").1.events();
    assert_eq!(events.len(), recorded.len());
    assert_eq!(events[0]["choices"], recorded[0]["choices"]);
    assert_eq!(events[1]["usage"]["completion_tokens"], 0);
    assert!(events.iter().all(|event| !event.to_string().contains("\"abort\"")));
    assert_eq!(post(engine.addr, "/abort_requests", &json!({})).await.json()["aborted"], 1);
    let plain = plain.end().await;
    assert_eq!(plain.status, 200);
    assert_eq!(plain.json()["choices"][0]["finish_reason"], "abort");
    reach(&engine.control(), "empty", |state| state.inside == 0).await;
}

#[tokio::test]
async fn pause_keeps_running_ones_and_holds_new_ones_unseen() {
    let engine = start(options()).await;
    let control = engine.control();
    control.add(FaultKind::Slow { factor: 20.0 }).unwrap();
    let mut running = open(engine.addr, CHAT, &chat(1000, true)).await;
    running.until("\"role\"").await;
    assert_eq!(post(engine.addr, "/pause?mode=keep", &json!({})).await.json()["status"], "paused");
    while !running.is_silent().await {}
    let mut held = open(engine.addr, CHAT, &chat(2, true)).await;
    held.until("\r\n\r\n").await;
    assert!(held.is_silent().await);
    let page = get(engine.addr, "/metrics").await.text();
    assert!(page.contains("num_requests_running{engine=\"0\",model_name=\"tiny\"} 1.0"));
    assert!(page.contains("num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 0.0"));
    assert_eq!(get(engine.addr, "/health").await.status, 200);
    assert_eq!(get(engine.addr, "/is_paused").await.json(), json!({"is_paused": true}));
    control.clear();
    post(engine.addr, "/resume", &json!({})).await;
    assert_eq!(held.end().await.end, End::Whole);
    assert_eq!(running.end().await.end, End::Whole);
    assert_eq!(control.state().finished, 2);
}

#[tokio::test]
async fn sleep_aborts_and_holds_until_wake_up() {
    let engine = start(slow()).await;
    let mut running = open(engine.addr, CHAT, &chat(2000, true)).await;
    running.until("\"role\"").await;
    let asleep = post(engine.addr, "/sleep?level=1", &json!({})).await.json();
    assert_eq!(asleep, json!({"status": "sleeping", "level": 1}));
    assert!(running.end().await.text().contains("\"finish_reason\":\"abort\""));
    let held = open(engine.addr, CHAT, &chat(2, false)).await;
    reach(&engine.control(), "held", |state| state.waiting == 1).await;
    let page = get(engine.addr, "/metrics").await.text();
    assert!(page.contains("sleep_state=\"weights_offloaded\"} 1.0"));
    let awake = post(engine.addr, "/wake_up", &json!({})).await.json();
    assert_eq!(awake, json!({"status": "awake", "tags": null}));
    assert_eq!(held.end().await.status, 200);
}

#[tokio::test]
async fn comments_are_sent_while_queued_when_asked_for() {
    let vllm = VllmFlags { sse_keep_alive: Some(Duration::from_millis(10)), ..VllmFlags::default() };
    let engine = start(SimOptions { vllm, ..one_slot() }).await;
    let mut first = open(engine.addr, CHAT, &chat(2000, true)).await;
    first.until("\"role\"").await;
    let mut second = open(engine.addr, CHAT, &chat(2, true)).await;
    second.until(": keep-alive\n\n").await;
    drop(first);
    assert!(second.end().await.events().len() >= 3);
}

#[tokio::test]
async fn many_streams_share_one_engine() {
    let mut options = options();
    options.engine.max_seqs = Some(256);
    let engine = start(options).await;
    let streams: Vec<_> = (0..300u32)
        .map(|index| {
            let addr = engine.addr;
            tokio::spawn(async move { post(addr, CHAT, &chat(5 + index % 20, true)).await })
        })
        .collect();
    for stream in streams {
        let reply = stream.await.unwrap();
        assert_eq!(reply.end, End::Whole);
        assert!(reply.text().contains("\"finish_reason\":\"length\""));
    }
    assert_eq!(engine.control().state().finished, 300);
}

#[tokio::test]
async fn a_stopped_engine_frees_its_port_and_cuts_its_connections() {
    // An address of its own, so that nobody else is given the port that it leaves.
    let listen = ([127, 0, 0, 3], 0).into();
    let mut fleet = start_fleet(vec![SimOptions { listen, ..options() }, options()]).await.unwrap();
    let (first, second) = (fleet.remove(0), fleet.remove(0));
    let addr = first.addr;
    assert_ne!(addr, second.addr);
    let mut running = open(addr, CHAT, &chat(2000, true)).await;
    running.until("\"role\"").await;
    first.stop().await;
    assert_eq!(running.end().await.end, End::Short);
    let again = start(SimOptions { listen: addr, ..options() }).await;
    assert_eq!(post(again.addr, CHAT, &chat(1, false)).await.status, 200);
    drop(second);
}
