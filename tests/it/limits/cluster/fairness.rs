//! Fair shares of tenants over two gateways and a real Redis, counted by clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use penstock::sim::server::SimOptions;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::support::client::Call;
use crate::support::gateway::{Rig, RigOptions, chat, until};
use crate::support::redis::RedisServer;

/// Each tenant keeps so many requests at each gateway to which it comes.
const CLIENTS: usize = 6;
/// Answers of all gateways before the counting begins, and those that are counted.
const WARM_UP: usize = 80;
const COUNTED: usize = 240;
/// Requests are served when their turn comes, however late.
const CLASSES: &str = "classes: {only: {ttft: 1m, itl: 1m, max_wait: 10m}}\n";

/// Gateways with a replica each, which runs two requests at once.
async fn pair(more: &str) -> [Rig; 2] {
    let options = || RigOptions {
        // A request takes 80 ms, so that the engines are the bottleneck and not the machine of the test.
        engines: vec![SimOptions { speed: 0.05, ..SimOptions::default() }],
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 2"),
        tenants: vec![("alpha", "weight: 1"), ("beta", "weight: 4")],
        more: format!("{CLASSES}{more}"),
        ..RigOptions::default()
    };
    [Rig::start(options()).await, Rig::start(options()).await]
}

async fn paired(server: &RedisServer) -> [Rig; 2] {
    let rigs = pair(&format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url())).await;
    let begun = Instant::now();
    while rigs[0].metric("penstock_cluster_gateways").await < 1.5 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the gateways do not find each other");
        sleep(Duration::from_millis(20)).await;
    }
    rigs
}

/// Counted answers that a tenant gets at a gateway; `answers` is the number of all answers.
async fn served(rig: &Rig, tenant: &str, answers: &AtomicUsize) -> usize {
    let client = async || {
        let mut served = 0;
        while answers.load(Ordering::Relaxed) < WARM_UP + COUNTED {
            let answer = Call::post("/v1/chat/completions", &chat(8, false))
                .key(rig.key(tenant))
                .send(rig.address())
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let number = answers.fetch_add(1, Ordering::Relaxed);
            served += usize::from((WARM_UP..WARM_UP + COUNTED).contains(&number));
        }
        served
    };
    join_all((0..CLIENTS).map(|_| client())).await.into_iter().sum()
}

/// Share of the first tenant, which comes to the first gateway only. The other one comes to both.
async fn share([one, two]: &[Rig; 2]) -> f64 {
    let answers = AtomicUsize::new(0);
    let (alpha, here, there) = tokio::join!(
        served(one, "alpha", &answers),
        served(one, "beta", &answers),
        served(two, "beta", &answers)
    );
    assert_eq!(alpha + here + there, COUNTED, "{alpha} {here} {there}");
    alpha as f64 / COUNTED as f64
}

/// By weight the first tenant has a fifth of all work. By itself each gateway gives it a fifth of its own work, which is
/// a tenth of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn weights_hold_over_two_gateways() {
    let alone = share(&pair("").await).await;
    assert!((alone - 0.1).abs() < 0.04, "{alone}");
    let server = block_in_place(RedisServer::start);
    let together = share(&paired(&server).await).await;
    assert!((together - 0.2).abs() < 0.04, "{together}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_store_each_gateway_goes_on_by_itself() {
    let mut server = block_in_place(RedisServer::start);
    let rigs = paired(&server).await;
    block_in_place(|| server.kill());
    until("the loss", || rigs[0].telemetry.captured_log().contains("the store of the cluster is away")).await;
    let share = share(&rigs).await;
    assert!((share - 0.1).abs() < 0.04, "{share}");
}
