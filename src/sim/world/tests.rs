//! Tests of small worlds.

use std::time::Duration;

use crate::engine::EngineOptions;
use crate::engine::profile::StepProfile;
use crate::world::arrival::{Arrival, Pause};
use crate::world::baseline::at_once::AtOnce;
use crate::world::baseline::at_once::least_request::LeastRequest;
use crate::world::gateway::{EventTrace, ReplicaGroup, SimGateway, policy};
use crate::world::record::{Objectives, Summary, WorldRecord};
use crate::world::replica::{ReplicaSetup, WorldFault, WorldFaultKind};
use crate::world::router::Router;
use crate::world::run::{RunOutcome, run};
use crate::world::setup::Setup;
use penstock_core::model::event::{AttemptOutcome as Ended, Event};
use penstock_core::model::ids::{ClassId, JobId};
use penstock_core::model::job::JobUsage;
use penstock_core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use penstock_core::model::time::Tick;

fn setup(count: u64, gap: u64) -> Setup {
    let profile = StepProfile::named("h100-8b").expect("a profile");
    let arrival = |index: u64| Arrival {
        at: Tick::from_millis(index * gap),
        prompt: 500,
        output: 20,
        ..Arrival::default()
    };
    Setup {
        replicas: vec![ReplicaSetup::new(profile, EngineOptions::default()); 2],
        arrivals: (0..count).map(arrival).collect(),
        ..Setup::default()
    }
}

