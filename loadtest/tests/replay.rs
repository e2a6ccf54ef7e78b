//! Tests of `loadtest replay`: a replay against simulated engines, in one process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::{SimHandle, SimOptions, SimServer};
use penstock_loadtest::replay::{
    self, Api, Arrivals, Drive, Judged, Length, Objective, Outcome, Plan, Record, Results, Source, Writer,
};
use penstock_loadtest::target::Endpoint;
use tokio::sync::watch;

const GOAL: Objective = Objective { ttft_ms: 150.0, itl_ms: 50.0 };

/// An engine whose answers end at `min_tokens` + 1.
async fn engine() -> SimHandle {
    let options = SimOptions { mean_output_tokens: 1, ..SimOptions::default() };
    SimServer::start(options).await.expect("a free port")
}

fn plan(rate: f64, seconds: f64) -> Arc<Plan> {
    let source = Source {
        input: Some(64),
        output: Some(12),
        rate: Some(rate),
        for_s: Some(seconds),
        arrivals: Some(Arrivals::Even),
        ..Source::default()
    };
    Arc::new(Plan::of(&[source], Path::new(""), 1).expect("a plan"))
}

async fn drive(engine: &SimHandle, api: Api, length: Length) -> Drive {
    Drive {
        endpoint: Endpoint::new(&engine.url(), api.path()).await.expect("an endpoint"),
        writer: Writer { api, model: "sim".to_owned(), length, prefix_block: 0, seed: 1 },
        keys: vec![None],
        class_header: "x-penstock-class".to_owned(),
        timeout: Duration::from_secs(20),
        retries: 0,
        drain: Duration::from_secs(10),
        clients: 2,
        label: None,
    }
}

async fn run(drive: Drive, plan: &Arc<Plan>) -> Vec<Record> {
    replay::run(drive, Arc::clone(plan)).await.expect("records")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_served_with_the_length_it_asked_for() {
    let engine = engine().await;
    for (api, length) in
        [(Api::Chat, Length::Exact), (Api::Completions, Length::Limit(500)), (Api::Chat, Length::Limit(500))]
    {
        let plan = plan(60.0, 0.5);
        let before = engine.control().state();
        let records = run(drive(&engine, api, length).await, &plan).await;
        let results = Results::of(&plan, &records, 0.0, &[GOAL], &Judged::default());
        let all = &results.all;
        assert_eq!((all.offered, all.served, all.other_length), (31, 31, 0), "{length:?}: {all:?}");
        assert!(all.ttft.expect("times").p50_ms > 0.2);
        let after = engine.control().state();
        assert_eq!(after.prompt_tokens - before.prompt_tokens, 31 * 64, "{api:?}");
        assert_eq!(after.generated_tokens - before.generated_tokens, 31 * 12, "{length:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_engine_is_felt_by_the_calls_planned_meanwhile() {
    let engine = engine().await;
    let plan = plan(50.0, 1.0);
    let drive = drive(&engine, Api::Chat, Length::Exact).await;
    let control = engine.control();
    control.add(FaultKind::Freeze).expect("a fault");
    // It lasts for a while from when the first calls are there.
    let thawed = tokio::spawn(async move {
        while control.state().inside == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        control.clear();
    });
    let records = run(drive, &plan).await;
    thawed.await.expect("the end of the fault");
    assert!(records.iter().all(Record::served), "{records:?}");
    let ttft = |index: usize| records[index].ttft.expect("a first token");
    assert!(ttft(0) > Duration::from_millis(250), "{:?}", ttft(0));
    assert!(ttft(0) > ttft(10), "a later call waited less: {:?} {:?}", ttft(0), ttft(10));
    let later = (30..=50).map(ttft).min().expect("calls");
    assert!(later < Duration::from_millis(100), "{later:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_no_failures_and_may_be_tried_again() {
    let engine = engine().await;
    let plan = plan(50.0, 0.2);
    let busy = |times| {
        let kind = FaultKind::Status { status: 429, retry_after: Some(0), message: None };
        Fault { times: Some(times), ..kind.into() }
    };
    engine.control().add(busy(4)).expect("a fault");
    let records = run(drive(&engine, Api::Chat, Length::Exact).await, &plan).await;
    let refused = records.iter().filter(|record| matches!(record.outcome, Outcome::Refused(_))).count();
    assert_eq!((records.len(), refused), (11, 4));
    engine.control().add(busy(4)).expect("a fault");
    let patient = Drive { retries: 9, ..drive(&engine, Api::Chat, Length::Exact).await };
    let records = run(patient, &plan).await;
    assert!(records.iter().all(Record::served), "{records:?}");
    assert_eq!(records.iter().map(|record| record.retries).sum::<u32>(), 4);
    engine
        .control()
        .add(Fault { times: Some(3), ..FaultKind::Cut { after_tokens: 2 }.into() })
        .expect("a fault");
    let records = run(drive(&engine, Api::Chat, Length::Exact).await, &plan).await;
    let failed = records.iter().filter(|record| matches!(record.outcome, Outcome::Failed(_))).count();
    assert_eq!(failed, 3, "{records:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_ends_after_its_drain_and_when_it_is_stopped() {
    let engine = engine().await;
    engine
        .control()
        .add(Fault::from(FaultKind::Silent { after_tokens: 1, before_head: false }))
        .expect("a fault");
    let plan = plan(50.0, 0.1);
    let short = Drive { drain: Duration::from_millis(300), ..drive(&engine, Api::Chat, Length::Exact).await };
    let records = run(short, &plan).await;
    let cut = Outcome::Failed("cut at the end of the run".to_owned());
    assert!(records.iter().all(|record| record.outcome == cut), "{records:?}");
    let (stop, stopped) = watch::channel(false);
    let minute = Duration::from_secs(60);
    let long = Drive { drain: minute, timeout: minute, ..drive(&engine, Api::Chat, Length::Exact).await };
    let going = tokio::task::spawn_blocking(move || long.run(&plan, &stopped));
    stop.send(true).expect("a run");
    let ended = tokio::time::timeout(Duration::from_secs(30), going).await.expect("it ends at once");
    assert!(ended.expect("a run").is_ok());
}
