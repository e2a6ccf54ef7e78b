//! Pool sets, placement rules and choices, by example and by property.

use std::collections::BTreeSet;

use proptest::collection::{btree_set, vec};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::model::ids::{ClassId, GroupIndex, ModelId, PoolId, TenantId};
use crate::model::policy::{Class, Model, Policy, Pool, Tenant};
use crate::placement::Placement;
use crate::placement::choose_tier::{JobTerms, PlacementDecision, PlacementReason, TierOffer, choose_tier};
use crate::placement::rules::{
    Capacity, Isolation, LatePolicy, PlacementRules, PoolTraits, Price, eligible, tiers,
};
use crate::queue::lane_key::LaneKey;

pub(crate) fn class(placement: PlacementRules) -> Class {
    Class {
        rank: 0,
        min_share: 0.0,
        usage_half_life: None,
        max_wait: Default::default(),
        ttft_objective: Default::default(),
        itl_objective: Default::default(),
        cold_start_tolerance: None,
        demote_to: None,
        scavenger: false,
        placement,
    }
}

pub(crate) fn tenant(placement: PlacementRules) -> Tenant {
    Tenant {
        weight: 1.0,
        parent: None,
        default_class: ClassId::new(0),
        classes: [ClassId::new(0)].into(),
        models: None,
        bounds: Default::default(),
        quota: Default::default(),
        placement,
    }
}

/// A policy with one class and one tenant, both without rules.
fn policy(pools: &[PoolTraits], models: &[&[u32]]) -> Policy {
    let mut policy = Policy::default();
    policy.classes.insert("c0", class(PlacementRules::default()));
    policy.tenants.insert("t0", tenant(PlacementRules::default()));
    for (index, supply) in pools.iter().enumerate() {
        policy.pools.insert(&format!("p{index}"), Pool { traits: *supply, ..Pool::default() });
    }
    for (index, pools) in models.iter().enumerate() {
        let pools = pools.iter().copied().map(PoolId::new).collect();
        policy.models.insert(&format!("m{index}"), Model { pools, max_model_len: None });
    }
    policy
}

fn plain(pools: usize, models: &[&[u32]]) -> Policy {
    policy(&vec![PoolTraits::default(); pools], models)
}

fn lane(class: u32, tenant: u32, model: u32, context_group: u8) -> LaneKey {
    LaneKey {
        class: ClassId::new(class),
        tenant: TenantId::new(tenant),
        model: ModelId::new(model),
        context_group,
    }
}

fn of_model(model: u32) -> LaneKey {
    lane(0, 0, model, 0)
}

fn priced(price: f64) -> PoolTraits {
    PoolTraits { price: Price::new(price), ..PoolTraits::default() }
}

fn pools(numbers: &[u32]) -> Vec<PoolId> {
    numbers.iter().copied().map(PoolId::new).collect()
}

#[test]
fn models_with_the_same_pools_share_a_line() {
    let placement = Placement::new(&plain(2, &[&[0, 1], &[1, 0, 0], &[1]]));
    let route = |model| placement.route(of_model(model));
    assert_eq!(route(0), route(1));
    assert_ne!(route(0), route(2));
    assert_eq!(placement.groups().len(), 1);
    assert_eq!(placement.groups()[0].pool_sets.len(), 2);
}

#[test]
fn groups_join_by_way_of_others_and_stay_apart_otherwise() {
    let placement = Placement::new(&plain(5, &[&[0, 1], &[2, 3], &[1, 2], &[4]]));
    let groups: Vec<_> = placement.groups().iter().map(|group| group.pools.len()).collect();
    assert_eq!(groups, [4, 1]);
    assert_eq!(placement.group_of(PoolId::new(3)), Some(GroupIndex::new(0)));
    assert_eq!(placement.group_of(PoolId::new(4)), Some(GroupIndex::new(1)));
}

#[test]
fn a_model_without_a_present_pool_has_no_line() {
    let placement = Placement::new(&plain(1, &[&[7], &[7, 0]]));
    assert_eq!(placement.pool_set(of_model(0)), None);
    assert_eq!(placement.pool_set(of_model(1)).map(|pool_set| pool_set.pools.len()), Some(1));
}

