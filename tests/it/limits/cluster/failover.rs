//! Gateways whose store fails over: a primary behind real sentinels, and a real cluster.

use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::gateways::{gateways, rig, served, served_in_all, status};
use crate::support::gateway::{PATIENCE, Rig, TENANT, until};
use crate::support::redis::{RedisCluster, RedisServer, StoreCertificates};

const LIMITS: &str = "limits: {per_day: {requests: 80}}";

/// Two gateways whose section `cluster.valkey` says `valkey`.
async fn pair(valkey: &str) -> [Rig; 2] {
    let more = || format!("cluster: {{valkey: {{{valkey}}}}}\n");
    let rigs = [rig(LIMITS, more()).await, rig(LIMITS, more()).await];
    gateways(&rigs[0], 2).await;
    rigs
}

/// Waits until the gateway has been without the store for the `times`-th time and has heard it again.
async fn followed(rig: &Rig, times: usize) {
    until("the gateway follows", || {
        rig.telemetry.captured_log().matches("the store of the cluster is back").count() >= times
    })
    .await;
    let log = rig.telemetry.captured_log();
    log.lines()
        .filter(|line| line.contains("the store of the cluster is"))
        .for_each(|line| println!("{line}"));
    // Nodes of a cluster hear of a move one after the other.
    sleep(Duration::from_secs(1)).await;
    gateways(rig, 2).await;
    let begun = Instant::now();
    while status(rig).await["up"] != true {
        assert!(begun.elapsed() < PATIENCE, "{}", status(rig).await);
        sleep(Duration::from_millis(20)).await;
    }
    // Where data were lost, no lease grows for two seconds.
    sleep(Duration::from_millis(2_500)).await;
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1_500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}");
}

/// A planned change of the primary and a killed one: the gateways go on with their leases meanwhile, and no request
/// more than the limit is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_follow_the_primary_that_sentinels_name() {
    let (mut servers, sentinels) = block_in_place(|| {
        let primary = RedisServer::start();
        let replica = primary.replica();
        wait_for("the replica copies", || {
            replica.say(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let sentinels: Vec<RedisServer> = (0..3).map(|_| primary.sentinel(3)).collect();
        for sentinel in &sentinels {
            wait_for("the sentinels know each other and the replica", || {
                let told = sentinel.say(&["INFO", "sentinel"]);
                told.contains("slaves=1,sentinels=3")
            });
        }
        ([primary, replica], sentinels)
    });
    let urls: Vec<String> =
        sentinels.iter().map(|sentinel| format!("'redis://127.0.0.1:{}'", sentinel.port())).collect();
    let [one, two] = pair(&format!("sentinel: {{urls: [{}], primary: mymaster}}", urls.join(", "))).await;
    let mut sum = served(&one, 8).await + served(&two, 4).await;
    assert_eq!(sum, 12);

    block_in_place(|| assert_eq!(sentinels[0].say(&["SENTINEL", "FAILOVER", "mymaster"]), "OK"));
    followed(&one, 1).await;
    followed(&two, 1).await;
    block_in_place(|| assert!(servers[1].say(&["ROLE"]).starts_with("master")));
    sum += served(&one, 8).await + served(&two, 4).await;
    assert_eq!(sum, 24);

    block_in_place(|| {
        wait_for("the old primary copies the new one", || {
            servers[0].say(&["INFO", "replication"]).contains("master_link_status:up")
        });
        servers[1].kill();
    });
    let meanwhile = served(&one, 4).await + served(&two, 4).await;
    assert_eq!(meanwhile, 8, "leases last");
    followed(&one, 2).await;
    followed(&two, 2).await;
    block_in_place(|| assert!(servers[0].say(&["ROLE"]).starts_with("master")));
    assert_eq!(served_in_all(&[&one, &two], sum + meanwhile, 80).await, 80);
}

/// A slot that moves, and a primary that is killed: the gateways learn which server has their keys now.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_follow_the_slots_of_a_cluster() {
    let mut cluster = block_in_place(RedisCluster::start);
    // The gateways learn the other nodes from the one that they are told.
    let [one, two] = pair(&format!("nodes: ['redis://127.0.0.1:{}']", cluster.nodes[5].port())).await;
    let mut sum = served(&one, 8).await + served(&two, 4).await;
    assert_eq!(sum, 12);

    let key = format!("{{t/{TENANT}}}");
    let from = block_in_place(|| cluster.owner(&key));
    let to = (from + 1) % 3;
    let slot = block_in_place(|| {
        let slot = cluster.nodes[0].say(&["CLUSTER", "KEYSLOT", &key]);
        cluster.begin_move(&slot, [from, to]);
        slot
    });
    for rig in [&one, &two] {
        // A report is due when something was used.
        while !rig.telemetry.captured_log().contains("the store of the cluster is away") {
            sum += served(rig, 1).await;
            assert!(sum < 40, "the gateway is not sent on");
            sleep(Duration::from_millis(250)).await;
        }
    }
    block_in_place(|| cluster.end_move(&slot, [from, to]));
    followed(&one, 1).await;
    followed(&two, 1).await;
    let since = served(&one, 8).await + served(&two, 4).await;
    assert_eq!(since, 12);
    sum += since;

    block_in_place(|| assert_eq!(cluster.owner(&key), to, "the slot has moved"));
    block_in_place(|| cluster.nodes[to].kill());
    let meanwhile = served(&one, 4).await + served(&two, 4).await;
    assert_eq!(meanwhile, 8, "leases last");
    followed(&one, 2).await;
    followed(&two, 2).await;
    assert_eq!(served_in_all(&[&one, &two], sum + meanwhile, 80).await, 80);
}

/// Sentinels, the primary that they name, and the nodes of a cluster are reached over TLS, by the same certificates.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_that_others_name_are_reached_over_tls() {
    let certificates = block_in_place(StoreCertificates::new);
    let (_primary, _sentinel, sentinel_port) = block_in_place(|| certificates.watched_primary());
    let (_cluster, node_port) = block_in_place(|| certificates.cluster());
    let tls = format!("tls: {{ca: {}}}", certificates.authority());
    let stores = [
        format!("sentinel: {{urls: ['rediss://127.0.0.1:{sentinel_port}'], primary: mymaster}}"),
        format!("nodes: ['rediss://127.0.0.1:{node_port}']"),
    ];
    for store in stores {
        let [one, two] = pair(&format!("{store}, {tls}")).await;
        assert_eq!(served_in_all(&[&one, &two], 0, 80).await, 80, "{store}");
        let unknown = rig(LIMITS, format!("cluster: {{valkey: {{{store}}}}}\n")).await;
        until("the problem is told", || unknown.telemetry.captured_log().contains("is away")).await;
        let told = status(&unknown).await;
        assert!(told["problem"].as_str().unwrap().contains("ertificate"), "{told}");
    }
}
