//! Sleep of engines: ordered by the gateway, or by others.

use std::time::Duration;

use http::Method;
use penstock::core::model::snapshot::{PoolStatus, ReplicaStatus};
use penstock::sim::server::{SimHandle, SimOptions};

use crate::support::client::Call;
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, soon, until};

const CHAT: &str = "/v1/chat/completions";
const SLEEPY: &str = "engine: vllm\nmodels: [sim]\nmax_seqs: 2\nscrape_interval: 100ms\n\
                      sleep: {after_idle: 1s, keep_awake: 0, wake_timeout: 20s}";
const ONE_AWAKE: &str = "engine: vllm\nmodels: [sim]\nscrape_interval: 100ms\n\
                         sleep: {after_idle: 1s, keep_awake: 1}";
const PLAIN: &str = "engine: vllm\nmodels: [sim]\nscrape_interval: 100ms";

async fn rig(pool: &'static str, engines: usize, change: impl Fn(&mut SimOptions)) -> Rig {
    let mut options = SimOptions::default();
    change(&mut options);
    Rig::start(RigOptions { engines: vec![options; engines], pool: Some(pool), ..RigOptions::default() })
        .await
}

fn states(rig: &Rig) -> Vec<ReplicaStatus> {
    rig.snapshot().replicas.iter().map(|view| view.state).collect()
}

fn asleep(rig: &Rig) -> usize {
    states(rig).into_iter().filter(|state| *state == ReplicaStatus::Asleep).count()
}

/// What an engine is told by somebody else, or asked.
async fn engine(rig: &Rig, number: usize, method: Method, path: &str) -> String {
    let address = SimHandle::url(&rig.engines[number]);
    let address = address.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    soon("an engine's answer", Call::new(method, path).send(address)).await.text()
}

async fn is_sleeping(rig: &Rig, number: usize) -> bool {
    engine(rig, number, Method::GET, "/is_sleeping").await.contains("true")
}

#[tokio::test]
async fn an_idle_pool_sleeps_and_requests_wake_as_much_as_they_need() {
    let rig = rig(SLEEPY, 2, |options| options.vllm.wake_time = Duration::from_millis(300)).await;
    until("all sleep", || asleep(&rig) == 2).await;
    until("they were told", || rig.telemetry.captured_log().matches("\"order\":\"sleep\"").count() == 2)
        .await;
    assert!(is_sleeping(&rig, 0).await && is_sleeping(&rig, 1).await);
    assert_eq!(rig.snapshot().pools[0].state, PoolStatus::Asleep);
    let pools = rig.admin(Method::GET, "/admin/v1/pools").await.text();
    assert!(pools.contains(r#""state":"asleep""#) && pools.contains(r#""asleep":2"#), "{pools}");

    let answer = soon("an answer", rig.post(CHAT, &chat(3, true))).await;
    assert!(answer.is_done(), "{answer:?}");
    let orders =
        |order: &str| rig.telemetry.captured_log().matches(&format!("\"order\":\"{order}\"")).count();
    assert_eq!(orders("wake"), 1, "one is enough");
    let wake = rig.metric("penstock_wake_seconds").await;
    assert!((0.3..20.0).contains(&wake), "{wake}");
    assert_eq!(rig.snapshot().pools[0].cold_start, None, "that was no cold start");

    let body = chat(40, true);
    let many = (0..6).map(|_| rig.post(CHAT, &body));
    for answer in futures_util::future::join_all(many).await {
        assert!(answer.is_done(), "{answer:?}");
    }
    until("they sleep again", || asleep(&rig) == 2).await;
    assert!(!rig.telemetry.captured_log().contains("by others"));
    assert!(rig.finished().iter().all(|line| line["outcome"] == "success"));
    assert_eq!(rig.snapshot().broken_invariants, 0);
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn one_stays_awake_and_a_stream_keeps_its_engine_awake() {
    let rig = rig(ONE_AWAKE, 2, |_| {}).await;
    until("one sleeps", || asleep(&rig) == 1).await;
    assert!(soon("an answer", rig.post(CHAT, &chat(3, true))).await.is_done());
    assert_eq!(asleep(&rig), 1, "the other one answers");
    assert!(
        soon("a long stream", rig.post(CHAT, &chat(500, true))).await.is_done(),
        "nobody sleeps on a stream"
    );
    assert_eq!(asleep(&rig), 1);
}

#[tokio::test]
async fn an_engine_without_development_mode_is_told_once() {
    let rig = rig(SLEEPY, 1, |options| options.vllm.dev_mode = false).await;
    let warned = || rig.telemetry.captured_log().matches("VLLM_SERVER_DEV_MODE=1").count();
    until("it is said", || warned() == 1).await;
    until("it serves", || states(&rig) == [ReplicaStatus::Serving]).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(warned(), 1);
    assert!(soon("an answer", rig.post(CHAT, &chat(3, true))).await.is_done());
}

#[tokio::test]
async fn engines_that_others_put_to_sleep_get_nothing_and_requests_wait_for_them() {
    let rig = rig(PLAIN, 2, |_| {}).await;
    engine(&rig, 0, Method::POST, "/sleep?level=1").await;
    until("one sleeps", || asleep(&rig) == 1).await;
    for _ in 0..4 {
        assert!(soon("an answer", rig.post(CHAT, &chat(3, true))).await.is_done());
    }
    assert_eq!(rig.engine(0).state().total, 0);
    engine(&rig, 1, Method::POST, "/sleep").await;
    until("both sleep", || asleep(&rig) == 2).await;
    let key = rig.key(TENANT).to_owned();
    let held = tokio::spawn(Call::post(CHAT, &chat(3, true)).key(&key).send(rig.address()));
    until("it is held", || rig.waiting() == 1).await;
    assert_eq!(rig.snapshot().pools[0].state, PoolStatus::Starting);
    engine(&rig, 1, Method::POST, "/wake_up").await;
    assert!(soon("the held one", held).await.expect("an answer").is_done());
    assert_eq!(states(&rig)[0], ReplicaStatus::Asleep);
    assert!(rig.telemetry.captured_log().contains("by others"), "it is said");
    let ejections = rig.metric("penstock_ejections_total").await;
    assert!(ejections < 1.0, "none of them is broken");
}
