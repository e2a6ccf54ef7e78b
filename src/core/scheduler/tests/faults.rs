//! Tests of faults: their effect on jobs and on replicas.

use std::time::Duration;

use crate::model::event::{Action, EngineFault, Event, JobAction, OrderReason, RejectReason, ReplicaAction};
use crate::model::ids::{JobId, PoolId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;
use crate::queue::drain::retry_after::{MAX_RETRY_AFTER, spread};
use crate::scheduler::tests::{World, ejected, placed, policy, rejected, sent, spec};

#[test]
fn a_failed_job_goes_elsewhere_before_the_others() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    world.arrive(spec(3));
    world.now = Tick::from_millis(10);
    let actions = world.fail(1, EngineFault::Reset);
    let (job, replica) = (JobId::new(1), ReplicaId::new(0));
    assert_eq!(
        actions,
        [
            Action::Job(JobAction::Requeue { job, replica, why: EngineFault::Reset }),
            Action::Replica(ReplicaAction::Eject { replica, why: EngineFault::Reset })
        ]
    );
    world.now = Tick::from_millis(15);
    let actions = world.done(2);
    assert_eq!(sent(&actions), [(1, 1)]);
    let why = placed(&actions);
    assert_eq!((why.order, why.attempt, why.queued), (OrderReason::Requeued, 2, Duration::from_millis(5)));
}

#[test]
fn a_job_waits_for_an_untried_replica_and_blocks_nobody() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    world.arrive(spec(3));
    let actions = world.fail(1, EngineFault::Malformed);
    assert_eq!(sent(&actions), [(3, 0)], "the lane goes on at the replica that failed the first");
    assert_eq!(sent(&world.done(2)), [(1, 1)]);
}

#[test]
fn with_every_live_replica_tried_it_may_go_back() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(spec(1));
    assert_eq!(sent(&world.fail(1, EngineFault::Malformed)), [(1, 0)]);
    world.fail(1, EngineFault::Refused);
    assert_eq!(world.state(0), Some(ReplicaStatus::Ejected));
    assert!(world.at(200).contains(&Action::Replica(ReplicaAction::Probe { replica: ReplicaId::new(0) })));
    let actions = world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) });
    let readmit = Action::Replica(ReplicaAction::Readmit {
        replica: ReplicaId::new(0),
        after: Duration::from_millis(200),
    });
    assert_eq!(actions[0], readmit);
    assert_eq!(sent(&actions), [(1, 0)]);
}

#[test]
fn with_no_replica_up_it_waits_until_its_deadline() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(JobSpec { deadline: Tick::from_millis(900), ..spec(1) });
    world.fail(1, EngineFault::Refused);
    assert_eq!(rejected(&world.at(899)), []);
    let (_, why) = rejected(&world.at(900))[0];
    assert_eq!(why.reason, RejectReason::DeadlineExceeded);
    let longest = spread(MAX_RETRY_AFTER, JobId::new(1));
    assert_eq!(why.retry_after, Some(longest), "a try that failed drained nothing");
}

#[test]
fn attempts_are_counted_and_end() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.retry.max_attempts = 2;
    let mut world = World::new(rules);
    world.arrive(spec(1));
    world.fail(1, EngineFault::Busy { retry_after: None });
    assert_eq!(sent(&world.at(250)), [(1, 0)], "busy does not count");
    assert_eq!(sent(&world.fail(1, EngineFault::Malformed)), [(1, 0)]);
    let refused = rejected(&world.fail(1, EngineFault::Malformed));
    assert_eq!(refused[0].1.reason, RejectReason::AttemptsExhausted(EngineFault::Malformed));
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn after_the_first_token_the_job_just_ends() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(1));
    world.event(Event::FirstToken { job: JobId::new(1) });
    let replica = ReplicaId::new(0);
    assert_eq!(
        world.fail(1, EngineFault::Reset),
        [Action::Replica(ReplicaAction::Eject { replica, why: EngineFault::Reset })]
    );
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn busy_keeps_work_away_without_ejection() {
    let mut world = World::new(policy(&[&[4]], &[&[0]]));
    world.arrive(spec(1));
    let actions = world.fail(1, EngineFault::Busy { retry_after: Some(Duration::from_secs(2)) });
    assert_eq!((ejected(&actions).len(), sent(&actions).len()), (0, 0));
    assert_eq!(world.state(0), Some(ReplicaStatus::Busy));
    assert_eq!(world.scheduler.next_deadline(), Some(Tick::from_millis(2000)));
    assert_eq!(sent(&world.at(2000)), [(1, 0)]);
}

