//! Shadow requests: what they show to operators, and that no other request notices them.

use std::time::Duration;

use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{
    MODEL, PATIENCE, Rig, TENANT, chat, head, pool_lines, soon, tenant_lines, until,
};

const CHAT: &str = "/v1/chat/completions";
const COMPARED: &str = "penstock_shadow_duration_seconds_count";

/// A model on each of two engines, and copies from the first to the second.
async fn rig(shadow: &str, seqs: u32) -> Rig {
    rig_for("", shadow, seqs).await
}

/// The same for a tenant with these settings.
async fn rig_for(tenant: &str, shadow: &str, seqs: u32) -> Rig {
    let next = SimOptions { models: vec!["next".to_owned()], ..SimOptions::default() };
    let engines =
        [SimServer::start(SimOptions::default()).await.unwrap(), SimServer::start(next).await.unwrap()];
    let urls = engines.each_ref().map(|engine| vec![engine.url()]);
    let pool = |model: &str| format!("engine: vllm\nmodels: [{model}]\nmax_seqs: {seqs}");
    let text = head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, tenant)
        + "pools:\n"
        + &pool_lines("first", &pool(MODEL), &urls[0])
        + &pool_lines("second", &pool("next"), &urls[1])
        + &format!("models: {{sim: {{shadow: {shadow}}}}}\n");
    Rig::with_file(&text, engines.into(), [TENANT]).await
}

async fn ask(rig: &Rig, id: &str, body: &Value) -> Answer {
    let call = Call::post(CHAT, body).key(rig.key(TENANT));
    call.header("x-request-id", id).header("x-penstock-class", "standard").send(rig.address()).await
}

/// An answer without its time of birth.
fn words(answer: &Answer) -> String {
    let text = answer.text();
    let (mut rest, mut words) = (&*text, String::new());
    while let Some((before, after)) = rest.split_once("\"created\":") {
        words += before;
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    words + rest
}

/// The log lines of comparisons, once there are so many.
async fn compared(rig: &Rig, count: usize) -> Vec<Value> {
    let lines = || -> Vec<Value> {
        let log = rig.telemetry.captured_log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == "shadow").collect()
    };
    until("the comparisons", || lines().len() >= count).await;
    assert_eq!(lines().len(), count);
    lines()
}

#[tokio::test]
async fn every_copy_is_compared_and_booked_apart_and_no_answer_differs() {
    let with = rig("{to: next, share: 1}", 16).await;
    let without = rig("{to: next, share: 0}", 16).await;
    for stream in [true, false] {
        for number in 0..4 {
            let id = format!("r-{stream}-{number}");
            let answer = ask(&with, &id, &chat(5, stream)).await.ok();
            let plain = ask(&without, &id, &chat(5, stream)).await.ok();
            assert_eq!(words(&answer), words(&plain));
            let names = |answer: &Answer| answer.headers.keys().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(names(&answer), names(&plain));
        }
    }
    for line in compared(&with, 8).await {
        let known = [
            "model",
            "to",
            "pool",
            "to_pool",
            "outcome",
            "copy_outcome",
            "output_tokens",
            "copy_output_tokens",
        ];
        let expected = json!([MODEL, "next", "first", "second", "success", "success", 5, 5]);
        assert_eq!(json!(known.map(|key| &line[key])), expected, "{line}");
        let streams = line["request_id"].as_str().unwrap().starts_with("r-true");
        assert_eq!((line["ttft_ms"].is_f64(), line["copy_ttft_ms"].is_f64()), (streams, streams), "{line}");
    }
    assert_eq!((with.engine(0).state().total, with.engine(1).state().total), (8, 8));
    assert_eq!(without.engine(1).state().total, 0);
    assert_eq!(with.metric(COMPARED).await, 16.0, "one for each side");
    let text = with.admin(http::Method::GET, "/metrics").await.text();
    for tenant in [TENANT, "shadow"] {
        let tokens = text.lines().find(|line| {
            line.starts_with("penstock_tokens_total")
                && line.contains(&format!("tenant=\"{tenant}\""))
                && line.contains("kind=\"output\"")
                && !line.ends_with(" 0")
        });
        assert!(tokens.is_some_and(|line| line.ends_with(" 40")), "{tenant}: {tokens:?}");
    }
    with.emptied_within(PATIENCE).await;
    assert_eq!(with.snapshot().broken_invariants, 0);
}

#[tokio::test]
async fn a_copy_goes_only_where_its_original_may() {
    let shadow = "{to: next, share: 1}";
    let kept = rig_for("placement: {pools: [first]}", shadow, 16).await;
    let free = rig_for("placement: {pools: [first, second]}", shadow, 16).await;
    for rig in [&kept, &free] {
        ask(rig, "one", &chat(4, false)).await.ok();
    }
    compared(&free, 1).await;
    assert_eq!(kept.metric("penstock_shadow_skipped_total").await, 1.0);
}