#[test]
fn equal_rules_share_lines_and_others_get_their_own() {
    let mut policy = plain(3, &[&[0, 1, 2], &[0, 1, 2]]);
    let only = |numbers: &[u32]| PlacementRules {
        pools: Some(pools(numbers).into_iter().collect()),
        ..PlacementRules::default()
    };
    for (index, rules) in
        [only(&[0, 1]), only(&[0, 1]), only(&[2]), PlacementRules::default()].into_iter().enumerate()
    {
        policy.tenants.insert(&format!("t{}", index + 1), tenant(rules));
    }
    policy.classes.insert("c1", class(only(&[1, 2])));
    let placement = Placement::new(&policy);
    let pool_set =
        |class, tenant| placement.pool_set(lane(class, tenant, 1, 0)).map(|pool_set| pool_set.pools.clone());
    assert_eq!(pool_set(0, 0), Some(pools(&[0, 1, 2])));
    assert_eq!(pool_set(0, 1), Some(pools(&[0, 1])));
    assert_eq!(placement.route(lane(0, 1, 0, 0)), placement.route(lane(0, 2, 1, 0)));
    assert_eq!(placement.route(lane(0, 0, 0, 0)), placement.route(lane(0, 4, 0, 0)));
    assert_eq!(pool_set(1, 1), Some(pools(&[1])));
    assert_eq!(pool_set(1, 3), Some(pools(&[2])));
    assert_eq!(placement.groups()[0].pool_sets.len(), 5);
    let reach = &placement.groups()[0].reach;
    assert_eq!(reach[&ClassId::new(1)], pools(&[1, 2]).into_iter().collect());
    assert_eq!(reach[&ClassId::new(0)].len(), 3);
}

#[test]
fn what_both_forbid_leaves_nothing() {
    let mut policy = plain(2, &[&[0, 1]]);
    let only = |pool| PlacementRules { pools: Some([PoolId::new(pool)].into()), ..PlacementRules::default() };
    policy.classes.insert("c0", class(only(0)));
    policy.tenants.insert("t1", tenant(only(1)));
    let placement = Placement::new(&policy);
    assert!(placement.pool_set(lane(0, 0, 0, 0)).is_some());
    assert_eq!(placement.pool_set(lane(0, 1, 0, 0)), None);
    assert_eq!(
        placement.group_of_model(ModelId::new(0)),
        Some(GroupIndex::new(0)),
        "its accounts stay where they are"
    );
}

#[test]
fn long_prompts_keep_off_small_windows() {
    let window = |tokens| PoolTraits { window: Some(tokens), ..PoolTraits::default() };
    let mut rules = policy(&[window(4096), window(8192), PoolTraits::default()], &[&[0, 1, 2], &[0, 1]]);
    rules.models.insert("m1", Model { pools: pools(&[0, 1]), max_model_len: Some(6000) });
    let placement = Placement::new(&rules);
    let of = |model, context| {
        let group = placement.context_group(ModelId::new(model), context);
        placement.pool_set(lane(0, 0, model, group)).map(|pool_set| pool_set.pools.clone())
    };
    assert_eq!(of(0, 4096), Some(pools(&[0, 1, 2])));
    assert_eq!(of(0, 4097), Some(pools(&[1, 2])));
    assert_eq!(of(0, 8193), Some(pools(&[2])));
    assert_eq!(of(0, u64::MAX), Some(pools(&[2])));
    assert_eq!(of(1, 5000), Some(pools(&[1])));
    assert_eq!(of(1, 7000), Some(pools(&[1])), "the largest window: the engine decides");
}

#[test]
fn tiers_go_by_spill_order_then_kind_then_price() {
    let spot = |price| PoolTraits { capacity: Capacity::Spot, ..priced(price) };
    let supplies = [priced(3.0), spot(1.0), spot(1.0), priced(2.0), PoolTraits::default()];
    let policy = policy(&supplies, &[&[0, 1, 2, 3, 4]]);
    let order = |rules: PlacementRules| {
        let tiers = tiers(&policy, &pools(&[0, 1, 2, 3, 4]), &rules);
        tiers
            .iter()
            .map(|tier| (tier.rank, tier.pools.iter().map(|id| id.index()).collect()))
            .collect::<Vec<_>>()
    };
    assert_eq!(order(PlacementRules::default()), [(0, vec![1, 2]), (0, vec![3]), (0, vec![0]), (0, vec![4])]);
    let prefer = PlacementRules { prefer: Some(Capacity::OnDemand), ..PlacementRules::default() };
    assert_eq!(order(prefer.clone()), [(0, vec![3]), (0, vec![0]), (0, vec![4]), (1, vec![1, 2])]);
    let spill = PlacementRules { spill: Some(pools(&[4, 2])), ..prefer };
    assert_eq!(order(spill), [(0, vec![4]), (1, vec![2]), (2, vec![3]), (2, vec![0]), (3, vec![1])]);
}

