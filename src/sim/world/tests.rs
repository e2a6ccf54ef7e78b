//! Small worlds.

use std::time::Duration;

use crate::core::ids::ClassId;
use crate::core::policy::{Bounds, Class, Quota, Tenant};
use crate::core::time::Tick;
use crate::sim::engine::EngineOptions;
use crate::sim::profile::Profile;
use crate::sim::world::arrival::Arrival;
use crate::sim::world::baseline::at_once::AtOnce;
use crate::sim::world::baseline::least_request::LeastRequest;
use crate::sim::world::gateway::{Gateway, Rack, policy};
use crate::sim::world::record::{Goal, Summary};
use crate::sim::world::replica::ReplicaSetup;
use crate::sim::world::router::Router;
use crate::sim::world::run::{Outcome, Setup, run};

fn setup(count: u64, gap: u64) -> Setup {
    let profile = Profile::named("h100-8b").expect("a profile");
    let arrival = |index: u64| Arrival {
        at: Tick::from_millis(index * gap),
        prompt: 500,
        output: 20,
        ..Arrival::default()
    };
    Setup {
        replicas: vec![ReplicaSetup::new(profile, EngineOptions::default()); 2],
        arrivals: (0..count).map(arrival).collect(),
        gateways: Vec::new(),
        scrape: None,
        late: false,
        horizon: None,
        scaling: None,
    }
}

fn gateway(setup: &Setup) -> Box<dyn Router> {
    let class = Class {
        rank: 0,
        min_share: 0.0,
        max_wait: Duration::from_secs(30),
        ttft_objective: Duration::from_millis(150),
        itl_objective: Duration::from_millis(50),
        cold_start_tolerance: None,
        demote_to: None,
        spare: false,
        placement: Default::default(),
    };
    let tenant = Tenant {
        weight: 1.0,
        default_class: ClassId::new(0),
        classes: [ClassId::new(0)].into(),
        models: None,
        bounds: Bounds::default(),
        quota: Quota::default(),
        placement: Default::default(),
    };
    Box::new(Gateway::new(policy(&[Rack::plain(setup.replicas.len())], &[class], &[tenant])))
}

const GOAL: Goal = Goal { ttft: Duration::from_millis(150), itl: Duration::from_millis(50) };

fn summary(outcome: &Outcome) -> Summary {
    Summary::of(outcome.records.iter(), &GOAL)
}

#[test]
fn a_light_load_is_served_by_everybody() {
    let setup = setup(200, 20);
    for router in [gateway(&setup), Box::new(AtOnce::new(2, LeastRequest::default())) as Box<dyn Router>] {
        let outcome = run(&setup, &mut [router]);
        let summary = summary(&outcome);
        assert_eq!((summary.offered, outcome.faults), (200, 0));
        assert_eq!((summary.goodput, summary.lost), (1.0, 0.0), "{summary:?}");
        // 500 tokens in one step: 2 + max(6, 1.5 + 0.0215 * 500) + attention.
        assert!((14.0..40.0).contains(&summary.ttft_p50), "{summary:?}");
    }
}

#[test]
fn a_request_that_no_engine_can_hold_ends_and_harms_nobody() {
    let mut setup = setup(50, 20);
    setup.arrivals[10].prompt = 1_000_000;
    for router in [gateway(&setup), Box::new(AtOnce::new(2, LeastRequest::default())) as Box<dyn Router>] {
        let summary = summary(&run(&setup, &mut [router]));
        assert!((summary.lost - 0.02).abs() < 1e-9 && (summary.goodput - 0.98).abs() < 1e-9, "{summary:?}");
    }
}

#[test]
fn the_same_world_twice_is_the_same() {
    let setup = setup(300, 5);
    let first = run(&setup, &mut [gateway(&setup)]);
    let second = run(&setup, &mut [gateway(&setup)]);
    assert_eq!(first.records, second.records);
}
