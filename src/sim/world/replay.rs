//! Replay tests: a recorded run, given to a new scheduler, yields the same
//! actions.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::prop;
use proptest::{prop_assert_eq, proptest};

use crate::engine::EngineOptions;
use crate::engine::profile::StepProfile;
use crate::rng::Rng;
use crate::world::arrival::Arrival;
use crate::world::gateway::{EventTrace, ReplicaGroup, SimGateway, policy};
use crate::world::replica::{ReplicaSetup, WorldFault, WorldFaultKind};
use crate::world::router::Router;
use crate::world::run::run;
use crate::world::setup::Setup;
use penstock_core::model::ids::ClassId;
use penstock_core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use penstock_core::model::time::Tick;
use penstock_core::scheduler::Scheduler;

fn rules(replicas: usize) -> Policy {
    let class = |rank: u32, wait: u64| Class {
        usage_half_life: None,
        rank,
        min_share: 0.1,
        max_wait: Duration::from_millis(wait),
        ttft_objective: Duration::from_millis(wait),
        itl_objective: Duration::from_millis(50),
        cold_start_tolerance: None,
        demote_to: (rank == 0).then(|| ClassId::new(1)),
        scavenger: false,
        placement: Default::default(),
    };
    let tenant = |weight| Tenant {
        weight,
        parent: None,
        default_class: ClassId::new(0),
        classes: [ClassId::new(0), ClassId::new(1)].into(),
        models: None,
        bounds: QueueBounds { requests: 40, ..QueueBounds::default() },
        quota: Quota { guarantee: 0.2, ..Quota::default() },
        placement: Default::default(),
    };
    policy(&[ReplicaGroup::plain(replicas)], &[class(0, 200), class(1, 5_000)], &[tenant(1.0), tenant(3.0)])
}

/// Bursts of two tenants in two classes, some of them with common prompts.
fn arrivals(count: u64, seed: u64) -> Vec<Arrival> {
    let mut rng = Rng::new(seed);
    let mut at = 0;
    let arrival = |_| {
        at += if rng.below(4) == 0 { rng.below(60_000_000) } else { 0 };
        let prompt = 16 + rng.below(4_000) as u32;
        let family = rng.below(3);
        Arrival {
            at: Tick::from_nanos(at),
            tenant: rng.below(2) as u32,
            class: rng.below(2) as u32,
            prompt,
            output: 1 + rng.below(120) as u32,
            prefix: (0..u64::from(prompt / 256)).map(|block| family * 1_000 + block).collect(),
            patience: (rng.below(3) == 0).then(|| Duration::from_millis(10 + rng.below(3_000))),
            ..Arrival::default()
        }
    };
    (0..count).map(arrival).collect()
}

fn world(seed: u64, engines: usize, faulty: usize, kind: WorldFaultKind, scrape: bool) -> Setup {
    let profile = StepProfile::named("h100-8b").expect("a profile");
    let options = EngineOptions { max_seqs: Some(12), ..EngineOptions::default() };
    let mut replicas = vec![ReplicaSetup::new(profile, options); engines];
    let lasts = Duration::from_millis(700);
    if let Some(replica) = replicas.get_mut(faulty) {
        replica.fault = Some(WorldFault { at: Tick::from_millis(100), lasts, every: None, kind });
    }
    let arrivals = arrivals(120, seed);
    Setup {
        gateways: (0..arrivals.len()).map(|index| (index % 2) as u8).collect(),
        replicas,
        arrivals,
        scrape: scrape.then(|| Duration::from_millis(150)),
        late: scrape,
        ..Setup::default()
    }
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 24, ..Default::default() })]
    #[test]
    fn every_run_replays_to_the_same_actions(
        seed in prop::num::u64::ANY,
        engines in 1usize..4,
        faulty in 0usize..5,
        frozen in prop::bool::ANY,
        scrape in prop::bool::ANY,
    ) {
        let kind = if frozen { WorldFaultKind::Frozen } else { WorldFaultKind::Crashed };
        let setup = world(seed, engines, faulty, kind, scrape);
        let logs = [EventTrace::default(), EventTrace::default()];
        let gateway = |log| Box::new(SimGateway::new(rules(engines)).recorded(log)) as Box<dyn Router>;
        let mut routers: Vec<_> = logs.iter().map(gateway).collect();
        let outcome = run(&setup, &mut routers);
        prop_assert_eq!(outcome.broken_invariants, 0);
        for log in &logs {
            let mut scheduler = Scheduler::new(Arc::new(rules(engines)));
            let mut actions = Vec::new();
            for (number, step) in log.lock().iter().enumerate() {
                actions.clear();
                scheduler.handle(step.at, step.event.clone(), &mut actions);
                prop_assert_eq!(&actions, &step.actions, "step {}: {:?}", number, step);
            }
        }
    }
}
