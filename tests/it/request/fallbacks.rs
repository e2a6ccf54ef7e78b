//! Fallbacks and model names end to end: the model that serves instead, the requests that are
//! shared, and the client's view.

use std::time::Duration;

use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{MODEL, PATIENCE, Rig, TENANT, chat, head, pool_lines, tenant_lines, until};

const CHAT: &str = "/v1/chat/completions";
/// The other model, as clients know it and as its engine does.
const OTHER: &str = "backup";
const OTHER_ENGINE: &str = "engine-side-name";
/// A tenant that does not allow another model.
const STRICT: &str = "strict";
/// The header that names the model that served.
const SERVED_BY: &str = "x-penstock-model";

/// Nothing waits for longer than this.
const CLASS: &str = "classes: {only: {max_wait: 400ms}}\n";
const FALLBACK: &str = "models: {sim: {fallbacks: [backup]}}\n";

/// A model on each of two engines of one sequence, of which the first is slow.
async fn rig(speed: f64, more: &str) -> Rig {
    let first = SimOptions { speed, ..SimOptions::default() };
    let second = SimOptions { models: vec![OTHER_ENGINE.to_owned()], ..SimOptions::default() };
    let engines = [SimServer::start(first).await.unwrap(), SimServer::start(second).await.unwrap()];
    let urls = engines.each_ref().map(|engine| vec![engine.url()]);
    let text = head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, "allow_fallback: true\nmodel_map: {mine: backup}\nqueue: {requests: 1}")
        + &tenant_lines(STRICT, "")
        + "pools:\n"
        + &pool_lines("first", "engine: vllm\nmodels: [sim]\nmax_seqs: 1", &urls[0])
        + &pool_lines("second", "engine: vllm\nmodels: {backup: engine-side-name}\nmax_seqs: 8", &urls[1])
        + more;
    Rig::with_file(&text, engines.into(), [TENANT, STRICT]).await
}

async fn post_as(rig: &Rig, tenant: &str, body: &Value) -> Answer {
    Call::post(CHAT, body).key(rig.key(tenant)).send(rig.address()).await
}

/// Checks a good answer that the other model gave under the name that the
/// client used.
fn assert_served_by_other(answer: &Answer, asked: &str) {
    let text = answer.text();
    assert_eq!((answer.status, answer.header(SERVED_BY)), (200, OTHER), "{text}");
    assert!(!text.contains(OTHER_ENGINE) && !text.contains(OTHER), "{text}");
    assert!(text.contains(&format!("\"model\":\"{asked}\"")), "{text}");
}

/// Requests get an error of the engine's.
const fn broken() -> FaultKind {
    FaultKind::Status { status: 500, retry_after: None, message: None }
}

async fn fallbacks(rig: &Rig) -> f64 {
    rig.metric("penstock_fallbacks_total").await
}

