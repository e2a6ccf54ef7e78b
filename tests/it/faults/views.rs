//! Reports of engines about themselves, and engines that hang.

use std::sync::Arc;
use std::time::Duration;

use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::{SimOptions, VllmFlags};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::before::assert_good;
use super::reply::End;
use super::setup::{Rig, Setup, chat, engine, patient};
use crate::support::gateway::until;

/// Sixteen calls at once, all of them answered.
async fn traffic(rig: &Arc<Rig>) {
    let mut jobs = JoinSet::new();
    for job in 0..16 {
        let rig = Arc::clone(rig);
        jobs.spawn(async move { rig.post("/v1/chat/completions", &chat(6, job % 2 == 0)).await });
    }
    while let Some(reply) = jobs.join_next().await {
        assert_good("chat", &reply.unwrap());
    }
}

/// No limits in the file: they are learned, from engines that lie.
#[tokio::test(flavor = "multi_thread")]
async fn what_engines_say_of_themselves_stops_no_traffic() {
    let lie = |running, waiting, kv_usage| FaultKind::LyingMetrics {
        running: Some(running),
        waiting: Some(waiting),
        kv_usage: Some(kv_usage),
    };
    let missing = |names: &[&str]| FaultKind::MissingMetrics {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let views = [
        lie(0, 0, 0.0),
        lie(100_000, 0, 1.0),
        lie(0, 100_000, 1.0),
        lie(0, 1, 0.0),
        lie(u64::MAX, u64::MAX, f64::MAX),
        FaultKind::FrozenMetrics,
        missing(&[]),
        missing(&["vllm:num_requests_running"]),
        missing(&["vllm:num_requests_waiting"]),
        missing(&["vllm:kv_cache_usage_perc", "vllm:cache_config_info", "vllm:generation_tokens_total"]),
    ];
    let rig = Rig::start(Setup { pool: "scrape_interval: 100ms", ..Setup::default() });
    let rig = Arc::new(rig.await);
    for view in views {
        let name = format!("{view:?}");
        for engine in 0..2 {
            rig.engine(engine).clear();
            rig.engine(engine).add(view.clone()).unwrap();
        }
        // Long enough for three scrapes that see it, with traffic all the time.
        let shown = Instant::now();
        while shown.elapsed() < Duration::from_millis(350) {
            traffic(&rig).await;
        }
        rig.settled().await;
        assert!(rig.log("replica ejected").is_empty() && rig.log("request requeued").is_empty(), "{name}");
        let both = rig.engines.iter().all(|engine| engine.control().state().total > 0);
        assert!(both, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_scrapes_stop_no_traffic() {
    let rig = Rig::start(Setup { pool: "scrape_interval: 100ms", ..Setup::default() });
    let rig = Arc::new(rig.await);
    for engine in 0..2 {
        let control = rig.engine(engine);
        control.add(FaultKind::MissingMetrics { names: Vec::new() }).unwrap();
    }
    let warned = |engine: usize| {
        let name = rig.replica(engine);
        rig.log("scrape failed")
            .iter()
            .any(|line| line["level"] == "WARN" && line["replica"] == name.as_str())
    };
    until("a warning for each", || warned(0) && warned(1)).await;
    traffic(&rig).await;
    assert!(rig.log("replica ejected").is_empty() && rig.log("request requeued").is_empty());
    for engine in 0..2 {
        rig.engine(engine).clear();
    }
    until("the recovery", || rig.log("scrape recovered").len() >= 2).await;
    traffic(&rig).await;
}

/// A frozen engine whose server still says that it is there.
fn chatty() -> SimOptions {
    let flags = VllmFlags { sse_keep_alive: Some(Duration::from_millis(50)), ..VllmFlags::default() };
    SimOptions { vllm: flags, speed: 0.2, ..engine() }
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_do_not_hide_a_hung_engine() {
    let rig = Rig::start(Setup {
        engines: vec![chatty()],
        yaml: "upstream: {stream_idle_timeout: 2s}\n".into(),
        ..Setup::default()
    });
    let rig = rig.await;
    // Twenty seconds of them: it must not end before it is frozen.
    let mut open = rig.open("/v1/chat/completions", &chat(8_000, true)).await;
    open.until("\"content\":\"").await;
    let frozen = Instant::now();
    rig.engine(0).add(FaultKind::Freeze).unwrap();
    open.until(": keep-alive").await;
    let reply = open.finish().await;
    assert_eq!(reply.end, End::Short, "{}", reply.text());
    assert!(reply.text().contains("upstream_broken"), "{}", reply.text());
    assert!(frozen.elapsed() < Duration::from_secs(15), "{:?}", frozen.elapsed());
    assert_eq!(rig.line_of(reply.request_id()).await["reason"], "silent");
    rig.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_leaves_a_frozen_engine_before_its_first_token() {
    let rig = Rig::start(Setup {
        engines: vec![chatty(), engine()],
        yaml: "upstream: {first_token_timeout: 1500ms}\n".into(),
        ..Setup::default()
    });
    let rig = rig.await;
    rig.engine(0).add(FaultKind::Freeze).unwrap();
    let begun = Instant::now();
    let mut moved = 0;
    for job in 0..4 {
        let reply = rig.post("/v1/chat/completions", &chat(4 + job, true)).await;
        assert_good("chat", &reply);
        assert!(!reply.text().contains("keep-alive"), "{}", reply.text());
        moved += usize::from(rig.line_of(reply.request_id()).await["attempts"] == 2);
    }
    assert!(moved >= 1 && begun.elapsed() < Duration::from_secs(20));
    assert!(rig.log("request requeued").iter().all(|line| line["fault"] == "silent"));
    rig.settled().await;
    until("the frozen engine has no request", || rig.engine(0).state().inside == 0).await;
}

/// An engine closes a kept connection just as the next request arrives on it.
/// That is nobody's fault and costs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_idle_connection_costs_nothing() {
    for reset in [false, true] {
        let yaml = "upstream: {keep_alive: 4m}\n".into();
        let rig = Rig::start(Setup { engines: vec![patient(engine())], yaml, ..Setup::default() }).await;
        assert_good("chat", &rig.post("/v1/chat/completions", &chat(4, false)).await);
        rig.engine(0).add(Fault::from(FaultKind::CloseIdle { reset })).unwrap();
        for job in 0..6 {
            let reply = rig.post("/v1/chat/completions", &chat(4, job % 2 == 0)).await;
            assert_good("chat", &reply);
            assert_eq!(rig.line_of(reply.request_id()).await["attempts"], 1);
        }
        assert!(rig.engine(0).faults()[0].shown >= 3);
        assert!(rig.log("request requeued").is_empty() && rig.log("replica ejected").is_empty());
        assert_eq!(rig.metric("penstock_requeues_total").await, 0.0);
        assert_eq!(rig.metric("penstock_requests_total").await, 7.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_without_a_word_is_no_fault() {
    let rig = Rig::start(Setup::default()).await;
    let body = json!({
        "model": "llama", "max_tokens": 1, "ignore_eos": true, "stream": true,
        "messages": [{"role": "user", "content": "say nothing"}],
    });
    assert_good("chat", &rig.post("/v1/chat/completions", &body).await);
    assert!(rig.log("request requeued").is_empty());
}
