//! Basic tests: arrival, order, credit, bounds, deadlines.

use std::time::Duration;

use crate::model::event::{AttemptOutcome, Event, OrderReason, QueueBound, RejectReason, ReplicaReport};
use crate::model::ids::{ClassId, JobId, ModelId, PoolId, ReplicaId};
use crate::model::job::{JobSpec, JobUsage};
use crate::model::policy::{Pool, QueueBounds, Replica, Tenant};
use crate::model::time::Tick;
use crate::scheduler::dispatch::hold::MAX_PASSED_OVER;
use crate::scheduler::tests::{World, of_tenant, placed, policy, rejected, sent, spec, tenant, used};

#[test]
fn an_idle_replica_takes_a_job_at_once() {
    let mut world = World::new(policy(&[&[2, 2]], &[&[0]]));
    let actions = world.arrive(spec(1));
    assert_eq!(sent(&actions), [(1, 0)]);
    let why = placed(&actions);
    assert_eq!(
        (why.queued, why.attempt, why.behind, why.candidates, why.running, why.limit, why.order),
        (Duration::ZERO, 1, 0, 2, 0, 2, OrderReason::Alone)
    );
    assert_eq!(sent(&world.arrive(spec(2))), [(2, 1)], "least outstanding work");
    let actions = world.arrive(spec(3));
    assert_eq!(placed(&actions).outstanding_tokens, 20);
    assert_eq!(placed(&actions).running, 1);
}

#[test]
fn a_job_waits_for_credit_and_goes_in_order() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(spec(1));
    for id in 2..5 {
        assert_eq!(world.arrive(spec(id)), []);
    }
    world.now = Tick::from_millis(30);
    let actions = world.done(1);
    assert_eq!(sent(&actions), [(2, 0)]);
    let why = placed(&actions);
    assert_eq!((why.queued, why.behind, why.order), (Duration::from_millis(30), 2, OrderReason::Fair));
    assert_eq!(sent(&world.done(2)), [(3, 0)]);
}

#[test]
fn leaving_frees_everything_in_any_phase() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    world.arrive(spec(3));
    let leave = |world: &mut World, id| {
        world.event(Event::Abandoned { job: JobId::new(id), usage: JobUsage::Unknown })
    };
    assert_eq!(leave(&mut world, 2), []);
    assert_eq!(sent(&leave(&mut world, 1)), [(3, 0)]);
    assert_eq!(leave(&mut world, 3), []);
    assert_eq!(leave(&mut world, 3), [], "a second end is ignored");
    assert_eq!(world.done(3), []);
    assert_eq!(world.scheduler.unfinished(), 0);
    assert_eq!(world.scheduler.next_deadline(), None);
}

#[test]
fn a_double_arrival_is_one_job() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    assert_eq!(sent(&world.arrive(spec(1))).len(), 1);
    assert_eq!(world.arrive(spec(1)), []);
    assert_eq!(world.scheduler.unfinished(), 1);
}

#[test]
fn first_class_goes_first_and_tenants_take_turns() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(spec(1));
    let second = |id, tenant| JobSpec { class: ClassId::new(1), ..of_tenant(id, tenant) };
    world.arrive(second(2, 1));
    for (id, tenant) in [(3, 0), (4, 0), (5, 0), (6, 1), (7, 1)] {
        world.arrive(of_tenant(id, tenant));
    }
    let mut order = Vec::new();
    let mut running = 1;
    while let Some(&(job, _)) = sent(&world.done(running)).first() {
        order.push(job);
        running = job;
    }
    assert_eq!(order, [6, 3, 7, 4, 5, 2]);
}

#[test]
fn a_head_that_does_not_fit_blocks_nobody() {
    let mut world = World::new(policy(&[&[4], &[1]], &[&[0], &[1]]));
    world.arrive(JobSpec { sequences: 3, ..spec(1) });
    assert_eq!(world.arrive(JobSpec { sequences: 2, ..spec(2) }), [], "its lane waits for room");
    assert_eq!(sent(&world.arrive(of_tenant(3, 1))), [(3, 0)], "a smaller one of another tenant goes");
    let other = JobSpec { model: ModelId::new(1), ..spec(4) };
    assert_eq!(sent(&world.arrive(other)), [(4, 1)]);
    world.arrive(spec(5));
    assert_eq!(sent(&world.done(1)), [(2, 0), (5, 0)]);
}

