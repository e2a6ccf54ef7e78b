//! Tests of retry storms: all engines fail every request for a while.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::{Just, ProptestConfig, prop, prop_assert, prop_oneof, proptest};

use crate::model::event::{
    Action, AttemptOutcome, DispatchGrant, EngineFault, Event, JobAction, RejectReason, ReplicaAction,
};
use crate::model::ids::{JobId, ReplicaId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::model::policy::RetryPolicy;
use crate::model::time::Tick;
use crate::scheduler::Scheduler;
use crate::scheduler::tests::{World, policy, rejected, sent, spec, used};

const STORM_ENDS: u64 = 20_000;
/// An engine's first token after so many milliseconds.
const FIRST_TOKEN: u64 = 50;
const BUSY: EngineFault = EngineFault::Busy { retry_after: None };

/// Engines that all do the same wrong, while their probes succeed.
#[derive(Debug, Clone)]
struct Storm {
    /// The sequence limits of the replicas.
    limits: Vec<u32>,
    /// One job each so many milliseconds.
    every: u64,
    /// After a millisecond; absent = nothing comes at all.
    fault: Option<EngineFault>,
    /// Whether they work for a second before it.
    begins_well: bool,
}

/// What came of the storm.
#[derive(Debug)]
struct After {
    jobs: u64,
    tries: u64,
    spent: u64,
    /// When the last replica had its first answer, milliseconds.
    recovered: u64,
    waiting: usize,
}

fn answer(scheduler: &mut Scheduler, now: Tick, job: JobId, out: &mut Vec<Action>) {
    scheduler.handle(now, Event::FirstToken { job }, out);
    let outcome = AttemptOutcome::Done(used(10, 1));
    scheduler.handle(now, Event::Finished { job, outcome }, out);
}

/// Steps of a millisecond.
fn storm(storm: &Storm) -> After {
    let mut scheduler = Scheduler::new(Arc::new(policy(&[&storm.limits], &[&[0]])));
    let (mut running, mut failing) = (BTreeMap::new(), Vec::new());
    let mut answers: VecDeque<(u64, JobId)> = VecDeque::new();
    let mut probes: Vec<ReplicaId> = Vec::new();
    let mut after = After { jobs: 0, tries: 0, spent: 0, recovered: 0, waiting: 0 };
    let mut answered = vec![None; storm.limits.len()];
    let mut out = Vec::new();
    for millis in 0..STORM_ENDS + 30_000 {
        let now = Tick::from_millis(millis);
        let storms = (if storm.begins_well { 1000 } else { 0 }..STORM_ENDS).contains(&millis);
        if millis % storm.every == 0 {
            after.jobs += 1;
            scheduler.handle(now, Event::Arrived(spec(after.jobs), PromptPrefix::default()), &mut out);
        }
        if scheduler.next_deadline().is_some_and(|at| at <= now) {
            scheduler.handle(now, Event::Timer, &mut out);
        }
        let asked = std::mem::take(&mut probes).into_iter();
        asked.for_each(|replica| scheduler.handle(now, Event::ProbeSucceeded { replica }, &mut out));
        for (job, fault) in std::mem::take(&mut failing) {
            running.remove(&job);
            let outcome = AttemptOutcome::Failed { fault, usage: JobUsage::Unknown };
            scheduler.handle(now, Event::Finished { job, outcome }, &mut out);
        }
        if millis == STORM_ENDS {
            answers.extend(running.keys().map(|job| (millis + FIRST_TOKEN, *job)));
        }
        while answers.front().is_some_and(|(at, _)| *at <= millis)
            && let Some((_, job)) = answers.pop_front()
        {
            let Some(replica): Option<ReplicaId> = running.remove(&job) else { continue };
            answer(&mut scheduler, now, job, &mut out);
            let first = &mut answered[replica.index()];
            *first = first.or((millis >= STORM_ENDS).then_some(millis));
        }
        for action in out.drain(..) {
            match action {
                Action::Job(JobAction::Dispatch(DispatchGrant { job, replica, .. })) => {
                    after.tries += 1;
                    running.insert(job, replica);
                    match storm.fault.filter(|_| storms) {
                        Some(fault) => failing.push((job, fault)),
                        None if storms => {}
                        None => answers.push_back((millis + FIRST_TOKEN, job)),
                    }
                }
                Action::Job(JobAction::Preempt { job, .. }) => drop(running.remove(&job)),
                Action::Job(JobAction::Reject { why, .. }) => {
                    assert!(why.retry_after.is_some());
                    after.spent += u64::from(matches!(why.reason, RejectReason::RetryBudgetSpent(_)));
                }
                Action::Replica(ReplicaAction::Probe { replica }) => probes.push(replica),
                _ => {}
            }
        }
    }
    assert_eq!(scheduler.audit(), []);
    let recovered = answered.into_iter().map(|at| at.expect("every replica serves again")).max();
    let waiting = scheduler.unfinished() as usize - running.len();
    After { recovered: recovered.expect("replicas"), waiting, ..after }
}

#[test]
fn engines_that_refuse_all_are_not_asked_by_everybody() {
    for retry_after in [None, Some(Duration::from_millis(100)), Some(Duration::from_secs(1))] {
        let fault = Some(EngineFault::Busy { retry_after });
        let after = storm(&Storm { limits: vec![16; 8], every: 10, fault, begins_well: false });
        assert!(after.tries * 10 <= after.jobs * 12, "{after:?}");
        assert!(after.recovered <= STORM_ENDS + 5_000, "{after:?}");
        assert_eq!((after.waiting, after.spent), (0, 0), "the queue is empty again");
    }
}

/// First tries, the share of them that may be repeated, what is always allowed,
/// and once what all replicas hold.
fn bound(storm: &Storm, after: &After) -> u64 {
    let rules = RetryPolicy::default();
    let share = after.jobs * u64::from(rules.budget_permille) / 1000;
    let floor = u64::from(rules.budget_floor) * (STORM_ENDS / 10_000 + 2);
    after.jobs + share.max(floor) + storm.limits.iter().map(|limit| u64::from(*limit)).sum::<u64>()
}

#[test]
fn engines_that_fail_all_are_not_stormed() {
    let faults = [
        EngineFault::ServerError,
        EngineFault::Reset,
        EngineFault::Aborted,
        EngineFault::Malformed,
        EngineFault::Silent,
    ];
    for fault in faults.map(Some).into_iter().chain([None]) {
        for begins_well in [false, true] {
            let world = Storm { limits: vec![16; 8], every: 10, fault, begins_well };
            let after = storm(&world);
            assert!(after.tries <= bound(&world, &after), "{world:?} {after:?}");
            assert!(fault.is_none() || after.spent > 0, "{world:?} {after:?}");
            assert!(after.recovered <= STORM_ENDS + 12_000, "{world:?} {after:?}");
            assert_eq!(after.waiting, 0, "{world:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn whatever_fails_for_whatever_fleet_the_tries_are_bounded(
        limits in prop::collection::vec(1u32..40, 1..12),
        every in 2u64..200,
        fault in prop_oneof![
            Just(Some(EngineFault::ServerError)), Just(Some(EngineFault::Reset)), Just(Some(EngineFault::Malformed)),
            Just(Some(EngineFault::ErrorEvent)), Just(None),
        ],
        begins_well: bool,
    ) {
        let world = Storm { limits, every, fault, begins_well };
        let after = storm(&world);
        prop_assert!(after.tries <= bound(&world, &after), "{world:?} {after:?}");
    }
}

/// All that one of two replicas had goes to the other, streams included.
#[test]
fn what_one_replica_loses_when_it_dies_is_no_storm() {
    const EACH: u64 = 300;
    for fault in [EngineFault::Reset, EngineFault::ServerError, EngineFault::Aborted, BUSY] {
        let mut world = World::new(policy(&[&[300, 300]], &[&[0]]));
        let mut at = BTreeMap::new();
        for id in 0..2 * EACH {
            let job = JobSpec { prompt_tokens: 1, resumable: true, ..spec(id) };
            let mut actions = world.arrive(job);
            actions.extend(world.event(Event::FirstToken { job: JobId::new(id) }));
            at.extend(sent(&actions));
        }
        let lost: Vec<u64> = at.iter().filter(|(_, replica)| **replica == 0).map(|(job, _)| *job).collect();
        assert!(lost.len() > 100, "{}", lost.len());
        for job in lost {
            assert_eq!(rejected(&world.interrupt(job, fault, 1)), [], "{job} {fault:?}");
        }
    }
}

#[test]
fn a_replica_that_has_given_nothing_since_it_came_back_does_not_fall_again() {
    let mut rules = policy(&[&[64, 64]], &[&[0]]);
    (rules.retry.budget_permille, rules.retry.budget_floor) = (0, 1);
    rules.health.slow_start = Duration::ZERO;
    let mut world = World::new(rules);
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: false });
    world.at(200);
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) });
    let jobs: Vec<u64> = (0..40).filter(|id| sent(&world.arrive(spec(*id))) == [(*id, 0)]).collect();
    assert!(jobs.len() > 2, "{jobs:?}");
    assert_eq!(rejected(&world.fail(jobs[0], EngineFault::Reset)), []);
    let refused = rejected(&world.fail(jobs[1], EngineFault::Reset));
    assert_eq!(refused[0].1.reason, RejectReason::RetryBudgetSpent(EngineFault::Reset));
    assert!(refused[0].1.retry_after.is_some());
    assert_eq!(rejected(&world.fail(jobs[2], EngineFault::Refused)), [], "the engine did nothing for it");
}