#[test]
fn one_poisonous_job_ejects_one_replica() {
    for fault in [
        EngineFault::ServerError,
        EngineFault::Aborted,
        EngineFault::ErrorEvent,
        EngineFault::Reset,
        EngineFault::Silent,
    ] {
        let mut world = World::new(policy(&[&[2, 2, 2, 2]], &[&[0]]));
        world.arrive(spec(1));
        let mut out = Vec::new();
        for _ in 0..4 {
            out.extend(world.fail(1, fault));
        }
        assert_eq!(ejected(&out).len(), 1, "{fault:?}");
        assert_eq!(rejected(&out)[0].1.reason, RejectReason::AttemptsExhausted(fault));
    }
}

#[test]
fn a_dead_fleet_is_ejected_whole_and_costs_no_attempts() {
    let mut world = World::new(policy(&[&[2, 2, 2, 2, 2, 2]], &[&[0]]));
    world.arrive(spec(1));
    let mut out = Vec::new();
    for _ in 0..6 {
        out.extend(world.fail(1, EngineFault::Refused));
    }
    assert_eq!(ejected(&out).len(), 6);
    assert_eq!((rejected(&out).len(), world.scheduler.unfinished()), (0, 1));
}

#[test]
fn old_streams_do_not_eject_what_came_back() {
    let mut world = World::new(policy(&[&[4]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    world.event(Event::FirstToken { job: JobId::new(2) });
    assert_eq!(ejected(&world.fail(1, EngineFault::Reset)), [0]);
    world.at(200);
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) });
    assert!(ejected(&world.fail(2, EngineFault::Silent)).is_empty());
    assert_eq!(world.state(0), Some(ReplicaStatus::SlowStart));
}

#[test]
fn it_comes_back_slowly() {
    let mut world = World::new(policy(&[&[16]], &[&[0]]));
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: true });
    for id in 0..16 {
        world.arrive(spec(id));
    }
    world.at(200);
    let mut total = sent(&world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) })).len();
    assert_eq!(total, 2);
    let mut steps = 0;
    while total < 16 {
        world.now = world.scheduler.next_deadline().expect("a step of the slow start");
        let more = sent(&world.event(Event::Timer)).len();
        total += more;
        steps += u32::from(more > 0);
    }
    assert_eq!(steps, 7);
    assert_eq!(world.now, Tick::from_millis(5200));
    assert_eq!(world.state(0), Some(ReplicaStatus::Serving));
}

#[test]
fn scrapes_neither_eject_nor_admit() {
    let mut world = World::new(policy(&[&[4]], &[&[0]]));
    let report = Event::ReplicaReported { replica: ReplicaId::new(0), report: Default::default() };
    assert_eq!(world.event(report.clone()), []);
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: true });
    assert_eq!(world.event(report), []);
    assert_eq!(world.state(0), Some(ReplicaStatus::Ejected));
}

#[test]
fn unknown_replicas_are_ignored() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    for index in [5, u32::MAX] {
        let replica = ReplicaId::new(index);
        assert_eq!(world.event(Event::ReplicaLost { replica, answers: true }), []);
        assert_eq!(world.event(Event::ProbeSucceeded { replica }), []);
        assert_eq!(world.event(Event::ReplicaReported { replica, report: Default::default() }), []);
    }
    assert_eq!(world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) }), []);
}

#[test]
fn a_late_retry_has_one_chance_at_once() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(JobSpec { deadline: Tick::from_millis(10), ..spec(1) });
    world.now = Tick::from_millis(50);
    assert_eq!(sent(&world.fail(1, EngineFault::Reset)), [(1, 1)]);
    let actions = world.fail(1, EngineFault::Refused);
    assert_eq!(rejected(&actions)[0].1.reason, RejectReason::DeadlineExceeded);
}

#[test]
fn with_the_last_untried_replica_gone_a_tried_one_will_do() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    assert_eq!(sent(&world.fail(1, EngineFault::Malformed)), [], "it waits for the other one");
    let actions = world.event(Event::ReplicaLost { replica: ReplicaId::new(1), answers: true });
    assert_eq!((ejected(&actions), sent(&actions)), (vec![1], vec![(1, 0)]));
}

#[test]
fn a_failed_probe_is_followed_by_a_later_one() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    let replica = ReplicaId::new(0);
    world.event(Event::ReplicaLost { replica, answers: true });
    assert_eq!(world.at(200), [Action::Replica(ReplicaAction::Probe { replica })]);
    assert_eq!(world.event(Event::ReplicaLost { replica, answers: true }), []);
    assert_eq!(world.at(599), []);
    assert_eq!(world.at(600), [Action::Replica(ReplicaAction::Probe { replica })]);
}

