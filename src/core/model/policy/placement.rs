//! Placement rules and the traits of pools that they speak of.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::ids::PoolId;

/// Isolation: how a replica shares its accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// The replica has the whole accelerator.
    #[default]
    Dedicated,
    /// The replica has a slice with compute and memory of its own (NVIDIA MIG).
    Mig,
    /// The accelerator is shared with others that run at the same time (NVIDIA MPS).
    Mps,
    /// The accelerator is shared with others by turns.
    TimeSliced,
}

impl Isolation {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Dedicated, Self::Mig, Self::Mps, Self::TimeSliced];

    /// The name that the configuration and telemetry use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Mig => "mig",
            Self::Mps => "mps",
            Self::TimeSliced => "time-sliced",
        }
    }
}

/// Capacity type: whether the owner of the machine may take it back at short notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capacity {
    /// The machine stays as long as it is paid for.
    #[default]
    OnDemand,
    /// The machine may be taken back.
    Spot,
}

impl Capacity {
    /// The name that the configuration and telemetry use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
        }
    }
}

/// Price of one replica for an hour, in millionths of any one currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Price(u64);

impl Price {
    /// The highest price, in units of the currency.
    pub const MAX: f64 = 1e6;
    const PARTS: f64 = 1e6;
    /// Divisor that turns nanoseconds × millionths per hour into 1e-9 of the currency.
    pub const UNIT: u128 = 3_600_000_000;

    /// A price in units of the currency; `None` unless it is from 0 to
    /// [`Price::MAX`].
    pub fn new(units: f64) -> Option<Self> {
        (0.0..=Self::MAX).contains(&units).then(|| Self((units * Self::PARTS).round() as u64))
    }

    /// The price in millionths of the currency.
    pub const fn millionths(self) -> u64 {
        self.0
    }

    /// Cost of `nanos` nanoseconds of a replica, in 1e-9 of the currency.
    pub fn cost_of(self, nanos: u64) -> u64 {
        let cost = u128::from(nanos) * u128::from(self.0) / Self::UNIT;
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// The price in units of the currency.
    pub fn units(self) -> f64 {
        self.0 as f64 / Self::PARTS
    }
}

/// Traits of a pool that placement rules look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolTraits {
    /// How the replicas share their accelerators.
    pub isolation: Isolation,
    /// Whether the replicas may be taken away.
    pub capacity: Capacity,
    /// Price of each replica; absent = unknown, which counts as more than any price.
    pub price: Option<Price>,
    /// Context window of the engines in tokens; absent = unknown.
    pub window: Option<u32>,
}

/// What a job does when no pool can serve it in time just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatePolicy {
    /// The job goes where its first token comes soonest, whatever the cost.
    #[default]
    Fastest,
    /// The job waits for the pools that it wants most. The job uses other pools only from half of
    /// its objective on, and only where they keep the rest of the objective.
    Wait,
}

impl LatePolicy {
    /// The name that the configuration and telemetry use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fastest => "fastest",
            Self::Wait => "wait",
        }
    }
}

/// Where work may go, and where it goes first. An absent rule limits nothing here, or leaves the
/// choice to the class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct PlacementRules {
    /// Kinds of isolation that the work may use.
    pub isolation: Option<BTreeSet<Isolation>>,
    /// Kinds of capacity that the work may use.
    pub capacity: Option<BTreeSet<Capacity>>,
    /// Pools that the work may use.
    pub pools: Option<BTreeSet<PoolId>>,
    /// The highest price of a replica; a pool of unknown price costs more.
    pub max_price: Option<Price>,
    /// Pools in order of preference, before all others.
    pub spill: Option<Vec<PoolId>>,
    /// The kind of capacity that is preferred.
    pub prefer: Option<Capacity>,
    /// What to do when no pool keeps the objective.
    pub late_policy: Option<LatePolicy>,
}

impl PlacementRules {
    /// Whether work under these rules may use the pool.
    pub fn allows(&self, pool: PoolId, supply: &PoolTraits) -> bool {
        self.isolation.as_ref().is_none_or(|kinds| kinds.contains(&supply.isolation))
            && self.capacity.as_ref().is_none_or(|kinds| kinds.contains(&supply.capacity))
            && self.pools.as_ref().is_none_or(|pools| pools.contains(&pool))
            && self.max_price.is_none_or(|most| supply.price.is_some_and(|price| price <= most))
    }

    /// The rules of a class and of a tenant together: only what both allow. The tenant's
    /// preferences replace those of the class.
    pub fn combined_with(&self, tenant: &Self) -> Self {
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
            late_policy: tenant.late_policy.or(self.late_policy),
        }
    }

    /// Rank of a pool by order and kind, before prices. A lower rank is preferred.
    pub(crate) fn rank(&self, pool: PoolId, supply: &PoolTraits) -> (usize, bool) {
        let listed = self.spill.iter().flatten().position(|other| *other == pool);
        let other_kind = self.prefer.is_some_and(|kind| kind != supply.capacity);
        (listed.unwrap_or(usize::MAX), other_kind)
    }
}
