//! Tests of the ends of an engine's process, as clients see them.

use serde_json::json;
use tokio::net::TcpStream;

use super::client::{
    End, Open, chat, fixture, get, has_done, open, options, post, reach, recovers, replay, slow, start,
};
use crate::faults::FaultKind;
use crate::server::{SimHandle, SimOptions, SimServer, Terminate};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_spot_notice_comes_before_the_end() {
    let engine = start(slow()).await;
    let path = "/latest/meta-data/spot/instance-action";
    assert_eq!(get(engine.addr, path).await.status, 404);
    let mut running = open(engine.addr, CHAT, &chat(2000, true)).await;
    running.until("\"role\"").await;
    engine.control().add(FaultKind::SpotNotice { grace_ms: 200 }).unwrap();
    assert_eq!(get(engine.addr, path).await.json()["action"], "terminate");
    assert!(running.end().await.text().contains("\"finish_reason\":\"abort\""));
    reach(&engine.control(), "port closed", |state| !state.listening).await;
}

async fn two_streams(engine: &SimHandle) -> (Open, Open) {
    let mut running = open(engine.addr, CHAT, &chat(2000, true)).await;
    running.until("\"role\"").await;
    let mut waiting = open(engine.addr, CHAT, &chat(2000, true)).await;
    waiting.until("\r\n\r\n").await;
    (running, waiting)
}

async fn one_slot() -> SimHandle {
    let mut options = slow();
    options.engine.max_seqs = Some(1);
    start(options).await
}

#[tokio::test]
async fn sigterm_ends_everything_normally() {
    let engine = one_slot().await;
    let (running, waiting) = two_streams(&engine).await;
    let plain = open(engine.addr, CHAT, &chat(2000, false)).await;
    reach(&engine.control(), "three inside", |state| state.inside == 3).await;
    post(engine.addr, "/sim/terminate", &json!({"mode": "sigterm"})).await;
    let (running, waiting, plain) = (running.end().await, waiting.end().await, plain.end().await);
    assert!(running.text().contains("\"finish_reason\":\"abort\"") && has_done(&running));
    assert_eq!((waiting.events().len(), has_done(&waiting)), (2, true));
    assert_eq!((plain.status, &plain.json()["usage"]["completion_tokens"]), (200, &json!(0)));
    reach(&engine.control(), "port closed", |state| !state.listening && !state.serving).await;
}

#[tokio::test]
async fn a_drain_finishes_what_is_inside() {
    let engine = start(options()).await;
    let mut running = open(engine.addr, CHAT, &chat(300, true)).await;
    running.until("\"role\"").await;
    engine.control().terminate(Terminate::Drain { grace_ms: 60_000 });
    let (reply, recorded) = replay(engine.addr, "ok/chat").await;
    assert!(reply.status == 500 && recorded.status == 200);
    assert_eq!(get(engine.addr, "/v1/models").await.status, 200);
    let reply = running.end().await;
    assert!(reply.text().contains("\"finish_reason\":\"length\""));
}

#[tokio::test]
async fn killed_parts_leave_their_marks() {
    let engine = one_slot().await;
    let (running, waiting) = two_streams(&engine).await;
    engine.control().terminate(Terminate::KillEngine);
    let recorded = fixture("crash/SIGKILL_core_waiting_stream").1.text();
    assert!(running.end().await.text().ends_with(&recorded));
    assert_eq!(waiting.end().await.text(), recorded);
    reach(&engine.control(), "port closed", |state| !state.listening).await;

    let engine = one_slot().await;
    let (running, waiting) = two_streams(&engine).await;
    engine.control().terminate(Terminate::KillServer);
    let (running, waiting) = (running.end().await, waiting.end().await);
    assert_eq!((running.end, waiting.end), (End::Short, End::Short));
    assert!(!has_done(&running) && waiting.chunks.is_empty());

    let engine = one_slot().await;
    let (mut running, mut waiting) = two_streams(&engine).await;
    engine.control().terminate(Terminate::Hang);
    reach(&engine.control(), "port closed", |state| !state.listening).await;
    while !running.is_silent().await {}
    assert!(waiting.is_silent().await);
}

#[tokio::test]
async fn a_restarted_engine_is_fresh() {
    let engine = start(options()).await;
    recovers(&engine).await;
    assert_eq!(engine.control().state().finished, 1);
    let mut running = open(engine.addr, CHAT, &chat(2000, true)).await;
    running.until("\"role\"").await;
    engine.control().terminate(Terminate::Restart { down_ms: 100 });
    assert!(!engine.control().state().listening, "it is down");
    assert_eq!(running.end().await.end, End::Short);
    reach(&engine.control(), "up", |state| state.listening && state.serving).await;
    assert_eq!(engine.control().state().finished, 0);
    while TcpStream::connect(engine.addr).await.is_err() {
        tokio::task::yield_now().await;
    }
    recovers(&engine).await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_refused() {
    let engine = start(options()).await;
    let second = SimServer::start(SimOptions { listen: engine.addr, ..options() }).await;
    assert_eq!(second.map(|engine| engine.addr).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}
