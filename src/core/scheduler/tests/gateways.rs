//! Tests of what a gateway takes over of the loads of others.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};

use crate::model::event::Event;
use crate::model::ids::{ClassId, JobId, PoolId, ReplicaId, TenantId};
use crate::model::invariant::InvariantId;
use crate::model::job::JobSpec;
use crate::model::overrides::{Override, OverrideChange};
use crate::model::policy::Policy;
use crate::model::snapshot::Obstacle;
use crate::model::time::Tick;
use crate::queue::fairness::gateways::load::{ActiveClass, GatewayLoad, ReplicaSequences, WaitingTenant};
use crate::scheduler::tests::{World, class, of_tenant, policy, sent, spec, tenant};

pub(super) fn elsewhere(load: GatewayLoad) -> Event {
    Event::LoadElsewhere(BTreeMap::from([("b".to_owned(), load)]))
}

/// Any load, or none.
pub(super) fn load() -> impl Strategy<Value = GatewayLoad> {
    let replica = (0u32..9, 0u32..6).prop_map(|(replica, seqs)| (ReplicaId::new(replica), seqs));
    let place = || (0u32..3, 0u32..3).prop_map(|(pool, class)| (PoolId::new(pool), ClassId::new(class)));
    let active = (place(), 0u32..4, 0u32..4);
    let waiting = (place(), 0u32..5, 0u32..6, 0u32..20);
    let load = (vec(replica, 0..4), vec(active, 0..3), vec(waiting, 0..3));
    prop_oneof![1 => Just(GatewayLoad::default()), 2 => load.prop_map(|(replicas, classes, tenants)| GatewayLoad {
        replicas: replicas.into_iter().map(|(replica, seqs)| ReplicaSequences { replica, seqs }).collect(),
        classes: classes
            .into_iter()
            .map(|((pool, class), running, headroom)| ActiveClass { pool, class, running, headroom })
            .collect(),
        tenants: tenants
            .into_iter()
            .map(|((pool, class), tenant, running, waiting)| {
                WaitingTenant { pool, class, tenant: TenantId::new(tenant), running, waiting }
            })
            .collect(),
    })]
}

fn at_replica(seqs: u32) -> GatewayLoad {
    let replica = ReplicaId::new(0);
    GatewayLoad { replicas: vec![ReplicaSequences { replica, seqs }], ..GatewayLoad::default() }
}

/// A tenant that waits at another gateway.
fn waiting(tenant: u32, running: u32) -> GatewayLoad {
    let (pool, class, tenant) = (PoolId::new(0), ClassId::new(0), TenantId::new(tenant));
    let tenants = vec![WaitingTenant { pool, class, tenant, running, waiting: 99 }];
    GatewayLoad { tenants, ..at_replica(running) }
}

fn patient(spec: JobSpec) -> JobSpec {
    JobSpec { deadline: Tick::NEVER, ..spec }
}

/// A tenant of weight 1, and one of weight 4.
fn weighted() -> Policy {
    let mut rules = policy(&[&[10]], &[&[0]]);
    rules.tenants.insert("a", tenant(1.0));
    rules.tenants.insert("b", tenant(4.0));
    rules
}

#[test]
fn what_others_have_at_a_replica_is_not_free() {
    let mut world = World::new(policy(&[&[4]], &[&[0]]));
    world.event(elsewhere(at_replica(4)));
    assert_eq!(sent(&world.arrive(spec(1))), [], "not even at a replica that has nothing of this gateway");
    assert_eq!(sent(&world.event(elsewhere(at_replica(3)))), [(1, 0)]);
    assert_eq!(sent(&world.arrive(spec(2))), []);
    assert_eq!(sent(&world.event(Event::LoadElsewhere(BTreeMap::new()))), [(2, 0)]);
    assert_eq!(world.scheduler.audit(), [] as [InvariantId; 0]);
}

#[test]
fn a_class_that_is_active_elsewhere_is_left_its_headroom() {
    let started = |headroom: Option<u32>| {
        let mut rules = policy(&[&[10]], &[&[0]]);
        rules.classes.insert("second", class(1, 0.0));
        let mut world = World::new(rules);
        let (pool, class) = (PoolId::new(0), ClassId::new(0));
        let classes = headroom.map(|headroom| ActiveClass { pool, class, running: 1, headroom });
        world.event(elsewhere(GatewayLoad { classes: Vec::from_iter(classes), ..GatewayLoad::default() }));
        let background = |id| JobSpec { class: ClassId::new(1), ..patient(spec(id)) };
        (1..=20).map(|id| sent(&world.arrive(background(id))).len()).sum::<usize>()
    };
    let [alone, beside] = [None, Some(4)].map(started);
    assert!(alone == 10 && (1..=6).contains(&beside), "{alone} {beside}");
}

#[test]
fn places_that_are_due_elsewhere_stay_free_until_the_gateway_is_gone() {
    let mut world = World::new(weighted());
    (1..=30).for_each(|id| _ = world.arrive(patient(of_tenant(id, 0))));
    world.at(2_000);
    world.event(elsewhere(GatewayLoad { replicas: Vec::new(), ..waiting(1, 0) }));
    let started = [1, 2, 3].map(|id| sent(&world.done(id)).len());
    assert_eq!(started, [0, 0, 1], "a quarter of the eight places that the other tenant is due");
    let why = world.scheduler.explain(JobId::new(20), world.now).expect("it waits");
    assert_eq!(why.obstacle, Obstacle::OtherGateways);
    world.event(elsewhere(waiting(1, 2)));
    let started = [4, 5, 6].map(|id| sent(&world.done(id)).len());
    assert_eq!(started, [0, 0, 1], "and the next one, once it has these");
    assert_eq!(sent(&world.event(Event::LoadElsewhere(BTreeMap::new()))).len(), 4);
    assert_eq!(world.scheduler.audit(), [] as [InvariantId; 0]);
}

#[test]
fn a_gateway_tells_what_it_has_and_who_waits_for_long() {
    let mut world = World::new(weighted());
    (1..=12).for_each(|id| _ = world.arrive(patient(of_tenant(id, 0))));
    world.arrive(patient(of_tenant(20, 1)));
    let (pool, class) = (PoolId::new(0), ClassId::new(0));
    let load = world.scheduler.gateway_load();
    assert_eq!(load.replicas, [ReplicaSequences { replica: ReplicaId::new(0), seqs: 10 }]);
    assert_eq!((load.classes[0].running, load.tenants.len()), (10, 0), "nobody has waited for a second");
    world.at(1_500);
    let load = world.scheduler.gateway_load();
    let row = |tenant, running, waiting| WaitingTenant {
        pool,
        class,
        tenant: TenantId::new(tenant),
        running,
        waiting,
    };
    assert_eq!(load.tenants, [row(0, 10, 2), row(1, 0, 1)]);
    assert_eq!(load.classes[0].running, 0, "all that runs is of tenants that wait");
    let change = OverrideChange::Pause(TenantId::new(0));
    world.event(Event::Overridden(Override { change, until: Tick::NEVER, reason: "a test".into() }));
    let load = world.scheduler.gateway_load();
    assert_eq!(
        (load.tenants, load.classes[0].running),
        (vec![row(1, 0, 1)], 10),
        "a paused tenant wants nothing"
    );
}