#[test]
fn a_replica_that_came_back_is_not_the_one_that_failed() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    assert_eq!(sent(&world.fail(1, EngineFault::Reset)), [], "the other one is full");
    world.at(200);
    assert_eq!(sent(&world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) })), [(1, 0)]);
}

#[test]
fn a_busy_replica_may_have_the_job_later() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    assert_eq!(sent(&world.fail(1, EngineFault::Busy { retry_after: None })), []);
    assert_eq!(sent(&world.at(250)), [(1, 0)]);
}

#[test]
fn an_engine_that_shuts_down_costs_no_attempt() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.retry.max_attempts = 2;
    let mut world = World::new(rules);
    world.arrive(spec(1));
    for round in 0..5 {
        let actions = world.fail(1, EngineFault::Draining);
        assert_eq!((ejected(&actions), rejected(&actions).len()), (vec![0], 0));
        world.at((round + 1) * 1000);
        assert_eq!(sent(&world.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) })), [(1, 0)]);
    }
}

#[test]
fn those_that_failed_together_do_not_meet_again() {
    let mut world = World::new(policy(&[&[8, 8, 8, 8]], &[&[0]]));
    // Three jobs at one replica: the others have too much to do.
    (1..=3).for_each(|id| _ = world.arrive(JobSpec { prompt_tokens: 100_000, ..spec(id) }));
    world.at(9_900);
    (1..=3).for_each(|id| _ = world.event(Event::FirstToken { job: JobId::new(id) }));
    let places = |actions: &[Action]| sent(actions).into_iter().map(|(_, replica)| replica).collect();
    let together: Vec<_> = (4..=6).flat_map(|id| -> Vec<u32> { places(&world.arrive(spec(id))) }).collect();
    assert_eq!(together, [together[0]; 3]);
    let mut apart: Vec<_> =
        (4..=6).flat_map(|id| -> Vec<u32> { places(&world.fail(id, EngineFault::Reset)) }).collect();
    apart.sort_unstable();
    let others: Vec<_> = (0..4).filter(|replica| *replica != together[0]).collect();
    assert_eq!(apart, others);
    // With more of them than replicas, they still do not wait.
    for id in 7..=12 {
        world.arrive(spec(id));
        assert_eq!(sent(&world.fail(id, EngineFault::Malformed)).len(), 1);
    }
}

/// Six jobs, one at each of six replicas.
fn spread_out() -> World {
    let mut world = World::new(policy(&[&[1, 1, 1, 1, 1, 1]], &[&[0]]));
    (0..6).for_each(|id| _ = world.arrive(spec(id)));
    world
}

#[test]
fn replicas_that_answer_badly_leave_no_more_than_their_share_of_a_pool() {
    let mut world = spread_out();
    let mut out: Vec<Action> = (0..6).flat_map(|id| world.fail(id, EngineFault::ServerError)).collect();
    assert_eq!(ejected(&out).len(), 3, "half of six");
    let spared = out
        .iter()
        .filter(|action| matches!(action, Action::Replica(ReplicaAction::WithholdEjection { .. })))
        .count();
    assert_eq!(spared, 3);
    let states: Vec<_> = (0..6).filter_map(|id| world.state(id)).collect();
    assert_eq!(states.iter().filter(|state| **state == ReplicaStatus::Busy).count(), 3, "{states:?}");
    assert!(
        !out.iter().any(|action| matches!(action, Action::Replica(ReplicaAction::PoolDown { .. }))),
        "it is still served"
    );
    out = world.at(250);
    assert_eq!(sent(&out).len(), 3, "one job tries each of those that only paused");
}

#[test]
fn replicas_that_do_not_answer_leave_whatever_their_share() {
    for fault in [EngineFault::Refused, EngineFault::Reset, EngineFault::Draining] {
        let mut world = spread_out();
        let out: Vec<Action> = (0..6).flat_map(|id| world.fail(id, fault)).collect();
        assert_eq!(ejected(&out).len(), 6, "{fault:?}");
        let down = Action::Replica(ReplicaAction::PoolDown { pool: PoolId::new(0), why: fault });
        assert_eq!(out.iter().filter(|action| **action == down).count(), 1, "{fault:?}: said once");
    }
}

#[test]
fn one_replica_may_always_be_ejected_and_that_it_was_the_last_is_said() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.health.max_ejected_permille = 0;
    let mut world = World::new(rules);
    world.arrive(spec(1));
    let out = world.fail(1, EngineFault::ServerError);
    assert_eq!(ejected(&out), [0]);
    assert!(out.contains(&Action::Replica(ReplicaAction::PoolDown {
        pool: PoolId::new(0),
        why: EngineFault::ServerError
    })));
}