/// One engine that answers 20 jobs a second, and 15 come until the outage ends.
/// All have half a minute.
#[test]
fn an_outage_shorter_than_the_patience_costs_nobody_an_answer() {
    let mut scheduler = Scheduler::new(Arc::new(policy(&[&[1]], &[&[0]])));
    let (mut running, mut out) = (None, Vec::new());
    let mut probes: Vec<ReplicaId> = Vec::new();
    let (mut came, mut served) = (0, 0);
    for millis in (0..60_000_u64).step_by(5) {
        let now = Tick::from_millis(millis);
        let down = (20_000..35_000).contains(&millis);
        if millis % 65 == 0 && millis < 35_000 {
            came += 1;
            let job = JobSpec { arrived: now, deadline: now + Duration::from_secs(30), ..spec(came) };
            scheduler.handle(now, Event::Arrived(job, PromptPrefix::default()), &mut out);
        }
        if scheduler.next_deadline().is_some_and(|at| at <= now) {
            scheduler.handle(now, Event::Timer, &mut out);
        }
        let asked = std::mem::take(&mut probes).into_iter();
        asked.for_each(|replica| scheduler.handle(now, Event::ProbeSucceeded { replica }, &mut out));
        if let Some((job, _)) = running.take_if(|(_, ends)| down || *ends <= millis) {
            if down {
                let outcome = AttemptOutcome::Failed { fault: BUSY, usage: JobUsage::Unknown };
                scheduler.handle(now, Event::Finished { job, outcome }, &mut out);
            } else {
                answer(&mut scheduler, now, job, &mut out);
                served += 1;
            }
        }
        for action in out.drain(..) {
            match action {
                Action::Job(JobAction::Dispatch(grant)) => running = Some((grant.job, millis + 50)),
                Action::Job(JobAction::Reject { why, .. }) => panic!("{why:?} at {millis} ms"),
                Action::Replica(ReplicaAction::Probe { replica }) => probes.push(replica),
                _ => {}
            }
        }
    }
    assert_eq!((served, scheduler.unfinished()), (came, 0));
}
