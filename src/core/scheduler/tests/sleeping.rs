//! Tests of sleep: the replicas that sleep, the time when they do, and the ones woken.

use std::time::Duration;

use crate::model::event::{Action, EngineFault, Event, RejectReason, ReplicaAction, ReplicaReport};
use crate::model::ids::{JobId, PoolId, ReplicaId, TenantId};
use crate::model::job::JobSpec;
use crate::model::overrides::{Override, OverrideChange};
use crate::model::policy::{Policy, Pool};
use crate::model::reason::PreemptReason;
use crate::model::snapshot::{Obstacle, PoolSnapshot, PoolStatus, ReplicaStatus};
use crate::model::time::Tick;
use crate::replica::health::sleep::{SleepPolicy, SleepResult};
use crate::scheduler::tests::{World, ejected, of_tenant, policy, recalled, rejected, sent, spec};

const IDLE: ReplicaReport = ReplicaReport {
    running: Some(0),
    waiting: Some(0),
    kv_usage: None,
    slots: None,
    kv_tokens: None,
    max_model_len: None,
    progress: None,
    cached_tokens: None,
    asleep: Some(false),
};

const ASLEEP: ReplicaReport = ReplicaReport { asleep: Some(true), ..IDLE };

/// A pool of replicas with these limits that sleep after a minute.
fn sleepy(limits: &[u32], keep_awake: u32) -> Policy {
    let mut policy = policy(&[limits], &[&[0]]);
    let row = policy.pools.get(PoolId::new(0)).unwrap().clone();
    let (after_idle, wake_timeout) = (Duration::from_secs(60), Duration::from_secs(20));
    let sleep = Some(SleepPolicy { after_idle, keep_awake, wake_timeout });
    policy.pools.insert("p0", Pool { sleep, ..row });
    policy
}

fn id(replica: u32) -> ReplicaId {
    ReplicaId::new(replica)
}

fn report(world: &mut World, replica: u32, report: ReplicaReport) -> Vec<Action> {
    world.event(Event::ReplicaReported { replica: id(replica), report })
}

fn answer_sleep(world: &mut World, replica: u32, sleep_result: SleepResult) -> Vec<Action> {
    world.event(Event::SleepAnswered { replica: id(replica), result: sleep_result })
}

fn sleeps(actions: &[Action]) -> Vec<u32> {
    let id = |action: &Action| match action {
        Action::Replica(ReplicaAction::Sleep { replica }) => Some(replica.index() as u32),
        _ => None,
    };
    actions.iter().filter_map(id).collect()
}

fn wakes(actions: &[Action]) -> Vec<u32> {
    let id = |action: &Action| match action {
        Action::Replica(ReplicaAction::Wake { replica, .. }) => Some(replica.index() as u32),
        _ => None,
    };
    actions.iter().filter_map(id).collect()
}

fn view(world: &World) -> PoolSnapshot {
    world.scheduler.snapshot(world.now).pools[0].clone()
}

/// Every replica reports at `millis` that it is idle.
fn all_idle(world: &mut World, millis: u64, count: u32) {
    world.now = Tick::from_millis(millis);
    for replica in 0..count {
        report(world, replica, IDLE);
    }
}

/// A world after 61 seconds in which nothing was asked: all sleep but those
/// that stay awake.
fn after_a_quiet_minute(limits: &[u32], keep_awake: u32) -> World {
    let mut world = World::new(sleepy(limits, keep_awake));
    let count = limits.len() as u32;
    all_idle(&mut world, 0, count);
    all_idle(&mut world, 59_000, count);
    let asleep = sleeps(&world.at(60_000));
    assert_eq!(asleep.len() as u32, count - keep_awake);
    for replica in asleep {
        answer_sleep(&mut world, replica, SleepResult::Asleep);
    }
    world.at(61_000);
    world
}

fn patient(job: u64) -> JobSpec {
    JobSpec { deadline: Tick::from_millis(10_000_000), ..spec(job) }
}

#[test]
fn the_idle_sleep_and_one_stays_awake() {
    let mut world = World::new(sleepy(&[2, 2, 2], 1));
    all_idle(&mut world, 59_000, 3);
    assert_eq!(sent(&world.arrive(patient(1))), [(1, 0)]);
    assert_eq!(sleeps(&world.at(60_000)), [1, 2], "the first one works");
    assert_eq!(world.state(1), Some(ReplicaStatus::Asleep));
    assert_eq!(sent(&world.arrive(patient(2))), [(2, 0)], "who is told to sleep gets nothing");
    answer_sleep(&mut world, 1, SleepResult::Asleep);
    answer_sleep(&mut world, 2, SleepResult::Asleep);
    world.done(1);
    world.done(2);
    all_idle(&mut world, 200_000, 1);
    assert_eq!(world.at(400_000), [], "it is the last one");
    assert_eq!(view(&world).state, PoolStatus::Ready);
}