#[test]
fn a_large_job_is_passed_over_only_so_often() {
    let mut world = World::new(policy(&[&[8]], &[&[0]]));
    for id in 0..8 {
        world.arrive(of_tenant(id, 1));
    }
    world.arrive(JobSpec { sequences: 8, ..spec(1000) });
    for id in 8..200 {
        world.arrive(of_tenant(id, 1));
    }
    let mut running: Vec<u64> = (0..8).collect();
    let mut passes = 0;
    loop {
        let next = sent(&world.done(running.remove(0)));
        if next == [(1000, 0)] {
            break;
        }
        passes += next.len() as u32;
        running.extend(next.iter().map(|(job, _)| *job));
        assert!(!running.is_empty(), "the replica drains for the large job");
    }
    assert_eq!(passes, MAX_PASSED_OVER);
    assert_eq!(sent(&world.done(1000)).len(), 8, "and then serves the others");
}

#[test]
fn a_hold_ends_when_its_job_leaves() {
    let mut world = World::new(policy(&[&[2]], &[&[0]]));
    world.arrive(of_tenant(0, 1));
    world.arrive(of_tenant(1, 1));
    world.arrive(JobSpec { sequences: 2, deadline: Tick::from_millis(500), ..spec(1000) });
    let total = u64::from(MAX_PASSED_OVER) + 10;
    for id in 2..total {
        world.arrive(of_tenant(id, 1));
    }
    let mut running = vec![0, 1];
    for _ in 0..=MAX_PASSED_OVER {
        let next = sent(&world.done(running.remove(0)));
        running.extend(next.iter().map(|(job, _)| *job));
    }
    assert_eq!(running.len(), 1, "held");
    let actions = world.at(500);
    assert_eq!(rejected(&actions)[0].1.reason, RejectReason::DeadlineExceeded);
    assert_eq!(sent(&actions).len(), 1, "let go at the same moment");
}

#[test]
fn a_job_larger_than_a_replica_runs_alone() {
    let mut rules = policy(&[&[2]], &[&[0]]);
    rules.replicas.insert("p0/r0", Replica { pool: PoolId::new(0), max_seqs: Some(2), kv_tokens: Some(30) });
    let mut world = World::new(rules);
    world.arrive(spec(1));
    assert_eq!(world.arrive(JobSpec { prompt_tokens: 100, ..spec(2) }), []);
    assert_eq!(sent(&world.done(1)), [(2, 0)]);
    assert_eq!(world.arrive(spec(3)), []);
    assert_eq!(sent(&world.done(2)), [(3, 0)]);
}

#[test]
fn known_kv_bounds_what_a_replica_takes() {
    let mut rules = policy(&[&[9]], &[&[0]]);
    rules.replicas.insert("p0/r0", Replica { pool: PoolId::new(0), max_seqs: None, kv_tokens: Some(50) });
    let mut world = World::new(rules);
    assert_eq!(sent(&world.arrive(spec(1))).len(), 1);
    assert_eq!(sent(&world.arrive(spec(2))).len(), 1);
    assert_eq!(world.arrive(spec(3)), [], "40 of 50 are booked and it needs 20");
    let small = JobSpec { prompt_tokens: 10, max_output_tokens: 0, ..of_tenant(4, 1) };
    assert_eq!(sent(&world.arrive(small)).len(), 1);
    assert_eq!(world.scheduler.snapshot(world.now).replicas[0].kv_tokens, 50);
    assert_eq!(sent(&world.done(1)), [(3, 0)]);
}

#[test]
fn a_first_token_ends_the_prefill() {
    let mut world = World::new(policy(&[&[9]], &[&[0]]));
    world.arrive(spec(1));
    assert_eq!(world.scheduler.snapshot(world.now).replicas[0].prefill_tokens, 10);
    for _ in 0..2 {
        world.event(Event::FirstToken { job: JobId::new(1) });
        assert_eq!(world.scheduler.snapshot(world.now).replicas[0].prefill_tokens, 0);
    }
}

#[test]
fn bounds_are_about_what_waits() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    let bounds = QueueBounds { requests: 1, ..QueueBounds::default() };
    rules.tenants.insert("a", Tenant { bounds, ..tenant(1.0) });
    rules.bounds = QueueBounds { bytes: 250, ..QueueBounds::default() };
    let mut world = World::new(rules);
    assert!(world.scheduler.can_queue());
    assert_eq!(sent(&world.arrive(spec(1))).len(), 1);
    assert_eq!(world.arrive(spec(2)), []);
    let refused = rejected(&world.arrive(spec(3)));
    assert_eq!(refused[0].1.reason, RejectReason::TenantQueueFull(QueueBound::Requests));
    let retry_after = refused[0].1.retry_after.expect("worth another try");
    assert!((1..=60).contains(&retry_after.as_secs()), "{retry_after:?}");
    assert_eq!(world.arrive(of_tenant(4, 1)), []);
    let refused = rejected(&world.arrive(of_tenant(5, 2)));
    assert_eq!(refused[0].1.reason, RejectReason::QueueFull(QueueBound::Bytes));
    world.arrive(JobSpec { bytes: 50, ..of_tenant(6, 2) });
    assert!(!world.scheduler.can_queue());
    assert_eq!(sent(&world.done(1)).len(), 1);
    assert!(world.scheduler.can_queue());
}

