//! Pitfalls: limits that other gateways are known to count or apply wrongly, one test each. The
//! numbers are those of the issues that reported them.
//!
//! | what went wrong | where | test |
//! |---|---|---|
//! | five calls at once used 663 of 100 tokens a minute | litellm #18730 | `limits::calls_at_once_do_not_pass_a_token_limit_together` |
//! | budgets are checked, then spent: many at once pass them | litellm #26672, #34732, #40095 | `a_days_quota_is_not_passed_by_many_at_once` |
//! | a zero increment: 213 % of a limit under contention | litellm #35422 | `many_small_ones_do_not_pass_a_limit`, `core::budget::tests::nothing_is_free` |
//! | `max_tokens: 1` reserved, `max_completion_tokens` used | litellm #34223 | `limits::the_largest_of_all_caps_counts` |
//! | no `max_tokens`: more is reserved than a small limit has, 429 for ever, and "remaining" still full | litellm #28805, #29193 | `limits::calls_at_once_do_not_pass_a_token_limit_together`, `core::budget::tests::a_guess_that_is_larger_than_the_limit_does_not_refuse_for_ever` |
//! | routes without messages, prompt or input reserve nothing | litellm #27001 | `every_call_counts` |
//! | a key is dead since its parallel calls are never given back | litellm #17323 | `a_place_is_given_back_by_every_call_and_every_end` |
//! | a limiter is built and never registered; limits silently not applied | litellm #27381, envoy ai-gateway #1169, #1754, #1866, aibrix #1552 | `every_limit_that_can_be_written_refuses`, `a_limit_counts_under_every_name_of_the_model` |
//! | a refusal names nobody | litellm #37971 | `every_limit_that_can_be_written_refuses` |
//! | streams count only once they are over | envoy ai-gateway #2394 | `a_stream_counts_before_it_says_anything` |
//! | the connection drops in place of a 429 | Kuadrant wasm-shim #372 | `a_refusal_keeps_the_connection` |
//! | "try again in 60 s" in words alone | litellm #27823 | `limits::calls_at_once_do_not_pass_a_token_limit_together`, the SDK tests |
//! | limits cannot be switched off, or one is made up from another | litellm #30211, aibrix #848, #2747 | `limits_end_with_a_reload_and_none_is_made_up` |
//! | many at once pass a limit, or nobody may use it up | | `crowd::nearly_all_of_a_limit_is_used_and_never_more` |
//! | usage is lost when a client leaves | litellm #14457 | `whoever_leaves_pays_for_what_was_done` |
//! | usage of Anthropic's `message_delta` is dropped; streams cost nothing | envoy ai-gateway #2290, otari #256, ferro-labs #281 | `every_call_counts` |
//! | usage is lost when JSON comes in pieces | higress #4146, #4728 | `usage_may_come_byte_by_byte` |
//! | unknown becomes 0 | openclaw #120008, posthog-js #4664 | `what_nobody_counted_is_unknown_and_stays_reserved` |

mod kinds;
mod usage;

use http::Method;
use penstock::sim::faults::{Fault, FaultKind};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::limits::limited;
use crate::request::clients::calls::bodies;
use crate::support::client::{Call, Session};
use crate::support::gateway::{MODEL, PATIENCE, Rig, TENANT, chat, until};

const CHAT: &str = "/v1/chat/completions";

/// Sends a tenant's body to a path.
fn call(rig: &Rig, path: &str, body: &str) -> Call {
    Call::post_text(path, body).key(rig.key(TENANT))
}

/// What `count` calls at once came to: the tokens of those that were served,
/// and the refusals' codes.
async fn at_once(rig: &Rig, count: usize, body: &Value) -> (Vec<u64>, Vec<String>) {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        calls.spawn(call(rig, CHAT, &body.to_string()).send(rig.address()));
    }
    let (mut served, mut refused) = (Vec::new(), Vec::new());
    for answer in calls.join_all().await {
        match answer.status {
            200 => served.push(answer.json()["usage"]["total_tokens"].as_u64().unwrap()),
            429 => refused.push(answer.code()),
            _ => panic!("{answer:?}"),
        }
    }
    rig.emptied_within(PATIENCE).await;
    (served, refused)
}

#[tokio::test]
async fn a_days_quota_is_not_passed_by_many_at_once() {
    let rig = limited("limits: {per_day: {tokens: 1000}}").await;
    let (served, refused) = at_once(&rig, 60, &chat(50, false)).await;
    let used: u64 = served.iter().sum();
    assert!((900..=1000).contains(&used), "{served:?}");
    assert!(refused.iter().all(|code| code == "insufficient_quota") && !refused.is_empty());
    assert_eq!(rig.left(), 1000 - used);
}

#[tokio::test]
async fn many_small_ones_do_not_pass_a_limit() {
    let rig = limited("limits: {per_minute: {tokens: 100}}").await;
    let (served, refused) = at_once(&rig, 80, &chat(1, false)).await;
    let used: u64 = served.iter().sum();
    let largest = *served.iter().max().unwrap();
    assert!(used <= 100 && used + largest > 80, "{served:?}");
    assert!(refused.iter().all(|code| code == "rate_limit_exceeded"));
    assert_eq!(rig.left(), 100 - used);
    let rig = limited("limits: {per_minute: {requests: 7}}").await;
    let (served, _) = at_once(&rig, 80, &chat(1, false)).await;
    assert_eq!(served.len(), 7);
}

