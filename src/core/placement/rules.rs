//! Placement rules: the pools that a class and tenant may use, in their order of preference.

use crate::model::ids::PoolId;
pub use crate::model::policy::placement::{
    Capacity, Isolation, LatePolicy, PlacementRules, PoolTraits, Price,
};
use crate::model::policy::{Model, Policy};

/// Context window of a pool for a model in tokens: the smaller of the model's and the pool's
/// windows.
pub fn context_window(model: &Model, supply: &PoolTraits) -> Option<u32> {
    model.max_model_len.into_iter().chain(supply.window).min()
}

/// The largest context window in tokens for a model, among the pools that all of the given rules
/// allow. `reported` is the window that a pool's engines state, which may be smaller. `None` when
/// some window is not known, or when no pool is left.
pub fn largest_window(
    policy: &Policy,
    model: &Model,
    rules: &[&PlacementRules],
    reported: impl Fn(PoolId) -> Option<u32>,
) -> Option<u32> {
    let pools = model.pools.iter().filter_map(|id| Some((*id, policy.pools.get(*id)?.traits)));
    let mut allowed = pools.filter(|(id, supply)| rules.iter().all(|rules| rules.allows(*id, supply)));
    allowed
        .try_fold(0, |most: u32, (id, supply)| {
            let smaller = context_window(model, &supply).into_iter().chain(reported(id)).min()?;
            Some(most.max(smaller))
        })
        .filter(|most| *most > 0)
}

/// The pools, by id, that may serve a model's jobs under the rules: those with a window larger than
/// `beyond` tokens. When no window is larger, the pools with the largest window, so that the engine
/// decides.
pub fn eligible(policy: &Policy, model: &Model, rules: &PlacementRules, beyond: u32) -> Vec<PoolId> {
    let size = |id: PoolId| {
        let supply = policy.pools.get(id).map(|pool| pool.traits).unwrap_or_default();
        context_window(model, &supply).unwrap_or(u32::MAX)
    };
    let known = |id: &PoolId| policy.pools.get(*id).is_some_and(|pool| rules.allows(*id, &pool.traits));
    let mut pools: Vec<PoolId> = model.pools.iter().copied().filter(known).collect();
    pools.sort_unstable();
    pools.dedup();
    let largest = pools.iter().map(|id| size(*id)).max().unwrap_or_default();
    pools.retain(|id| size(*id) > beyond || size(*id) == largest);
    pools
}

/// Tier: pools that are equally preferred.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolTier {
    /// Rank by order and kind. Tiers of the same rank differ in cost.
    pub rank: usize,
    /// Price of a replica.
    pub price: Option<Price>,
    /// The pools, by id.
    pub pools: Vec<PoolId>,
}

/// The tiers of the pools, most preferred first, as far as that is known before any work has run
/// there.
pub fn tiers(policy: &Policy, pools: &[PoolId], rules: &PlacementRules) -> Vec<PoolTier> {
    let key = |id: PoolId| {
        let supply = policy.pools.get(id).map(|pool| pool.traits).unwrap_or_default();
        (rules.rank(id, &supply), supply.price.is_none(), supply.price)
    };
    let mut sorted = pools.to_vec();
    sorted.sort_by_key(|id| (key(*id), *id));
    let mut ranks: Vec<_> = sorted.iter().map(|id| key(*id).0).collect();
    ranks.dedup();
    let tier = |pools: &[PoolId]| {
        let (rank, _, price) = key(pools[0]);
        let rank = ranks.iter().position(|other| *other == rank).unwrap_or_default();
        PoolTier { rank, price, pools: pools.to_vec() }
    };
    sorted.chunk_by(|one, two| key(*one) == key(*two)).map(tier).collect()
}
