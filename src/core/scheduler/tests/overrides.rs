//! Tests of overrides: cordons, drains, pauses and boosts.

use std::time::Duration;

use crate::model::event::{Action, Event, JobAction, RejectReason, ReplicaAction};
use crate::model::ids::{ClassId, JobId, PoolId, ReplicaId, TenantId};
use crate::model::job::JobSpec;
use crate::model::overrides::{Closed, Override, OverrideChange, OverrideTarget};
use crate::model::policy::{Class, Policy, Replica};
use crate::model::reason::PreemptReason;
use crate::model::snapshot::{Obstacle, ReplicaStatus};
use crate::model::time::Tick;
use crate::scheduler::tests::{World, class, of_tenant, policy, rejected, sent, spec};

impl World {
    /// Puts a measure in force until the moment.
    fn set(&mut self, measure: OverrideChange, until: Tick) -> Vec<Action> {
        self.event(Event::Overridden(Override { change: measure, until, reason: "a test".into() }))
    }

    fn close(&mut self, replica: u32, how: Closed) -> Vec<Action> {
        self.set(OverrideChange::CloseReplica(ReplicaId::new(replica), how), Tick::NEVER)
    }

    fn pause(&mut self, tenant: u32, until: Tick) -> Vec<Action> {
        self.set(OverrideChange::Pause(TenantId::new(tenant)), until)
    }

    fn restore(&mut self, target: OverrideTarget) -> Vec<Action> {
        self.event(Event::OverrideEnded(target))
    }

    fn in_force(&self) -> usize {
        self.scheduler.snapshot(self.now).overrides.len()
    }
}

fn recalls(actions: &[Action]) -> Vec<(u64, u32, PreemptReason)> {
    let row = |action: &Action| match action {
        Action::Job(JobAction::Preempt { job, replica, why }) => {
            Some((job.index() as u64, replica.index() as u32, *why))
        }
        _ => None,
    };
    actions.iter().filter_map(row).collect()
}

fn plain(id: u64) -> JobSpec {
    JobSpec { streams: false, ..spec(id) }
}

/// At replica 0: a stream with its first token, a plain answer, a stream
/// without; at replica 1, of another pool, nothing.
fn three_at_one() -> World {
    let mut rules = policy(&[&[4], &[2]], &[&[0, 1]]);
    rules.health.slow_start = Duration::ZERO;
    let mut world = World::new(rules);
    world.close(1, Closed::Cordoned);
    for (at, spec) in [(0, spec(1)), (20, plain(2)), (40, spec(3))] {
        world.at(at);
        let job = spec.id.index() as u64;
        assert_eq!(sent(&world.arrive(spec)), [(job, 0)]);
        if job == 1 {
            world.at(at + 15);
            world.event(Event::FirstToken { job: JobId::new(job) });
        }
    }
    world.restore(OverrideTarget::Replica(ReplicaId::new(1)));
    world
}