#[tokio::test]
async fn a_place_is_given_back_by_every_call_and_every_end() {
    let rig = limited("limits: {concurrent: {requests: 1}}").await;
    let free = || rig.left() == 1;
    for (path, body) in bodies(MODEL) {
        call(&rig, path, &body).send(rig.address()).await.ok();
        until(path, free).await;
        // An engine that refuses the request, and one that fails it at first and
        // is then left alone for some time.
        let statuses = if path == CHAT { &[400, 500][..] } else { &[400] };
        for status in statuses.iter().copied() {
            let kind = FaultKind::Status { status, retry_after: None, message: None };
            rig.engine(0).add(Fault::from(kind).times(1)).unwrap();
            let answer = call(&rig, path, &body).send(rig.address()).await;
            assert!([200, 400].contains(&answer.status), "{path} {status}: {answer:?}");
            until(path, free).await;
            // Not every call meets faults.
            rig.engine(0).clear();
        }
        let refused = call(&rig, path, "{").send(rig.address()).await;
        assert_eq!(refused.status, 400, "{path}");
        assert_eq!(rig.left(), 1, "{path}");
    }
    for path in ["/v1/messages", "/v1/responses", "/v1/completions", CHAT] {
        let (_, body) = bodies(MODEL).into_iter().find(|(at, _)| *at == path).unwrap();
        let mut body: Value = serde_json::from_str(&body).unwrap();
        (body["stream"], body["ignore_eos"]) = (true.into(), true.into());
        let body = body.to_string();
        for end in
            [FaultKind::Cut { after_tokens: 2 }, FaultKind::ErrorEvent { after_tokens: 2, status: 503 }]
        {
            rig.engine(0).add(Fault::from(end).times(1)).unwrap();
            let answer = call(&rig, path, &body).send(rig.address()).await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            until(path, free).await;
        }
        call(&rig, path, &body).send(rig.address()).await.ok();
        until(path, free).await;
    }
}

#[tokio::test]
async fn a_limit_counts_under_every_name_of_the_model() {
    let rig = limited("model_map: {mine: sim}\nmodel_limits: {sim: {per_day: {requests: 1}}}").await;
    let file = std::fs::read_to_string(&rig.path).unwrap() + "models: {sim: {aliases: [gpt-4o]}}\n";
    rig.put(&file);
    rig.admin(Method::POST, "/admin/v1/reload").await.ok();
    let ask = async |model: &str| {
        let mut body = chat(2, false);
        body["model"] = model.into();
        rig.post(CHAT, &body).await
    };
    ask("gpt-4o").await.ok();
    for name in ["sim", "gpt-4o", "mine"] {
        let answer = ask(name).await;
        assert_eq!(answer.code(), "insufficient_quota", "{name}");
        assert!(answer.text().contains("your tenant for this model is 1 request a day"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_stream_counts_before_it_says_anything() {
    let rig = limited("limits: {per_minute: {tokens: 1000}}").await;
    rig.engine(0).add(FaultKind::Silent { after_tokens: 0, before_head: true }).unwrap();
    let silent = tokio::spawn(call(&rig, CHAT, &chat(900, true).to_string()).send(rig.address()));
    until("it is reserved", || rig.left() < 100).await;
    assert_eq!(rig.post(CHAT, &chat(100, true)).await.code(), "rate_limit_exceeded");
    silent.abort();
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_refusal_keeps_the_connection() {
    let rig = limited("limits: {per_minute: {requests: 1}}").await;
    let mut session = Session::open(rig.address()).await;
    session.call(call(&rig, CHAT, &chat(2, true).to_string())).await.ok();
    for _ in 0..3 {
        let refused = session.call(call(&rig, CHAT, &chat(2, true).to_string())).await;
        assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limit_exceeded"));
        assert!(refused.whole && refused.header("connection") != "close");
    }
    session.call(Call::get("/v1/models").key(rig.key(TENANT))).await.ok();
}

#[tokio::test]
async fn limits_end_with_a_reload_and_none_is_made_up() {
    const LINES: &str = "limits: {per_minute: {requests: 1}}";
    let rig = limited(LINES).await;
    let first = rig.post(CHAT, &chat(2, false)).await.ok();
    assert_eq!(first.header("x-ratelimit-limit-requests"), "1");
    assert_eq!(first.header("x-ratelimit-limit-tokens"), "", "nobody wrote one");
    assert_eq!(rig.post(CHAT, &chat(2, false)).await.status, 429);
    let file = std::fs::read_to_string(&rig.path).unwrap();
    assert!(file.contains(LINES));
    rig.put(&file.replace(&format!("    {LINES}\n"), ""));
    rig.admin(Method::POST, "/admin/v1/reload").await.ok();
    for _ in 0..5 {
        let answer = rig.post(CHAT, &chat(2, false)).await.ok();
        assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("x-ratelimit")));
    }
    assert!(rig.gateway.proxy().dispatcher.limits().is_empty());
}
