//! Tests of worlds whose replicas come and go.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::EngineOptions;
use crate::engine::profile::StepProfile;
use crate::world::arrival::Arrival;
use crate::world::autoscale::policy::ScalePolicy;
use crate::world::autoscale::{Scaling, ScalingOutcome};
use crate::world::baseline::at_once::AtOnce;
use crate::world::baseline::at_once::least_request::LeastRequest;
use crate::world::baseline::held::{Cap, Fifo, HeldRouter};
use crate::world::gateway::{EventTrace, ReplicaGroup, SimGateway, policy};
use crate::world::replica::ReplicaSetup;
use crate::world::router::Router;
use crate::world::run::{RunOutcome, run};
use crate::world::setup::Setup;
use penstock_core::model::event::Event;
use penstock_core::model::ids::ClassId;
use penstock_core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use penstock_core::model::time::Tick;
use penstock_core::scheduler::Scheduler;

/// Twice the usual `max`.
const PLACES: usize = 40;
const START: Duration = Duration::from_secs(60);

fn scaling(policy: &str) -> Scaling {
    Scaling {
        policy: policy.parse().unwrap(),
        start: START,
        spread: 0.0,
        min: 1,
        max: 20,
        initial: 1,
        poll: Duration::from_secs(10),
        cooldown: Duration::from_secs(120),
        behavior: None,
        counted_from: Duration::ZERO,
        seed: 3,
        demand: Vec::new(),
    }
}

/// Requests with the given number in each second, on engines that run four at
/// once. A request takes about 5 s, so that each replica serves 0.8 per second.
fn setup(scaling: Scaling, seconds: impl Iterator<Item = u64>, each: u64) -> Setup {
    let profile = StepProfile::named("a10-8b").unwrap();
    let options = EngineOptions { max_seqs: Some(4), ..EngineOptions::default() };
    let arrival = |second: u64, index: u64| Arrival {
        at: Tick::from_millis(second * 1_000 + index * 1_000 / each),
        prompt: 200,
        output: 120,
        ..Arrival::default()
    };
    Setup {
        replicas: vec![ReplicaSetup::new(profile, options); PLACES],
        arrivals: seconds.flat_map(|second| (0..each).map(move |index| arrival(second, index))).collect(),
        scaling: Some(scaling),
        ..Setup::default()
    }
}

fn gateway(places: usize, initial: u32) -> Box<dyn Router> {
    Box::new(SimGateway::elastic(&rules(places), initial as usize))
}

fn rules(places: usize) -> Policy {
    let class = Class {
        usage_half_life: None,
        rank: 0,
        min_share: 0.0,
        max_wait: Duration::from_secs(600),
        ttft_objective: Duration::from_secs(10),
        itl_objective: Duration::from_millis(100),
        cold_start_tolerance: None,
        demote_to: None,
        scavenger: false,
        placement: Default::default(),
    };
    let tenant = Tenant {
        weight: 1.0,
        parent: None,
        default_class: ClassId::new(0),
        classes: [ClassId::new(0)].into(),
        models: None,
        bounds: QueueBounds::default(),
        quota: Quota::default(),
        placement: Default::default(),
    };
    policy(&[ReplicaGroup::plain(places)], &[class], &[tenant])
}

fn penstock(setup: &Setup) -> (RunOutcome, ScalingOutcome) {
    let initial = setup.scaling.as_ref().unwrap().initial;
    ended(run(setup, &mut [gateway(setup.replicas.len(), initial)]))
}

fn ended(outcome: RunOutcome) -> (RunOutcome, ScalingOutcome) {
    let scaled = outcome.scaled.clone().unwrap();
    assert!(outcome.records.iter().all(|record| record.served()), "something was lost");
    assert_eq!(outcome.broken_invariants, 0);
    (outcome, scaled)
}

#[test]
fn a_replica_is_ready_when_its_start_is_over() {
    let setup = setup(scaling("queue=2"), 0..120, 3);
    let (_, scaled) = penstock(&setup);
    let first = scaled.orders[1];
    assert!(first.replicas > 1, "{scaled:?}");
    let ready = scaled.ready.iter().find(|ready| ready.replicas > 1).unwrap();
    assert_eq!(ready.at, first.at + START);
    assert!(ready.replicas <= first.replicas);
}

#[test]
fn what_is_ordered_serves() {
    let alone = setup(scaling("fixed=1"), 0..300, 2);
    let grown = setup(Scaling { initial: 3, ..scaling("queue=2") }, 0..300, 2);
    let wait = |setup: &Setup| {
        let (outcome, _) = penstock(setup);
        outcome.records.iter().filter_map(|record| record.ttft).max().unwrap()
    };
    let (alone, grown) = (wait(&alone), wait(&grown));
    assert!(grown < alone / 4, "{grown:?} {alone:?}");
}

#[test]
fn a_removed_replica_ends_its_streams_and_gets_no_new_ones() {
    // Two bursts with next to no requests between them: replicas leave while
    // they run requests.
    let waves = (0..240).chain((240..1_200).step_by(12)).chain(1_200..1_400);
    for text in ["queue=1", "concurrency=3", "kpa=4", "n"] {
        let setup = setup(Scaling { initial: 4, min: 1, ..scaling(text) }, waves.clone(), 3);
        let (outcome, scaled) = penstock(&setup);
        let counts: Vec<u32> = scaled.orders.iter().map(|order| order.replicas).collect();
        assert!(counts.windows(2).any(|pair| pair[1] < pair[0]), "{text}: {counts:?}");
        assert!(outcome.records.iter().all(|record| !record.cut), "{text}");
        assert!(counts.iter().all(|count| (1..=20).contains(count)), "{text}: {counts:?}");
    }
}