#[test]
fn a_queue_of_nothing_still_serves() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.bounds = QueueBounds { requests: 0, bytes: 0, tokens: 0 };
    let mut world = World::new(rules);
    assert!(world.scheduler.can_queue());
    assert_eq!(sent(&world.arrive(spec(1))).len(), 1);
    assert_eq!(rejected(&world.arrive(spec(2)))[0].1.reason, RejectReason::QueueFull(QueueBound::Requests));
}

#[test]
fn a_deadline_ends_the_wait() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(spec(1));
    world.event(Event::FirstToken { job: JobId::new(1) });
    world.arrive(JobSpec { deadline: Tick::from_millis(50), ..spec(2) });
    world.arrive(JobSpec { deadline: Tick::from_millis(70), ..spec(3) });
    assert_eq!(world.scheduler.next_deadline(), Some(Tick::from_millis(50)));
    assert_eq!(world.at(49), []);
    let refused = rejected(&world.at(50));
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].0, refused[0].1.reason), (2, RejectReason::DeadlineExceeded));
    assert_eq!(refused[0].1.queued, Duration::from_millis(50));
    world.now = Tick::from_millis(71);
    let actions = world.done(1);
    assert_eq!((sent(&actions).len(), rejected(&actions).len()), (0, 1), "late is late");
    let refused = rejected(&world.arrive(JobSpec { deadline: Tick::from_millis(70), ..spec(4) }));
    assert_eq!(refused[0].1.reason, RejectReason::DeadlineExceeded);
    assert_eq!(sent(&world.arrive(JobSpec { deadline: Tick::from_millis(71), ..spec(5) })).len(), 1);
}

#[test]
fn what_the_policy_does_not_know_is_refused() {
    let mut world = World::new(policy(&[&[1]], &[&[0], &[9]]));
    let reason = |world: &mut World, spec| rejected(&world.arrive(spec))[0].1;
    let no_pool = reason(&mut world, JobSpec { model: ModelId::new(1), ..spec(1) });
    assert_eq!((no_pool.reason, no_pool.retry_after), (RejectReason::NoPool, None));
    assert_eq!(
        reason(&mut world, JobSpec { model: ModelId::new(7), ..spec(2) }).reason,
        RejectReason::NoPool
    );
    assert_eq!(reason(&mut world, of_tenant(3, 77)).reason, RejectReason::Withdrawn);
    assert_eq!(
        reason(&mut world, JobSpec { class: ClassId::new(9), ..spec(4) }).reason,
        RejectReason::Withdrawn
    );
}

#[test]
fn a_drain_lets_the_queue_end() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(spec(2));
    world.event(Event::Draining);
    assert!(!world.scheduler.can_queue());
    assert_eq!(rejected(&world.arrive(spec(3)))[0].1.reason, RejectReason::Draining);
    assert_eq!(sent(&world.done(1)), [(2, 0)]);
}