#[tokio::test]
async fn another_model_serves_when_the_first_is_down_and_nobody_sees_its_name() {
    let rig = rig(1.0, &format!("{CLASS}{FALLBACK}")).await;
    rig.engine(0).add(FaultKind::Refuse).unwrap();
    let prompt = |stream| json!({"model": MODEL, "prompt": "tell me", "max_tokens": 4, "stream": stream});
    let message =
        json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "tell me"}]});
    let calls = [
        (CHAT, chat(4, true)),
        (CHAT, chat(4, false)),
        ("/v1/completions", prompt(true)),
        ("/v1/messages", message),
    ];
    for (path, body) in &calls {
        let answer = rig.post(path, body).await;
        assert_served_by_other(&answer, MODEL);
        let line = rig.line_of(answer.header("x-request-id")).await;
        let expected = json!(["success", OTHER, MODEL, MODEL, "no_replica", "exact"]);
        let seen = ["outcome", "model", "requested_model", "fallback_from", "fallback_reason", "usage"];
        assert_eq!(json!(seen.map(|key| &line[key])), expected, "{line}");
    }
    assert_eq!(fallbacks(&rig).await, calls.len() as f64);
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_tenant_that_does_not_allow_it_is_told_the_truth() {
    let rig = rig(1.0, &format!("{CLASS}{FALLBACK}")).await;
    rig.engine(0).add(FaultKind::Refuse).unwrap();
    let answer = post_as(&rig, STRICT, &chat(4, false)).await;
    assert_eq!((answer.status, answer.code().as_str(), answer.header(SERVED_BY)), (503, "slow_down", ""));
    assert_eq!(fallbacks(&rig).await, 0.0);
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn another_model_serves_when_all_attempts_failed() {
    let rig = rig(1.0, &format!("{FALLBACK}retry: {{max_attempts: 1}}\n")).await;
    rig.engine(0).add(Fault { times: Some(1), ..broken().into() }).unwrap();
    let answer = rig.post(CHAT, &chat(4, true)).await;
    assert_served_by_other(&answer, MODEL);
    let line = rig.line_of(answer.header("x-request-id")).await;
    assert_eq!((&line["fallback_reason"], &line["attempts"]), (&"attempts_exhausted".into(), &2.into()));
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn another_model_serves_when_the_queue_is_full_or_the_deadline_passes() {
    let classes = "classes: {long: {rank: 0, max_wait: 1m}, brief: {rank: 1, max_wait: 1s}}\n";
    let rig = rig(1.0, &format!("{classes}{FALLBACK}")).await;
    rig.engine(0).add(FaultKind::Freeze).unwrap();
    let post = |class: &str| {
        let call = Call::post(CHAT, &chat(4, false)).key(rig.key(TENANT));
        call.header("x-penstock-class", class).send(rig.address())
    };
    let (held, waits) = (tokio::spawn(post("long")), tokio::spawn(post("long")));
    until("one runs and one waits", || rig.waiting() == 1 && rig.snapshot().jobs == 2).await;
    let refused = post("long").await;
    assert_served_by_other(&refused, MODEL);
    waits.abort();
    until("none waits", || rig.waiting() == 0).await;
    let late = post("brief").await;
    assert_served_by_other(&late, MODEL);
    for (answer, reason) in [(refused, "tenant_queue_full"), (late, "deadline_exceeded")] {
        let line = rig.line_of(answer.header("x-request-id")).await;
        assert_eq!(line["fallback_reason"], reason);
    }
    held.abort();
    rig.engine(0).clear();
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_stream_that_has_begun_is_not_given_to_another_model() {
    let rig = rig(0.1, &format!("{FALLBACK}retry: {{continue_streams: false}}\n")).await;
    rig.engine(0).add(Fault::from_json(br#"{"kind": "cut", "after_tokens": 3}"#).unwrap()).unwrap();
    let answer = rig.post(CHAT, &chat(30, true)).await;
    assert_eq!(
        (answer.status, answer.is_done(), answer.header(SERVED_BY)),
        (200, false, ""),
        "{}",
        answer.text()
    );
    assert!(answer.text().contains("upstream_broken"), "{}", answer.text());
    assert_eq!(fallbacks(&rig).await, 0.0);
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn names_of_tenants_and_splits_reach_their_models_and_stay_in_the_answers() {
    let split = "models: {talk: {split: {sim: 3, backup: 1}, fallbacks: [backup]}}\n";
    let rig = rig(1.0, split).await;
    let ask = |name: &str| json!({"model": name, "prompt": "tell me", "max_tokens": 2, "stream": true});
    let post = |name: &'static str| {
        let (address, key) = (rig.address(), rig.key(TENANT).to_owned());
        async move { Call::post("/v1/completions", &ask(name)).key(&key).send(address).await.ok() }
    };
    assert_served_by_other(&post("mine").await, "mine");
    let mut served = [0, 0];
    for _ in 0..40 {
        let answer = post("talk").await;
        assert!(answer.text().contains("\"model\":\"talk\""), "{}", answer.text());
        served[usize::from(answer.header(SERVED_BY) == OTHER)] += 1;
    }
    assert!((9..=11).contains(&served[1]), "{served:?}");
    rig.engine(0).add(broken()).unwrap();
    for _ in 0..4 {
        assert_served_by_other(&post("talk").await, "talk");
    }
    let models = Call::get("/v1/models").key(rig.key(TENANT)).send(rig.address()).await.json();
    let names: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|row| &row["id"]).collect();
    assert_eq!(json!(names), json!([OTHER, "mine", MODEL, "talk"]));
    rig.emptied_within(Duration::from_secs(30)).await;
}
