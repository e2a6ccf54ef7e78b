//! Small worlds.

use std::time::Duration;

use crate::core::event::Event;
use crate::core::ids::{ClassId, JobId};
use crate::core::policy::{Bounds, Class, Policy, Quota, Tenant};
use crate::core::time::Tick;
use crate::sim::engine::EngineOptions;
use crate::sim::profile::Profile;
use crate::sim::world::arrival::Arrival;
use crate::sim::world::baseline::at_once::AtOnce;
use crate::sim::world::baseline::least_request::LeastRequest;
use crate::sim::world::gateway::{Gateway, Log, Rack, policy};
use crate::sim::world::record::{Goal, Record, Summary};
use crate::sim::world::replica::{Fault, FaultKind, ReplicaSetup};
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

fn rules(setup: &Setup) -> Policy {
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
    policy(&[Rack::plain(setup.replicas.len())], &[class], &[tenant])
}

fn gateway(setup: &Setup) -> Box<dyn Router> {
    Box::new(Gateway::new(rules(setup)))
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

/// What the scheduler was told of the job, without its details.
fn told(log: &Log, job: u64) -> Vec<&'static str> {
    let of_job = |event: &Event| match event {
        Event::Arrived(spec, _) => (spec.id == JobId::new(job)).then_some("arrived"),
        Event::FirstToken { job: id } => (*id == JobId::new(job)).then_some("first token"),
        Event::Finished { job: id, .. } => (*id == JobId::new(job)).then_some("finished"),
        _ => None,
    };
    log.lock().iter().filter_map(|(_, event, _)| of_job(event)).collect()
}

#[test]
fn of_a_plain_answer_the_scheduler_hears_only_the_end() {
    for every in [1, 2] {
        let mut setup = setup(40, 30);
        setup.arrivals.iter_mut().step_by(every).for_each(|arrival| arrival.streams = false);
        let log = Log::default();
        let router = Box::new(Gateway::new(rules(&setup)).recorded(&log)) as Box<dyn Router>;
        let outcome = run(&setup, &mut [router]);
        assert_eq!(summary(&outcome).goodput, 1.0, "the record knows every first token");
        for (job, arrival) in setup.arrivals.iter().enumerate() {
            let whole = ["arrived", "first token", "finished"];
            let expected = if arrival.streams { &whole[..] } else { &[whole[0], whole[2]] };
            assert_eq!(told(&log, job as u64), expected);
        }
        let paced = log.lock().iter().any(|(_, event, _)| matches!(event, Event::Paced { .. }));
        assert_eq!(paced, every == 2, "only streams have a pace");
    }
}

#[test]
fn a_plain_answer_that_breaks_is_asked_for_again() {
    for (streams, cut, served) in [(true, 1, 0), (false, 0, 1)] {
        let mut setup = setup(1, 1);
        setup.arrivals[0] = Arrival { streams, output: 200, ..setup.arrivals[0].clone() };
        let lasts = Duration::from_millis(500);
        let kind = FaultKind::Crashed;
        setup.replicas[0].fault = Some(Fault { at: Tick::from_millis(300), lasts, every: None, kind });
        for router in [gateway(&setup), Box::new(AtOnce::new(2, LeastRequest::default())) as Box<dyn Router>]
        {
            let outcome = run(&setup, &mut [router]);
            let count = |what: fn(&Record) -> bool| outcome.records.iter().filter(|r| what(r)).count();
            assert_eq!((count(|r| r.cut), count(Record::served)), (cut, served), "{:?}", outcome.records);
        }
    }
}
