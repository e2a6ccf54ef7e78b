//! Faults before the first token: with a second replica no client notices them.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::reply::{End, Reply};
use super::setup::{MODEL, Rig, Setup, chat, engine, patient, tgi};
use super::table::{Effect, Row, TABLE, What};
use crate::support::gateway::until;

/// Rows that run at the same time.
const AT_ONCE: usize = 6;
const TOKENS: u32 = 8;

/// For engines that say nothing. A machine that is slow enough makes good ones
/// say nothing, too: that may cost tries, and still nobody sees it.
const LIMITS: &str = "upstream: {first_token_timeout: 2500ms}\n";
/// For connections that are used again, however long the machine takes between two calls.
const KEPT: &str = "upstream: {keep_alive: 4m}\n";

/// A call in one of the protocols, plain or as a stream.
pub(super) fn calls() -> Vec<(&'static str, Value)> {
    let prompt = json!({"model": MODEL, "max_tokens": TOKENS, "ignore_eos": true, "prompt": "tell me"});
    let message = json!({
        "model": MODEL, "max_tokens": TOKENS, "ignore_eos": true,
        "messages": [{"role": "user", "content": "tell me"}],
    });
    let response =
        json!({"model": MODEL, "max_output_tokens": TOKENS, "ignore_eos": true, "input": "tell me"});
    let with_stream = |body: &Value| {
        let mut body = body.clone();
        body["stream"] = true.into();
        body
    };
    vec![
        ("/v1/chat/completions", chat(TOKENS, true)),
        ("/v1/chat/completions", chat(TOKENS, false)),
        ("/v1/completions", with_stream(&prompt)),
        ("/v1/completions", prompt),
        ("/v1/messages", with_stream(&message)),
        ("/v1/messages", message),
        ("/v1/responses", with_stream(&response)),
        ("/v1/responses", response),
    ]
}

fn tgi_calls() -> Vec<(&'static str, Value)> {
    let body = json!({"inputs": "tell me", "parameters": {"max_new_tokens": TOKENS, "details": true}});
    let calls = [("/generate_stream", &body), ("/generate", &body)];
    calls.into_iter().cycle().take(8).map(|(path, body)| (path, body.clone())).collect()
}

