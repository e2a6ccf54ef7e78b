//! Which pools can serve which model, and which models share replicas.

use std::collections::BTreeMap;

use crate::core::ids::{ModelId, PoolId};
use crate::core::policy::Policy;

/// A set of pools that serves one or more models. Jobs of models with the same
/// set compete for exactly the same replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The pools, by id.
    pub pools: Vec<PoolId>,
    /// The group it belongs to.
    pub group: usize,
    /// Its place among the routes of its group.
    pub line: usize,
}

/// Routes that share pools, directly or by way of others. What happens in one
/// group never touches another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupShape {
    /// Its pools, by id.
    pub pools: Vec<PoolId>,
    /// The pools of each of its routes.
    pub lines: Vec<Vec<PoolId>>,
}

/// The map from models to pools, worked out once per policy.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    routes: Vec<Route>,
    models: BTreeMap<ModelId, usize>,
    pools: BTreeMap<PoolId, usize>,
    groups: Vec<GroupShape>,
}

impl Placement {
    /// Works out the map. A model none of whose pools exists has no route.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let mut sets: BTreeMap<Vec<PoolId>, Vec<ModelId>> = BTreeMap::new();
        for (id, _, model) in policy.models.iter() {
            let mut pools: Vec<PoolId> =
                model.pools.iter().copied().filter(|pool| policy.pools.get(*pool).is_some()).collect();
            pools.sort_unstable();
            pools.dedup();
            if !pools.is_empty() {
                sets.entry(pools).or_default().push(id);
            }
        }

        let mut placement = Self { groups: groups(sets.keys()), ..Self::default() };
        for (index, group) in placement.groups.iter().enumerate() {
            placement.pools.extend(group.pools.iter().map(|pool| (*pool, index)));
        }
        for (pools, models) in sets {
            let group = placement.pools[&pools[0]];
            let lines = &mut placement.groups[group].lines;
            let line = lines.len();
            lines.push(pools.clone());
            placement.models.extend(models.into_iter().map(|model| (model, placement.routes.len())));
            placement.routes.push(Route { pools, group, line });
        }
        placement
    }

    /// Where a model is served.
    #[must_use]
    pub fn route(&self, model: ModelId) -> Option<&Route> {
        self.models.get(&model).map(|index| &self.routes[*index])
    }

    /// The group that a pool belongs to; a pool without models has none.
    #[must_use]
    pub fn group_of(&self, pool: PoolId) -> Option<usize> {
        self.pools.get(&pool).copied()
    }

    /// All groups.
    #[must_use]
    pub fn groups(&self) -> &[GroupShape] {
        &self.groups
    }
}

/// Joins sets that share a pool until none do.
fn groups<'a>(sets: impl Iterator<Item = &'a Vec<PoolId>>) -> Vec<GroupShape> {
    let mut groups: Vec<Vec<PoolId>> = Vec::new();
    for set in sets {
        let (touching, mut rest): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.iter().any(|pool| set.contains(pool)));
        let mut joined: Vec<PoolId> = touching.into_iter().flatten().chain(set.iter().copied()).collect();
        joined.sort_unstable();
        joined.dedup();
        rest.push(joined);
        groups = rest;
    }
    groups.sort_unstable();
    groups.into_iter().map(|pools| GroupShape { pools, lines: Vec::new() }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::core::policy::{Model, Pool};

    fn policy(pools: u32, models: &[&[u32]]) -> Policy {
        let mut policy = Policy::default();
        for pool in 0..pools {
            let row = Pool {
                replicas: Vec::new(),
                models: BTreeSet::new(),
                engine_buffer: 0,
                engine_priority: false,
            };
            policy.pools.insert(&format!("p{pool}"), row);
        }
        for (index, pools) in models.iter().enumerate() {
            let pools = pools.iter().copied().map(PoolId::new).collect();
            policy.models.insert(&format!("m{index}"), Model { pools, max_model_len: None });
        }
        policy
    }

    #[test]
    fn models_with_the_same_pools_share_a_route() {
        let placement = Placement::new(&policy(2, &[&[0, 1], &[1, 0, 0], &[1]]));
        let route = |model| placement.route(ModelId::new(model));
        assert_eq!(route(0), route(1));
        assert_ne!(route(0), route(2));
        assert_eq!(placement.groups().len(), 1);
        assert_eq!(placement.groups()[0].lines.len(), 2);
    }

    #[test]
    fn groups_join_by_way_of_others_and_stay_apart_otherwise() {
        let placement = Placement::new(&policy(5, &[&[0, 1], &[2, 3], &[1, 2], &[4]]));
        let groups: Vec<_> = placement.groups().iter().map(|group| group.pools.len()).collect();
        assert_eq!(groups, [4, 1]);
        assert_eq!(placement.group_of(PoolId::new(3)), Some(0));
        assert_eq!(placement.group_of(PoolId::new(4)), Some(1));
    }

    #[test]
    fn a_model_without_a_present_pool_has_no_route() {
        let placement = Placement::new(&policy(1, &[&[7], &[7, 0]]));
        assert_eq!(placement.route(ModelId::new(0)), None);
        assert_eq!(placement.route(ModelId::new(1)).map(|route| route.pools.len()), Some(1));
    }
}
