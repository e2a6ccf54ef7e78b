//! Tests of reloads: the effect of a new policy on jobs that wait and run.

use crate::model::event::{Action, EngineFault, Event, RejectReason};
use crate::model::ids::{ClassId, JobId, ModelId, PoolId, ReplicaId, TenantId};
use crate::model::job::JobSpec;
use crate::model::policy::{Model, Policy, Pool, Replica};
use crate::model::snapshot::ReplicaStatus;
use crate::replica::speed::pool_best::PoolBest;
use crate::scheduler::tests::{
    World, ejected, of_tenant, policy, rejected, reload, sent, spec, tenant, without,
};

#[test]
fn jobs_survive_and_new_limits_take_effect_at_once() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    for id in 0..5 {
        world.arrive(spec(id));
    }
    let replica = |max_seqs| Replica { pool: PoolId::new(0), max_seqs: Some(max_seqs), kv_tokens: None };
    let actions = reload(&mut world, |next| {
        next.replicas.insert("p0/r0", replica(3));
    });
    assert_eq!(sent(&actions), [(1, 0), (2, 0)]);
    let actions = reload(&mut world, |next| {
        next.replicas.insert("p0/r0", replica(1));
        next.replicas.insert("p0/r1", replica(1));
    });
    assert_eq!(sent(&actions), [(3, 1)]);
    assert_eq!(world.done(0), [], "two more run there than it may have");
    assert_eq!(world.done(1), []);
    assert_eq!(sent(&world.done(2)), [(4, 0)]);
}

#[test]
fn a_removed_replica_finishes_and_is_gone() {
    let mut world = World::new(policy(&[&[2, 1]], &[&[0]]));
    world.arrive(spec(0));
    let actions = reload(&mut world, |next| next.replicas = without(&next.replicas, ReplicaId::new(0)));
    assert_eq!(actions, []);
    assert_eq!(world.state(0), Some(ReplicaStatus::Removed));
    assert_eq!(sent(&world.arrive(spec(1))), [(1, 1)]);
    assert_eq!(world.arrive(spec(2)), []);
    assert_eq!(world.done(0), []);
    assert_eq!(world.state(0), None);
    let actions = reload(&mut world, |next| {
        let row = Replica { pool: PoolId::new(0), max_seqs: Some(1), kv_tokens: None };
        assert_eq!(next.replicas.insert("p0/r0", row), ReplicaId::new(0));
    });
    assert_eq!(sent(&actions), [(2, 0)], "it may come back");
}

#[test]
fn what_has_no_place_any_more_is_refused() {
    let mut world = World::new(policy(&[&[1], &[1]], &[&[0], &[1]]));
    world.arrive(spec(0));
    world.arrive(spec(1));
    world.arrive(of_tenant(2, 1));
    world.arrive(JobSpec { class: ClassId::new(1), ..spec(3) });
    let other = |id| JobSpec { model: ModelId::new(1), ..of_tenant(id, 2) };
    world.arrive(other(4));
    world.arrive(other(5));
    let reasons = |actions: &[Action]| -> Vec<_> {
        rejected(actions).into_iter().map(|(job, why)| (job, why.reason)).collect()
    };
    let actions = reload(&mut world, |next| next.tenants = without(&next.tenants, TenantId::new(1)));
    assert_eq!(reasons(&actions), [(2, RejectReason::Withdrawn)]);
    let actions = reload(&mut world, |next| next.classes = without(&next.classes, ClassId::new(1)));
    assert_eq!(reasons(&actions), [(3, RejectReason::Withdrawn)]);
    let actions = reload(&mut world, |next| next.models = without(&next.models, ModelId::new(1)));
    assert_eq!(reasons(&actions), [(5, RejectReason::NoPool)]);
    assert_eq!(rejected(&world.fail(4, EngineFault::Refused))[0].1.reason, RejectReason::NoPool);
    assert_eq!(sent(&world.done(0)), [(1, 0)]);
}

#[test]
fn counters_survive_a_reload() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    for (id, tenant) in [(0, 0), (1, 0), (2, 0), (3, 0), (11, 1), (12, 1), (13, 1)] {
        world.arrive(of_tenant(id, tenant));
    }
    assert_eq!(sent(&world.done(0)), [(11, 0)], "tenant b is owed something when it comes");
    assert_eq!(sent(&world.done(11)), [(1, 0)]);
    reload(&mut world, |_| {});
    assert_eq!(sent(&world.done(1)), [(12, 0)], "tenant a has had more, though its jobs are older");
    assert_eq!(sent(&world.done(12)), [(2, 0)]);
    reload(&mut world, |next| {
        let row = Replica { pool: PoolId::new(0), max_seqs: Some(1), kv_tokens: None };
        next.replicas.insert("p0/r7", row);
    });
    assert_eq!(sent(&world.done(2)).len(), 1);
    assert_eq!(world.scheduler.unfinished(), 2);
}

