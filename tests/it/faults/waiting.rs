//! Waits while no replica can take the work, and the error of a wait that was too long.

use std::sync::Arc;
use std::time::Duration;

use penstock::core::model::snapshot::ReplicaStatus;
use penstock::sim::faults::{Fault, FaultKind, ResetPoint};
use penstock::sim::server::{SimOptions, Terminate, VllmFlags};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::reply::End;
use super::setup::{Rig, Setup, chat, engine};
use crate::support::client::Call;
use crate::support::gateway::{PATIENCE, TENANT, until};

const JOBS: usize = 50;
const OUTAGE: Duration = Duration::from_secs(2);

/// What keeps an engine from working for a while.
#[derive(Debug, Clone, Copy)]
enum Outage {
    Busy(u16, Option<u32>),
    Refuse,
    Restart,
    Drain,
    Reset,
    /// It answers 500 to new work until it is replaced.
    Replaced,
}

impl Outage {
    fn begin(self, rig: &Rig, engine: usize) {
        let control = rig.engine(engine);
        let fault = match self {
            Self::Busy(status, retry_after) => FaultKind::Status { status, retry_after, message: None },
            Self::Refuse => FaultKind::Refuse,
            Self::Drain => FaultKind::Drain,
            Self::Reset => FaultKind::Reset { at: ResetPoint::Accept },
            Self::Restart => return control.terminate(Terminate::Restart { down_ms: 2000 }),
            Self::Replaced => {
                control.terminate(Terminate::Drain { grace_ms: 60_000 });
                tokio::spawn(async move {
                    tokio::time::sleep(OUTAGE - Duration::from_millis(500)).await;
                    control.terminate(Terminate::Restart { down_ms: 500 });
                });
                return;
            }
        };
        control.add(Fault::from(fault).lasting(OUTAGE)).unwrap();
    }
}

async fn operate(rig: &Rig, what: &str, body: &Value) {
    let call = Call::post(&format!("/admin/v1/tenants/{what}"), body);
    assert_eq!(call.send(rig.gateway.admin_address()).await.status, 200);
}

