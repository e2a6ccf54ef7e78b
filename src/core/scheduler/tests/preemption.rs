//! Tests of preemption: from engines that stall, and for more urgent jobs.

use std::time::Duration;

use crate::model::event::{Action, EngineFault, Event, ItlSample, ReplicaAction};
use crate::model::ids::{ClassId, JobId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::policy::Class;
use crate::model::reason::PreemptReason;
use crate::model::time::Tick;
use crate::scheduler::tests::{World, class, ejected, policy, recalled, sent, spec};

fn itl_sampled(world: &mut World, replica: u32) -> Vec<Action> {
    let sample = ItlSample { gaps: 10, total: Duration::from_millis(200) };
    world.event(Event::ItlSampled { replica: ReplicaId::new(replica), sample })
}

/// Two jobs at replica 0, of which the first streams; replica 1 is empty.
fn two_at_one() -> World {
    let mut world = World::new(policy(&[&[4], &[4]], &[&[0, 1]]));
    world.event(Event::ReplicaLost { replica: ReplicaId::new(1), answers: true });
    assert_eq!(sent(&world.arrive(spec(1))), [(1, 0)]);
    world.at(20);
    world.event(Event::FirstToken { job: JobId::new(1) });
    assert_eq!(sent(&world.arrive(spec(2))), [(2, 0)]);
    world.at(200);
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(1) });
    world
}

#[test]
fn a_silent_engine_loses_what_its_clients_have_not_seen() {
    let mut world = two_at_one();
    let mut actions = Vec::new();
    while actions.is_empty() {
        world.now = world.scheduler.next_deadline().expect("a watch");
        actions = world.event(Event::Timer);
    }
    assert!(world.now < Tick::from_millis(2_000), "{:?}", world.now);
    assert_eq!(recalled(&actions), [(2, 0, PreemptReason::Stalled)], "the stream stays where it is");
    assert_eq!((ejected(&actions), sent(&actions)), (vec![0], vec![(2, 1)]));
    assert!(actions.contains(&Action::Replica(ReplicaAction::Eject {
        replica: ReplicaId::new(0),
        why: EngineFault::Silent
    })));
}

#[test]
fn a_sign_of_life_from_any_stream_is_enough() {
    let mut world = two_at_one();
    for tick in 3..60 {
        world.at(tick * 100);
        assert_eq!(recalled(&itl_sampled(&mut world, 0)), []);
    }
    assert_eq!(world.scheduler.unfinished(), 2);
}

#[test]
fn the_only_replica_keeps_its_jobs() {
    let mut world = World::new(policy(&[&[4]], &[&[0]]));
    world.arrive(spec(1));
    for tick in 1..100 {
        let actions = world.at(tick * 100);
        assert_eq!((recalled(&actions), ejected(&actions)), (vec![], vec![]));
    }
}

/// A full replica: one streaming job and one that does not stream, both of the
/// slower class.
fn full_of_the_slower_class() -> World {
    let mut rules = policy(&[&[2]], &[&[0]]);
    rules.classes.insert("second", Class { ttft_objective: Duration::from_secs(60), ..class(1, 0.0) });
    let mut world = World::new(rules);
    let second = |id, streams| JobSpec { class: ClassId::new(1), streams, deadline: Tick::NEVER, ..spec(id) };
    for (id, streams) in [(1, true), (2, false)] {
        assert_eq!(sent(&world.arrive(second(id, streams))), [(id, 0)]);
        world.at(20 * id);
        if streams {
            world.event(Event::FirstToken { job: JobId::new(id) });
        }
    }
    world
}

#[test]
fn a_pressed_job_takes_the_place_of_one_that_has_sent_nothing() {
    let mut world = full_of_the_slower_class();
    assert_eq!(world.arrive(spec(10)), []);
    itl_sampled(&mut world, 0);
    world.at(400);
    assert_eq!(recalled(&itl_sampled(&mut world, 0)), [], "half of the objective is a second's half");
    let mut actions = world.at(600);
    actions.extend(itl_sampled(&mut world, 0));
    assert_eq!(recalled(&actions), [(2, 0, PreemptReason::Preempted { by: JobId::new(10) })]);
    assert_eq!(sent(&actions), [(10, 0)]);
    world.done(10);
    assert_eq!(sent(&world.at(61_000)), [(2, 0)], "it goes on when nobody more urgent is there");
}

#[test]
fn nobody_is_taken_back_twice_over_or_by_its_own_class() {
    let mut world = full_of_the_slower_class();
    let mut taken = 0;
    for round in 0..6u64 {
        let id = 10 + round;
        world.arrive(JobSpec { deadline: Tick::NEVER, ..spec(id) });
        let start = 100_000 * (round + 1);
        let mut actions = world.at(start);
        actions.extend(itl_sampled(&mut world, 0));
        taken += recalled(&actions).len();
        world.done(id);
        world.at(start + 62_000);
    }
    assert_eq!(taken, 2);
}