fn rules(setup: &Setup) -> Policy {
    let class = Class {
        usage_half_life: None,
        rank: 0,
        min_share: 0.0,
        max_wait: Duration::from_secs(30),
        ttft_objective: Duration::from_millis(150),
        itl_objective: Duration::from_millis(50),
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
    policy(&[ReplicaGroup::plain(setup.replicas.len())], &[class], &[tenant])
}

fn gateway(setup: &Setup) -> Box<dyn Router> {
    Box::new(SimGateway::new(rules(setup)))
}

const GOAL: Objectives = Objectives { ttft: Duration::from_millis(150), itl: Duration::from_millis(50) };

fn summary(outcome: &RunOutcome) -> Summary {
    Summary::of(outcome.records.iter(), &GOAL)
}

#[test]
fn a_light_load_is_served_by_everybody() {
    let setup = setup(200, 20);
    for router in [gateway(&setup), Box::new(AtOnce::new(2, LeastRequest::default())) as Box<dyn Router>] {
        let outcome = run(&setup, &mut [router]);
        let summary = summary(&outcome);
        assert_eq!((summary.offered, outcome.broken_invariants), (200, 0));
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

/// Events of the job that the scheduler was given, without their details.
fn told(log: &EventTrace, job: u64) -> Vec<&'static str> {
    let of_job = |event: &Event| match event {
        Event::Arrived(spec, _) => (spec.id == JobId::new(job)).then_some("arrived"),
        Event::FirstToken { job: id } => (*id == JobId::new(job)).then_some("first token"),
        Event::Finished { job: id, .. } => (*id == JobId::new(job)).then_some("finished"),
        _ => None,
    };
    log.lock().iter().filter_map(|step| of_job(&step.event)).collect()
}

#[test]
fn of_a_plain_answer_the_scheduler_hears_only_the_end() {
    for every in [1, 2] {
        let mut setup = setup(40, 30);
        setup.arrivals.iter_mut().step_by(every).for_each(|arrival| arrival.streams = false);
        let log = EventTrace::default();
        let router = Box::new(SimGateway::new(rules(&setup)).recorded(&log)) as Box<dyn Router>;
        let outcome = run(&setup, &mut [router]);
        assert_eq!(summary(&outcome).goodput, 1.0, "the record knows every first token");
        for (job, arrival) in setup.arrivals.iter().enumerate() {
            let whole = ["arrived", "first token", "finished"];
            let expected = if arrival.streams { &whole[..] } else { &[whole[0], whole[2]] };
            assert_eq!(told(&log, job as u64), expected);
        }
        let sampled = log.lock().iter().any(|step| matches!(step.event, Event::ItlSampled { .. }));
        assert_eq!(sampled, every == 2, "only streams have inter-token latency");
    }
}

#[test]
fn a_plain_answer_that_breaks_is_asked_for_again() {
    for (streams, cut, served) in [(true, 1, 0), (false, 0, 1)] {
        let mut setup = setup(1, 1);
        setup.arrivals[0] = Arrival { streams, output: 200, ..setup.arrivals[0].clone() };
        let lasts = Duration::from_millis(500);
        let kind = WorldFaultKind::Crashed;
        setup.replicas[0].fault = Some(WorldFault { at: Tick::from_millis(300), lasts, every: None, kind });
        for router in [gateway(&setup), Box::new(AtOnce::new(2, LeastRequest::default())) as Box<dyn Router>]
        {
            let outcome = run(&setup, &mut [router]);
            let count = |what: fn(&WorldRecord) -> bool| outcome.records.iter().filter(|r| what(r)).count();
            assert_eq!(
                (count(|r| r.cut), count(WorldRecord::served)),
                (cut, served),
                "{:?}",
                outcome.records
            );
        }
    }
}

/// Record and events of the only request in a world that `change` has changed.
fn alone(change: impl Fn(&mut Setup)) -> (WorldRecord, EventTrace) {
    let mut setup = setup(1, 1);
    change(&mut setup);
    let log = EventTrace::default();
    let router = Box::new(SimGateway::new(rules(&setup)).recorded(&log)) as Box<dyn Router>;
    let outcome = run(&setup, &mut [router]);
    assert_eq!(outcome.tokens, u64::from(setup.arrivals[0].output * setup.arrivals[0].n));
    (outcome.records[0], log)
}

fn lasted(record: &WorldRecord) -> Duration {
    record.ended.expect("it is served").since(record.arrived)
}

#[test]
fn a_word_takes_its_time_there_and_back() {
    let (near, _) = alone(|_| {});
    let (far, log) = alone(|setup| {
        setup.replicas.iter_mut().for_each(|replica| replica.one_way = Duration::from_millis(40));
    });
    let rtt = Duration::from_millis(80);
    assert_eq!((far.ttft, lasted(&far)), (near.ttft.map(|ttft| ttft + rtt), lasted(&near) + rtt));
    assert_eq!(told(&log, 0), ["arrived", "first token", "finished"]);
    let (held, _) = alone(|setup| setup.arrivals[0].held = Duration::from_secs(5));
    assert_eq!(held.ttft, near.ttft.map(|ttft| ttft + Duration::from_secs(5)));
}

#[test]
fn what_is_on_its_way_to_an_engine_that_died_is_sent_elsewhere() {
    let (record, log) = alone(|setup| {
        setup.replicas.iter_mut().for_each(|replica| replica.one_way = Duration::from_millis(40));
        let kind = WorldFaultKind::Crashed;
        let fault =
            WorldFault { at: Tick::from_millis(20), lasts: Duration::from_secs(9), every: None, kind };
        setup.replicas[0].fault = Some(fault);
    });
    assert_eq!((record.attempts, record.served()), (2, true));
    assert_eq!(told(&log, 0), ["arrived", "finished", "first token", "finished"]);
}

#[test]
fn choices_are_one_request_and_have_no_pace() {
    let (record, log) = alone(|setup| setup.arrivals[0].n = 3);
    assert_eq!(told(&log, 0), ["arrived", "first token", "finished"]);
    let events = log.lock();
    assert!(!events.iter().any(|step| matches!(step.event, Event::ItlSampled { .. })));
    let heard = events.iter().filter(|step| matches!(step.event, Event::BytesReceived { .. })).count();
    assert!(heard > 0, "its tokens are heard");
    let used = events.iter().find_map(|step| match &step.event {
        Event::Finished { outcome: Ended::Done(JobUsage::Exact(tokens)), .. } => Some(tokens.output),
        _ => None,
    });
    assert_eq!((used, record.served()), (Some(60), true));
}

#[test]
fn a_silent_stream_says_all_at_once_when_it_goes_on() {
    let lasts = Duration::from_secs(3);
    let (whole, _) = alone(|_| {});
    let (paused, log) =
        alone(|setup| setup.arrivals[0].pause = Some(Pause { after: 5, lasts, by_client: false }));
    assert_eq!(paused.ttft, whole.ttft);
    assert!(lasted(&paused) > lasts && lasted(&paused) < lasts + lasted(&whole));
    let events = log.lock();
    let gaps = events.iter().map(|step| match &step.event {
        Event::ItlSampled { sample, .. } => sample.gaps,
        _ => 0,
    });
    assert_eq!(gaps.sum::<u64>(), 4, "of the burst at its end nobody is told any more");
}

#[test]
fn a_client_that_does_not_read_is_told_of_and_its_engine_is_not_blamed() {
    let lasts = Duration::from_secs(30);
    let (record, log) =
        alone(|setup| setup.arrivals[0].pause = Some(Pause { after: 5, lasts, by_client: true }));
    assert_eq!((record.attempts, record.served()), (1, true));
    assert!(lasted(&record) > lasts);
    let events = log.lock();
    let told: Vec<u32> = events
        .iter()
        .filter_map(|step| match &step.event {
            Event::StreamsPaused { streams, .. } => Some(*streams),
            _ => None,
        })
        .collect();
    assert_eq!(told, [1], "the stream has ended before it could be told that it goes on");
}

#[test]
fn clients_of_a_closed_loop_send_when_they_are_answered() {
    let mut setup = Setup { clients: Some(3), ..setup(40, 0) };
    for plain in [false, true] {
        setup.arrivals.iter_mut().for_each(|arrival| arrival.streams = !plain);
        for router in [gateway(&setup), Box::new(AtOnce::new(2, LeastRequest::default())) as Box<dyn Router>]
        {
            let outcome = run(&setup, &mut [router]);
            assert_eq!(outcome.tokens, 40 * 20);
            let ends: Vec<Tick> = outcome.records.iter().filter_map(|record| record.ended).collect();
            assert_eq!(ends.len(), 40);
            for (number, record) in outcome.records.iter().enumerate() {
                assert_eq!(number < 3, record.arrived == Tick::ZERO);
                assert!(number < 3 || ends.contains(&record.arrived), "{record:?}");
            }
        }
    }
}