/// All others keep their places, also when the one that comes has the id of one that has left.
#[test]
fn a_tenant_that_comes_is_served_at_once() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    for id in 0..10 {
        world.arrive(of_tenant(id, 0));
    }
    let (mut running, mut served) = (0, Vec::new());
    for first in [20, 30] {
        let mut came = None;
        assert_eq!(reload(&mut world, |next| came = Some(next.tenants.insert("late", tenant(1.0)))), []);
        let came = came.unwrap();
        for id in [first, first + 1] {
            world.arrive(JobSpec { tenant: came, ..spec(id) });
        }
        for _ in 0..5 {
            running = sent(&world.done(running))[0].0;
            served.push(running);
        }
        assert!(served.contains(&first) && served.contains(&(first + 1)), "{served:?}");
        reload(&mut world, |next| next.tenants = without(&next.tenants, came));
    }
    served.retain(|id| *id < 20);
    assert_eq!(served, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn an_ejected_replica_that_leaves_is_not_probed() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: true });
    reload(&mut world, |next| next.replicas = without(&next.replicas, ReplicaId::new(0)));
    assert_eq!(world.scheduler.next_deadline(), None);
    assert_eq!(world.at(10_000), []);
}

#[test]
fn a_replica_that_was_taken_out_and_put_back_starts_anew() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(0));
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: true });
    reload(&mut world, |next| next.replicas = without(&next.replicas, ReplicaId::new(0)));
    reload(&mut world, |next| {
        let row = Replica { pool: PoolId::new(0), max_seqs: Some(2), kv_tokens: None };
        next.replicas.insert("p0/r0", row);
    });
    assert_eq!(world.state(0), Some(ReplicaStatus::SlowStart));
    assert_eq!(
        ejected(&world.fail(0, EngineFault::Silent)),
        Vec::<u32>::new(),
        "the old stream is not the new start's fault"
    );
}

#[test]
fn when_groups_join_everybody_starts_anew() {
    let mut world = World::new(policy(&[&[1], &[1]], &[&[0], &[1]]));
    let of = |id, tenant, model| JobSpec { model: ModelId::new(model), ..of_tenant(id, tenant) };
    for id in 0..5 {
        world.arrive(of(id, 0, 0));
        world.done(id);
    }
    for (id, tenant, model) in [(10, 3, 0), (11, 3, 1), (12, 0, 0), (13, 1, 1)] {
        world.arrive(of(id, tenant, model));
    }
    let actions = reload(&mut world, |next| {
        let pools = vec![PoolId::new(0), PoolId::new(1)];
        next.models.insert("m0", Model { pools: pools.clone(), max_model_len: None });
        next.models.insert("m1", Model { pools, max_model_len: None });
    });
    assert_eq!(actions, []);
    assert_eq!(sent(&world.done(10)), [(12, 0)], "the older one, whatever they had before");
}

/// A policy of 20 replicas, and as many running and waiting jobs.
fn busy_world() -> World {
    let mut world = World::new(policy(&[&[1; 20], &[1]], &[&[0], &[1]]));
    for id in 0..40 {
        world.arrive(spec(id));
    }
    world
}

#[test]
fn a_reload_looks_at_what_it_changes_only() {
    let mut world = busy_world();
    let mut refreshed = |change: fn(&mut Policy)| {
        let before = world.scheduler.fleet.refreshes();
        assert_eq!(reload(&mut world, change), []);
        world.scheduler.fleet.refreshes() - before
    };
    assert_eq!(refreshed(|_| {}), 0);
    let weighs_more = |next: &mut Policy| {
        next.tenants.insert("a", tenant(7.0));
    };
    assert_eq!(refreshed(weighs_more), 0);
    let of_one = refreshed(|next| next.replicas = without(&next.replicas, ReplicaId::new(3)));
    assert_eq!(of_one, 1, "the one that leaves");
    let all = refreshed(|next| {
        let row = next.pools.get(PoolId::new(1)).cloned().unwrap_or_default();
        next.pools.insert("p1", Pool { adapter_slots: Some(3), ..row });
    });
    assert_eq!(all, 1, "the one of that pool");
}

#[test]
fn a_reload_keeps_what_a_pool_has_shown() {
    let mut world = busy_world();
    world.at(300);
    world.event(Event::FirstToken { job: JobId::new(0) });
    let shown = world.scheduler.fleet.best(PoolId::new(0));
    assert_ne!(shown, PoolBest::default());
    reload(&mut world, |next| next.replicas = without(&next.replicas, ReplicaId::new(3)));
    assert_eq!(world.scheduler.fleet.best(PoolId::new(0)), shown);
    // Another pool may get the id.
    reload(&mut world, |next| next.pools = without(&next.pools, PoolId::new(0)));
    assert_eq!(world.scheduler.fleet.best(PoolId::new(0)), PoolBest::default());
}

#[test]
fn a_replica_may_go_to_another_pool() {
    let mut world = World::new(policy(&[&[1, 1], &[1]], &[&[0], &[1]]));
    let other = |id| JobSpec { model: ModelId::new(1), ..spec(id) };
    for job in [other(0), other(1), spec(2)] {
        world.arrive(job);
    }
    let actions = reload(&mut world, |next| {
        let row = Replica { pool: PoolId::new(1), max_seqs: Some(1), kv_tokens: None };
        next.replicas.insert("p0/r1", row);
    });
    assert_eq!(sent(&actions), [(1, 1)]);
    world.arrive(spec(3));
    assert_eq!(sent(&world.done(1)), [], "it serves the other model now");
    assert_eq!(sent(&world.done(2)), [(3, 0)]);
}