#[test]
fn a_drain_requeues_what_was_not_begun_and_lets_the_rest_finish() {
    let mut world = three_at_one();
    world.at(500);
    let actions = world.close(0, Closed::Drained);
    assert_eq!(recalls(&actions), [(3, 0, PreemptReason::Drained)]);
    assert_eq!(sent(&actions), [(3, 1)]);
    assert_eq!(world.state(0), Some(ReplicaStatus::Draining));
    assert_eq!(sent(&world.arrive(spec(4))), [(4, 1)]);
    for job in [1, 2, 3, 4] {
        world.done(job);
    }
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn a_plain_answer_counts_as_begun_when_its_first_token_is_due() {
    for (after, moved) in [(1, true), (500, false)] {
        let mut world = World::new(policy(&[&[4], &[4]], &[&[0, 1]]));
        world.close(1, Closed::Cordoned);
        world.arrive(plain(1));
        world.at(after);
        world.restore(OverrideTarget::Replica(ReplicaId::new(1)));
        let actions = world.close(0, Closed::SpotNotice);
        let expected = if moved { vec![(1, 0, PreemptReason::SpotNotice)] } else { vec![] };
        assert_eq!(recalls(&actions), expected);
    }
}

#[test]
fn a_cordon_takes_nothing_away_and_ends_at_its_time() {
    let mut world = three_at_one();
    world.at(500);
    let until = Tick::from_millis(10_000);
    let measure = OverrideChange::CloseReplica(ReplicaId::new(0), Closed::Cordoned);
    assert_eq!(world.set(measure, until), []);
    assert_eq!(world.state(0), Some(ReplicaStatus::Cordoned));
    assert_eq!(sent(&world.arrive(spec(4))), [(4, 1)]);
    for job in [1, 2, 3, 4] {
        world.done(job);
    }
    assert_eq!(world.at(9_999), []);
    assert_eq!(world.scheduler.next_deadline(), Some(until), "the core's own timer ends it");
    let actions = world.at(10_000);
    assert_eq!(actions, [Action::Replica(ReplicaAction::OverrideExpired { target: measure.target() })]);
    assert_eq!((world.in_force(), world.state(0)), (0, Some(ReplicaStatus::Serving)));
}

#[test]
fn the_last_replica_keeps_what_has_nowhere_to_go() {
    let mut world = World::new(policy(&[&[2]], &[&[0]]));
    world.arrive(spec(1));
    assert_eq!(world.close(0, Closed::Drained), []);
    assert_eq!(world.arrive(spec(2)), []);
    world.done(1);
    assert_eq!(sent(&world.restore(OverrideTarget::Replica(ReplicaId::new(0)))), [(2, 0)]);
}

#[test]
fn a_pool_closes_with_what_joins_it_and_over_a_reload() {
    let mut world = World::new(policy(&[&[4, 4], &[4]], &[&[0, 1]]));
    world.set(OverrideChange::ClosePool(PoolId::new(0), Closed::Cordoned), Tick::NEVER);
    assert_eq!(sent(&world.arrive(spec(1))), [(1, 2)]);
    let mut next = Policy { generation: 2, ..policy(&[&[4, 4], &[4]], &[&[0, 1]]) };
    let row = Replica { pool: PoolId::new(0), max_seqs: Some(4), kv_tokens: None };
    let joined = next.replicas.insert("p0/r2", row);
    let mut pool = next.pools.get(PoolId::new(0)).expect("a pool").clone();
    pool.replicas.push(joined);
    next.pools.insert("p0", pool);
    world.event(Event::PolicyChanged(next.into()));
    assert_eq!(world.state(3), Some(ReplicaStatus::Cordoned));
    assert_eq!(sent(&world.arrive(spec(2))), [(2, 2)]);
    world.restore(OverrideTarget::Pool(PoolId::new(0)));
    assert_eq!(world.state(3), Some(ReplicaStatus::SlowStart));
}

#[test]
fn a_paused_tenant_waits_and_others_go_on() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.pause(0, Tick::from_millis(20_000));
    assert_eq!(world.arrive(of_tenant(1, 0)), []);
    assert_eq!(sent(&world.arrive(of_tenant(2, 1))), [(2, 0)]);
    assert_eq!(world.arrive(of_tenant(3, 1)), []);
    assert_eq!(sent(&world.done(2)), [(3, 0)]);
    assert_eq!(world.done(3), [], "a free replica, and it still waits");
    let actions = world.at(20_000);
    assert_eq!(
        actions[0],
        Action::Replica(ReplicaAction::OverrideExpired { target: OverrideTarget::Pause(TenantId::new(0)) })
    );
    assert_eq!(sent(&actions), [(1, 0)]);
}