#[test]
fn hostile_numbers_do_no_harm() {
    let mut world = World::new(policy(&[&[3]], &[&[0]]));
    let huge = |id| JobSpec {
        prompt_tokens: u64::MAX,
        max_output_tokens: u64::MAX,
        sequences: u32::MAX,
        bytes: u64::MAX,
        deadline: Tick::NEVER,
        ..spec(id)
    };
    for id in 0..5 {
        world.arrive(huge(id));
    }
    world.arrive(JobSpec { sequences: 0, ..spec(9) });
    world.done(9);
    for _ in 0..5 {
        for id in (0..5).chain([9]) {
            world.finish(id, AttemptOutcome::Done(used(u64::MAX, u64::MAX)));
        }
    }
    world.event(Event::ReplicaReported {
        replica: ReplicaId::new(0),
        report: ReplicaReport {
            running: Some(u64::MAX),
            waiting: Some(u64::MAX),
            kv_usage: Some(f64::NAN),
            slots: Some(0),
            kv_tokens: Some(0),
            ..ReplicaReport::default()
        },
    });
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn reports_set_limits_where_nothing_is_configured() {
    let mut rules = policy(&[&[9]], &[&[0]]);
    rules.replicas.insert("p0/r0", Replica { pool: PoolId::new(0), max_seqs: None, kv_tokens: None });
    let mut world = World::new(rules);
    let report = |report| Event::ReplicaReported { replica: ReplicaId::new(0), report };
    world.event(report(ReplicaReport { slots: Some(1), ..ReplicaReport::default() }));
    world.arrive(spec(1));
    assert_eq!(world.arrive(spec(2)), []);
    let actions = world.event(report(ReplicaReport {
        slots: Some(2),
        kv_tokens: Some(1000),
        ..ReplicaReport::default()
    }));
    assert_eq!(sent(&actions), [(2, 0)], "new credit is used at once");
    let view = &world.scheduler.snapshot(Tick::from_millis(5)).replicas[0];
    assert_eq!((view.limit, view.report_age), (2, Some(Duration::from_millis(5))));
}

#[test]
fn an_engine_buffer_adds_to_the_limit() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    let replicas = vec![ReplicaId::new(0)];
    rules.pools.insert("p0", Pool { replicas, engine_buffer: 1, ..Pool::default() });
    let mut world = World::new(rules);
    assert_eq!(sent(&world.arrive(spec(1))).len() + sent(&world.arrive(spec(2))).len(), 2);
    assert_eq!(world.arrive(spec(3)), []);
}

#[test]
fn credit_that_comes_at_the_deadline_is_in_time() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(spec(1));
    world.arrive(JobSpec { deadline: Tick::from_millis(50), ..spec(2) });
    world.now = Tick::from_millis(50);
    assert_eq!(sent(&world.done(1)), [(2, 0)]);
}

#[test]
fn idle_replicas_take_turns() {
    let mut world = World::new(policy(&[&[2, 2, 2]], &[&[0]]));
    let mut seen = Vec::new();
    for id in 0..6 {
        seen.extend(sent(&world.arrive(spec(id))).iter().map(|(_, replica)| *replica));
        world.done(id);
    }
    assert_eq!(seen, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_tenant_is_ranked_anew_in_every_line() {
    let mut world = World::new(policy(&[&[1], &[1]], &[&[0], &[1], &[0, 1]]));
    let of = |id, tenant, model| JobSpec { model: ModelId::new(model), ..of_tenant(id, tenant) };
    for (id, tenant, model) in [(0, 3, 0), (1, 3, 1), (2, 0, 0), (3, 1, 1), (4, 1, 1), (5, 1, 1)] {
        world.arrive(of(id, tenant, model));
    }
    world.done(1);
    world.done(3);
    world.done(4);
    world.arrive(of(6, 1, 1));
    world.arrive(of(7, 0, 1));
    assert_eq!(world.scheduler.waiting().requests, 3);
}

#[test]
fn learned_output_lengths_decide_what_fits() {
    let mut rules = policy(&[&[9]], &[&[0]]);
    rules.replicas.insert("p0/r0", Replica { pool: PoolId::new(0), max_seqs: None, kv_tokens: Some(100) });
    let mut world = World::new(rules);
    let long = |id| JobSpec { max_output_tokens: 80, ..spec(id) };
    world.arrive(long(0));
    assert_eq!(world.arrive(long(1)), [], "90 of 100 are booked");
    world.arrive(long(2));
    assert_eq!(sent(&world.done(0)).len(), 2, "20 each, as the first one had");
}

#[test]
fn an_engine_that_holds_requests_back_gets_fewer() {
    let mut rules = policy(&[&[9]], &[&[0]]);
    rules.replicas.insert("p0/r0", Replica { pool: PoolId::new(0), max_seqs: None, kv_tokens: None });
    let mut world = World::new(rules);
    for id in 0..10 {
        world.arrive(spec(id));
        world.event(Event::FirstToken { job: JobId::new(id) });
    }
    let report = ReplicaReport { running: Some(4), waiting: Some(6), ..ReplicaReport::default() };
    for _ in 0..2 {
        world.event(Event::ReplicaReported { replica: ReplicaId::new(0), report });
    }
    assert_eq!(world.scheduler.snapshot(world.now).replicas[0].limit, 4);
    assert_eq!(world.arrive(spec(10)), []);
}

#[test]
fn time_never_goes_back() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.at(100);
    world.now = Tick::from_millis(50);
    let refused = rejected(&world.arrive(JobSpec { deadline: Tick::from_millis(70), ..spec(1) }));
    assert_eq!(refused[0].1.reason, RejectReason::DeadlineExceeded);
}
