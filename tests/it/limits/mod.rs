//! Limits of tenants, keys and models, as clients meet them.

pub(crate) mod bills;
pub(crate) mod cluster;
pub(crate) mod many_clients;
pub(crate) mod pitfalls;
pub(crate) mod usage;

use http::Method;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::SimOptions;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::client::{Answer, Call, Raw};
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, until};

const CHAT: &str = "/v1/chat/completions";

/// One engine with eight places, and a tenant with these lines.
pub(crate) async fn limited(lines: &'static str) -> Rig {
    Rig::start(RigOptions {
        engines: vec![SimOptions::default()],
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 8"),
        tenants: vec![(TENANT, lines), ("free", "")],
        ..RigOptions::default()
    })
    .await
}

impl Rig {
    async fn ask(&self, body: &Value) -> Answer {
        self.post(CHAT, body).await
    }

    /// What is left of the tenant's first limit.
    pub(crate) fn left(&self) -> u64 {
        self.gateway.proxy().dispatcher.limits()[0].left
    }
}

fn numbers(answer: &Answer, kind: &str) -> [String; 3] {
    ["limit", "remaining", "reset"]
        .map(|what| answer.header(&format!("x-ratelimit-{what}-{kind}")).to_owned())
}

#[tokio::test]
async fn calls_at_once_do_not_pass_a_token_limit_together() {
    let rig = limited("limits: {per_minute: {tokens: 100}}").await;
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let call =
            Call::post(CHAT, &json!({ "model": "sim", "messages": [{ "role": "user", "content": "hi" }] }));
        calls.spawn(call.key(rig.key(TENANT)).send(rig.address()));
    }
    let answers = calls.join_all().await;
    let (served, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((served.len(), refused.len()), (1, 4), "no max_tokens: all of a small limit is reserved");
    for answer in refused {
        assert_eq!((answer.status, answer.code().as_str()), (429, "rate_limit_exceeded"));
        let wait: f64 = answer.header("retry-after-ms").parse().unwrap();
        assert!((1_000.0..=60_000.0).contains(&wait), "as long as the one usually takes: {wait}");
        assert_eq!(answer.header("x-should-retry"), "true");
        assert_eq!(numbers(answer, "tokens")[0], "100");
    }
    let used = served[0].json()["usage"]["total_tokens"].as_u64().unwrap();
    until("it is settled", || rig.left() == 100_u64.saturating_sub(used)).await;
    // What is used is free again in a minute.
    let wait: f64 = rig
        .ask(&json!({ "model": "sim", "messages": [{ "role": "user", "content": "x".repeat(300) }] }))
        .await
        .header("retry-after-ms")
        .parse()
        .unwrap();
    assert!((50_000.0..=60_000.0).contains(&wait), "{wait}");
}

#[tokio::test]
async fn the_largest_of_all_caps_counts() {
    let rig = limited("limits: {per_minute: {tokens: 5000}}").await;
    let body = json!({
        "model": "sim", "messages": [{ "role": "user", "content": "hi" }],
        "max_tokens": 1, "max_completion_tokens": 4_990, "ignore_eos": false,
    });
    rig.engine(0).add(FaultKind::Slow { factor: 50.0 }).unwrap();
    let running = tokio::spawn(Call::post(CHAT, &body).key(rig.key(TENANT)).send(rig.address()));
    until("it is reserved", || rig.left() < 100).await;
    let second = rig.ask(&body).await;
    assert_eq!(second.code(), "rate_limit_exceeded");
    running.abort();
    until("what nobody counted stays reserved", || rig.is_empty()).await;
    assert!(rig.left() < 100);
}