#[test]
fn who_cannot_outwait_the_pause_is_told_when_it_ends() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    assert_eq!(sent(&world.arrive(of_tenant(1, 1))), [(1, 0)]);
    assert_eq!(world.arrive(of_tenant(2, 0)), [], "it came before the pause");
    world.pause(0, Tick::from_millis(600_000));
    let refused = rejected(&world.arrive(of_tenant(3, 0)));
    assert_eq!((refused[0].0, refused[0].1.reason), (3, RejectReason::Paused));
    let wait = refused[0].1.retry_after.expect("a time").as_secs();
    assert!((600..603).contains(&wait), "{wait}");
    let late = rejected(&world.at(60_000));
    assert_eq!((late[0].0, late[0].1.reason), (2, RejectReason::Paused), "not a deadline of its own");
    let wait = late[0].1.retry_after.expect("a time").as_secs();
    assert!((540..543).contains(&wait), "{wait}");

    world.pause(0, Tick::NEVER);
    let endless = rejected(&world.arrive(JobSpec { deadline: Tick::from_millis(90_000), ..of_tenant(4, 0) }));
    assert_eq!(endless[0].1.retry_after, Some(Duration::from_secs(60)));
}

#[test]
fn a_slower_class_that_outlasts_the_pause_takes_the_job() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.classes.insert("first", Class { demote_to: Some(ClassId::new(1)), ..class(0, 0.0) });
    rules.classes.insert("second", Class { max_wait: Duration::from_secs(3600), ..class(1, 0.0) });
    let mut tenant = rules.tenants.get(TenantId::new(0)).expect("a tenant").clone();
    tenant.classes.insert(ClassId::new(1));
    rules.tenants.insert("a", tenant);
    let mut world = World::new(rules);
    world.pause(0, Tick::from_millis(120_000));
    assert_eq!(world.arrive(spec(1)), []);
    assert_eq!(sent(&world.at(120_000)), [(1, 0)]);
}

#[test]
fn a_pause_earns_no_priority_and_a_resume_no_false_refusals() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(of_tenant(1, 1));
    let far = Tick::from_millis(10_000_000);
    let waits = |id, tenant| JobSpec { deadline: far, ..of_tenant(id, tenant) };
    for id in 10..40 {
        world.arrive(waits(id, 0));
        world.arrive(waits(id + 100, 1));
    }
    world.pause(0, Tick::NEVER);
    let mut running = 1;
    for step in 1..=20 {
        world.at(step * 1_000);
        running = sent(&world.done(running))[0].0;
        assert!(running > 100, "tenant 0 is paused");
    }
    world.at(600_000);
    world.restore(OverrideTarget::Pause(TenantId::new(0)));
    assert_eq!(rejected(&world.arrive(JobSpec { deadline: far, ..of_tenant(900, 0) })), []);
    let mut turns = Vec::new();
    for step in 1..=24 {
        world.at(600_000 + step * 1_000);
        running = sent(&world.done(running))[0].0;
        turns.push(running > 100 && running != 900);
    }
    let others = turns.iter().filter(|other| **other).count();
    assert!((7..=9).contains(&others), "they take turns after the eight jobs that it is owed: {turns:?}");
}

#[test]
fn a_boost_is_a_larger_share_for_its_time() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    let far = Tick::from_millis(100_000_000);
    world.arrive(JobSpec { deadline: far, ..of_tenant(1, 2) });
    for id in 10..90 {
        world.arrive(JobSpec { deadline: far, ..of_tenant(id, 0) });
        world.arrive(JobSpec { deadline: far, ..of_tenant(id + 100, 1) });
    }
    let mut running = 1;
    let mut share = |world: &mut World, from: u64| {
        let mut boosted = 0;
        for step in 1..=40 {
            world.at(from + step * 10);
            running = sent(&world.done(running))[0].0;
            boosted += u64::from(running < 100);
        }
        boosted
    };
    world.set(OverrideChange::Boost(TenantId::new(0), 3.0), Tick::from_millis(1_000));
    let with = share(&mut world, 0);
    world.at(1_000);
    let without = share(&mut world, 1_000);
    assert!((29..=31).contains(&with) && (19..=21).contains(&without), "{with} and {without} of 40");
}

