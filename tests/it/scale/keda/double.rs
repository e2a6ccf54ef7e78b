//! KEDA and the HPA, modelled, against the gateway's numbers: a pool that goes to zero and back.
//! Their arithmetic and its tests are in `sim::world::autoscale`.

use std::time::Duration;

use penstock::core::model::time::Tick;
use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use penstock::sim::world::autoscale::hpa::{Behavior, Hpa, SYNC};
use penstock::sim::world::autoscale::keda::Keda as Operator;
use tokio::time::{Instant, sleep};

use super::setup::{Keda, METRIC, apply, file, rig};
use crate::support::client::Call;
use crate::support::gateway::{TENANT, chat, soon, until};

/// A pool of two engines under KEDA, much faster than life: zero, a burst, and
/// zero again; requests are held for the start and none is lost.
#[tokio::test]
async fn a_pool_goes_to_zero_and_back_with_nothing_lost() {
    let engines = start_fleet(vec![SimOptions::default(); 2]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = rig(engines, &urls, "").await;
    let keda = Keda::of(&rig).await;
    let keys: &[(&str, &str)] = &[("pool", "main"), ("minReplicas", "0"), ("maxReplicas", "2")];
    // A sync each 20 ms: for them a quarter of a minute has passed.
    let mut now = Tick::ZERO;
    let mut operator = Operator::new(0, SYNC * 20);
    let mut hpa = Hpa::new(1, 2, Some(Behavior::exact(2)));
    let mut replicas = 2;
    let (mut requests, mut history) = (Vec::new(), vec![replicas]);
    let ended = Instant::now() + Duration::from_secs(60);
    while Instant::now() < ended {
        let value = keda.values(keys, METRIC).await.unwrap()[0].metric_value_float;
        let active = keda.is_active(keys).await.unwrap();
        let busy = rig.snapshot().replicas.iter().any(|replica| replica.running > 0);
        let next = match operator.poll(now, replicas, active) {
            0 => 0,
            polled => hpa.sync(now, polled, value, 1.0),
        };
        assert!(next > 0 || !(busy && active), "never to zero while something runs");
        if next != replicas {
            history.push(next);
            replicas = next;
            apply(&rig, &file(&urls[..next as usize], "")).await;
        }
        if replicas == 0 && requests.is_empty() {
            let call = || {
                Call::post("/v1/chat/completions", &chat(30, true)).key(rig.key(TENANT)).send(rig.address())
            };
            requests = (0..6).map(|_| tokio::spawn(call())).collect();
            until("they are held", || rig.waiting() == 6).await;
        }
        if replicas == 0 && requests.iter().all(tokio::task::JoinHandle::is_finished) && !requests.is_empty()
        {
            break;
        }
        now += SYNC;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(requests.len(), 6);
    for request in requests {
        assert!(soon("a held request", request).await.unwrap().is_done());
    }
    assert_eq!((history.first(), history.last()), (Some(&2), Some(&0)), "{history:?}");
    assert_eq!(history.iter().filter(|replicas| **replicas == 0).count(), 2, "{history:?}");
}
