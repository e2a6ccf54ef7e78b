//! Placement rules: the pools that a class and tenant may use, in their order of preference.

use std::collections::BTreeSet;

use crate::core::model::ids::PoolId;
use crate::core::model::policy::{Model, Policy};

/// How a replica has its accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Isolation {
    /// For itself alone.
    #[default]
    Dedicated,
    /// A slice of it with compute and memory of its own (NVIDIA MIG).
    Mig,
    /// Shared with others that run at the same time (NVIDIA MPS).
    Mps,
    /// Shared with others by turns.
    TimeSliced,
}

impl Isolation {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Dedicated, Self::Mig, Self::Mps, Self::TimeSliced];

    /// The name that the configuration and telemetry use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Mig => "mig",
            Self::Mps => "mps",
            Self::TimeSliced => "time-sliced",
        }
    }
}

/// Whether the owner of the machine may take it back at short notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Capacity {
    /// It stays as long as it is paid for.
    #[default]
    OnDemand,
    /// It may be taken back.
    Spot,
}

impl Capacity {
    /// The name that the configuration and telemetry use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
        }
    }
}

/// What one replica costs for an hour, in millionths of any one currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price(u64);

impl Price {
    /// The highest price, in units of the currency.
    pub const MAX: f64 = 1e6;
    const PARTS: f64 = 1e6;
    /// Nanoseconds at a millionth of the currency for an hour that make up 1e-9 of
    /// the currency.
    pub const UNIT: u128 = 3_600_000_000;

    /// A price in units of the currency; `None` unless it is from 0 to
    /// [`Price::MAX`].
    #[must_use]
    pub fn new(units: f64) -> Option<Self> {
        (0.0..=Self::MAX).contains(&units).then(|| Self((units * Self::PARTS).round() as u64))
    }

    /// In millionths of the currency.
    #[must_use]
    pub const fn millionths(self) -> u64 {
        self.0
    }

    /// What so many nanoseconds of a replica cost, in 1e-9 of the currency.
    #[must_use]
    pub fn of(self, nanos: u64) -> u64 {
        let cost = u128::from(nanos) * u128::from(self.0) / Self::UNIT;
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// In units of the currency.
    #[must_use]
    pub fn units(self) -> f64 {
        self.0 as f64 / Self::PARTS
    }
}

/// What a pool is, as far as rules ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolTraits {
    /// How its replicas have their accelerators.
    pub isolation: Isolation,
    /// Whether they may be taken away.
    pub capacity: Capacity,
    /// What each costs; absent = unknown, which counts as more than any price.
    pub price: Option<Price>,
    /// Context window of its engines in tokens; absent = unknown.
    pub window: Option<u32>,
}

/// What a job does that no pool can serve in time just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum LatePolicy {
    /// It goes where its first token comes soonest, whatever that costs.
    #[default]
    Fastest,
    /// It waits for the pools that it wants most. Others it takes only from
    /// half of its objective on, and only where they keep the rest of it.
    Wait,
}

impl LatePolicy {
    /// The name that the configuration and telemetry use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fastest => "fastest",
            Self::Wait => "wait",
        }
    }
}

/// Where work may go and where it goes first. What is absent is not limited
/// here, or left to the class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PlacementRules {
    /// Kinds of isolation that it may have.
    pub isolation: Option<BTreeSet<Isolation>>,
    /// Kinds of capacity that it may have.
    pub capacity: Option<BTreeSet<Capacity>>,
    /// Pools that it may use.
    pub pools: Option<BTreeSet<PoolId>>,
    /// The most that a replica may cost; pools of unknown price cost more.
    pub max_price: Option<Price>,
    /// Pools in the order in which they are wanted, before all others.
    pub spill: Option<Vec<PoolId>>,
    /// The capacity that is wanted before the other kind.
    pub prefer: Option<Capacity>,
    /// What to do when no pool keeps the objective.
    pub otherwise: Option<LatePolicy>,
}

impl PlacementRules {
    /// Whether work under these rules may use the pool.
    #[must_use]
    pub fn allow(&self, pool: PoolId, supply: &PoolTraits) -> bool {
        self.isolation.as_ref().is_none_or(|kinds| kinds.contains(&supply.isolation))
            && self.capacity.as_ref().is_none_or(|kinds| kinds.contains(&supply.capacity))
            && self.pools.as_ref().is_none_or(|pools| pools.contains(&pool))
            && self.max_price.is_none_or(|most| supply.price.is_some_and(|price| price <= most))
    }

