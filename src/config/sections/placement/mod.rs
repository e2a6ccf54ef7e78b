//! Section `placement` of classes and tenants, and the traits of pools that it names.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where work may go and where it goes first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementSection {
    /// How replicas may have their accelerators. Absent = in any way, but
    /// never time-sliced for the class of the first rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Vec<IsolationName>>,
    /// Kinds of capacity that may be used; absent = both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Vec<CapacityName>>,
    /// Pools that may be used; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    /// The highest `price` of a pool that may be used; pools without one
    /// are then not used. Absent = any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub max_price: Option<f64>,
    /// Pools in the order in which they are used, before all others; absent =
    /// the cheapest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<Vec<String>>,
    /// The kind of capacity that is used before the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefer: Option<CapacityName>,
    /// What to do while no pool keeps the objective: go where the first token
    /// comes soonest (`fastest`), or `wait` for the pools that come first; then
    /// half of the objective is waited before any other pool is looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<LatePolicyName>,
}

impl PlacementSection {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This, with what it does not say taken from `base`.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        let (own, base) = (self.clone(), base.clone());
        Self {
            isolation: own.isolation.or(base.isolation),
            capacity: own.capacity.or(base.capacity),
            pools: own.pools.or(base.pools),
            max_price: own.max_price.or(base.max_price),
            spill: own.spill.or(base.spill),
            prefer: own.prefer.or(base.prefer),
            otherwise: own.otherwise.or(base.otherwise),
        }
    }
}

/// How a replica has its accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationName {
    /// For itself alone.
    Dedicated,
    /// A slice with compute and memory of its own (NVIDIA MIG).
    Mig,
    /// The accelerator is shared with others that run at the same time (NVIDIA MPS).
    Mps,
    /// The accelerator is shared with others by turns.
    TimeSliced,
}

/// Whether a machine may be taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityName {
    /// The machine stays as long as it is paid for.
    #[default]
    OnDemand,
    /// It may be taken back at short notice.
    Spot,
}

/// What to do while no pool keeps the objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LatePolicyName {
    /// Go where the first token comes soonest.
    Fastest,
    /// Wait for the pools that come first.
    Wait,
}