/// Both engines are out for two seconds while 50 requests come.
async fn ride_out(outage: Outage) {
    let rig = Arc::new(Rig::start(Setup::default()).await);
    // All are sent at once: engines that only reset one request may have met one that breaks engines,
    // and such a request is tried three times at most.
    operate(&rig, "pause", &json!({"name": TENANT, "for": "1m"})).await;
    let mut jobs = JoinSet::new();
    for job in 0..JOBS {
        let rig = Arc::clone(&rig);
        jobs.spawn(async move { rig.post("/v1/chat/completions", &chat(4, job % 2 == 0)).await });
    }
    until("all wait", || rig.snapshot().pools[0].waiting == JOBS as u64).await;
    let begun = Instant::now();
    for engine in 0..2 {
        outage.begin(&rig, engine);
    }
    operate(&rig, "resume", &json!({"name": TENANT})).await;
    while let Some(reply) = jobs.join_next().await {
        let reply = reply.unwrap();
        assert_eq!((reply.status, reply.end), (200, End::Whole), "{outage:?}: {}", reply.text());
        assert!(begun.elapsed() > OUTAGE - Duration::from_millis(100), "{outage:?}: there was no outage");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{outage:?}: {:?}", begun.elapsed());
    rig.settled().await;
    let finished = rig.log("request finished");
    assert!(finished.iter().all(|line| line["outcome"] == "success"), "{outage:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_jobs_wait_until_the_engines_are_back() {
    let mut outages = JoinSet::new();
    for outage in [
        Outage::Busy(503, None),
        Outage::Busy(429, Some(1)),
        Outage::Refuse,
        Outage::Restart,
        Outage::Drain,
        Outage::Reset,
        Outage::Replaced,
    ] {
        outages.spawn(ride_out(outage));
    }
    while let Some(done) = outages.join_next().await {
        done.unwrap();
    }
}

/// vLLM's own limit: status 503, and 200 with an error event in a race.
#[tokio::test(flavor = "multi_thread")]
async fn engines_with_less_room_than_the_gateway_thinks_are_not_ejected() {
    let small =
        || SimOptions { vllm: VllmFlags { max_queued_reqs: Some(2), ..VllmFlags::default() }, ..engine() };
    let rig = Rig::start(Setup { engines: vec![small(), small()], ..Setup::default() });
    let rig = Arc::new(rig.await);
    let mut jobs = JoinSet::new();
    for job in 0..JOBS {
        let rig = Arc::clone(&rig);
        jobs.spawn(async move { rig.post("/v1/chat/completions", &chat(64, job % 2 == 0)).await });
    }
    while let Some(reply) = jobs.join_next().await {
        let reply = reply.unwrap();
        assert_eq!((reply.status, reply.end), (200, End::Whole), "{}", reply.text());
    }
    rig.settled().await;
    assert!(rig.log("request requeued").iter().any(|line| line["fault"] == "busy"));
    assert!(rig.log("replica ejected").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_replica_is_back_within_a_second_and_starts_slowly() {
    let rig = Rig::start(Setup {
        engines: vec![SimOptions { speed: 0.02, ..engine() }],
        pool: "max_seqs: 32",
        yaml: "health: {slow_start: 5s}\n".into(),
        ..Setup::default()
    });
    let rig = Arc::new(rig.await);
    let control = rig.engine(0);
    control.add(FaultKind::Refuse).unwrap();
    let mut jobs = JoinSet::new();
    for _ in 0..16 {
        let rig = Arc::clone(&rig);
        jobs.spawn(async move { rig.post("/v1/chat/completions", &chat(4_000, true)).await });
    }
    let ejected = |rig: &Rig| rig.snapshot().replicas[0].state == ReplicaStatus::Ejected;
    until("the ejection", || ejected(&rig)).await;
    until("some failed probes", || rig.log("probe failed").len() >= 2).await;
    let stamps: Vec<_> = rig.log("probe failed").iter().map(|line| line["timestamp"].clone()).collect();
    assert!(stamps.windows(2).all(|pair| pair[0] != pair[1]));

    control.clear();
    let back = Instant::now();
    until("the return", || !ejected(&rig)).await;
    assert!(back.elapsed() < Duration::from_secs(5), "{:?}", back.elapsed());
    // Of 32 sequences an eighth at first; more only as the five seconds pass.
    let mut view = rig.snapshot().replicas[0].clone();
    until("work for the replica", || {
        view = rig.snapshot().replicas[0].clone();
        view.running > 0
    })
    .await;
    assert!(
        view.state == ReplicaStatus::SlowStart && view.running <= view.limit && view.limit < 32,
        "{view:?}"
    );
    until("all work there", || rig.snapshot().replicas[0].running == 16).await;
    assert!(back.elapsed() > Duration::from_secs(2), "{:?}", back.elapsed());
    assert_eq!(rig.log("replica readmitted").len(), 1);
    jobs.shutdown().await;
    rig.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_wait_of_a_class_ends_with_the_truth() {
    let rig = Rig::start(Setup {
        yaml: "classes: {interactive: {max_wait: 700ms}, standard: {max_wait: 700ms}}\n".into(),
        ..Setup::default()
    });
    let rig = Arc::new(rig.await);
    rig.engine(0).add(FaultKind::Refuse).unwrap();
    rig.engine(1).add(FaultKind::Status { status: 503, retry_after: Some(30), message: None }).unwrap();
    let begun = Instant::now();
    let mut jobs = JoinSet::new();
    for job in 0..6 {
        let rig = Arc::clone(&rig);
        jobs.spawn(async move { rig.post("/v1/chat/completions", &chat(4, job % 2 == 0)).await });
    }
    while let Some(reply) = jobs.join_next().await {
        let reply = reply.unwrap();
        assert_eq!((reply.status, reply.end), (503, End::Whole), "{}", reply.text());
        assert_eq!(reply.json()["error"]["code"], "slow_down");
        let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds), "{seconds}");
        assert_eq!(reply.header("x-should-retry"), Some("true"));
    }
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(650) && took < Duration::from_secs(10), "{took:?}");
    rig.settled().await;
    let finished = rig.log("request finished");
    assert!(
        finished.iter().all(|line| line["outcome"] == "rejected" && line["reason"] == "deadline_exceeded")
    );
}

/// A replica that was replaced is a new one: who failed there may go there.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_go_back_to_a_replaced_engine_when_the_other_one_is_full() {
    let slow = SimOptions { speed: 0.05, ..engine() };
    let rig =
        Rig::start(Setup { engines: vec![slow.clone(), slow], pool: "max_seqs: 2", ..Setup::default() });
    let rig = Arc::new(rig.await);
    let mut long = Vec::new();
    for _ in 0..4 {
        let mut open = rig.open("/v1/chat/completions", &chat(4000, true)).await;
        open.until("\"content\":\"").await;
        long.push(open);
    }
    // Engine 0 gets room, and loses the job that it gets.
    rig.engine(0).add(Fault::from(FaultKind::Reset { at: ResetPoint::Request }).times(1)).unwrap();
    let lost = long.swap_remove(0);
    drop(lost);
    let reply = rig.post("/v1/chat/completions", &chat(4, true)).await;
    assert_eq!((reply.status, reply.end), (200, End::Whole), "{}", reply.text());
    assert_eq!(rig.line_of(reply.request_id()).await["attempts"], 2);
}

/// Engines that answer their health checks and fail all that they get: most
/// clients are told to come back, and the engines are left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_fails_everything_is_not_stormed() {
    const REQUESTS: u64 = 80;
    let rig = Rig::start(Setup {
        retry: "budget_floor: 10".into(),
        yaml: "health: {probe_min: 20ms, probe_max: 50ms, slow_start: 1ms}\n\
               classes: {interactive: {max_wait: 5s}, standard: {max_wait: 5s}}\n"
            .into(),
        ..Setup::default()
    });
    let rig = Arc::new(rig.await);
    for engine in 0..2 {
        rig.engine(engine).add(FaultKind::Status { status: 500, retry_after: None, message: None }).unwrap();
    }
    let begun = Instant::now();
    let mut jobs = JoinSet::new();
    for job in 0..REQUESTS {
        let rig = Arc::clone(&rig);
        jobs.spawn(async move { rig.post("/v1/chat/completions", &chat(4, job % 2 == 0)).await });
    }
    let mut told = 0;
    while let Some(reply) = jobs.join_next().await {
        let reply = reply.unwrap();
        if reply.status == 503 {
            told += 1;
            assert_eq!(reply.json()["error"]["code"], "slow_down");
            assert!(reply.header("retry-after").is_some());
        } else {
            assert_eq!(reply.status, 502, "{}", reply.text());
        }
    }
    let tries: u64 = (0..2).map(|engine| u64::from(rig.engine(engine).faults()[0].shown)).sum();
    // A share of the requests, what is always allowed in ten seconds, and once what two engines hold.
    let spans = begun.elapsed().as_secs().div_ceil(10);
    assert!(tries <= REQUESTS + REQUESTS / 5 + 10 * spans + 16, "{tries} in {spans} spans");
    assert!(told > REQUESTS / 2, "{told}");
    rig.emptied_within(PATIENCE).await;
    // What waits for the engines until its `max_wait` is refused together: its lines are sampled.
    let spent = |line: &Value| line["reason"] == "retries_spent";
    let spent = rig.finished().into_iter().filter(spent).count() as u64;
    assert!(spent > REQUESTS / 4, "{spent}");
    assert_eq!(rig.metric("penstock_rejections_total").await, told as f64);
    (0..2).for_each(|engine| rig.engine(engine).clear());
    assert_eq!(rig.post("/v1/chat/completions", &chat(4, false)).await.status, 200);
}
