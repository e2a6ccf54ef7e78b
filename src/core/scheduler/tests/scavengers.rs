//! Tests of scavengers: jobs that take only capacity that no other job needs.

use std::time::Duration;

use crate::model::event::{EngineFault, Event, RejectReason};
use crate::model::ids::{ClassId, JobId};
use crate::model::job::JobSpec;
use crate::model::policy::{Class, Policy};
use crate::model::reason::PreemptReason;
use crate::scheduler::tests::{World, class, policy, recalled, rejected, sent, spec};

/// The second class is spare.
fn spare_class(mut rules: Policy) -> World {
    rules.classes.insert("second", Class { scavenger: true, ..class(1, 0.0) });
    World::new(rules)
}

fn spare(id: u64) -> JobSpec {
    JobSpec { class: ClassId::new(1), streams: false, ..spec(id) }
}

fn refused(world: &mut World, id: u64) -> bool {
    let actions = world.arrive(spare(id));
    let refused = rejected(&actions);
    assert_eq!(refused.len() + sent(&actions).len(), 1, "{actions:?}");
    refused.first().is_some_and(|(_, why)| why.reason == RejectReason::NoRoom)
}

#[test]
fn one_starts_at_once_or_not_at_all() {
    let mut world = spare_class(policy(&[&[2]], &[&[0]]));
    assert!(!refused(&mut world, 1));
    world.arrive(spec(2));
    assert!(refused(&mut world, 3), "the replica is full");
    assert_eq!(world.scheduler.waiting().requests, 0);
    world.event(Event::FirstToken { job: JobId::new(2) });
    world.done(1);
    world.done(2);
    assert!(!refused(&mut world, 4));
}

#[test]
fn one_goes_before_nobody() {
    // A large job waits for the replica's last place, which a spare one fits in.
    let mut world = spare_class(policy(&[&[4]], &[&[0]]));
    world.arrive(spec(1));
    world.event(Event::FirstToken { job: JobId::new(1) });
    assert_eq!(sent(&world.arrive(JobSpec { sequences: 4, ..spec(2) })), []);
    assert!(refused(&mut world, 3));
    assert_eq!(sent(&world.done(1)), [(2, 0)]);
}

#[test]
fn one_gives_way_until_its_end() {
    let mut world = spare_class(policy(&[&[1]], &[&[0]]));
    assert!(!refused(&mut world, 1));
    world.at(20);
    let actions = world.arrive(spec(2));
    assert_eq!(recalled(&actions), [(1, 0, PreemptReason::Preempted { by: JobId::new(2) })]);
    assert_eq!(sent(&actions), [(2, 0)], "at once");
}

#[test]
fn one_starts_no_pool() {
    let mut rules = policy(&[&[]], &[&[0]]);
    rules.pools.insert(
        "p0",
        crate::model::policy::Pool { cold_start: Some(Duration::from_secs(60)), ..Default::default() },
    );
    let mut world = spare_class(rules);
    let actions = world.arrive(spare(1));
    assert_eq!(
        (actions.len(), rejected(&actions).len()),
        (1, 1),
        "nothing is wanted of the pool: {actions:?}"
    );
}

#[test]
fn one_that_failed_is_no_ones_burden() {
    let mut world = spare_class(policy(&[&[2], &[2]], &[&[0, 1]]));
    assert!(!refused(&mut world, 1));
    world.fail(1, EngineFault::ServerError);
    world.event(Event::Abandoned { job: JobId::new(1), usage: crate::model::job::JobUsage::Unknown });
    assert_eq!((world.scheduler.unfinished(), world.scheduler.waiting().requests), (0, 0));
}