const MS: u64 = 1_000_000;

fn offer(tier: usize, cost: f64, ttft: Option<u64>) -> TierOffer {
    TierOffer { tier, rank: 0, cost, ttft: ttft.map(|millis| millis * MS) }
}

fn terms(last: Option<usize>) -> JobTerms {
    JobTerms { time_left: 100 * MS, can_wait: false, late_policy: LatePolicy::Fastest, last }
}

#[test]
fn the_cheapest_in_time_wins() {
    let go = |cheap, dear, last| choose_tier(&[offer(0, 1.0, cheap), offer(1, 2.0, dear)], &terms(last));
    assert_eq!(go(Some(90), Some(10), None), PlacementDecision::Start(0, PlacementReason::Preferred));
    assert_eq!(go(Some(101), Some(10), Some(0)), PlacementDecision::Start(1, PlacementReason::Spilled));
    assert_eq!(go(None, Some(10), Some(0)), PlacementDecision::Start(1, PlacementReason::Spilled));
    assert_eq!(go(Some(90), Some(10), Some(1)), PlacementDecision::Start(1, PlacementReason::Kept));
    assert_eq!(go(Some(80), Some(10), Some(1)), PlacementDecision::Start(0, PlacementReason::Preferred));
    assert_eq!(go(Some(90), None, Some(1)), PlacementDecision::Start(0, PlacementReason::Preferred));
    assert_eq!(go(Some(150), Some(120), Some(0)), PlacementDecision::Soonest);
    let near = choose_tier(&[offer(0, 1.0, Some(10)), offer(1, 1.05, Some(10))], &terms(Some(1)));
    assert_eq!(near, PlacementDecision::Start(1, PlacementReason::Kept), "not clearly cheaper");
}

#[test]
fn who_waits_pays_more_only_for_what_keeps_the_objective() {
    let go = |cheap, dear, patient| {
        let terms = JobTerms { can_wait: patient, late_policy: LatePolicy::Wait, ..terms(None) };
        choose_tier(&[offer(0, 1.0, cheap), offer(1, 2.0, dear)], &terms)
    };
    assert_eq!(go(None, Some(10), true), PlacementDecision::Wait);
    assert_eq!(go(None, Some(10), false), PlacementDecision::Start(1, PlacementReason::Spilled));
    assert_eq!(go(None, Some(110), false), PlacementDecision::Wait);
    assert_eq!(go(Some(120), Some(110), false), PlacementDecision::Start(0, PlacementReason::Waited));
    assert_eq!(choose_tier(&[], &terms(None)), PlacementDecision::Wait);
}

/// Any rules over six pools.
pub(crate) fn rules() -> impl Strategy<Value = PlacementRules> {
    let kinds = prop::option::of(btree_set(prop::sample::select(Isolation::ALL.to_vec()), 0..4));
    let capacity = prop_oneof![Just(Capacity::OnDemand), Just(Capacity::Spot)];
    let capacities = prop::option::of(btree_set(capacity.clone(), 0..3));
    let ids = || (0u32..6).prop_map(PoolId::new);
    let price = prop::option::of((0u32..5).prop_map(|price| Price::new(f64::from(price)).unwrap()));
    let otherwise = prop::option::of(prop_oneof![Just(LatePolicy::Fastest), Just(LatePolicy::Wait)]);
    (
        (kinds, capacities, prop::option::of(btree_set(ids(), 0..5)), price),
        (prop::option::of(vec(ids(), 0..4)), prop::option::of(capacity), otherwise),
    )
        .prop_map(|((isolation, capacity, pools, max_price), (spill, prefer, otherwise))| {
            PlacementRules { isolation, capacity, pools, max_price, spill, prefer, late_policy: otherwise }
        })
}

/// Any kind of pool.
pub(crate) fn supply() -> impl Strategy<Value = PoolTraits> {
    let isolation = prop::sample::select(Isolation::ALL.to_vec());
    (isolation, any::<bool>(), prop::option::of(0u32..5), prop::option::of(1u32..4)).prop_map(
        |(isolation, spot, price, window)| PoolTraits {
            isolation,
            capacity: if spot { Capacity::Spot } else { Capacity::OnDemand },
            price: price.and_then(|price| Price::new(f64::from(price))),
            window: window.map(|window| window * 1000),
        },
    )
}

