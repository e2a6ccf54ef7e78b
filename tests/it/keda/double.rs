//! KEDA and the HPA as they count, against the gateway's numbers: which numbers
//! of replicas can be reached at all, and a pool that goes to zero and back.

use std::time::Duration;

use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use tokio::time::{Instant, sleep};

use super::setup::{Keda, METRIC, apply, file, rig};
use crate::client::Call;
use crate::rig::{TENANT, chat, soon, until};

/// What the HPA of a ScaledObject does with an external metric of the type
/// AverageValue.
#[derive(Debug, Clone)]
pub(super) struct Hpa {
    pub(super) min: u32,
    pub(super) max: u32,
    /// As a share; 0.1 is what a cluster has unless it is told otherwise.
    pub(super) tolerance: f64,
    /// Replicas that may be added in one sync; absent = the rule of an HPA
    /// without `behavior`.
    pub(super) up: Option<u32>,
    /// Syncs for which the highest proposal holds on the way down.
    pub(super) window: usize,
    /// Replicas that may go in one sync; absent = all.
    pub(super) down: Option<u32>,
    proposals: Vec<u32>,
}

impl Hpa {
    pub(super) fn new(min: u32, max: u32, tolerance: f64) -> Self {
        Self { min, max, tolerance, up: None, window: 20, down: None, proposals: Vec::new() }
    }

    /// What the metric asks for, before any limit. Values have three decimals.
    pub(super) fn proposal(&self, current: u32, value: f64, target: f64) -> u32 {
        let milli = |number: f64| (number * 1000.0).round();
        let ratio = milli(value) / (milli(target) * f64::from(current));
        if (1.0 - self.tolerance..=1.0 + self.tolerance).contains(&ratio) {
            return current;
        }
        (milli(value) / milli(target)).ceil() as u32
    }

    /// One sync. With no replica an HPA does nothing.
    pub(super) fn sync(&mut self, current: u32, value: f64, target: f64) -> u32 {
        if current == 0 {
            return 0;
        }
        let wanted = self.proposal(current, value, target);
        self.proposals.push(wanted);
        let recent = self.proposals.iter().rev().take(self.window.max(1));
        let held = recent.copied().max().unwrap_or(wanted).min(current).max(wanted);
        let most = match self.up {
            Some(step) => current.saturating_add(step),
            None => (2 * current).max(4),
        };
        let least = self.down.map_or(0, |step| current.saturating_sub(step));
        held.clamp(least, most).clamp(self.min.max(1), self.max)
    }
}

/// What KEDA itself does: from zero to one, and to zero after its cooldown.
#[derive(Debug)]
struct Operator {
    cooldown: Duration,
    last_active: Option<Instant>,
}

impl Operator {
    fn poll(&mut self, replicas: u32, active: bool, min: u32) -> u32 {
        let now = Instant::now();
        if active {
            self.last_active = Some(now);
            return if replicas == 0 { min.max(1) } else { replicas };
        }
        // A target that was never seen active goes at once.
        let is_over = self.last_active.is_none_or(|last| now - last >= self.cooldown);
        if is_over && min == 0 { 0 } else { replicas }
    }
}

#[test]
fn with_the_target_one_and_no_tolerance_every_number_is_reached() {
    let exact = Hpa::new(1, 10_000, 0.0);
    let usual = Hpa::new(1, 10_000, 0.1);
    let mut missed = 0;
    for current in 1..=200 {
        for wanted in 1..=200 {
            assert_eq!(exact.proposal(current, wanted.into(), 1.0), wanted);
            let got = usual.proposal(current, wanted.into(), 1.0);
            missed += u32::from(got != wanted);
            assert!(current > 9 || got == wanted, "up to 9 replicas the usual tolerance hides nothing");
        }
    }
    assert_eq!(missed, 3_657);
    let next = |current: u32| (current + 1..).find(|n| usual.proposal(current, (*n).into(), 1.0) != current);
    assert_eq!([10, 20, 50, 100].map(|current| next(current).unwrap()), [12, 23, 56, 111]);
}

#[test]
fn the_double_has_the_limits_of_an_hpa() {
    let climb = |mut hpa: Hpa, from: u32, to: u32| {
        let mut steps = vec![from];
        while *steps.last().unwrap() != to && steps.len() < 100 {
            steps.push(hpa.sync(*steps.last().unwrap(), to.into(), 1.0));
        }
        steps
    };
    assert_eq!(climb(Hpa::new(1, 100, 0.0), 1, 16), [1, 4, 8, 16]);
    assert_eq!(climb(Hpa::new(1, 100, 0.0), 9, 30), [9, 18, 30]);
    // What `penstock keda` writes: all that are missing at once, one at a time
    // down.
    let written = Hpa { up: Some(40), window: 4, down: Some(1), ..Hpa::new(1, 40, 0.0) };
    assert_eq!(climb(written.clone(), 1, 40), [1, 40]);
    assert_eq!(climb(written, 4, 1), [4, 3, 2, 1]);
    assert_eq!(Hpa::new(0, 5, 0.0).sync(0, 5.0, 1.0), 0, "with no replica it is off");
    assert_eq!(Hpa::new(0, 5, 0.0).sync(3, 0.0, 1.0), 1, "only KEDA makes zero");
}

/// A pool of two engines under KEDA, much faster than life: zero, a burst, and
/// zero again; requests are held for the start and none is lost.
#[tokio::test]
async fn a_pool_goes_to_zero_and_back_with_nothing_lost() {
    let engines = start_fleet(vec![SimOptions::default(); 2]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = rig(engines, &urls, "").await;
    let keda = Keda::of(&rig).await;
    let keys: &[(&str, &str)] = &[("pool", "main"), ("minReplicas", "0"), ("maxReplicas", "2")];
    let mut operator = Operator { cooldown: Duration::from_millis(400), last_active: None };
    let mut hpa = Hpa { up: Some(2), window: 1, down: Some(1), ..Hpa::new(1, 2, 0.0) };
    let mut replicas = 2;
    let (mut requests, mut history) = (Vec::new(), vec![replicas]);
    let ended = Instant::now() + Duration::from_secs(60);
    while Instant::now() < ended {
        let value = keda.values(keys, METRIC).await.unwrap()[0].metric_value_float;
        let active = keda.is_active(keys).await.unwrap();
        let busy = rig.snapshot().replicas.iter().any(|replica| replica.running > 0);
        let next = match operator.poll(replicas, active, 0) {
            0 => 0,
            polled => hpa.sync(polled, value, 1.0),
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
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(requests.len(), 6);
    for request in requests {
        assert!(soon("a held request", request).await.unwrap().is_done());
    }
    assert_eq!((history.first(), history.last()), (Some(&2), Some(&0)), "{history:?}");
    assert_eq!(history.iter().filter(|replicas| **replicas == 0).count(), 2, "{history:?}");
}
