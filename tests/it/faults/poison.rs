//! Poison request: a request that kills every engine it reaches.

use std::sync::Arc;

use penstock::sim::faults::{Fault, FaultKind, ResetPoint};
use penstock::sim::server::{SimHandle, Terminate};
use serde_json::json;
use tokio::task::JoinSet;

use super::before::assert_good;
use super::reply::End;
use super::setup::{MODEL, Rig, Setup, chat, engine};

const ENGINES: usize = 8;
const MAX_ATTEMPTS: usize = 4;
/// The call that is deadly here, and only here.
const POISON: &str = "/v1/completions";

/// Restarts the engine when the poison reached it.
fn make_mortal(engine: &SimHandle) {
    let control = engine.control();
    let deadly =
        Fault { path: Some(POISON.to_owned()), ..Fault::from(FaultKind::Reset { at: ResetPoint::Request }) };
    control.add(deadly).unwrap();
    tokio::spawn(async move {
        let mut deaths = 0;
        loop {
            let shown = control.faults().first().map_or(0, |fault| fault.shown);
            if shown > deaths {
                deaths = shown;
                control.terminate(Terminate::Restart { down_ms: 300 });
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
}

async fn poisoned(warm: bool) {
    let rig = Rig::start(Setup {
        engines: (0..ENGINES).map(|_| engine()).collect(),
        retry: format!("max_attempts: {MAX_ATTEMPTS}"),
        yaml: "health: {slow_start: 100ms}\n".into(),
        ..Setup::default()
    });
    let rig = Arc::new(rig.await);
    if warm {
        // Kept connections everywhere: a lost one must not hide a dead engine.
        let mut first = JoinSet::new();
        for _ in 0..8 * ENGINES {
            let rig = Arc::clone(&rig);
            first.spawn(async move { rig.post("/v1/chat/completions", &chat(30, false)).await });
        }
        first.join_all().await;
    }
    rig.engines.iter().for_each(make_mortal);

    let body = json!({"model": MODEL, "max_tokens": 4, "prompt": "die", "stream": warm});
    let poison = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move { rig.post(POISON, &body).await }
    });
    // Few enough that those who lose an engine with the poison need not meet it
    // again.
    let mut others = JoinSet::new();
    for job in 0..12 {
        let rig = Arc::clone(&rig);
        others.spawn(async move { rig.post("/v1/chat/completions", &chat(8, job % 2 == 0)).await });
    }
    let reply = poison.await.unwrap();
    assert_eq!((reply.status, reply.end), (502, End::Whole), "{}", reply.text());
    assert_eq!(reply.json()["error"]["code"], "upstream_failed");
    assert_eq!((reply.header("x-should-retry"), reply.header("retry-after")), (Some("false"), None));
    // What runs beside it on an engine that dies has its first token or moves.
    while let Some(reply) = others.join_next().await {
        let reply = reply.unwrap();
        if reply.end == End::Whole {
            assert_good("chat", &reply);
        } else {
            assert!(reply.text().contains("upstream_broken"), "{}", reply.text());
        }
    }
    rig.settled().await;
    let line = rig.line_of(reply.request_id()).await;
    assert_eq!((&line["outcome"], &line["attempts"]), (&"failed".into(), &MAX_ATTEMPTS.into()), "{line}");
    let shown = |engine: &SimHandle| engine.control().faults()[0].shown as usize;
    let killed = rig.engines.iter().filter(|engine| shown(engine) > 0).count();
    assert!(killed <= MAX_ATTEMPTS, "{killed} engines died");

    // Whoever comes now is served.
    for _ in 0..4 {
        assert_good("chat", &rig.post("/v1/chat/completions", &chat(4, false)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poisonous_request_is_given_up_over_new_connections() {
    poisoned(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poisonous_request_is_given_up_over_kept_connections() {
    poisoned(true).await;
}