#[test]
fn nobody_sleeps_without_knowing_that_others_do_not_use_it() {
    for seen in [
        None,
        Some(ReplicaReport { running: Some(1), ..IDLE }),
        Some(ReplicaReport { waiting: Some(1), ..IDLE }),
    ] {
        let mut world = World::new(sleepy(&[2, 2], 1));
        world.at(59_000);
        for replica in [0, 1] {
            seen.map(|seen| report(&mut world, replica, seen));
        }
        assert!(sleeps(&world.at(60_000)).is_empty(), "{seen:?}");
    }
    let mut world = World::new(sleepy(&[2, 2], 1));
    for (at, progress) in [(1000, 5), (30_000, 5), (50_000, 9)] {
        world.at(at);
        report(&mut world, 0, ReplicaReport { progress: Some(1), ..IDLE });
        report(&mut world, 1, ReplicaReport { progress: Some(progress), ..IDLE });
    }
    assert_eq!(sleeps(&world.at(60_000)), [0], "the other one worked for somebody");
}

#[test]
fn a_job_for_sleepers_wakes_one_and_is_held_as_for_a_start() {
    let mut world = after_a_quiet_minute(&[2, 2], 0);
    assert_eq!(view(&world).state, PoolStatus::Asleep);
    let actions = world.arrive(patient(1));
    assert_eq!((wakes(&actions), sent(&actions)), (vec![0], vec![]));
    assert_eq!((view(&world).state, world.state(0)), (PoolStatus::Starting, Some(ReplicaStatus::Waking)));
    let why = world.scheduler.explain(JobId::new(1), world.now).unwrap();
    assert_eq!(why.obstacle, Obstacle::Starting);
    assert!(wakes(&world.arrive(patient(2))).is_empty(), "the one that wakes takes two");
    assert_eq!(wakes(&world.arrive(patient(3))), [1]);
    world.at(66_000);
    assert_eq!(sent(&answer_sleep(&mut world, 0, SleepResult::Awake)), [(1, 0), (2, 0)], "at full size");
    assert_eq!(view(&world).wake, Some(Duration::from_secs(5)));
    world.event(Event::FirstToken { job: JobId::new(1) });
    assert_eq!((view(&world).state, view(&world).cold_start), (PoolStatus::Ready, None));
    assert!(sleeps(&world.at(120_000)).is_empty());
}

#[test]
fn what_a_wake_takes_is_told_once_it_is_known() {
    let mut world = after_a_quiet_minute(&[1], 0);
    world.arrive(patient(1));
    world.at(86_000);
    assert_eq!(sent(&answer_sleep(&mut world, 0, SleepResult::Awake)), [(1, 0)]);
    world.event(Event::FirstToken { job: JobId::new(1) });
    world.done(1);
    all_idle(&mut world, 145_000, 1);
    assert_eq!(sleeps(&world.at(146_000)), [0], "a minute after it woke");
    answer_sleep(&mut world, 0, SleepResult::Asleep);
    // Twenty-five seconds are too long for it, and yet it is a reason to wake.
    let hasty = JobSpec { deadline: Tick::from_millis(156_000), ..spec(2) };
    let actions = world.arrive(hasty);
    assert_eq!(rejected(&actions)[0].1.reason, RejectReason::ColdStart);
    let after = rejected(&actions)[0].1.retry_after.unwrap();
    assert!((25..40).contains(&after.as_secs()), "{after:?}");
    assert_eq!(wakes(&actions), [0]);
}

#[test]
fn the_awake_are_used_first_and_more_are_woken_for_what_they_do_not_take() {
    let mut world = after_a_quiet_minute(&[1, 1, 1, 1], 1);
    let awake = (0..4).find(|replica| world.state(*replica) == Some(ReplicaStatus::Serving)).unwrap();
    assert_eq!(sent(&world.arrive(patient(1))), [(1, awake)]);
    world.event(Event::FirstToken { job: JobId::new(1) });
    assert_eq!(world.arrive(patient(2)), [], "it may be read in a moment");
    world.arrive(patient(3));
    world.now = Tick::from_millis(61_300);
    let more = report(&mut world, awake, ReplicaReport { running: Some(1), ..IDLE });
    assert_eq!(wakes(&more).len(), 2, "two wait");
    for replica in wakes(&more) {
        assert_eq!(sent(&answer_sleep(&mut world, replica, SleepResult::Awake)).len(), 1);
    }
}

