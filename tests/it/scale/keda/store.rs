//! One number from several gateways that share a store, without `scale.peers`.

use std::time::Duration;

use http::Method;
use serde_json::Value;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::setup::{Keda, MAIN, METRIC, SEEN, file, fleet, sees};
use crate::support::certificates::put;
use crate::support::client::{Answer, Call};
use crate::support::gateway::{Rig, TENANT, chat, soon, until};
use crate::support::redis::RedisServer;

/// A gateway that shares the store, or shares nothing.
async fn gateway(server: Option<&RedisServer>) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    put(&folder.path().join("demand.json"), SEEN);
    let cluster = server.map(|server| format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url()));
    let path = folder.path().join("penstock.yaml");
    put(&path, &(file(&[], ", state_file: demand.json") + &cluster.unwrap_or_default()));
    Rig::at(folder, path, Vec::new(), [TENANT]).await
}

/// So many gateways, none older than the one before.
async fn gateways(count: usize, server: &RedisServer) -> Vec<Rig> {
    let mut rigs = Vec::new();
    for _ in 0..count {
        rigs.push(gateway(Some(server)).await);
        sleep(Duration::from_millis(2)).await;
    }
    for rig in &rigs {
        sees(rig, count).await;
    }
    rigs
}

fn begin(rig: &Rig) -> JoinHandle<Answer> {
    let call = Call::post("/v1/chat/completions", &chat(30, true));
    tokio::spawn(call.key(rig.key(TENANT)).send(rig.address()))
}

/// What waits for the pool `main` at all gateways, as this one says.
async fn queued(rig: &Rig) -> u64 {
    let rows = rig.admin(Method::GET, "/scale/v1/pools").await.json();
    let rows = rows["pools"].as_array().unwrap().clone();
    rows.iter().find(|row| row["pool"] == "main").unwrap()["queued"].as_u64().unwrap()
}

