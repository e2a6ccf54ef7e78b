//! Tests of stalls: whether the engine or a slow request is to blame for silence.

use std::time::Duration;

use crate::model::event::{Action, EngineFault, Event, RejectReason, ReplicaAction, ReplicaReport};
use crate::model::ids::{JobId, ReplicaId, TenantId};
use crate::model::job::JobSpec;
use crate::model::reason::PreemptReason;
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;
use crate::scheduler::tests::{World, ejected, handed_over, policy, recalled, rejected, sent, spec};

/// Two replicas that have answered before.
fn two() -> World {
    let mut world = World::new(policy(&[&[8, 8]], &[&[0]]));
    for id in 1001..=1002 {
        assert_eq!(sent(&world.arrive(spec(id))).len(), 1);
    }
    world.now += Duration::from_millis(20);
    for id in 1001..=1002 {
        world.event(Event::FirstToken { job: JobId::new(id) });
        world.done(id);
    }
    world
}

/// Lets so much time pass; what came of it.
fn pass(world: &mut World, millis: u64) -> Vec<Action> {
    let end = world.now + Duration::from_millis(millis);
    let mut out = Vec::new();
    while let Some(next) = world.scheduler.next_deadline().filter(|next| *next <= end) {
        world.now = world.now.max(next);
        out.extend(world.event(Event::Timer));
    }
    world.now = end;
    out
}

fn token(world: &mut World, job: u64) {
    world.event(Event::FirstToken { job: JobId::new(job) });
}

fn place_of(world: &World, job: u64) -> Option<u32> {
    let job = world.scheduler.jobs.get(&JobId::new(job))?;
    job.attempt().map(|run| run.replica.index() as u32)
}

fn progress(world: &mut World, replica: u32, progress: u64) -> Vec<Action> {
    let report = ReplicaReport { progress: Some(progress), ..ReplicaReport::default() };
    world.event(Event::ReplicaReported { replica: ReplicaId::new(replica), report })
}

/// A job that streams, sent to replica 0, whose first token has come.
fn stream_at_the_first(world: &mut World, id: u64) {
    world.event(Event::ReplicaLost { replica: ReplicaId::new(1), answers: true });
    world.arrive(spec(id));
    assert_eq!(place_of(world, id), Some(0));
    world.now += Duration::from_millis(20);
    token(world, id);
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(1) });
}

#[test]
fn one_slow_request_ejects_no_replica_and_stays_at_its_third_place() {
    let mut world = two();
    let slow = JobSpec { fingerprint: Some(7), deadline: Tick::NEVER, ..spec(1) };
    let mut actions = world.arrive(slow);
    actions.extend(pass(&mut world, 40_000));
    assert_eq!((sent(&actions).len(), recalled(&actions).len()), (3, 2), "{actions:?}");
    assert_eq!((ejected(&actions), rejected(&actions).len()), (vec![], 0));
    let places: Vec<u32> = sent(&actions).into_iter().map(|(_, replica)| replica).collect();
    assert_ne!(places[0], places[1]);
    token(&mut world, 1);
    world.done(1);

    // Sent again, it stays where it comes first.
    let mut actions = world.arrive(JobSpec { id: JobId::new(2), ..slow });
    actions.extend(pass(&mut world, 40_000));
    assert_eq!((sent(&actions).len(), ejected(&actions).len(), recalled(&actions).len()), (1, 0, 0));
    token(&mut world, 2);
    world.done(2);
    // Once it is served without delay, it is watched like any other.
    world.arrive(JobSpec { id: JobId::new(3), ..slow });
    token(&mut world, 3);
    world.done(3);
    let now = world.now;
    assert!(!world.scheduler.jobs.was_suspect(7, now));
}

