//! Tests of the instant engine: each kind of load against it, in one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_loadtest::abandon::{DropArgs, Phase, drop_clients};
use penstock_loadtest::engine::{Counts, Engine, EngineArgs};
use penstock_loadtest::run::{RunArgs, run};
use penstock_loadtest::streams::{StreamsArgs, hold};
use penstock_loadtest::target::TargetArgs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn start(args: &EngineArgs) -> (TargetArgs, Arc<Counts>) {
    let engine = Engine::bind(args).await.expect("a free port");
    let url = format!("http://{}", engine.address().expect("an address"));
    let counts = engine.counts();
    tokio::spawn(engine.serve());
    (target(url), counts)
}

fn target(url: String) -> TargetArgs {
    TargetArgs { url, key: None, model: "m".to_owned(), prompt_bytes: 2048, max_tokens: None }
}

fn load(target: TargetArgs) -> RunArgs {
    RunArgs {
        target,
        concurrency: None,
        rate: None,
        duration: 0.5,
        warmup: 0.1,
        requests: None,
        stream: false,
        count_only: false,
        timeout: 10.0,
        max_open: 1_000,
        pids: vec![std::process::id()],
        json: false,
        quiet: true,
    }
}

/// Load until so many requests have been answered, however long it takes.
fn until_served(requests: u64, target: TargetArgs) -> RunArgs {
    RunArgs { requests: Some(requests), duration: 60.0, ..load(target) }
}

/// Waits until the engine has no answer in progress; it must within 30 s.
async fn idle(counts: &Counts) {
    for _ in 0..3_000 {
        if counts.running.load(Ordering::Relaxed) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} answers are still running", counts.running.load(Ordering::Relaxed));
}

#[tokio::test]
async fn closed_loop_counts_every_plain_answer() {
    let (target, counts) = start(&EngineArgs::instant()).await;
    let args = RunArgs { concurrency: Some(4), ..until_served(200, target) };
    let report = run(&args).await.expect("a report");
    assert_eq!(report.outcomes.keys().collect::<Vec<_>>(), ["ok"]);
    let total = report.total.expect("latencies");
    assert_eq!(total.count, report.ok());
    assert!(report.ok() > 50, "{report:?}");
    assert!(counts.requests.load(Ordering::Relaxed) >= report.ok());
    assert_eq!(counts.aborted.load(Ordering::Relaxed), 0);
    assert!(report.ttft.is_none());
}

#[tokio::test]
async fn streams_are_read_event_by_event() {
    let args = EngineArgs { tokens: 5, delay_ms: 30, interval_ms: 10, ..EngineArgs::instant() };
    let (target, _) = start(&args).await;
    let args = RunArgs { concurrency: Some(3), stream: true, ..until_served(15, target) };
    let report = run(&args).await.expect("a report");
    assert_eq!(report.outcomes.keys().collect::<Vec<_>>(), ["ok"]);
    let (ttft, gap, total) =
        (report.ttft.expect("ttft"), report.gap.expect("gaps"), report.total.expect("total"));
    assert!(ttft.p50_ms >= 29.0, "{ttft:?}");
    assert!(total.p50_ms >= 69.0, "{total:?}");
    // Four gaps between five tokens, one to the finish event; all come in
    // their own time, except where one frame held two.
    assert!(gap.count >= 5 * total.count, "{gap:?} {total:?}");
    assert!(gap.max_ms >= 9.0, "{gap:?}");
}

#[tokio::test]
async fn events_are_counted_without_a_look_at_them() {
    let (target, _) = start(&EngineArgs { tokens: 5, ..EngineArgs::instant() }).await;
    let args = RunArgs { concurrency: Some(1), stream: true, count_only: true, ..until_served(50, target) };
    let report = run(&args).await.expect("a report");
    assert_eq!(report.outcomes.keys().collect::<Vec<_>>(), ["ok"]);
    // The role, five tokens, the finish, the usage and [DONE].
    assert!(report.events.abs_diff(9 * report.completed) <= 9, "{report:?}");
    assert!(report.ttft.is_none() && report.gap.is_none());
}

