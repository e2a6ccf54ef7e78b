//! Cold start: a pool that goes from no replica to one and back, with requests held.

use http::Method;
use penstock::config::report::problem::Severity;
use penstock::core::model::snapshot::PoolStatus;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::client::{Answer, Call};
use crate::support::gateway::{PATIENCE, Rig, TENANT, chat, head, pool_lines, soon, tenant_lines, until};

const CHAT: &str = "/v1/chat/completions";
/// How many requests are held.
const HELD: usize = 100;
/// Sequences of a replica.
const SEQS: u32 = 16;

fn file(urls: &[String], cold_start: &str, tolerance: &str) -> String {
    let pool = format!("engine: vllm\nmodels: [sim]\nmax_seqs: {SEQS}\ncold_start: {cold_start}");
    let mut text = head("") + "tenants:\n" + &tenant_lines(TENANT, "") + "pools:\n";
    text += &pool_lines("main", &pool, urls);
    text + &format!(
        "classes:\n  standard: {{rank: 0, max_wait: 10m, cold_start_tolerance: {tolerance}}}\n\
         health: {{slow_start: 1m}}\n"
    )
}

fn begin(rig: &Rig, tokens: u32) -> JoinHandle<Answer> {
    tokio::spawn(Call::post(CHAT, &chat(tokens, true)).key(rig.key(TENANT)).send(rig.address()))
}

async fn apply(rig: &Rig, text: &str) {
    let before = rig.generation();
    rig.put(text);
    let report = soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.expect("a report");
    let wrong = report.problems.iter().filter(|problem| problem.severity != Severity::Info);
    assert_eq!((wrong.count(), rig.generation()), (0, before + 1), "{:?}", report.problems);
}

fn state(rig: &Rig) -> PoolStatus {
    rig.snapshot().pools[0].state
}

#[tokio::test]
async fn a_pool_goes_from_nothing_to_one_and_back_with_requests_held() {
    let engines = start_fleet(vec![SimOptions::default(); 2]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = Rig::with_file(&file(&[], "3m", "9m"), engines, [TENANT]).await;
    assert_eq!(state(&rig), PoolStatus::Cold);

    let held: Vec<_> = (0..HELD).map(|_| begin(&rig, 3)).collect();
    until("all are held", || rig.waiting() == HELD as u64).await;
    assert_eq!(state(&rig), PoolStatus::Starting);

    apply(&rig, &file(&urls[..1], "3m", "9m")).await;
    assert_eq!((rig.snapshot().replicas[0].limit, SEQS / 8), (2, 2), "it starts slowly");
    for answer in held {
        assert!(soon("a held request", answer).await.unwrap().is_done());
    }
    assert_eq!(state(&rig), PoolStatus::Ready);
    let measured = rig.metric("penstock_cold_start_seconds").await;
    assert!(measured > 0.0 && measured < 180.0, "{measured}");

    // Back to nothing while streams run: they finish, what comes is held.
    rig.engine(0).add(FaultKind::Slow { factor: 50.0 }).unwrap();
    let streams: Vec<_> = (0..2).map(|_| begin(&rig, 400)).collect();
    until("two run", || rig.snapshot().replicas[0].running == 2).await;
    apply(&rig, &file(&[], "3m", "9m")).await;
    assert_eq!(state(&rig), PoolStatus::Draining);
    let later: Vec<_> = (0..4).map(|_| begin(&rig, 3)).collect();
    until("four are held", || rig.waiting() == 4).await;
    rig.engine(0).clear();
    for stream in streams {
        assert!(soon("a stream", stream).await.unwrap().is_done());
    }
    assert_eq!((rig.waiting(), state(&rig)), (4, PoolStatus::Starting));

    apply(&rig, &file(&urls[1..], "3m", "9m")).await;
    for answer in later {
        assert!(soon("a request held again", answer).await.unwrap().is_done());
    }
    apply(&rig, &file(&[], "3m", "9m")).await;
    until("the pool is cold", || state(&rig) == PoolStatus::Cold).await;
    rig.emptied_within(PATIENCE).await;
    assert_eq!(rig.snapshot().broken_invariants, 0);
    assert!(rig.finished().iter().all(|line| line["outcome"] == "success"));
}

#[tokio::test]
async fn who_cannot_wait_for_a_start_is_told_when_to_come_back() {
    let rig = Rig::with_file(&file(&[], "40s", "30s"), Vec::new(), [TENANT]).await;
    let answer = rig.post(CHAT, &chat(1, true)).await;
    assert_eq!((answer.status, answer.header("x-should-retry")), (503, "true"), "{answer:?}");
    let wait: u64 = answer.header("retry-after").parse().unwrap();
    assert!((40..=50).contains(&wait), "{wait}");
    let rows = rig.admin(Method::GET, "/admin/v1/pools").await.ok().json();
    assert_eq!((&rows["pools"][0]["state"], &rows["pools"][0]["replicas"]), (&json!("cold"), &json!(0)));

    // The hold of one that may wait ends with the same answer.
    apply(&rig, &file(&[], "100ms", "300ms")).await;
    let answer = rig.post(CHAT, &chat(1, true)).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "slow_down"), "{answer:?}");
    until("both are in the log", || rig.finished().len() == 2).await;
    assert!(rig.finished().iter().all(|line| line["reason"] == "cold_start"), "{:?}", rig.finished());
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn an_address_behind_which_nothing_runs_is_a_start_too() {
    let engines = start_fleet(vec![SimOptions::default()]).await.unwrap();
    let urls = [engines[0].url()];
    let text = file(&urls, "3m", "9m").replace("cold_start:", "scales_to_zero: true\n    cold_start:");
    let hurried = text.replace("tolerance: 9m", "tolerance: 1ms");
    let rig = Rig::with_file(&hurried, engines, [TENANT]).await;
    rig.engine(0).add(FaultKind::Refuse).unwrap();
    let answer = rig.post(CHAT, &chat(1, true)).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "slow_down"), "{answer:?}");
    assert_eq!(state(&rig), PoolStatus::Cold, "nobody waits for it");

    apply(&rig, &text).await;
    let held: Vec<_> = (0..8).map(|_| begin(&rig, 3)).collect();
    until("all are held", || rig.waiting() == 8 && state(&rig) == PoolStatus::Starting).await;
    rig.engine(0).clear();
    for answer in held {
        assert!(soon("a held request", answer).await.unwrap().is_done());
    }
    assert_eq!(state(&rig), PoolStatus::Ready);
    assert!(rig.metric("penstock_cold_start_seconds").await > 0.0, "it was measured");
}
