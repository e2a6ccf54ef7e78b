//! Costs of requests: in the log, in the usage journal, and as limits.

use penstock::sim::faults::FaultKind;
use penstock::sim::server::SimOptions;
use penstock::usage::each_row;
use penstock::usage::row::{RowKind, UsageRow};
use serde_json::Value;

use crate::support::client::{Call, Raw};
use crate::support::gateway::{Rig, RigOptions, TENANT, chat, until};

const CHAT: &str = "/v1/chat/completions";
/// 3.6 an hour: a millionth of the currency each millisecond.
const POOL: &str = "engine: vllm\nmodels: [sim]\nmax_seqs: 8\nprice: 3.6";

#[tokio::test]
async fn every_attempt_is_a_row_and_with_idle_time_they_are_the_fleets_cost() {
    let folder = tempfile::tempdir().unwrap();
    let more = format!("usage: {{folder: \"{}\", database: none}}\n", folder.path().display());
    let engines = vec![SimOptions::default(), SimOptions::default()];
    let rig = Rig::start(RigOptions { engines, pool: Some(POOL), more, ..RigOptions::default() }).await;
    rig.engine(0).add(FaultKind::Status { status: 500, retry_after: None, message: None }).unwrap();
    for stream in [true, false, true, false] {
        assert_eq!(rig.post(CHAT, &chat(20, stream)).await.status, 200);
    }
    // One who leaves in the middle of a stream.
    let mut raw = Raw::open(rig.address()).await;
    raw.write(Call::post(CHAT, &chat(4_000, true)).key(rig.key(TENANT)).bytes()).await.unwrap();
    raw.read_past("data: ").await.unwrap();
    drop(raw);
    until("nothing is left", || rig.is_empty()).await;
    let lines = rig.finished();
    rig.gateway.drain().await;

    let mut rows: Vec<UsageRow> = Vec::new();
    assert_eq!(each_row(folder.path(), |row| rows.push(row.clone())).unwrap(), 0);
    let of = |kind| rows.iter().filter(move |row| row.kind == kind);
    assert_eq!((of(RowKind::Request).count(), lines.len()), (5, 5));
    let gone = of(RowKind::Request).find(|row| row.outcome == "client_gone").unwrap();
    assert_eq!((gone.wasted_by, gone.usage, gone.status), ("client_gone", "partial", 200));
    assert!(gone.wasted_tokens >= gone.output_tokens && gone.gpu_ns > 0);
    let lost = of(RowKind::Try).next().expect("a try that failed");
    assert_eq!((lost.wasted_by, lost.attempts, &*lost.tenant), ("retry", 0, TENANT));
    assert!(of(RowKind::Request).any(|row| row.request_id == lost.request_id && row.attempts == 2));

    // The log says the same of each request.
    for line in &lines {
        let id = line["request_id"].as_str().unwrap();
        let own = rows.iter().filter(|row| row.request_id == id);
        let nanos: u64 = own.map(|row| row.gpu_ns).sum();
        let told = line["gpu_ms"].as_f64().unwrap();
        assert!((nanos as f64 / 1e6 - told).abs() < 0.001, "{nanos} ns, {line}");
        assert!(line["cost"].as_f64().is_some_and(|cost| (cost * 1e9 - told * 1e3).abs() < 2.0), "{line}");
    }
    // Not a unit is lost by rounding, over all rows.
    let (nanos, money) =
        rows.iter().fold((0, 0), |(nanos, money), row| (nanos + row.gpu_ns, money + row.money_nano));
    assert_eq!(money, nanos / 1_000, "{rows:?}");
    assert!(of(RowKind::Idle).all(|row| &*row.pool == "main" && row.price_per_hour == 3.6));
    assert!(of(RowKind::Idle).count() >= 1);
}

#[tokio::test]
async fn time_that_is_spent_is_refused_until_the_next_day() {
    let rig = Rig::start(RigOptions {
        engines: vec![SimOptions::default()],
        pool: Some(POOL),
        tenants: vec![(TENANT, "limits: {per_day: {gpu_seconds: 0.25, money: 100}}")],
        ..RigOptions::default()
    })
    .await;
    let mut refused = None;
    for _ in 0..200 {
        let answer = rig.post(CHAT, &chat(30, true)).await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("the limit is met");
    assert_eq!((refused.status, refused.code().as_str()), (429, "insufficient_quota"));
    assert_eq!(refused.header("x-should-retry"), "false");
    let text = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(text.starts_with("The limit of your tenant is 0.250 GPU seconds a day: "), "{text}");
    let times: Vec<f64> = rig
        .finished()
        .iter()
        .filter_map(|line: &Value| line["gpu_ms"].as_f64())
        .filter(|ms| *ms > 0.0)
        .collect();
    // As long as nobody knows what requests take, the guess keeps others out.
    let (last, before) = times.split_last().expect("some were served");
    let before: f64 = before.iter().sum();
    assert!(before < 250.0, "{before} ms of 250, and then {last} ms");
}