#[tokio::test]
async fn open_loop_keeps_its_rate_while_the_engine_is_slow() {
    let (target, _) = start(&EngineArgs { delay_ms: 300, ..EngineArgs::instant() }).await;
    let args = RunArgs { rate: Some(200.0), duration: 1.0, ..load(target) };
    let report = run(&args).await.expect("a report");
    // A closed loop of any fair size would have sent far fewer.
    assert_eq!(report.ok(), 200, "{report:?}");
    assert!(report.total.expect("latencies").p50_ms >= 299.0);
}

#[tokio::test]
async fn open_loop_does_not_hide_a_stall() {
    let (target, _) = start(&EngineArgs { delay_ms: 400, ..EngineArgs::instant() }).await;
    let args = RunArgs { rate: Some(100.0), max_open: 10, warmup: 0.0, ..load(target) };
    let report = run(&args).await.expect("a report");
    let unsent = report.outcomes.get("not sent: too many open").copied().unwrap_or(0);
    assert_eq!(report.ok() + unsent, 50, "{report:?}");
    assert!(unsent >= 20, "{report:?}");
}

#[tokio::test]
async fn a_stream_without_its_end_is_broken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 8192];
            let _ = stream.read(&mut request).await;
            let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", event.len());
            let _ = stream.write_all(format!("{head}{event}").as_bytes()).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let args = RunArgs { concurrency: Some(1), stream: true, ..load(target(url)) };
    let report = run(&args).await.expect("a report");
    assert_eq!(report.ok(), 0);
    assert!(report.outcomes.contains_key("broken: no [DONE]"), "{report:?}");
    assert!(report.total.is_none());
}

#[tokio::test]
async fn held_streams_are_all_alive_and_leave_nothing() {
    let args = EngineArgs { tokens: 100_000, interval_ms: 50, ..EngineArgs::instant() };
    let (target, counts) = start(&args).await;
    let args = StreamsArgs {
        target,
        open: 100,
        hold: 2,
        within: 20,
        churn: Some(0.3),
        pids: vec![std::process::id()],
        json: false,
    };
    let held = hold(&args).await.expect("held");
    assert_eq!((held.opened, held.alive, held.lost), (100, 100, 0));
    assert!(held.events > 500, "{held:?}");
    assert!(held.rss_open_kib > Some(1_000));
    idle(&counts).await;
    assert!(held.reopened >= 50, "{held:?}");
    // A churning stream may be closed, and its successor's request not sent, when all are dropped.
    let aborted = counts.aborted.load(Ordering::Relaxed);
    assert_eq!(aborted, counts.requests.load(Ordering::Relaxed));
    assert!((50 + held.reopened..=100 + held.reopened).contains(&aborted), "{aborted}, {held:?}");
}

#[tokio::test]
async fn streams_that_end_early_are_lost() {
    let (target, _) = start(&EngineArgs::instant()).await;
    let args =
        StreamsArgs { target, open: 7, hold: 1, within: 20, churn: None, pids: Vec::new(), json: false };
    let held = hold(&args).await.expect("held");
    assert_eq!((held.opened, held.alive, held.lost), (7, 0, 7));
}

#[tokio::test]
async fn drops_reach_every_phase_and_the_engine_forgets_them() {
    let args = EngineArgs { tokens: 50, delay_ms: 20, interval_ms: 5, ..EngineArgs::instant() };
    let (target, counts) = start(&args).await;
    let args = DropArgs { target, clients: 200, within_ms: 300, seed: 3, concurrency: 50, json: false };
    let phases: BTreeMap<Phase, u32> = drop_clients(&args).await.expect("counts");
    assert_eq!(phases.values().sum::<u32>(), 200);
    for phase in [Phase::Connected, Phase::Head, Phase::Body, Phase::Waiting, Phase::Answer] {
        assert!(phases.contains_key(&phase), "{phases:?}");
    }
    idle(&counts).await;
    assert!(counts.aborted.load(Ordering::Relaxed) > 0);
}
