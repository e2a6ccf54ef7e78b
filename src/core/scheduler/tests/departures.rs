//! Tests of departures: the jobs of replicas that drain or leave.

use std::time::Duration;

use crate::model::event::{Action, Event};
use crate::model::ids::{JobId, PoolId, ReplicaId};
use crate::model::policy::Replica;
use crate::model::reason::PreemptReason;
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;
use crate::scheduler::tests::{World, policy, recalled, reload, sent, spec, without};

const GOING: ReplicaId = ReplicaId::new(0);

/// Replica 0 streams job 1 and reads the prompt of job 2; replica 1 came back
/// a moment ago, with nothing to do.
fn one_stream_one_prompt() -> World {
    let mut world = World::new(policy(&[&[4, 4]], &[&[0]]));
    world.event(Event::ReplicaLost { replica: ReplicaId::new(1), answers: true });
    assert_eq!(sent(&world.arrive(spec(1))), [(1, 0)]);
    world.event(Event::FirstToken { job: JobId::new(1) });
    assert_eq!(sent(&world.arrive(spec(2))), [(2, 0)]);
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(1) });
    world
}

/// A new policy says that replica 0 is about to go, or that it stays.
fn drain(world: &mut World, draining: bool) -> Vec<Action> {
    reload(world, |next| next.draining = draining.then_some(GOING).into_iter().collect())
}

#[test]
fn what_nobody_has_seen_moves_at_once() {
    let mut world = one_stream_one_prompt();
    let actions = drain(&mut world, true);
    assert_eq!(recalled(&actions), [(2, 0, PreemptReason::Drained)]);
    assert_eq!(sent(&actions), [(2, 1)]);
    assert_eq!(world.state(0), Some(ReplicaStatus::Draining));
    assert_eq!(drain(&mut world, true), [], "it is no news");
    assert_eq!(world.done(1), [], "its stream ended in peace");

    drain(&mut world, false);
    assert_eq!(world.state(0), Some(ReplicaStatus::Serving), "it stays after all");
    assert_eq!(sent(&world.arrive(spec(3))), [(3, 0)]);
}

#[test]
fn what_left_the_policy_keeps_its_jobs_for_the_time_of_a_drain() {
    let mut world = one_stream_one_prompt();
    let actions = reload(&mut world, |next| {
        next.health.drain = Duration::from_secs(3);
        next.replicas = without(&next.replicas, GOING);
    });
    assert_eq!(recalled(&actions), []);
    assert_eq!(world.at(2_999), []);
    assert!(world.scheduler.next_deadline() <= Some(Tick::from_millis(3_000)), "nobody else wakes it");
    let actions = world.at(3_000);
    assert_eq!(recalled(&actions), [(2, 0, PreemptReason::Drained)], "the stream goes on");
    assert_eq!(sent(&actions), [(2, 1)]);
    assert_eq!(world.at(100_000), []);
}

#[test]
fn a_replica_that_returns_in_time_loses_nothing() {
    let mut world = one_stream_one_prompt();
    reload(&mut world, |next| next.replicas = without(&next.replicas, GOING));
    world.at(1_000);
    reload(&mut world, |next| {
        let row = Replica { pool: PoolId::new(0), max_seqs: Some(4), kv_tokens: None };
        assert_eq!(next.replicas.insert("p0/r0", row), GOING);
    });
    let mut actions = Vec::new();
    for seconds in 2..100 {
        // Its stream shows that it is alive.
        actions.extend(world.event(Event::FirstToken { job: JobId::new(2) }));
        actions.extend(world.at(1_000 * seconds));
    }
    assert_eq!(recalled(&actions), []);
}

#[test]
fn jobs_stay_where_no_other_replica_could_take_them() {
    let mut world = World::new(policy(&[&[4]], &[&[0]]));
    world.arrive(spec(1));
    assert_eq!(drain(&mut world, true), []);
    assert_eq!(sent(&world.arrive(spec(2))), [], "new work waits");
    assert_eq!(world.done(1), [], "and what was there may end");
}

#[test]
fn a_moved_job_keeps_its_place_before_younger_ones() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    for id in 1..5 {
        world.arrive(spec(id));
    }
    let first =
        world.scheduler.jobs.values().find(|job| job.attempt().is_some_and(|run| run.replica == GOING));
    let moved = first.expect("a job there").spec.id.index() as u64;
    assert_eq!(recalled(&drain(&mut world, true)), [(moved, 0, PreemptReason::Drained)]);
    let other = 3 - moved;
    assert_eq!(sent(&world.done(other)), [(moved, 1)]);
}

#[test]
fn new_replicas_start_slowly_but_for_the_first_ones() {
    let mut world = World::new(policy(&[&[8]], &[&[0]]));
    assert_eq!(world.state(0), Some(ReplicaStatus::Serving));
    reload(&mut world, |next| {
        next.replicas.insert("p0/r1", Replica { pool: PoolId::new(0), max_seqs: Some(8), kv_tokens: None });
    });
    assert_eq!(world.state(1), Some(ReplicaStatus::SlowStart));
    let limit = |world: &World| world.scheduler.snapshot(world.now).replicas[1].limit;
    assert_eq!(limit(&world), 1);
    world.at(5_000);
    assert_eq!((world.state(1), limit(&world)), (Some(ReplicaStatus::Serving), 8));
}
