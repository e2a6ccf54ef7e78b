//! Tests of sessions that keep to their replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::event::Event;
use crate::model::ids::{JobId, ModelId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::overrides::{Closed, Override, OverrideChange, OverrideTarget};
use crate::model::policy::{Policy, StickySessions};
use crate::model::snapshot::Obstacle;
use crate::model::time::Tick;
use crate::placement::choose_tier::PlacementReason;
use crate::scheduler::tests::{World, placed, policy, sent, spec};
use crate::scheduler::timers::WakeReason;

/// Two replicas and sessions that may come 100 ms later for their own.
fn sticky(replicas: &[u32]) -> Policy {
    let rule = StickySessions { max_delay: Duration::from_millis(100), max_sessions: 3 };
    Policy { sessions: Some(rule), ..policy(&[replicas], &[&[0]]) }
}

fn of_session(id: u64, session: u64) -> JobSpec {
    JobSpec { session: Some(session), arrived: Tick::NEVER, ..spec(id) }
}

#[test]
fn a_session_keeps_to_its_replica() {
    let mut world = World::new(sticky(&[8, 8, 8]));
    let mut own = BTreeMap::new();
    for id in 0..30 {
        let session = id % 3;
        let actions = world.arrive(of_session(id, session));
        let (replica, why) = (sent(&actions)[0].1, placed(&actions));
        let before = own.insert(session, replica);
        assert_eq!(
            why.placement,
            if before.is_some() { PlacementReason::Session } else { PlacementReason::Only }
        );
        assert!(before.is_none_or(|before| before == replica));
        world.done(id);
    }
    for id in 100..104 {
        world.arrive(of_session(id, id));
        world.done(id);
    }
    assert_eq!(
        placed(&world.arrive(of_session(200, 0))).placement,
        PlacementReason::Only,
        "it was forgotten"
    );
}

#[test]
fn a_session_moves_when_its_replica_is_full_gone_draining_or_too_late() {
    let mut world = World::new(sticky(&[3, 3]));
    let at = |world: &mut World, id| sent(&world.arrive(of_session(id, 7)))[0].1;
    let first = at(&mut world, 1);
    for id in 2..4 {
        world.event(Event::FirstToken { job: JobId::new(id - 1) });
        assert_eq!(at(&mut world, id), first);
    }
    world.event(Event::FirstToken { job: JobId::new(3) });
    let second = at(&mut world, 4);
    assert_ne!(second, first, "full");
    for id in 1..5 {
        world.done(id);
    }
    assert_eq!(at(&mut world, 5), second, "it has moved");
    world.done(5);
    let target = OverrideChange::CloseReplica(ReplicaId::new(second), Closed::Drained);
    world.event(Event::Overridden(Override { change: target, until: Tick::NEVER, reason: "".into() }));
    assert_eq!(at(&mut world, 6), first, "draining");
    world.done(6);
    world.event(Event::OverrideEnded(OverrideTarget::Replica(ReplicaId::new(second))));
    world.event(Event::ReplicaLost { replica: ReplicaId::new(first), answers: false });
    assert_eq!(at(&mut world, 7), second, "out of service");
    world.done(7);
    world.at(60_000);
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(first) });
    world.at(120_000);
    let long = JobSpec { prompt_tokens: 20_000, deadline: Tick::NEVER, ..of_session(8, 7) };
    assert_eq!(sent(&world.arrive(long)), [(8, second)]);
    let next = JobSpec { deadline: Tick::NEVER, ..of_session(9, 7) };
    assert_eq!(sent(&world.arrive(next)), [(9, first)], "too late: it reads a long prompt");
}

/// A turn of session 7 at replica 0 of two reads a long prompt. The next turn declines replica 1 and
/// waits, since its session may come up to so much later. Models 0 and 1 have pools of their own.
fn declines(max_delay: u64) -> World {
    let rule = StickySessions { max_delay: Duration::from_millis(max_delay), max_sessions: 1 };
    let policy = policy(&[&[8, 8], &[8]], &[&[0], &[1]]);
    let mut world = World::new(Policy { sessions: Some(rule), ..policy });
    let long = JobSpec { prompt_tokens: 20_000, ..of_session(1, 7) };
    assert_eq!(sent(&world.arrive(long)), [(1, 0)]);
    let next = JobSpec { arrived: Tick::ZERO, deadline: Tick::NEVER, ..of_session(2, 7) };
    assert_eq!(sent(&world.arrive(next)), []);
    world
}

#[test]
fn a_turn_whose_session_is_forgotten_in_another_group_goes_to_a_free_replica() {
    let mut world = declines(60_000);
    let actions = world.arrive(JobSpec { model: ModelId::new(1), ..of_session(3, 8) });
    assert_eq!(sent(&actions), [(3, 2), (2, 1)]);
}

/// The world finds an idle credit in each event, even one that concerns nobody, if the turn is not
/// looked at when its session ceases to pay.
#[test]
fn a_turn_gives_up_its_session_when_it_no_longer_pays() {
    let read = declines(60_000).scheduler.snapshot(Tick::ZERO).replicas[0].expected.as_millis() as u64;
    let mut world = declines(read + 50);
    let mut out = Vec::new();
    for millis in 1..read {
        world.now = Tick::from_millis(millis);
        while let Some(due) = world.scheduler.next_deadline().filter(|due| *due <= world.now) {
            let now = std::mem::replace(&mut world.now, due);
            out.extend(world.event(Event::Timer));
            world.now = now;
        }
        out.extend(world.event(Event::FirstToken { job: JobId::new(99) }));
        if !out.is_empty() {
            assert_eq!(sent(&out), [(2, 1)]);
            assert!((20..200).contains(&millis), "{millis} of {read}");
            return;
        }
    }
    panic!("it waits for {read} ms");
}

#[test]
fn a_turn_that_waits_for_its_session_tells_for_which_replica_and_until_when() {
    let world = declines(60_000);
    let why = world.scheduler.explain(JobId::new(2), world.now).expect("it waits");
    assert_eq!((why.obstacle, why.waits_for), (Obstacle::Sooner, Some(ReplicaId::new(0))));
    let timer = world.scheduler.wakes().find(|wake| wake.reason == WakeReason::SessionWait);
    assert!(why.decides_again_in.is_some_and(|left| left < Duration::from_secs(60)), "{why:?}");
    assert_eq!(timer.map(|wake| wake.at.since(world.now)), why.decides_again_in, "the wait has a timer");
}

#[test]
fn sessions_that_are_off_cost_nothing_and_change_nothing() {
    let mut world = World::new(policy(&[&[8, 8]], &[&[0]]));
    for id in 0..4 {
        let actions = world.arrive(of_session(id, 7));
        assert_eq!(
            (sent(&actions)[0].1, placed(&actions).placement),
            ((id % 2) as u32, PlacementReason::Only)
        );
        world.done(id);
    }
    assert!(world.scheduler.affinity.sessions.is_empty());
}
