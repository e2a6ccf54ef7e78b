//! Tests of demotion: slower classes instead of refusals.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::event::{Action, EngineFault, JobAction, RejectReason};
use crate::model::ids::ClassId;
use crate::model::job::JobSpec;
use crate::model::policy::{Class, Policy};
use crate::model::time::Tick;
use crate::scheduler::tests::{World, class, of_tenant, placed, policy, rejected, sent, spec, tenant};

const SECOND: ClassId = ClassId::new(1);

/// One replica of one sequence. The first class goes on in the second, which
/// may wait for 100 s, and that one in the first, which must not happen.
fn rules() -> Policy {
    let mut rules = policy(&[&[1]], &[&[0]]);
    let slower = Class { demote_to: Some(SECOND), ..class(0, 0.0) };
    rules.classes.insert("first", slower);
    let long = Duration::from_secs(100);
    rules
        .classes
        .insert("second", Class { demote_to: Some(ClassId::new(0)), max_wait: long, ..class(1, 0.0) });
    let mut both = tenant(1.0);
    both.classes = BTreeSet::from([ClassId::new(0), SECOND]);
    for name in ["a", "b"] {
        rules.tenants.insert(name, both.clone());
    }
    rules
}

fn until(millis: u64, spec: JobSpec) -> JobSpec {
    JobSpec { deadline: Tick::from_millis(millis), ..spec }
}

#[test]
fn a_job_goes_on_in_the_slower_class_with_its_age_and_ends_there() {
    let mut world = World::new(rules());
    world.arrive(spec(0));
    world.arrive(until(50, spec(1)));
    world.arrive(spec(2));
    assert_eq!(world.at(50), [], "no refusal");
    world.at(100);
    assert_eq!(sent(&world.done(0)), [(2, 0)], "the first class first");
    let actions = world.done(2);
    assert_eq!(sent(&actions), [(1, 0)]);
    let why = placed(&actions);
    assert_eq!((why.class, why.demoted_from), (SECOND, Some(ClassId::new(0))));
    assert_eq!(why.queued, Duration::from_millis(100), "its age counts on");

    world.arrive(until(150, spec(3)));
    world.at(150);
    let end = rejected(&world.at(100_100));
    assert_eq!(
        (end.len(), end[0].0, end[0].1.reason),
        (1, 3, RejectReason::DeadlineExceeded),
        "100 s in all"
    );
}

#[test]
fn nobody_waits_longer_than_its_client() {
    let mut world = World::new(rules());
    world.arrive(spec(0));
    let patience = Tick::from_millis(80);
    world.arrive(JobSpec { client_deadline: patience, ..until(50, spec(1)) });
    world.arrive(JobSpec { client_deadline: Tick::from_millis(50), ..until(50, spec(2)) });
    let first: Vec<u64> = rejected(&world.at(50)).iter().map(|(job, _)| *job).collect();
    assert_eq!(first, [2], "it has no time to win");
    let latest = world.scheduler.next_deadline().unwrap();
    assert!(latest < patience, "its prompt is read before the client leaves");
    assert!(patience.since(latest) < Duration::from_millis(1), "ten tokens");
    assert_eq!(rejected(&world.at(80)).len(), 1);
}

#[test]
fn only_who_may_use_the_class_goes_there() {
    let mut world = World::new(rules());
    world.arrive(spec(0));
    world.arrive(until(50, of_tenant(1, 2)));
    assert_eq!(rejected(&world.at(50))[0].1.reason, RejectReason::DeadlineExceeded);
}

#[test]
fn a_job_is_paid_for_in_the_class_it_is_served_in() {
    let mut world = World::new(rules());
    world.arrive(of_tenant(9, 1));
    world.done(9);
    world.arrive(until(50, JobSpec { max_output_tokens: 200, ..spec(0) }));
    world.arrive(of_tenant(1, 1));
    assert!(world.fail(0, EngineFault::Busy { retry_after: Some(Duration::from_millis(200)) }).len() == 1);
    world.arrive(spec(2));
    assert_eq!(world.at(50), [], "it went on in the second class");
    assert_eq!(sent(&world.at(250)), [(2, 0)], "a paid for nothing in the first class yet");
    assert_eq!(sent(&world.done(2)), [(1, 0)]);
    let actions = world.done(1);
    assert_eq!((sent(&actions), placed(&actions).attempt), (vec![(0, 0)], 2));
}

#[test]
fn a_hopeless_start_leads_to_the_slower_class_at_once() {
    let mut rules = rules();
    let first =
        Class { ttft_objective: Duration::from_millis(1_900), demote_to: Some(SECOND), ..class(0, 0.0) };
    rules.classes.insert("first", first);
    let mut world = World::new(rules);
    let mut running = 0;
    for id in 0..60 {
        world.arrive(spec(id));
    }
    for step in 1..=10 {
        world.at(step * 100);
        running = sent(&world.done(running))[0].0;
    }
    world.at(1_050);
    let hurried = JobSpec { deadline: Tick::from_millis(2_000), ..spec(100) };
    assert_eq!(rejected(&world.arrive(hurried)), []);
    let in_second = |world: &World| {
        let queues = world.scheduler.snapshot(world.now).queues;
        queues.iter().filter(|view| view.class == SECOND).map(|view| view.waiting).sum::<u64>()
    };
    assert_eq!(in_second(&world), 1);
    let stranger = JobSpec { client_deadline: Tick::from_millis(2_000), ..hurried };
    let actions = world.arrive(JobSpec { id: spec(101).id, ..stranger });
    assert!(
        matches!(actions[0], Action::Job(JobAction::Reject { why, .. }) if why.reason == RejectReason::Unmeetable)
    );
}