#[test]
fn an_override_replaces_the_one_before_and_one_that_is_over_changes_nothing() {
    let mut world = World::new(policy(&[&[4, 4]], &[&[0]]));
    world.at(1_000);
    world.set(OverrideChange::CloseReplica(ReplicaId::new(0), Closed::Cordoned), Tick::from_millis(500));
    assert_eq!((world.in_force(), world.state(0)), (0, Some(ReplicaStatus::Serving)));
    world.close(0, Closed::Cordoned);
    let until = Tick::from_millis(5_000);
    world.set(OverrideChange::CloseReplica(ReplicaId::new(0), Closed::Drained), until);
    let views = world.scheduler.snapshot(world.now).overrides;
    assert_eq!(views.len(), 1);
    assert_eq!((views[0].left, &*views[0].reason), (Some(Duration::from_secs(4)), "a test"));
    assert_eq!(world.at(5_000).len(), 1);
    assert_eq!(world.restore(OverrideTarget::Replica(ReplicaId::new(0))), [], "it has ended already");
}

#[test]
fn a_closed_replica_that_falls_silent_is_still_noticed() {
    let mut world = three_at_one();
    world.close(0, Closed::Cordoned);
    let mut actions = Vec::new();
    while actions.is_empty() {
        world.now = world.scheduler.next_deadline().expect("a watch");
        actions = world.event(Event::Timer);
    }
    assert!(recalls(&actions).contains(&(3, 0, PreemptReason::Stalled)), "{actions:?}");
    assert_eq!(world.state(0), Some(ReplicaStatus::Ejected));
}

#[test]
fn who_waits_is_told_what_for() {
    let mut world = World::new(policy(&[&[1], &[1]], &[&[0, 1]]));
    world.close(1, Closed::Cordoned);
    world.arrive(of_tenant(1, 1));
    let far = Tick::from_millis(50_000);
    world.arrive(JobSpec { deadline: far, ..of_tenant(2, 0) });
    world.arrive(JobSpec { deadline: far, ..of_tenant(3, 0) });
    world.at(2_000);
    let told = |world: &World, job| world.scheduler.explain(JobId::new(job), world.now);
    assert_eq!(told(&world, 1), None, "it runs");
    let third = told(&world, 3).expect("it waits");
    assert_eq!((third.obstacle, third.ahead, third.waiting), (Obstacle::NoRoom, Some(1), 2));
    assert_eq!((third.queued, third.left), (Duration::from_secs(2), Duration::from_secs(48)));
    let short = world.scheduler.wait_summary(JobId::new(3), world.now).expect("it waits");
    assert_eq!((short.ahead, short.starts_in), (Some(1), None), "no rate is known yet");
    let queue_statuses = world.scheduler.queue_statuses(world.now);
    let rows: Vec<_> = queue_statuses.iter().map(|row| (row.waiting, row.running, row.obstacle)).collect();
    assert_eq!(rows, [(2, 0, Some(Obstacle::NoRoom)), (0, 1, None)]);
    assert_eq!((queue_statuses[0].oldest, queue_statuses[0].predicted_wait), (Duration::from_secs(2), None));
    let states: Vec<_> = third.replicas.iter().map(|choice| (choice.state, choice.fits)).collect();
    assert!(states.contains(&(ReplicaStatus::Cordoned, false)), "{states:?}");
    world.close(0, Closed::Cordoned);
    assert_eq!(told(&world, 2).map(|view| view.obstacle), Some(Obstacle::NoReplica));
    world.pause(0, far);
    let paused = told(&world, 2).expect("it waits");
    assert_eq!((paused.obstacle, paused.starts_in), (Obstacle::Paused, Some(Duration::from_secs(48))));
}