async fn has_queued(rig: &Rig, wanted: u64) {
    let reached = async {
        while queued(rig).await != wanted {
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon(&format!("{wanted} wait"), reached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_says_what_one_with_all_requests_would_say() {
    let server = block_in_place(RedisServer::start);
    let rigs = gateways(2, &server).await;
    let lone = gateway(None).await;
    assert_eq!(fleet(&lone).await, Value::Null, "without `cluster` there is nobody else");
    let held: Vec<_> = [0, 0, 0, 0, 1, 1].map(|at: usize| begin(&rigs[at])).into();
    let same: Vec<_> = (0..6).map(|_| begin(&lone)).collect();
    for rig in rigs.iter().chain([&lone]) {
        has_queued(rig, 6).await;
    }
    let [one, two, alone] = [Keda::of(&rigs[0]).await, Keda::of(&rigs[1]).await, Keda::of(&lone).await];
    let agree = async {
        loop {
            let said = [one.desired().await, two.desired().await, alone.desired().await];
            if said[0] == said[1] && said[2] >= 4 && said[0].abs_diff(said[2]) <= 1 {
                return said;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let said = soon("one number", agree).await;
    println!("two with 4 and 2 of 6 requests say {} and {}, one with all says {}", said[0], said[1], said[2]);
    let (first, second) = (fleet(&rigs[0]).await, fleet(&rigs[1]).await);
    assert_eq!((&first["decider"], &second["decider"]), (&first["id"], &first["id"]), "the eldest");
    let status = rigs[1].admin(Method::GET, "/admin/v1/status").await.ok().json();
    assert_eq!(status["cluster"]["id"], second["id"], "a gateway has one id");
    assert!(rigs[0].telemetry.captured_log().contains("another gateway is heard"));
    // A new process finds the others before it says a number.
    let third = gateway(Some(&server)).await;
    let keda = Keda::of(&third).await;
    let first_number = async {
        loop {
            match keda.values(MAIN, METRIC).await {
                Ok(values) => return values[0].metric_value,
                Err(status) => assert_eq!(status.code(), Code::Unavailable),
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let number = soon("a number", first_number).await;
    assert!(u64::try_from(number).unwrap() + 1 >= said[0], "{number} after {}", said[0]);
    assert!(keda.is_active(MAIN).await.unwrap(), "others have work");
    held.into_iter().chain(same).for_each(|request| request.abort());
    for rig in &rigs {
        has_queued(rig, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_part_of_a_killed_gateway_is_held_and_one_that_leaves_takes_its_part_along() {
    let server = block_in_place(RedisServer::start);
    let mut rigs = gateways(3, &server).await;
    let held: Vec<_> = [0, 0, 1, 1, 2].map(|at: usize| begin(&rigs[at])).into();
    for rig in &rigs {
        has_queued(rig, 5).await;
    }
    let next = fleet(&rigs[1]).await["id"].clone();
    // It does not announce its exit: its threads are gone from one moment to the next.
    let killed = rigs.remove(0);
    soon("its end", tokio::task::spawn_blocking(move || drop(killed))).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(13) {
        for rig in &rigs {
            assert_eq!(queued(rig).await, 5, "after {:?}", begun.elapsed());
        }
        sleep(Duration::from_millis(50)).await;
    }
    for rig in &rigs {
        let replaced = async {
            loop {
                let fleet = fleet(rig).await;
                if (&fleet["silent"], &fleet["decider"]) == (&1.into(), &next) {
                    return fleet;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert_eq!(soon("its silence, and the next one decides", replaced).await["replayed"], 1);
        assert!(Keda::of(rig).await.desired().await >= 1, "one of three may be missing");
        assert!(rig.telemetry.captured_log().contains("another gateway cannot be heard"));
    }
    let Rig { gateway, .. } = rigs.pop().unwrap();
    held.into_iter().for_each(|request| request.abort());
    soon("the drain", gateway.drain()).await;
    let left = async {
        while fleet(&rigs[0]).await["live"] != 1 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon("its exit", left).await;
    assert_eq!(fleet(&rigs[0]).await["known"], 2, "the killed one is missed, the other one is not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn while_the_store_is_away_nobody_says_a_smaller_number() {
    let mut server = block_in_place(RedisServer::start);
    let rigs = gateways(2, &server).await;
    let held: Vec<_> = [0, 0, 0, 0, 1, 1].map(|at: usize| begin(&rigs[at])).into();
    for rig in &rigs {
        has_queued(rig, 6).await;
    }
    let all = [Keda::of(&rigs[0]).await, Keda::of(&rigs[1]).await];
    let grown = async {
        while all[0].desired().await < 4 || all[1].desired().await < 4 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    soon("the number has grown", grown).await;
    let before = all[0].desired().await.min(all[1].desired().await);
    // A pause that is shorter than 10 s changes nothing.
    block_in_place(|| server.kill());
    let (begun, mut unknown) = (Instant::now(), [false; 2]);
    while unknown != [true; 2] {
        for (keda, unknown) in all.iter().zip(&mut unknown) {
            match keda.values(MAIN, METRIC).await {
                Ok(values) => assert!(u64::try_from(values[0].metric_value).unwrap() >= before),
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    assert!(begun.elapsed() > Duration::from_secs(5), "{:?}", begun.elapsed());
                    // The other one's last report is older than the store's last answer.
                    let lacks_store = status.message().contains("the store has not answered");
                    assert!(lacks_store || status.message().contains("cannot be heard"), "{status}");
                    *unknown |= lacks_store;
                }
            }
            assert!(keda.is_active(MAIN).await.unwrap(), "what waits here needs no second opinion");
        }
        assert!(begun.elapsed() < Duration::from_secs(25));
        sleep(Duration::from_millis(50)).await;
    }
    let idle: &[(&str, &str)] = &[("pool", "other")];
    assert_eq!(all[0].is_active(idle).await.unwrap_err().code(), Code::Unavailable, "never `false`");
    // It comes back empty.
    block_in_place(|| server.restart());
    for (rig, keda) in rigs.iter().zip(&all) {
        sees(rig, 2).await;
        has_queued(rig, 6).await;
        let known = async {
            loop {
                if let Ok(values) = keda.values(MAIN, METRIC).await {
                    return u64::try_from(values[0].metric_value).unwrap();
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(soon("a number", known).await >= before);
        assert!(!keda.is_active(idle).await.unwrap());
    }
    // It loses its data while all are there: nobody is missed.
    block_in_place(|| server.flush());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        for rig in &rigs {
            assert_eq!((queued(rig).await, &fleet(rig).await["live"]), (6, &2.into()));
        }
        sleep(Duration::from_millis(20)).await;
    }
    held.into_iter().for_each(|request| request.abort());
    until("nobody waits", || rigs.iter().map(Rig::waiting).sum::<u64>() == 0).await;
}