#[test]
fn a_suspect_that_gets_no_token_ends_at_its_time_out_and_ejects_nobody() {
    let mut world = two();
    let slow = JobSpec { fingerprint: Some(7), deadline: Tick::NEVER, ..spec(1) };
    world.arrive(slow);
    pass(&mut world, 40_000);
    // Sent again, it is a suspect from the first place on.
    for id in 1..=3 {
        if id > 1 {
            world.arrive(JobSpec { id: JobId::new(id), ..slow });
            pass(&mut world, 40_000);
        }
        let actions = world.fail(id, EngineFault::Silent);
        assert_eq!(
            rejected(&actions)[0].1.reason,
            RejectReason::AttemptsExhausted(EngineFault::Silent),
            "{id}"
        );
        assert_eq!((ejected(&actions), sent(&actions)), (vec![], vec![]), "{id}");
    }
    assert_eq!(world.scheduler.unfinished(), 0);
    let rows = world.scheduler.snapshot(world.now).replicas;
    assert!(rows.iter().all(|row| row.state == ReplicaStatus::Serving && row.running == 0), "{rows:?}");
    // Silence about any other request still speaks against its replica.
    world.arrive(JobSpec { deadline: Tick::NEVER, ..spec(10) });
    assert_eq!(ejected(&world.fail(10, EngineFault::Silent)).len(), 1);
}

#[test]
fn others_are_served_beside_a_slow_request() {
    let mut world = two();
    world.arrive(spec(1));
    for id in 10..60 {
        let other = JobSpec { tenant: TenantId::new(1), ..spec(id) };
        let mut actions = world.arrive(other);
        assert_eq!(sent(&actions).len(), 1, "{id}");
        actions.extend(pass(&mut world, 50));
        token(&mut world, id);
        world.done(id);
        actions.extend(pass(&mut world, 100));
        assert!(ejected(&actions).is_empty());
    }
}

#[test]
fn an_engine_that_misses_one_first_token_after_another_is_left() {
    let mut world = two();
    let mut at = 0;
    let mut out = Vec::new();
    for id in 1..=6 {
        let actions = world.arrive(spec(id));
        let place = place_of(&world, id).expect("it runs");
        out.extend(actions);
        // Replica 0 has frozen, replica 1 answers at once.
        if place == 1 {
            world.now += Duration::from_millis(20);
            token(&mut world, id);
        } else {
            at += 1;
            out.extend(pass(&mut world, 2_500));
            assert_eq!(place_of(&world, id), Some(1), "{out:?}");
            token(&mut world, id);
        }
        world.done(id);
    }
    assert_eq!((ejected(&out), at), (vec![0], 2), "{out:?}");
}

#[test]
fn moving_gauges_are_signs_of_life() {
    let mut world = two();
    progress(&mut world, 0, 1);
    stream_at_the_first(&mut world, 1);
    stream_at_the_first(&mut world, 2);
    let mut out = Vec::new();
    for step in 2..12 {
        out.extend(pass(&mut world, 1_300));
        out.extend(progress(&mut world, 0, step));
    }
    let asked =
        out.iter().filter(|action| matches!(action, Action::Replica(ReplicaAction::Scrape { .. }))).count();
    assert!(asked > 0, "{out:?}");
    assert_eq!((ejected(&out), handed_over(&out).len()), (vec![], 0));
    // It freezes, and its server still answers.
    for _ in 0..4 {
        out.extend(pass(&mut world, 1_000));
        out.extend(progress(&mut world, 0, 11));
    }
    assert_eq!(ejected(&out), [0]);
}

#[test]
fn bytes_are_signs_of_life_and_streams_that_wait_for_their_clients_owe_none() {
    let mut world = two();
    stream_at_the_first(&mut world, 1);
    stream_at_the_first(&mut world, 2);
    let mut out = Vec::new();
    for _ in 0..100 {
        out.extend(pass(&mut world, 900));
        world.event(Event::BytesReceived { replica: ReplicaId::new(0) });
    }
    world.event(Event::StreamsPaused { replica: ReplicaId::new(0), streams: 2 });
    out.extend(pass(&mut world, 600_000));
    assert!(ejected(&out).is_empty());
    world.event(Event::StreamsPaused { replica: ReplicaId::new(0), streams: 0 });
    assert!(ejected(&pass(&mut world, 500)).is_empty());
    assert_eq!(ejected(&pass(&mut world, 2_000)), [0]);
}