fn offers() -> impl Strategy<Value = Vec<TierOffer>> {
    let row = (0usize..3, 0u32..6, prop::option::of(0u64..200));
    vec(row, 0..6).prop_map(|rows| {
        let offer = |(tier, (rank, cost, ttft)): (usize, (usize, u32, Option<u64>))| TierOffer {
            rank,
            ..offer(tier, f64::from(cost), ttft)
        };
        rows.into_iter().enumerate().map(offer).collect()
    })
}

proptest! {
    #[test]
    fn rules_never_widen(supplies in vec(supply(), 1..6), class in rules(), tenant in rules(), beyond in 0u32..4000) {
        let all: Vec<u32> = (0..supplies.len() as u32).collect();
        let policy = policy(&supplies, &[&all]);
        let model = policy.models.get(ModelId::new(0)).unwrap();
        let of = |rules: &PlacementRules, beyond| -> BTreeSet<PoolId> { eligible(&policy, model, rules, beyond).into_iter().collect() };
        let both = of(&class.combined_with(&tenant), 0);
        prop_assert_eq!(&both, &(&of(&class, 0) & &of(&tenant, 0)));
        prop_assert!(of(&class.combined_with(&tenant), beyond).is_subset(&both));
    }

    #[test]
    fn every_pool_of_a_line_is_in_one_tier(supplies in vec(supply(), 1..6), rules in rules()) {
        let all: Vec<u32> = (0..supplies.len() as u32).collect();
        let policy = policy(&supplies, &[&all]);
        let tiers = tiers(&policy, &pools(&all), &rules);
        let mut listed: Vec<PoolId> = tiers.iter().flat_map(|tier| tier.pools.clone()).collect();
        listed.sort_unstable();
        prop_assert_eq!(listed, pools(&all));
        prop_assert!(tiers.is_sorted_by_key(|tier| tier.rank));
    }

    #[test]
    fn a_job_goes_only_where_there_is_room_and_wants_nothing_better(
        offers in offers(), left in 0u64..200, patient: bool, waits: bool, last in prop::option::of(0usize..6)
    ) {
        let late_policy = if waits { LatePolicy::Wait } else { LatePolicy::Fastest };
        let terms = JobTerms { time_left: left * MS, can_wait: patient && waits, late_policy, last };
        let in_time = |offer: &TierOffer| offer.ttft.is_some_and(|ttft| ttft <= terms.time_left);
        match choose_tier(&offers, &terms) {
            PlacementDecision::Start(tier, choice) => {
                prop_assert!(offers[tier].ttft.is_some());
                prop_assert!(choice == PlacementReason::Waited || in_time(&offers[tier]));
                let better = offers.iter().filter(|other| in_time(other) && other.rank == offers[tier].rank);
                let clearly = |other: &TierOffer| other.cost < offers[tier].cost * 0.8 && other.ttft.is_some_and(|ttft| ttft < terms.time_left / 2);
                prop_assert!(!better.into_iter().any(clearly) || choice == PlacementReason::Waited);
            }
            PlacementDecision::Soonest => prop_assert!(!waits && !offers.iter().any(in_time)),
            PlacementDecision::Wait => prop_assert!(offers.is_empty() || waits),
        }
        prop_assert_eq!(choose_tier(&offers, &terms), choose_tier(&offers, &terms));
    }

    /// Predictions that move within the margin change the pool at most once.
    #[test]
    fn traffic_does_not_swing(cheap in vec(81u64..130, 1..60), dear in vec(1u64..=100, 60..61), start in 0usize..2) {
        let mut last = Some(start);
        let mut changes = 0;
        for (cheap, dear) in cheap.into_iter().zip(dear) {
            let offers = [offer(0, 1.0, Some(cheap)), offer(1, 2.0, Some(dear))];
            let PlacementDecision::Start(tier, _) = choose_tier(&offers, &terms(last)) else { panic!("the dear one is in time") };
            changes += u32::from(last != Some(tier));
            last = Some(tier);
        }
        prop_assert!(changes <= 1, "{} changes", changes);
    }

    /// Costs that move by less than a tenth never change the pool.
    #[test]
    fn small_changes_of_cost_move_nothing(costs in vec((95u32..=100, 95u32..=100), 1..60), start in 0usize..2) {
        for (one, two) in costs {
            let offers = [offer(0, f64::from(one), Some(10)), offer(1, f64::from(two), Some(10))];
            let PlacementDecision::Start(tier, _) = choose_tier(&offers, &terms(Some(start))) else { panic!("both are in time") };
            prop_assert_eq!(tier, start);
        }
    }
}