    /// The rules of a class and of a tenant together: only what both allow. The
    /// tenant's wishes go before those of the class.
    #[must_use]
    pub fn narrowed(&self, tenant: &Self) -> Self {
        fn both<T: Ord + Copy>(one: Option<&BTreeSet<T>>, two: Option<&BTreeSet<T>>) -> Option<BTreeSet<T>> {
            match (one, two) {
                (Some(one), Some(two)) => Some(one & two),
                (one, two) => one.or(two).cloned(),
            }
        }
        Self {
            isolation: both(self.isolation.as_ref(), tenant.isolation.as_ref()),
            capacity: both(self.capacity.as_ref(), tenant.capacity.as_ref()),
            pools: both(self.pools.as_ref(), tenant.pools.as_ref()),
            max_price: self.max_price.into_iter().chain(tenant.max_price).min(),
            spill: tenant.spill.as_ref().or(self.spill.as_ref()).cloned(),
            prefer: tenant.prefer.or(self.prefer),
            otherwise: tenant.otherwise.or(self.otherwise),
        }
    }

    /// How much a pool is wanted by order and kind, before prices: less is
    /// more.
    fn rank(&self, pool: PoolId, supply: &PoolTraits) -> (usize, bool) {
        let listed = self.spill.iter().flatten().position(|other| *other == pool);
        let other_kind = self.prefer.is_some_and(|kind| kind != supply.capacity);
        (listed.unwrap_or(usize::MAX), other_kind)
    }
}

/// The context window that a pool has for a model: the smaller of the two.
#[must_use]
pub fn window(model: &Model, supply: &PoolTraits) -> Option<u32> {
    model.max_model_len.into_iter().chain(supply.window).min()
}

/// The largest context window for a model among the pools that may serve it,
/// as far as both the class's and the tenant's rules go; `None` where some
/// window is not known, or no pool is left.
#[must_use]
pub fn largest_window(policy: &Policy, model: &Model, rules: &[&PlacementRules]) -> Option<u32> {
    let pools = model.pools.iter().filter_map(|id| Some((*id, policy.pools.get(*id)?.supply)));
    let mut allowed = pools.filter(|(id, supply)| rules.iter().all(|rules| rules.allow(*id, supply)));
    allowed.try_fold(0, |most, (_, supply)| Some(window(model, &supply)?.max(most))).filter(|most| *most > 0)
}

/// The pools, by id, that may serve a model's jobs under the rules: those whose
/// window is larger than `beyond` tokens, or the ones with the largest window
/// where none is, for the engine to decide.
#[must_use]
pub fn eligible(policy: &Policy, model: &Model, rules: &PlacementRules, beyond: u32) -> Vec<PoolId> {
    let size = |id: PoolId| {
        let supply = policy.pools.get(id).map(|pool| pool.supply).unwrap_or_default();
        window(model, &supply).unwrap_or(u32::MAX)
    };
    let known = |id: &PoolId| policy.pools.get(*id).is_some_and(|pool| rules.allow(*id, &pool.supply));
    let mut pools: Vec<PoolId> = model.pools.iter().copied().filter(known).collect();
    pools.sort_unstable();
    pools.dedup();
    let largest = pools.iter().map(|id| size(*id)).max().unwrap_or_default();
    pools.retain(|id| size(*id) > beyond || size(*id) == largest);
    pools
}

/// Pools that are wanted as much as each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolTier {
    /// By order and kind; those of the same rank are told apart by what they
    /// cost.
    pub rank: usize,
    /// What a replica costs.
    pub price: Option<Price>,
    /// The pools, by id.
    pub pools: Vec<PoolId>,
}

/// The pools by how much they are wanted, most wanted first as far as that is
/// known before anything has run there.
#[must_use]
pub fn tiers(policy: &Policy, pools: &[PoolId], rules: &PlacementRules) -> Vec<PoolTier> {
    let key = |id: PoolId| {
        let supply = policy.pools.get(id).map(|pool| pool.supply).unwrap_or_default();
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