#[test]
fn other_designs_lose_nothing_either() {
    let waves = (0..120).chain((120..900).step_by(12)).chain(900..1_000);
    let setup = setup(Scaling { initial: 2, ..scaling("concurrency=3") }, waves, 3);
    let cap = Cap { requests: 4, prefill: u64::MAX };
    let routers: [Box<dyn Router>; 2] = [
        Box::new(AtOnce::new(PLACES, LeastRequest::default())),
        Box::new(HeldRouter::new(PLACES, cap, Fifo::default())),
    ];
    for router in routers {
        let (outcome, scaled) = ended(run(&setup, &mut [router]));
        assert!(scaled.peak > 2 && scaled.turns_per_hour > 0.0, "{scaled:?}");
        assert!(outcome.records.iter().all(|record| record.attempts == 1));
    }
}

#[test]
fn to_zero_only_after_the_cooldown_and_back_at_once() {
    let zero = Scaling { min: 0, initial: 1, ..scaling("n") };
    let setup = setup(zero, (0..60).chain(1_500..1_530), 1);
    let (outcome, scaled) = penstock(&setup);
    let second = 60;
    let last = outcome.records[..second].iter().filter_map(|record| record.ended).max().unwrap();
    let none = scaled.orders.iter().find(|order| order.replicas == 0).unwrap().at;
    assert!(none >= last + Duration::from_secs(110), "{none:?} after {last:?}");
    assert!(none <= last + Duration::from_secs(900), "{none:?} after {last:?}");
    let back = scaled.orders.iter().find(|order| order.at > none && order.replicas > 0).unwrap();
    let next = outcome.records[second];
    assert_eq!((back.at, back.replicas), (next.arrived, 1), "the push, to one");
    let waited = next.ttft.unwrap();
    assert!((START..START * 2).contains(&waited), "{waited:?}");
}

#[test]
fn a_fixed_fleet_counts_its_hours_and_does_not_move() {
    let fixed = Scaling { min: 5, max: 5, initial: 5, ..scaling("fixed=5") };
    assert_eq!(fixed.policy, ScalePolicy::Fixed(5));
    let (_, scaled) = penstock(&setup(fixed, 0..361, 1));
    assert!((scaled.replica_hours - 0.5).abs() < 1e-3, "{scaled:?}");
    assert_eq!((scaled.peak, scaled.turns_per_hour, scaled.orders.len()), (5, 0.0, 1));
}

#[test]
fn the_same_seed_brings_the_same_world() {
    for text in ["n", "queue=2", "kpa=4"] {
        let of = |seed| {
            let setup = setup(Scaling { spread: 0.4, seed, ..scaling(text) }, 0..200, 3);
            let (outcome, scaled) = penstock(&setup);
            (outcome.records, scaled)
        };
        assert_eq!(of(1), of(1), "{text}");
        assert_ne!(of(1).1.ready, of(2).1.ready, "{text}: starts differ");
    }
}

/// What the scheduler is told of its pools' growth is an event, so a run replays without the
/// observer.
#[test]
fn a_run_that_scales_replays_to_the_same_actions() {
    let setup = setup(Scaling { initial: 1, ..scaling("n") }, 0..300, 3);
    let log = EventTrace::default();
    let gateway = SimGateway::elastic(&rules(PLACES), 1).recorded(&log);
    let start = Arc::clone(gateway.scheduler().policy());
    ended(run(&setup, &mut [Box::new(gateway)]));
    let log = log.lock();
    assert!(log.iter().any(|step| matches!(step.event, Event::GrowthExpected(_))), "it grew");
    let (mut scheduler, mut actions) = (Scheduler::new(start), Vec::new());
    for (number, step) in log.iter().enumerate() {
        actions.clear();
        scheduler.handle(step.at, step.event.clone(), &mut actions);
        assert_eq!(actions, step.actions, "step {number}: {step:?}");
    }
}

/// The small version of `loadtest/scenarios/scale.yaml`: one request per
/// second, and 40 s with fifteen more per second. A start takes 180 s, and
/// requests can wait 600 s.
#[test]
fn a_burst_shorter_than_a_start_orders_a_few_replicas_and_not_a_crowd() {
    let burst = |text: &str| {
        let slow = Scaling { start: Duration::from_secs(180), max: 200, initial: 2, ..scaling(text) };
        let mut setup = setup(slow, 0..1_500, 1);
        let more = self::setup(scaling(text), 300..340, 15).arrivals;
        setup.arrivals.extend(more);
        setup.arrivals.sort_by_key(|arrival| arrival.at);
        setup.replicas = vec![setup.replicas[0].clone(); 400];
        let outcome = run(&setup, &mut [gateway(setup.replicas.len(), 2)]);
        let refused = outcome.records.iter().filter(|record| !record.served()).count();
        (outcome.scaled.unwrap(), refused)
    };
    // All other requests need 1.25 replicas. Two more replicas work off the
    // burst within 600 s.
    let needed = 4;
    let ((own, none), (queue, some)) = (burst("n"), burst("queue=10"));
    // It counts on the replicas that it calls for, and knows nothing of others'.
    assert!(none == 0 && some <= 150, "{none} and {some} of 2,100 refused");
    assert!(own.peak <= 3 * needed, "{own:?}");
    assert!(queue.peak >= 10 * needed, "{queue:?}");
    assert!(own.replica_hours < queue.replica_hours / 2.0, "{own:?} {queue:?}");
    assert!(own.turns_per_hour <= 6.0, "one wave in 25 minutes: {own:?}");
}