#[tokio::test]
async fn every_answer_tells_how_it_stands() {
    let rig = limited("limits: {per_minute: {requests: 3, tokens: 100000}}").await;
    for left in [2, 1, 0] {
        let answer = rig.ask(&chat(5, left == 1)).await.ok();
        let [limit, remaining, reset] = numbers(&answer, "requests");
        assert_eq!((limit.as_str(), remaining), ("3", left.to_string()));
        assert!(reset == "1m0s" || reset.ends_with('s'), "{reset}");
        assert_eq!(numbers(&answer, "tokens")[0], "100000");
    }
    let refused = rig.ask(&chat(5, true)).await;
    assert_eq!(
        (refused.code().as_str(), numbers(&refused, "requests")[1].as_str()),
        ("rate_limit_exceeded", "0")
    );
    let text = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(text.starts_with("The limit of your tenant is 3 requests a minute: 0 requests left"), "{text}");
    let free = Call::post(CHAT, &chat(5, false)).key(rig.key("free")).send(rig.address()).await.ok();
    assert_eq!(free.header("x-ratelimit-limit-requests"), "");
    assert!((rig.metric("penstock_limits_met_total").await - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn a_prompt_larger_than_the_limit_is_told_not_to_try_again() {
    let rig = limited("limits: {per_minute: {input_tokens: 20}}").await;
    let long = json!({ "model": "sim", "messages": [{ "role": "user", "content": "word ".repeat(200) }] });
    let answer = rig.ask(&long).await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "insufficient_quota"));
    assert_eq!((answer.header("x-should-retry"), answer.header("retry-after")), ("false", ""));
    rig.ask(&chat(5, false)).await.ok();
}

#[tokio::test]
async fn a_quota_of_the_day_is_spent() {
    let rig = limited("limits: {per_day: {requests: 1}}").await;
    rig.ask(&chat(5, false)).await.ok();
    let answer = rig.ask(&chat(5, false)).await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "insufficient_quota"));
    assert_eq!(answer.header("x-should-retry"), "false");
}

#[tokio::test]
async fn a_shadow_limit_counts_and_lets_all_pass() {
    let rig = limited("limits: {shadow: {per_minute: {requests: 1}}}").await;
    for _ in 0..4 {
        rig.ask(&chat(5, false)).await.ok();
    }
    assert!((rig.metric("penstock_limits_met_total").await - 3.0).abs() < 1e-9);
}

#[tokio::test]
async fn limits_of_a_model_and_of_a_reload_count() {
    let rig = limited("model_limits: {sim: {concurrent: {requests: 1}}}").await;
    rig.engine(0).add(FaultKind::Slow { factor: 50.0 }).unwrap();
    let first = tokio::spawn(Call::post(CHAT, &chat(500, true)).key(rig.key(TENANT)).send(rig.address()));
    until("it runs", || rig.left() == 0).await;
    let refused = rig.ask(&chat(5, false)).await;
    assert!(
        refused.text().contains("your tenant for this model is 1 request at a time"),
        "{}",
        refused.text()
    );
    let file = std::fs::read_to_string(&rig.path).unwrap().replace("requests: 1}", "requests: 2}");
    rig.put(&file);
    rig.admin(Method::POST, "/admin/v1/reload").await.ok();
    rig.ask(&chat(1, false)).await.ok();
    first.abort();
    until("all is given back", || rig.left() == 2).await;
}

/// Clients that leave in any phase hold nothing of a limit afterwards.
#[tokio::test]
async fn whoever_leaves_gives_back_what_is_held_at_a_time() {
    let rig = limited("limits: {concurrent: {requests: 12, tokens: 100000}}").await;
    rig.engine(0).add(FaultKind::Slow { factor: 20.0 }).unwrap();
    let body = chat(400, true).to_string();
    let mut open = Vec::new();
    for _ in 0..12 {
        let mut client = Raw::open(rig.address()).await;
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            rig.key(TENANT),
            body.len()
        );
        client.write(head).await.unwrap();
        open.push(client);
    }
    until("eight run and four wait", || rig.left() == 0 && rig.waiting() == 4).await;
    assert_eq!(rig.ask(&chat(1, false)).await.code(), "rate_limit_exceeded");
    open.into_iter().for_each(Raw::reset);
    until("nothing is held", || rig.left() == 12).await;
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn operators_see_limits_with_what_is_left_of_them() {
    let rig = limited("limits: {per_minute: {requests: 5}}").await;
    assert!(rig.ask(&chat(1, true)).await.is_done());
    let rows = rig.admin(Method::GET, "/admin/v1/tenants").await.ok().json();
    let mut rows = rows["tenants"].as_array().unwrap().iter();
    let limit = &rows.find(|row| row["tenant"] == TENANT).unwrap()["limits"][0];
    assert_eq!(
        (&limit["unit"], &limit["period"], &limit["amount"], &limit["left"]),
        (&json!("requests"), &json!("per_minute"), &json!(5), &json!(4))
    );
    let config = rig.admin(Method::GET, "/admin/v1/config").await.ok().json();
    let told = json!([{
        "scope": "tenant", "of": TENANT, "unit": "requests", "period": "per_minute", "amount": 5,
        "shadow": false,
    }]);
    assert_eq!(config["tenants"][TENANT]["limits"], told);
}