#[test]
fn a_lone_stream_may_pause() {
    let mut world = two();
    stream_at_the_first(&mut world, 1);
    assert!(ejected(&pass(&mut world, 9_000)).is_empty(), "no gauge tells of a tool call");
    assert_eq!(ejected(&pass(&mut world, 4_000)), [0]);

    let mut world = two();
    progress(&mut world, 0, 1);
    stream_at_the_first(&mut world, 1);
    assert!(ejected(&pass(&mut world, 3_500)).is_empty());
    assert_eq!(ejected(&pass(&mut world, 3_000)), [0], "its gauges stand still");
}

#[test]
fn silence_ejects_no_more_than_its_share_of_a_pool() {
    let mut world = World::new(policy(&[&[8, 8, 8, 8]], &[&[0]]));
    for id in 0..16 {
        world.arrive(spec(id));
        world.now += Duration::from_millis(5);
        token(&mut world, id);
    }
    let out = pass(&mut world, 2_500);
    assert_eq!(ejected(&out).len(), 2, "{out:?}");
    assert!(out.iter().any(|action| matches!(
        action,
        Action::Replica(ReplicaAction::WithholdEjection { why: EngineFault::Silent, .. })
    )));
}

#[test]
fn plain_answers_are_watched_by_gauges_alone() {
    let plain = |id| JobSpec { streams: false, max_output_tokens: 30_000, ..spec(id) };
    let mut world = two();
    for id in 1..=6 {
        world.arrive(plain(id));
    }
    assert!(ejected(&pass(&mut world, 900_000)).is_empty(), "nothing tells how far they are");

    let mut world = two();
    (0..2).for_each(|replica| _ = progress(&mut world, replica, 1));
    for id in 1..=6 {
        world.arrive(plain(id));
    }
    let mut out = Vec::new();
    for step in 2..60 {
        out.extend(pass(&mut world, 2_000));
        (0..2).for_each(|replica| out.extend(progress(&mut world, replica, step)));
    }
    assert_eq!((ejected(&out), recalled(&out)), (vec![], vec![]));
    let there = place_of(&world, 1);
    for step in 60..70 {
        out.extend(pass(&mut world, 2_000));
        (0..2).for_each(|replica| {
            let frozen = there == Some(replica);
            out.extend(progress(&mut world, replica, if frozen { 59 } else { step }));
        });
    }
    assert_eq!(ejected(&out), [there.unwrap()]);
    assert!(
        recalled(&out).iter().all(|(_, from, why)| Some(*from) == there && *why == PreemptReason::Stalled)
    );
}

#[test]
fn an_answer_that_takes_too_long_ends_its_job_and_blames_nobody() {
    let mut world = two();
    world.arrive(JobSpec { streams: false, ..spec(1) });
    let actions = world.fail(1, EngineFault::AnswerTimeout);
    assert_eq!(rejected(&actions)[0].1.reason, RejectReason::AttemptsExhausted(EngineFault::AnswerTimeout));
    assert_eq!((ejected(&actions), sent(&actions)), (vec![], vec![]));
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn one_request_that_hangs_at_an_engine_that_works_is_not_its_fault() {
    let mut world = two();
    stream_at_the_first(&mut world, 1);
    world.event(Event::ReplicaLost { replica: ReplicaId::new(1), answers: true });
    world.arrive(spec(2));
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(1) });
    for _ in 0..20 {
        pass(&mut world, 500);
        world.event(Event::BytesReceived { replica: ReplicaId::new(0) });
    }
    let actions = world.fail(2, EngineFault::Silent);
    assert_eq!((ejected(&actions), sent(&actions)), (vec![], vec![(2, 1)]));
}