#[tokio::test]
async fn a_share_of_the_requests_is_copied_and_no_retries() {
    let rig = rig("{to: next, share: 0.25, max_in_flight: 100}", 64).await;
    for number in 0..60 {
        ask(&rig, &format!("r{number}"), &chat(1, number % 2 == 0)).await.ok();
    }
    let again = Call::post(CHAT, &chat(1, false)).key(rig.key(TENANT)).header("x-stainless-retry-count", "1");
    for number in 0..60 {
        again.clone().header("x-request-id", &format!("r{number}")).send(rig.address()).await.ok();
    }
    rig.emptied_within(PATIENCE).await;
    let copies = rig.engine(1).state().total;
    assert!((5..=25).contains(&copies), "{copies} of 60");
    compared(&rig, usize::try_from(copies).unwrap()).await;
    let no_class = r#"class="shadow""#;
    let clients = rig.finished().into_iter().filter(|line| line["tenant"] == TENANT);
    assert_eq!(clients.filter(|line| line["class"] == "shadow").count(), 0, "{no_class} is for copies only");
}

#[tokio::test]
async fn whatever_becomes_of_a_copy_its_original_is_answered() {
    let faults = [
        (FaultKind::Status { status: 500, retry_after: None, message: None }, "server_error"),
        (FaultKind::Cut { after_tokens: 0 }, "reset"),
        (FaultKind::Cut { after_tokens: 2 }, "reset"),
        (FaultKind::ErrorEvent { after_tokens: 2, status: 500 }, "error_event"),
        (FaultKind::Status { status: 400, retry_after: None, message: None }, "invalid_value"),
        (FaultKind::Refuse, "refused"),
    ];
    for (fault, reason) in faults {
        let rig = rig("{to: next, share: 1}", 16).await;
        rig.engine(1).add(fault.clone()).unwrap();
        let answer = ask(&rig, "r", &chat(4, true)).await;
        assert!(answer.is_done(), "{fault:?}: {answer:?}");
        let line = &compared(&rig, 1).await[0];
        assert_eq!(line["outcome"], "success", "{line}");
        assert_ne!(line["copy_outcome"], "success", "{fault:?}: {line}");
        rig.emptied_within(PATIENCE).await;
        let copy = rig.line_of("r-shadow").await;
        assert_eq!((&copy["tenant"], &copy["reason"]), (&json!("shadow"), &json!(reason)), "{fault:?}");
        let own = rig.line_of("r").await;
        assert_eq!((&own["tenant"], &own["attempts"]), (&json!(TENANT), &json!(1)));
    }
}

#[tokio::test]
async fn a_flood_of_copies_is_bounded_and_a_drain_ends_them_at_once() {
    let rig = rig("{to: next, share: 1, max_in_flight: 2}", 16).await;
    rig.engine(1).add(FaultKind::Freeze).unwrap();
    for number in 0..20 {
        let answer = ask(&rig, &format!("r{number}"), &chat(2, true)).await;
        assert!(answer.is_done(), "{answer:?}");
        assert!(rig.gateway.proxy().shadow_copies.count() <= 2 && rig.engine(1).state().inside <= 2);
        assert_eq!(rig.waiting(), 0);
    }
    assert_eq!(rig.gateway.proxy().shadow_copies.count(), 2);
    assert_eq!(rig.metric("penstock_shadow_skipped_total").await, 18.0);
    assert!(rig.snapshot().queues.is_empty());
    let proxy = std::sync::Arc::clone(rig.gateway.proxy());
    let Rig { gateway, engines, .. } = rig;
    let begun = Instant::now();
    soon("the drain", gateway.drain()).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for a copy");
    assert_eq!(
        (proxy.shadow_copies.count(), proxy.dispatcher.snapshot().jobs, proxy.memory.bodies.held()),
        (0, 0, 0)
    );
    drop(engines);
}

/// Both models on one replica of one place.
#[tokio::test]
async fn a_copy_gives_way_to_whoever_needs_its_place() {
    let options = SimOptions { models: vec![MODEL.to_owned(), "next".to_owned()], ..SimOptions::default() };
    let engine = SimServer::start(options).await.unwrap();
    let text = head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, "")
        + "pools:\n"
        + &pool_lines("main", "engine: vllm\nmodels: [sim, next]\nmax_seqs: 1", &[engine.url()])
        + "models: {sim: {shadow: {to: next, share: 1}}}\n\
           classes: {standard: {rank: 0, ttft: 100ms, itl: 1s}}\n";
    let rig = Rig::with_file(&text, vec![engine], [TENANT]).await;
    assert!(ask(&rig, "first", &chat(1_000, false)).await.status == 200);
    // Its copy would take long.
    rig.engine(0).add(FaultKind::Slow { factor: 2_000.0 }).unwrap();
    until("the copy runs", || {
        rig.gateway.proxy().shadow_copies.count() == 1 && rig.engine(0).state().inside == 1
    })
    .await;
    let key = rig.key(TENANT).to_owned();
    let second = tokio::spawn(Call::post(CHAT, &chat(1, true)).key(&key).send(rig.address()));
    until("the copy is gone", || rig.gateway.proxy().shadow_copies.count() == 0).await;
    rig.engine(0).clear();
    assert!(soon("the second", second).await.unwrap().is_done());
    let line = rig.line_of("first-shadow").await;
    assert_eq!((&line["outcome"], &line["reason"]), (&json!("client_gone"), &json!("preempted")));
    sleep(Duration::from_millis(50)).await;
    rig.emptied_within(PATIENCE).await;
}
