//! Section `placement` of classes and tenants, and the traits of pools that it names.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where work may go, and where work goes first. A request uses only what both its class and its
/// tenant allow; the tenant's `spill`, `prefer` and `otherwise` take precedence over those of the
/// class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementSection {
    /// Ways in which replicas that the work may use have their accelerators. Absent = all ways, but
    /// for the class of the first rank all except `time-sliced`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Vec<IsolationName>>,
    /// Kinds of capacity that the work may use. Absent = both kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Vec<CapacityName>>,
    /// Pools that the work may use. Absent = all pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    /// Highest `price` of a pool that the work may use. A pool without a price is then not used.
    /// Absent = any price.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub max_price: Option<f64>,
    /// Pools in the order in which the work uses them, before all other pools. Absent = the
    /// cheapest pool comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<Vec<String>>,
    /// Kind of capacity that the work uses before the other kind. Absent = neither kind comes
    /// first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefer: Option<CapacityName>,
    /// What the work does while no pool keeps its time to first token (`ttft` of the class):
    /// `fastest` or `wait`. Absent = `fastest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<LatePolicyName>,
}

impl PlacementSection {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This, with what it does not say taken from `base`.
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
    /// A replica has its accelerator for itself alone.
    Dedicated,
    /// A replica has a slice of an accelerator, with compute and memory of its own (NVIDIA MIG).
    Mig,
    /// Replicas share an accelerator and run at the same time (NVIDIA MPS).
    Mps,
    /// Replicas share an accelerator by turns.
    TimeSliced,
}

/// Whether a machine may be taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityName {
    /// The machine stays as long as it is paid for.
    #[default]
    OnDemand,
    /// The machine may be taken back at short notice.
    Spot,
}

/// What to do while no pool keeps the objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LatePolicyName {
    /// The work goes where its first token comes soonest.
    Fastest,
    /// The work waits for the pools that come first. Other pools are looked at only after half of
    /// the objective.
    Wait,
}