#[test]
fn jobs_that_may_not_go_wake_nobody() {
    let mut world = after_a_quiet_minute(&[1], 0);
    let measure = OverrideChange::Pause(TenantId::new(1));
    world.event(Event::Overridden(Override {
        change: measure,
        until: Tick::from_millis(65_000),
        reason: "".into(),
    }));
    let parked = JobSpec { deadline: Tick::from_millis(900_000), ..of_tenant(1, 1) };
    assert!(wakes(&world.arrive(parked)).is_empty());
    assert_eq!(wakes(&world.at(65_000)), [0]);
}

#[test]
fn one_that_does_not_wake_is_ejected_and_another_is_woken() {
    let mut world = after_a_quiet_minute(&[1, 1], 0);
    assert_eq!(wakes(&world.arrive(patient(1))), [0]);
    let actions = answer_sleep(&mut world, 0, SleepResult::Failed);
    assert_eq!((ejected(&actions), wakes(&actions)), (vec![0], vec![1]));
    // Nobody ever says what became of that one.
    let actions = world.at(91_000);
    assert_eq!(ejected(&actions), [1]);
    let actions = world.event(Event::ProbeSucceeded { replica: id(0) });
    assert_eq!(wakes(&actions), [0], "it is there, and sleeps");
    assert_eq!(sent(&answer_sleep(&mut world, 0, SleepResult::Awake)), [(1, 0)]);
}

#[test]
fn one_that_cannot_sleep_is_not_told_again() {
    let mut world = World::new(sleepy(&[1, 1], 0));
    all_idle(&mut world, 0, 2);
    all_idle(&mut world, 59_000, 2);
    assert_eq!(sleeps(&world.at(60_000)), [0, 1]);
    answer_sleep(&mut world, 0, SleepResult::Unable);
    answer_sleep(&mut world, 1, SleepResult::Unable);
    assert_eq!(view(&world).state, PoolStatus::Ready);
    all_idle(&mut world, 300_000, 2);
    assert_eq!(world.at(301_000), []);
    assert_eq!(sent(&world.arrive(patient(1))).len(), 1);
}

#[test]
fn one_that_others_put_to_sleep_gets_nothing_and_is_not_broken() {
    // The gateway does not put these to sleep, and does not wake them either.
    let mut world = World::new(policy(&[&[2, 2]], &[&[0]]));
    assert_eq!(sent(&world.arrive(patient(1))), [(1, 0)]);
    let actions = report(&mut world, 0, ASLEEP);
    assert_eq!(recalled(&actions), [(1, 0, PreemptReason::Asleep)]);
    assert_eq!((sent(&actions), ejected(&actions)), (vec![(1, 1)], vec![]));
    assert_eq!(world.state(0), Some(ReplicaStatus::Asleep));
    world.done(1);
    report(&mut world, 1, ASLEEP);
    assert_eq!(view(&world).state, PoolStatus::Asleep);
    assert_eq!(world.arrive(patient(2)), [], "held, and nobody is told to wake");
    assert_eq!(view(&world).state, PoolStatus::Starting);
    world.at(10_000);
    assert_eq!(sent(&report(&mut world, 1, IDLE)), [(2, 1)]);
}

#[test]
fn what_hangs_in_one_that_was_put_to_sleep_wakes_it() {
    let mut world = World::new(sleepy(&[2], 1));
    world.arrive(patient(1));
    let actions = report(&mut world, 0, ASLEEP);
    assert_eq!((recalled(&actions), wakes(&actions)), (vec![], vec![0]), "there is no other");
}

#[test]
fn jobs_that_wait_are_held_when_the_last_one_awake_goes() {
    let mut world = after_a_quiet_minute(&[1, 1], 1);
    let awake = (0..2).find(|replica| world.state(*replica) == Some(ReplicaStatus::Serving)).unwrap();
    world.arrive(patient(1));
    world.arrive(patient(2));
    let actions = world.fail(1, EngineFault::Refused);
    assert_eq!((ejected(&actions), wakes(&actions)), (vec![awake], vec![1 - awake]));
    assert_eq!(view(&world).state, PoolStatus::Starting);
}
