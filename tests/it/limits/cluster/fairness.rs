//! Fair shares of tenants over two gateways and a real Redis, counted by clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use penstock::sim::engine::EngineOptions;
use penstock::sim::server::SimOptions;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::support::client::Call;
use crate::support::gateway::{Rig, RigOptions, chat, until};
use crate::support::redis::RedisServer;

/// A load of tenants, each of which keeps so many requests at each gateway to which it comes.
#[derive(Debug, Clone, Copy)]
struct Load {
    clients: usize,
    /// Answers of all gateways before the counting begins.
    warm_up: usize,
    counted: usize,
}

/// Each gateway has two places.
const FEW: Load = Load { clients: 6, warm_up: 80, counted: 240 };
/// The gateways have ten places together. A tenant counts in their division when it has waited for a second.
const MANY: Load = Load { clients: 16, warm_up: 500, counted: 500 };
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

/// Gateways in front of the same replica, which runs ten requests at once.
async fn pair_at_one_engine(more: &str) -> [Rig; 2] {
    let engine = EngineOptions { max_seqs: Some(10), ..EngineOptions::default() };
    let options = |engines: Vec<SimOptions>, urls| RigOptions {
        engines,
        urls,
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 10"),
        tenants: vec![("alpha", "weight: 1"), ("beta", "weight: 4")],
        more: format!("{CLASSES}{more}"),
        ..RigOptions::default()
    };
    let engine = SimOptions { speed: 0.05, engine, ..SimOptions::default() };
    let one = Rig::start(options(vec![engine], Vec::new())).await;
    let url = one.engines[0].url();
    [one, Rig::start(options(Vec::new(), vec![url])).await]
}

fn cluster(server: &RedisServer) -> String {
    format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url())
}

async fn paired(rigs: [Rig; 2]) -> [Rig; 2] {
    let begun = Instant::now();
    while rigs[0].metric("penstock_cluster_gateways").await < 1.5 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the gateways do not find each other");
        sleep(Duration::from_millis(20)).await;
    }
    rigs
}

/// Counted answers that a tenant gets at a gateway; `answers` is the number of all answers.
async fn served(rig: &Rig, tenant: &str, load: Load, answers: &AtomicUsize) -> usize {
    let Load { clients, warm_up, counted } = load;
    let client = async || {
        let mut served = 0;
        while answers.load(Ordering::Relaxed) < warm_up + counted {
            let answer = Call::post("/v1/chat/completions", &chat(8, false))
                .key(rig.key(tenant))
                .send(rig.address())
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let number = answers.fetch_add(1, Ordering::Relaxed);
            served += usize::from((warm_up..warm_up + counted).contains(&number));
        }
        served
    };
    join_all((0..clients).map(|_| client())).await.into_iter().sum()
}

/// Share of the first tenant, which comes to the first gateway only. The other one comes to both.
async fn share([one, two]: &[Rig; 2]) -> f64 {
    let answers = AtomicUsize::new(0);
    let (alpha, here, there) = tokio::join!(
        served(one, "alpha", FEW, &answers),
        served(one, "beta", FEW, &answers),
        served(two, "beta", FEW, &answers)
    );
    assert_eq!(alpha + here + there, FEW.counted, "{alpha} {here} {there}");
    alpha as f64 / FEW.counted as f64
}

/// Share of the first tenant. Each of the two comes to one gateway only.
async fn share_apart([one, two]: &[Rig; 2]) -> f64 {
    let answers = AtomicUsize::new(0);
    let (alpha, beta) =
        tokio::join!(served(one, "alpha", MANY, &answers), served(two, "beta", MANY, &answers));
    assert_eq!(alpha + beta, MANY.counted, "{alpha} {beta}");
    alpha as f64 / MANY.counted as f64
}

/// By weight the first tenant has a fifth of all work. By itself each gateway gives it a fifth of its own work, which is
/// a tenth of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn weights_hold_over_two_gateways() {
    let alone = share(&pair("").await).await;
    assert!((alone - 0.1).abs() < 0.04, "{alone}");
    let server = block_in_place(RedisServer::start);
    let together = share(&paired(pair(&cluster(&server)).await).await).await;
    assert!((together - 0.2).abs() < 0.04, "{together}");
}

/// No order within a gateway could do it: the places of the engine have to go from one gateway to the other. By
/// itself the gateway that fills them first keeps most of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn weights_hold_between_tenants_of_different_gateways() {
    let server = block_in_place(RedisServer::start);
    let together = share_apart(&paired(pair_at_one_engine(&cluster(&server)).await).await).await;
    assert!((together - 0.2).abs() < 0.04, "{together}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_store_each_gateway_goes_on_by_itself() {
    let mut server = block_in_place(RedisServer::start);
    let rigs = paired(pair(&cluster(&server)).await).await;
    block_in_place(|| server.kill());
    until("the loss", || rigs[0].telemetry.captured_log().contains("the store of the cluster is away")).await;
    let share = share(&rigs).await;
    assert!((share - 0.1).abs() < 0.04, "{share}");
}
