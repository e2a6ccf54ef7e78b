//! Tests of migration: streams that move to another engine before their own breaks.

use std::time::Duration;

use crate::model::event::{Action, EngineFault, Event, JobAction, ReplicaAction};
use crate::model::ids::{JobId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::overrides::{Closed, Override, OverrideChange, OverrideTarget};
use crate::model::reason::PreemptReason;
use crate::model::time::Tick;
use crate::scheduler::job::Job;
use crate::scheduler::tests::{
    World, ejected, handed_over, policy, recalled, rejected, reload, sent, spec, without,
};

const GOING: ReplicaId = ReplicaId::new(0);

fn going_on(id: u64) -> JobSpec {
    JobSpec { resumable: true, ..spec(id) }
}

/// Replica 0 streams job 1, with which others can go on, and job 2, with which
/// they cannot; it reads the prompt of job 3. Replica 1 has nothing to do.
fn three_at_one(attempts: u32) -> World {
    let mut rules = policy(&[&[8, 8]], &[&[0]]);
    rules.retry.max_attempts = attempts;
    let mut world = World::new(rules);
    world.event(Event::ReplicaLost { replica: ReplicaId::new(1), answers: false });
    for job in [going_on(1), spec(2)] {
        assert_eq!(sent(&world.arrive(job)).len(), 1);
        world.now += Duration::from_millis(20);
        world.event(Event::FirstToken { job: job.id });
    }
    assert_eq!(sent(&world.arrive(going_on(3))), [(3, 0)]);
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(1) });
    world
}

/// Lets timers fire until something comes of it.
fn next(world: &mut World) -> Vec<Action> {
    loop {
        world.now = world.scheduler.next_deadline().expect("a timer");
        let actions = world.event(Event::Timer);
        if actions.iter().any(|action| !matches!(action, Action::Replica(ReplicaAction::Probe { .. }))) {
            return actions;
        }
    }
}

fn close(world: &mut World, closed: Closed) -> Vec<Action> {
    let measure = OverrideChange::CloseReplica(GOING, closed);
    world.event(Event::Overridden(Override { change: measure, until: Tick::NEVER, reason: "".into() }))
}

#[test]
fn a_silent_engine_is_asked_for_its_streams() {
    let mut world = three_at_one(4);
    let actions = next(&mut world);
    assert!(world.now < Tick::from_millis(2_000), "{:?}", world.now);
    assert_eq!((ejected(&actions), recalled(&actions)), (vec![0], vec![(3, 0, PreemptReason::Stalled)]));
    assert_eq!(handed_over(&actions), [(1, 0, PreemptReason::Stalled), (2, 0, PreemptReason::Stalled)]);
    let running = |world: &World| world.scheduler.snapshot(world.now).replicas[0].running;
    assert_eq!(running(&world), 2, "its credit is held until the edge has let go");

    let actions = world.interrupt(1, EngineFault::Silent, 4);
    let (job, replica) = (JobId::new(1), GOING);
    assert_eq!(actions[0], Action::Job(JobAction::Requeue { job, replica, why: EngineFault::Silent }));
    assert_eq!((sent(&actions), running(&world)), (vec![(1, 1)], 1));
    world.done(3);
    world.at(30_000);
    world.done(1);
    assert_eq!(world.done(2), [], "one that stayed may still end");
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn a_stream_is_asked_for_once_and_only_where_others_are() {
    let mut world = three_at_one(4);
    next(&mut world);
    for second in 3..60 {
        assert_eq!(handed_over(&world.at(1_000 * second)), []);
    }
    let mut world = World::new(policy(&[&[8]], &[&[0]]));
    world.arrive(going_on(1));
    world.event(Event::FirstToken { job: JobId::new(1) });
    for second in 1..60 {
        assert_eq!(handed_over(&world.at(1_000 * second)), []);
    }
}

/// A machine that vanished refuses what is new before it is missed by what
/// streams.
#[test]
fn what_an_ejected_replica_streams_is_watched_too() {
    let mut world = three_at_one(4);
    world.arrive(JobSpec { prompt_tokens: 100_000, ..spec(4) });
    let job = |id: u64| world.scheduler.jobs.get(&JobId::new(id));
    let there = |id: u64| job(id).and_then(Job::attempt).map(|run| run.replica);
    assert_eq!((there(3), there(4)), (Some(GOING), Some(ReplicaId::new(1))));
    assert_eq!(ejected(&world.fail(3, EngineFault::Refused)), [0]);
    let mut asked = Vec::new();
    while asked.is_empty() && world.now < Tick::from_millis(10_000) {
        asked = handed_over(&next(&mut world));
    }
    assert_eq!(asked, [(1, 0, PreemptReason::Stalled), (2, 0, PreemptReason::Stalled)]);
}

#[test]
fn streams_leave_a_drained_replica_when_its_time_is_over_and_nobody_is_blamed() {
    let closings =
        [(Closed::Drained, 30, PreemptReason::Drained), (Closed::SpotNotice, 20, PreemptReason::SpotNotice)];
    for (closed, after, why) in closings {
        let mut world = three_at_one(1);
        let begun = world.now;
        let mut early = close(&mut world, closed);
        assert_eq!(recalled(&early), [(3, 0, why)]);
        let end = begun + Duration::from_secs(after);
        while world.now < end {
            // It is alive.
            let sample = crate::model::event::ItlSample { gaps: 1, total: Duration::from_millis(20) };
            early.extend(world.event(Event::ItlSampled { replica: GOING, sample }));
            world.now = (world.now + Duration::from_millis(500)).min(end.earlier_by(Duration::from_nanos(1)));
            early.extend(world.event(Event::Timer));
            if world.now == end.earlier_by(Duration::from_nanos(1)) {
                world.now = end;
            }
        }
        assert_eq!(handed_over(&early), [], "{closed:?}");
        let actions = world.event(Event::Timer);
        assert_eq!(handed_over(&actions), [(1, 0, why)], "{closed:?}");
        let actions = world.interrupt(1, EngineFault::Draining, 4);
        assert_eq!((ejected(&actions), rejected(&actions), sent(&actions)), (vec![], vec![], vec![(1, 1)]));
    }
}

#[test]
fn a_replica_that_left_the_policy_is_asked_too() {
    let mut world = three_at_one(4);
    world.done(3);
    reload(&mut world, |next| next.replicas = without(&next.replicas, GOING));
    assert_eq!(handed_over(&world.at(29_000)), []);
    assert_eq!(handed_over(&world.at(31_000)), [(1, 0, PreemptReason::Drained)]);
    assert_eq!(sent(&world.interrupt(1, EngineFault::Draining, 4)), [(1, 1)]);
}

#[test]
fn what_opens_again_or_is_only_cordoned_keeps_its_streams() {
    let mut world = three_at_one(4);
    close(&mut world, Closed::Drained);
    world.event(Event::OverrideEnded(OverrideTarget::Replica(GOING)));
    close(&mut world, Closed::Cordoned);
    for second in 1..100 {
        let sample = crate::model::event::ItlSample { gaps: 1, total: Duration::from_millis(20) };
        world.event(Event::ItlSampled { replica: GOING, sample });
        assert_eq!(handed_over(&world.at(100 + 500 * second)), []);
    }
}
