//! Tests of pool starts: the jobs held for pools without replicas, and the ends of their holds.

use std::sync::Arc;
use std::time::Duration;

use crate::model::event::{Action, EngineFault, Event, RejectReason, ReplicaAction};
use crate::model::ids::{ClassId, JobId, PoolId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::policy::{Class, Policy, Pool};
use crate::model::snapshot::{Obstacle, PoolSnapshot, PoolStatus};
use crate::model::time::Tick;
use crate::queue::drain::retry_after::MAX_RETRY_AFTER;
use crate::scheduler::tests::{World, policy, rejected, sent, spec};

/// One pool of replicas with these limits, whose start is expected to take 3
/// minutes, and classes that tolerate so many seconds of it.
fn pool_of(limits: &[u32], tolerance: Option<u64>) -> Policy {
    let mut policy = policy(&[limits], &[&[0]]);
    expect_start(&mut policy, Some(180));
    let ids: Vec<ClassId> = policy.classes.iter().map(|(id, ..)| id).collect();
    for id in ids {
        let row = policy.classes.get(id).unwrap().clone();
        let name = policy.classes.name(id).to_owned();
        policy.classes.insert(
            &name,
            Class {
                max_wait: Duration::from_secs(3600),
                cold_start_tolerance: tolerance.map(Duration::from_secs),
                ..row
            },
        );
    }
    policy
}

fn expect_start(policy: &mut Policy, seconds: Option<u64>) {
    let row = policy.pools.get(PoolId::new(0)).unwrap().clone();
    policy.pools.insert("p0", Pool { cold_start: seconds.map(Duration::from_secs), ..row });
}

/// The same at an address that stays while nothing runs there.
fn scaled(tolerance: Option<u64>) -> Policy {
    let mut policy = pool_of(&[16], tolerance);
    let row = policy.pools.get(PoolId::new(0)).unwrap().clone();
    policy.pools.insert("p0", Pool { scales_to_zero: true, ..row });
    policy
}

/// A job that may wait for an hour from `now` seconds on.
fn patient(id: u64, now: u64) -> JobSpec {
    JobSpec { deadline: Tick::from_millis((now + 3600) * 1000), ..spec(id) }
}

fn reload(world: &mut World, policy: Policy) -> Vec<Action> {
    world.event(Event::PolicyChanged(Arc::new(policy)))
}

fn first_token(world: &mut World, job: u64) -> Vec<Action> {
    world.event(Event::FirstToken { job: JobId::new(job) })
}

fn view(world: &World) -> PoolSnapshot {
    world.scheduler.snapshot(world.now).pools[0].clone()
}

/// Every running job ends, and those that this lets go, one second apart from
/// `second` on; returns how many were ever at the replicas at once and in all.
fn serve(world: &mut World, mut running: Vec<u64>, second: u64) -> (usize, usize) {
    let (mut most, mut all, mut now) = (running.len(), running.len(), second);
    while !running.is_empty() {
        for job in std::mem::take(&mut running) {
            let mut more = first_token(world, job);
            more.extend(world.done(job));
            assert_eq!(rejected(&more), []);
            running.extend(sent(&more).into_iter().map(|(job, _)| job));
        }
        now += 1;
        let more = world.at(now * 1000);
        running.extend(sent(&more).into_iter().map(|(job, _)| job));
        (most, all) = (most.max(running.len()), all + running.len());
    }
    (most, all)
}

#[test]
fn a_hundred_jobs_are_held_and_go_as_replicas_can_take_them() {
    let mut world = World::new(pool_of(&[], None));
    for id in 0..100 {
        let actions = world.arrive(patient(id, 0));
        let wanted = Action::Replica(ReplicaAction::PoolWanted {
            pool: PoolId::new(0),
            expected: Some(Duration::from_secs(180)),
        });
        assert_eq!(actions, if id == 0 { vec![wanted] } else { Vec::new() });
    }
    assert_eq!((view(&world).state, view(&world).waiting), (PoolStatus::Starting, 100));
    let why = world.scheduler.explain(JobId::new(7), world.now).unwrap();
    assert_eq!(why.obstacle, Obstacle::Starting);

    assert_eq!(world.at(100_000), []);
    let actions = reload(&mut world, pool_of(&[16], None));
    let first: Vec<u64> = sent(&actions).into_iter().map(|(job, _)| job).collect();
    assert_eq!(first, [0, 1], "an eighth of the limit");
    assert_eq!(view(&world).state, PoolStatus::Starting);
    world.at(110_000);
    let actions = first_token(&mut world, 0);
    let started =
        Action::Replica(ReplicaAction::PoolStarted { pool: PoolId::new(0), took: Duration::from_secs(110) });
    assert_eq!(actions.last(), Some(&started));
    assert_eq!(
        (view(&world).state, view(&world).cold_start),
        (PoolStatus::Ready, Some(Duration::from_secs(110)))
    );
    let running: Vec<u64> = (0..100).filter(|id| !waits(&world, *id)).collect();
    assert!(running.len() <= 16, "{running:?}");
    let (most, all) = serve(&mut world, running, 110);
    assert!(most <= 16 && all == 100, "{most} at once, {all} in all");

    assert_eq!(reload(&mut world, pool_of(&[], None)), []);
    assert_eq!((view(&world).state, world.scheduler.unfinished()), (PoolStatus::Cold, 0));
}

fn waits(world: &World, id: u64) -> bool {
    world.scheduler.explain(JobId::new(id), world.now).is_some()
}

#[test]
fn streams_finish_while_the_pool_drains_and_new_jobs_are_held() {
    let mut world = World::new(pool_of(&[2], None));
    assert_eq!(sent(&world.arrive(patient(0, 0))), [(0, 0)]);
    first_token(&mut world, 0);
    assert_eq!(reload(&mut world, pool_of(&[], None)), []);
    assert_eq!(view(&world).state, PoolStatus::Draining);
    assert_eq!(rejected(&world.arrive(patient(1, 0))), []);
    assert_eq!(view(&world).state, PoolStatus::Starting);
    assert_eq!(world.done(0), []);
    world.at(60_000);
    assert_eq!(sent(&reload(&mut world, pool_of(&[2], None))), [(1, 0)]);
    world.at(61_000);
    first_token(&mut world, 1);
    assert_eq!(view(&world).cold_start, Some(Duration::from_secs(61)));
}

#[test]
fn who_cannot_wait_that_long_is_told_at_once_and_when_to_come_back() {
    let mut world = World::new(pool_of(&[], Some(170)));
    let refused = rejected(&world.arrive(patient(0, 0)));
    assert_eq!(refused[0].1.reason, RejectReason::ColdStart);
    let wait = refused[0].1.retry_after.unwrap().as_secs();
    assert!((180..=225).contains(&wait), "{wait}");
    assert_eq!(view(&world).state, PoolStatus::Cold, "nobody is held");

    // Its question counts: the rest of the time is what the next one waits.
    world.at(20_000);
    assert_eq!(rejected(&world.arrive(patient(1, 20))), []);
    let short = JobSpec { deadline: Tick::from_millis(30_000), ..spec(2) };
    let refused = rejected(&world.arrive(short));
    assert_eq!((refused[0].0, refused[0].1.reason), (2, RejectReason::ColdStart));

    // The hold ends after 170 s, honestly.
    assert_eq!(world.at(189_999), []);
    let refused = rejected(&world.at(190_000));
    assert_eq!((refused[0].0, refused[0].1.reason), (1, RejectReason::ColdStart));
    assert_eq!(refused[0].1.queued, Duration::from_secs(170));
    let wait = refused[0].1.retry_after.unwrap();
    assert!(wait >= MAX_RETRY_AFTER / 2 && wait <= MAX_RETRY_AFTER, "it is overdue: {wait:?}");
    assert_eq!((view(&world).state, view(&world).cold_start), (PoolStatus::Cold, None));
}

#[test]
fn what_was_measured_decides_the_next_time() {
    let mut world = World::new(pool_of(&[], None));
    world.arrive(patient(0, 0));
    world.at(20_000);
    reload(&mut world, pool_of(&[2], None));
    first_token(&mut world, 0);
    world.done(0);
    world.at(1_000_000);
    reload(&mut world, pool_of(&[], Some(15)));
    let refused = rejected(&world.arrive(patient(1, 1_000)));
    let wait = refused[0].1.retry_after.unwrap().as_secs();
    assert!((20..=25).contains(&wait), "{wait}");
    reload(&mut world, pool_of(&[], Some(25)));
    assert_eq!(rejected(&world.arrive(patient(2, 1_000))), []);
}

#[test]
fn a_start_of_which_nothing_is_known_refuses_nobody_at_once() {
    let mut unknown = pool_of(&[], Some(5));
    expect_start(&mut unknown, None);
    let mut world = World::new(unknown);
    world.arrive(patient(0, 0));
    let refused = rejected(&world.at(5_000));
    assert_eq!(
        (refused[0].1.reason, refused[0].1.retry_after),
        (RejectReason::ColdStart, Some(MAX_RETRY_AFTER))
    );
}

#[test]
fn jobs_that_wait_when_the_last_replica_goes_are_held_or_told() {
    let mut world = World::new(pool_of(&[1], None));
    world.arrive(patient(0, 0));
    first_token(&mut world, 0);
    world.arrive(patient(1, 0));
    world.arrive(JobSpec { deadline: Tick::from_millis(60_000), ..spec(2) });
    world.at(10_000);
    let actions = reload(&mut world, pool_of(&[], None));
    let refused = rejected(&actions);
    assert_eq!((refused.len(), refused[0].0, refused[0].1.reason), (1, 2, RejectReason::ColdStart));
    assert!(waits(&world, 1));
    world.done(0);
    world.at(200_000);
    assert_eq!(sent(&reload(&mut world, pool_of(&[1], None))), [(1, 0)]);
}

#[test]
fn the_tolerance_goes_on_while_the_first_replica_fails() {
    let mut world = World::new(pool_of(&[], Some(200)));
    world.arrive(patient(0, 0));
    world.at(100_000);
    assert_eq!(sent(&reload(&mut world, pool_of(&[4], Some(200)))), [(0, 0)]);
    world.fail(0, EngineFault::Refused);
    assert!(waits(&world, 0), "it is not there yet");
    assert_eq!(rejected(&world.arrive(patient(1, 100))), []);
    let refused = rejected(&world.at(200_000));
    assert_eq!((refused.len(), refused[0].0, refused[0].1.reason), (1, 0, RejectReason::ColdStart));
    assert_eq!(view(&world).state, PoolStatus::Starting, "another one is held");
    let refused = rejected(&world.at(300_000));
    assert_eq!((refused[0].0, view(&world).state), (1, PoolStatus::Down));
}

#[test]
fn replicas_that_only_fail_are_not_a_start() {
    let mut world = World::new(pool_of(&[4], Some(1)));
    world.arrive(patient(0, 0));
    world.fail(0, EngineFault::Refused);
    assert_eq!(view(&world).state, PoolStatus::Down);
    assert_eq!(rejected(&world.arrive(patient(1, 0))), []);
    assert_eq!(rejected(&world.at(100_000)), []);
    assert_eq!(view(&world).waiting, 2);
}

#[test]
fn how_slowly_jobs_went_while_nothing_ran_is_forgotten() {
    let mut world = World::new(pool_of(&[1], None));
    let mut now = 0;
    for id in 0..20 {
        world.arrive(patient(id, 0));
    }
    for id in 0..20 {
        now += 1_000;
        world.at(now);
        world.done(id);
    }
    reload(&mut world, pool_of(&[], None));
    for id in 100..110 {
        assert_eq!(rejected(&world.arrive(patient(id, 20))), []);
    }
    world.at(180_000);
    assert_eq!(rejected(&world.arrive(JobSpec { deadline: Tick::from_millis(240_000), ..spec(200) })), []);
    reload(&mut world, pool_of(&[1], None));
    assert_eq!(rejected(&world.arrive(JobSpec { deadline: Tick::from_millis(240_000), ..spec(201) })), []);
    first_token(&mut world, 100);
    assert_eq!(rejected(&world.arrive(JobSpec { deadline: Tick::from_millis(240_000), ..spec(202) })), []);
}

#[test]
fn a_start_is_given_up_with_the_last_who_waits() {
    let mut world = World::new(pool_of(&[], None));
    world.arrive(patient(0, 0));
    world.event(Event::Abandoned { job: JobId::new(0), usage: crate::model::job::JobUsage::Unknown });
    assert_eq!(view(&world).state, PoolStatus::Cold);
    world.at(50_000);
    world.arrive(patient(1, 50));
    world.at(60_000);
    reload(&mut world, pool_of(&[1], None));
    first_token(&mut world, 1);
    assert_eq!(view(&world).cold_start, Some(Duration::from_secs(10)));
}

#[test]
fn what_joins_a_starting_pool_whose_replica_goes_again_is_held_too() {
    let mut world = World::new(pool_of(&[], Some(600)));
    world.arrive(patient(1, 0));
    reload(&mut world, pool_of(&[1], Some(600)));
    world.arrive(patient(2, 0));
    world.fail(1, EngineFault::Busy { retry_after: None });
    assert_eq!(world.scheduler.audit(), []);
}

#[test]
fn a_static_address_that_is_scaled_to_zero_is_a_start_and_not_a_failure() {
    let mut world = World::new(scaled(Some(600)));
    world.arrive(JobSpec { has_fallback: true, ..patient(1, 0) });
    let actions = world.fail(1, EngineFault::Refused);
    let wanted = Action::Replica(ReplicaAction::PoolWanted {
        pool: PoolId::new(0),
        expected: Some(Duration::from_secs(180)),
    });
    assert!(actions.contains(&wanted) && rejected(&actions).is_empty(), "{actions:?}");
    assert_eq!(view(&world).state, PoolStatus::Starting);
    assert_eq!(world.scheduler.explain(JobId::new(1), world.now).unwrap().obstacle, Obstacle::Starting);
    for id in 2..20 {
        assert_eq!(world.arrive(patient(id, 0)), [], "held like the first");
    }
    for second in 1..60 {
        let probes = world.at(second * 1000);
        assert_eq!(rejected(&probes), []);
        world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: false });
    }
    world.at(60_000);
    let actions = world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) });
    let first: Vec<u64> = sent(&actions).into_iter().map(|(job, _)| job).collect();
    assert_eq!(first, [1, 2], "an eighth of the limit");
    world.at(61_000);
    let actions = first_token(&mut world, 1);
    assert!(actions.contains(&Action::Replica(ReplicaAction::PoolStarted {
        pool: PoolId::new(0),
        took: Duration::from_secs(61)
    })));
    let running: Vec<u64> = (0..20).filter(|id| *id > 0 && !waits(&world, *id)).collect();
    let (most, all) = serve(&mut world, running, 61);
    assert!(most <= 16 && all == 19, "{most} at once, {all} in all");
}

#[test]
fn who_cannot_wait_for_such_a_start_is_told_at_once() {
    let mut world = World::new(scaled(Some(60)));
    world.arrive(patient(1, 0));
    let told = rejected(&world.fail(1, EngineFault::Refused));
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].1.reason, RejectReason::ColdStart);
    assert!(told[0].1.retry_after.is_some_and(|after| after >= Duration::from_secs(180)), "{told:?}");
    assert_eq!(view(&world).state, PoolStatus::Cold, "nobody waits");
}

#[test]
fn what_answers_badly_is_down_and_not_scaled_to_zero() {
    let mut world = World::new(scaled(Some(600)));
    world.arrive(patient(1, 0));
    world.fail(1, EngineFault::ServerError);
    assert_eq!(view(&world).state, PoolStatus::Down, "something is there");
    world.at(200);
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: false });
    assert_eq!(view(&world).state, PoolStatus::Starting, "nothing is there any more");
}
