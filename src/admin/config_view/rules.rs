//! Placement rules as the report of the configuration shows them.

use serde_json::{Value, json};

use crate::core::model::ids::PoolId;
use crate::core::model::policy::Policy;
use crate::core::placement::rules::{Capacity, LatePolicy, PlacementRules, Price};

pub(super) fn rules_view(rules: &PlacementRules, policy: &Policy) -> Value {
    let names = |pools: &mut dyn Iterator<Item = &PoolId>| -> Vec<&str> {
        pools.map(|pool| policy.pools.name(*pool)).collect()
    };
    let PlacementRules { isolation, capacity, pools, max_price, spill, prefer, late_policy } = rules;
    json!({
        "isolation": isolation.as_ref().map(|kinds| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>()),
        "capacity": capacity.as_ref().map(|kinds| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>()),
        "pools": pools.as_ref().map(|pools| names(&mut pools.iter())),
        "max_price": max_price.map(Price::units),
        "spill": spill.as_ref().map(|pools| names(&mut pools.iter())),
        "prefer": prefer.map(Capacity::name),
        "otherwise": late_policy.map(LatePolicy::name),
    })
}