/// Sends all calls at once; every answer must be whole and good.
async fn wave(rig: &Arc<Rig>, calls: Vec<(&'static str, Value)>) {
    let mut answers = JoinSet::new();
    for (path, body) in calls {
        let rig = Arc::clone(rig);
        answers.spawn(async move { (path, rig.post(path, &body).await) });
    }
    while let Some(answer) = answers.join_next().await {
        let (path, reply) = answer.unwrap();
        assert_good(path, &reply);
    }
}

pub(super) fn assert_good(path: &str, reply: &Reply) {
    let text = reply.text();
    assert_eq!((reply.status, reply.end), (200, End::Whole), "{path}: {text}");
    assert!(!text.contains("\"error\"") && !text.contains("abort"), "{path}: {text}");
    let ends = ["[DONE]", "message_stop", "response.completed", "\"generated_text\":\""];
    let is_stream = reply.header("content-type").is_some_and(|value| value.starts_with("text/event-stream"));
    assert!(!is_stream || ends.iter().any(|end| text.contains(end)), "{path}: {text}");
}

/// Engine 0 goes wrong while (or before) eight calls come, then eight more.
async fn run(row: Row, is_tgi: bool) {
    let one = || patient(if is_tgi { tgi() } else { engine() });
    let calls = || if is_tgi { tgi_calls() } else { calls() };
    let rig = Rig::start(Setup {
        engines: vec![one(), one()],
        pool: "max_seqs: 8\nscrape_interval: 100ms",
        retry: if row.before.is_silence() { "max_attempts: 20" } else { "" }.into(),
        yaml: if row.before.is_silence() { LIMITS } else { KEPT }.into(),
        ..Setup::default()
    });
    let rig = Arc::new(rig.await);
    let control = rig.engine(0);
    match row.what {
        What::Request { .. } | What::Engine { .. } => {
            row.what.begin(&rig.engines[0]).await;
            wave(&rig, calls()).await;
        }
        What::Reuse { .. } => {
            wave(&rig, calls()).await;
            row.what.begin(&rig.engines[0]).await;
            wave(&rig, calls()).await;
            let shown = control.faults().iter().map(|fault| fault.shown).sum::<u32>();
            assert!(shown > 0, "no connection was used twice");
        }
        What::End { .. } => {
            // Nothing gets its first token here before the end.
            control.add(penstock::sim::faults::FaultKind::Freeze).unwrap();
            let first = tokio::spawn({
                let rig = Arc::clone(&rig);
                let calls = calls();
                async move { wave(&rig, calls).await }
            });
            until("requests are inside", || control.state().inside >= 2).await;
            row.what.begin(&rig.engines[0]).await;
            if row.what.json().contains("restart") {
                // What comes up again is not frozen.
                control.clear();
            }
            first.await.unwrap();
        }
    }
    wave(&rig, calls()).await;
    rig.settled().await;
    verify(&rig, row.before, is_tgi).await;
}

/// What the log and the metrics must say of it.
async fn verify(rig: &Rig, effect: Effect, is_tgi: bool) {
    let bad = rig.replica(0);
    // TGI has no words of its own for an end of its process.
    let in_tgi =
        if is_tgi && effect.ejects() == Some(true) { &["server_error", "error_event"][..] } else { &[] };
    let allowed = [effect.faults(), in_tgi].concat();
    let finished = rig.log("request finished");
    assert!(finished.iter().all(|line| line["outcome"] == "success"), "{finished:?}");
    let requeued = rig.log("request requeued");
    // Silence is found out by the scheduler too, which then takes jobs back.
    let recalled = rig.log("request recalled");
    assert!(recalled.iter().all(|line| line["reason"] == "stalled"), "{recalled:?}");
    let moved = requeued.len() + recalled.len();
    assert_eq!(moved == 0, allowed.is_empty(), "{requeued:?} {recalled:?}");
    let blamed = |line: &Value| line["replica"] == bad.as_str() || line["fault"] == "silent";
    assert!(requeued.iter().all(blamed), "{requeued:?}");
    if !allowed.is_empty() {
        let expected = |line: &&Value| line["fault"].as_str().is_some_and(|fault| allowed.contains(&fault));
        let stalled = allowed.contains(&"silent") && !recalled.is_empty();
        assert!(stalled || requeued.iter().any(|line| expected(&line)), "{requeued:?} {recalled:?}");
    }
    assert_eq!(rig.metric("penstock_requeues_total").await, requeued.len() as f64);
    assert_eq!(rig.metric("penstock_recalls_total").await, recalled.len() as f64);
    let tries = finished.iter().map(|line| line["attempts"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(tries, (finished.len() + moved) as u64);

    if let Some(ejects) = effect.ejects() {
        until("the ejection", || rig.log("replica ejected").is_empty() != ejects).await;
        assert_eq!(rig.metric("penstock_ejections_total").await > 0.0, ejects);
    }
    let ejected = rig.log("replica ejected");
    assert!(ejected.iter().all(blamed), "{ejected:?}");
}

async fn run_all(is_tgi: bool) {
    let limit = Arc::new(Semaphore::new(AT_ONCE));
    let mut rows = JoinSet::new();
    for row in TABLE {
        let limit = Arc::clone(&limit);
        rows.spawn(async move {
            let _permit = limit.acquire().await.unwrap();
            (row, tokio::spawn(run(*row, is_tgi)).await)
        });
    }
    let mut failed = Vec::new();
    while let Some(done) = rows.join_next().await {
        if let (row, Err(problem)) = done.unwrap() {
            failed.push(format!("{}: {problem}", row.what.json()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_of_a_vllm_sees_a_fault_before_the_first_token() {
    run_all(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_of_a_tgi_sees_a_fault_before_the_first_token() {
    run_all(true).await;
}
