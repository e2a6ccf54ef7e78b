//! Policies of `loadtest core-bench`: one pool without rules, or a mixed fleet with rules for
//! classes and tenants.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId};
use penstock::core::model::policy::{Class, Model, Policy, Pool, Replica, Tenant};
use penstock::core::placement::rules::{Capacity, Isolation, LatePolicy, PlacementRules, PoolTraits, Price};

use super::CoreBenchArgs;

/// Pools that serve a model, at most; its neighbours serve two of them too.
const POOLS_OF_MODEL: u32 = 6;

/// The policy of the world.
pub(super) fn policy(args: &CoreBenchArgs) -> Policy {
    let mut policy = Policy::default();
    let mixed = args.pools > 1;
    let names = ["interactive", "standard", "batch"];
    for (rank, name) in names.into_iter().take(if mixed { 3 } else { 1 }).enumerate() {
        policy.classes.insert(name, class(rank as u32, mixed));
    }
    let classes: BTreeSet<ClassId> = (0..policy.classes.capacity()).map(ClassId::from).collect();
    for index in 0..args.tenants {
        let tenant = Tenant {
            weight: f64::from(1 + index % 3),
            parent: None,
            default_class: ClassId::new(0),
            classes: classes.clone(),
            models: None,
            bounds: Default::default(),
            quota: Default::default(),
            placement: if mixed { rules_of_tenant(index) } else { PlacementRules::default() },
        };
        policy.tenants.insert(&format!("tenant-{index}"), tenant);
    }
    for index in 0..args.replicas {
        let pool = PoolId::new(index % args.pools);
        let replica = Replica { pool, max_seqs: Some(args.max_seqs), kv_tokens: None };
        policy.replicas.insert(&format!("pool/replica-{index}"), replica);
    }
    let served = models(args);
    for pool in 0..args.pools {
        let id = PoolId::new(pool);
        let members = (0..args.replicas).filter(|replica| replica % args.pools == pool);
        let models = served.iter().enumerate().filter(|(_, pools)| pools.contains(&id));
        let row = Pool {
            replicas: members.map(ReplicaId::new).collect(),
            models: models.map(|(model, _)| ModelId::from(model)).collect(),
            traits: if mixed { supply(pool) } else { PoolTraits::default() },
            ..Pool::default()
        };
        policy.pools.insert(&format!("pool-{pool}"), row);
    }
    for (index, pools) in served.into_iter().enumerate() {
        policy.models.insert(&format!("model-{index}"), Model { pools, max_model_len: None });
    }
    policy
}

/// Which pools serve each model: some next to each other, so that all models
/// share replicas with their neighbours.
fn models(args: &CoreBenchArgs) -> Vec<Vec<PoolId>> {
    let each =
        (args.pools.div_ceil(args.models) + 2).min(POOLS_OF_MODEL.max(args.pools.div_ceil(args.models)));
    let pools = |model: u32| {
        let first = model * args.pools / args.models;
        let pools: BTreeSet<PoolId> =
            (0..each.min(args.pools)).map(|next| PoolId::new((first + next) % args.pools)).collect();
        pools.into_iter().collect()
    };
    (0..args.models).map(pools).collect()
}

fn supply(pool: u32) -> PoolTraits {
    PoolTraits {
        isolation: Isolation::ALL[[0, 1, 0, 3][pool as usize % 4]],
        capacity: if pool % 3 == 2 { Capacity::Spot } else { Capacity::OnDemand },
        price: Price::new(f64::from(1 + pool % 5)),
        window: None,
    }
}

fn class(rank: u32, mixed: bool) -> Class {
    let placement = match rank {
        _ if !mixed => PlacementRules::default(),
        0 => PlacementRules {
            isolation: Some([Isolation::Dedicated, Isolation::Mig].into()),
            ..PlacementRules::default()
        },
        1 => PlacementRules::default(),
        _ => PlacementRules { prefer: Some(Capacity::Spot), ..PlacementRules::default() },
    };
    Class {
        usage_half_life: None,
        rank,
        min_share: 0.1 * f64::from(rank),
        max_wait: Duration::from_secs(100_000),
        ttft_objective: Duration::from_millis(if mixed { 10 * 5u64.pow(rank) } else { 1_000 }),
        itl_objective: Duration::from_millis(50),
        cold_start_tolerance: None,
        demote_to: None,
        scavenger: false,
        placement,
    }
}

fn rules_of_tenant(tenant: u32) -> PlacementRules {
    match tenant % 5 {
        1 => PlacementRules { max_price: Price::new(3.0), ..PlacementRules::default() },
        2 => PlacementRules { capacity: Some([Capacity::OnDemand].into()), ..PlacementRules::default() },
        3 => PlacementRules {
            spill: Some((0..8).map(|pool| PoolId::new(pool * 5)).collect()),
            ..PlacementRules::default()
        },
        4 => PlacementRules { late_policy: Some(LatePolicy::Wait), ..PlacementRules::default() },
        _ => PlacementRules::default(),
    }
}
