//! Placement: the pools that can serve each job, and the pool groups of models that share replicas.
//! Replicas are compared in [`crate::replica::fleet`].
//!
//! [`rules`] says which pools a job may use and in which order of preference. [`choose_tier`] chooses
//! among them for one job. This module computes, once per policy, all that changes only with the
//! policy.

pub mod choose_tier;
pub mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::ids::{ClassId, GroupIndex, ModelId, PoolId, PoolSetIndex};
use crate::model::policy::Policy;
use crate::placement::rules::{LatePolicy, PlacementRules, PoolTier, context_window, eligible, tiers};
use crate::queue::lane_key::LaneKey;

/// The pools that a job may use, by tier. Jobs with the same pool set compete for exactly the same
/// replicas.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolSet {
    /// The pools, by id.
    pub pools: Vec<PoolId>,
    /// The same pools by preference; never empty.
    pub tiers: Vec<PoolTier>,
    /// What a job does when no pool keeps its objective.
    pub late_policy: LatePolicy,
}

impl PoolSet {
    /// Whether jobs of the pool set may wait for the pools that they want most.
    pub fn can_wait(&self) -> bool {
        self.late_policy == LatePolicy::Wait && self.tiers.len() > 1
    }
}

/// The pool group and pool set of a lane's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneRoute {
    /// The pool group of the lane's model.
    pub group: GroupIndex,
    pub pool_set: PoolSetIndex,
}

/// Pools that share models, directly or through other pools. Groups do not affect each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupShape {
    /// Its pools, by id.
    pub pools: Vec<PoolId>,
    pub pool_sets: Vec<PoolSet>,
    /// The pools that each class may use for any tenant or model, by class.
    pub reach: BTreeMap<ClassId, BTreeSet<PoolId>>,
}

/// The pool group and pool sets of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ModelRoutes {
    group: GroupIndex,
    /// The distinct context windows of the model's pools except the largest, ascending. A job that
    /// exceeds one window may fit the next.
    windows: Vec<u32>,
    /// The pool set for each set of rules and, within one set of rules, for each number of windows
    /// that a job exceeds.
    pool_sets: Vec<Option<PoolSetIndex>>,
}

impl GroupShape {
    pub fn pool_set(&self, pool_set: PoolSetIndex) -> &PoolSet {
        &self.pool_sets[pool_set.index()]
    }

    pub fn pool_set_indexes(&self) -> impl Iterator<Item = PoolSetIndex> + use<> {
        (0..self.pool_sets.len()).map(PoolSetIndex::from)
    }
}

/// Map from lanes to pool sets, computed once per policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    models: Vec<Option<ModelRoutes>>,
    /// Number of each tenant's rules; those at the end that have none are left out.
    tenants: Vec<usize>,
    /// By class: the number of the class's rules combined with each tenant's rules.
    classes: Vec<Vec<usize>>,
    pools: BTreeMap<PoolId, GroupIndex>,
    groups: Vec<GroupShape>,
}

impl Placement {
    /// Computes the map. A model without any existing pool has no pool sets.
    pub fn new(policy: &Policy) -> Self {
        let mut placement = Self::default();
        let rules = placement.number_rules(policy);
        let sets: BTreeMap<ModelId, Vec<PoolId>> = policy
            .models
            .iter()
            .map(|(id, _, model)| (id, eligible(policy, model, &PlacementRules::default(), 0)))
            .filter(|(_, pools)| !pools.is_empty())
            .collect();
        placement.groups = groups(sets.values());
        for (index, group) in placement.groups.iter().enumerate() {
            placement.pools.extend(group.pools.iter().map(|pool| (*pool, GroupIndex::from(index))));
        }
        placement.models.resize(policy.models.capacity(), None);
        let mut known: BTreeMap<(GroupIndex, PoolSet), PoolSetIndex> = BTreeMap::new();
        for (id, pools) in &sets {
            let group = placement.pools[&pools[0]];
            let ways = placement.routes_from(policy, *id, group, &rules, &mut known);
            placement.models[id.index()] = Some(ways);
        }
        placement.find_reach(policy);
        placement
    }

    /// Numbers the sets of rules that classes and tenants make together, and returns the sets.
    fn number_rules(&mut self, policy: &Policy) -> Vec<PlacementRules> {
        let mut of_tenants = RuleNumbers::default();
        of_tenants.number(PlacementRules::default());
        self.tenants.resize(policy.tenants.capacity(), 0);
        for (id, _, tenant) in policy.tenants.iter() {
            self.tenants[id.index()] = of_tenants.number(tenant.placement.clone());
        }
        let ruled = self.tenants.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
        self.tenants.truncate(ruled);
        let mut together = RuleNumbers::default();
        self.classes.resize(policy.classes.capacity(), Vec::new());
        for (id, _, class) in policy.classes.iter() {
            let merged = of_tenants.all.iter().map(|tenant| class.placement.combined_with(tenant));
            self.classes[id.index()] = merged.map(|rules| together.number(rules)).collect();
        }
        together.all
    }

    fn routes_from(
        &mut self,
        policy: &Policy,
        model: ModelId,
        group: GroupIndex,
        rules: &[PlacementRules],
        known: &mut BTreeMap<(GroupIndex, PoolSet), PoolSetIndex>,
    ) -> ModelRoutes {
        let Some(model) = policy.models.get(model) else {
            return ModelRoutes { group, windows: Vec::new(), pool_sets: Vec::new() };
        };
        let supplies = model.pools.iter().filter_map(|pool| Some(policy.pools.get(*pool)?.traits));
        let mut windows: Vec<u32> =
            supplies.map(|one| context_window(model, &one).unwrap_or(u32::MAX)).collect();
        windows.sort_unstable();
        windows.dedup();
        windows.pop();
        let passed = || std::iter::once(0).chain(windows.iter().copied());
        let cases = rules.iter().flat_map(|rules| passed().map(move |beyond| (rules, beyond)));
        let pool_sets = cases.map(|(rules, beyond)| {
            let pools = eligible(policy, model, rules, beyond);
            let tiers = tiers(policy, &pools, rules);
            // With a single tier the job has no alternative.
            let otherwise = rules.late_policy.filter(|_| tiers.len() > 1).unwrap_or_default();
            let pool_set = (!tiers.is_empty()).then_some(PoolSet { pools, tiers, late_policy: otherwise })?;
            let pool_sets = &mut self.groups[group.index()].pool_sets;
            Some(*known.entry((group, pool_set)).or_insert_with_key(|(_, pool_set)| {
                pool_sets.push(pool_set.clone());
                PoolSetIndex::from(pool_sets.len() - 1)
            }))
        });
        ModelRoutes { group, pool_sets: pool_sets.collect(), windows }
    }

    fn find_reach(&mut self, policy: &Policy) {
        for (class, _, _) in policy.classes.iter() {
            let numbers: BTreeSet<usize> = self.classes[class.index()].iter().copied().collect();
            for ways in self.models.iter().flatten() {
                let group = &mut self.groups[ways.group.index()];
                let reach = group.reach.entry(class).or_default();
                let cases = ways.windows.len() + 1;
                for number in &numbers {
                    let pool_sets = ways.pool_sets[number * cases..][..cases].iter().flatten();
                    reach.extend(pool_sets.flat_map(|pool_set| &group.pool_sets[pool_set.index()].pools));
                }
            }
        }
    }

    fn routes_of(&self, model: ModelId) -> Option<&ModelRoutes> {
        self.models.get(model.index())?.as_ref()
    }

    /// The pool group and pool set of a lane's jobs; `None` when no pool may serve them.
    pub fn route(&self, lane: LaneKey) -> Option<LaneRoute> {
        let ways = self.routes_of(lane.model)?;
        let tenant = self.tenants.get(lane.tenant.index()).copied().unwrap_or(0);
        let rules = *self.classes.get(lane.class.index())?.get(tenant)?;
        let passed = usize::from(lane.context_group).min(ways.windows.len());
        let pool_set = ways.pool_sets[rules * (ways.windows.len() + 1) + passed]?;
        Some(LaneRoute { group: ways.group, pool_set })
    }

    /// The pools that may serve the jobs of a lane.
    pub fn pool_set(&self, lane: LaneKey) -> Option<&PoolSet> {
        self.route(lane).map(|route| self.groups[route.group.index()].pool_set(route.pool_set))
    }

    /// The number of the model's context windows, except the largest, that a job of `context`
    /// tokens exceeds.
    pub fn context_group(&self, model: ModelId, context: u64) -> u8 {
        let passed =
            self.routes_of(model).map_or(0, |ways| ways.windows.partition_point(|w| u64::from(*w) < context));
        u8::try_from(passed).unwrap_or(u8::MAX)
    }

    /// Whether both maps serve the same models with the same context windows.
    pub fn has_windows_of(&self, other: &Self) -> bool {
        let windows = |placement: &Self, model| placement.routes_of(model).map(|ways| ways.windows.clone());
        let count = self.models.len().max(other.models.len());
        (0..count).map(ModelId::from).all(|model| windows(self, model) == windows(other, model))
    }

    /// The pool group of a model.
    pub fn group_of_model(&self, model: ModelId) -> Option<GroupIndex> {
        self.routes_of(model).map(|ways| ways.group)
    }

    /// The pool group that a pool belongs to; a pool without models has none.
    pub fn group_of(&self, pool: PoolId) -> Option<GroupIndex> {
        self.pools.get(&pool).copied()
    }

    pub fn groups(&self) -> &[GroupShape] {
        &self.groups
    }
}

/// A policy with all that follows from it alone.
#[derive(Debug)]
pub struct PreparedPolicy {
    pub policy: Arc<Policy>,
    pub placement: Arc<Placement>,
}

impl PreparedPolicy {
    /// Computes what follows from the policy: the pools of each lane.
    pub fn new(policy: Arc<Policy>) -> Self {
        let placement = Arc::new(Placement::new(&policy));
        Self { policy, placement }
    }
}

/// Numbers for sets of rules: equal rules get equal numbers.
#[derive(Default)]
struct RuleNumbers {
    all: Vec<PlacementRules>,
    known: BTreeMap<PlacementRules, usize>,
}

impl RuleNumbers {
    fn number(&mut self, rules: PlacementRules) -> usize {
        if let Some(number) = self.known.get(&rules) {
            return *number;
        }
        self.known.insert(rules.clone(), self.all.len());
        self.all.push(rules);
        self.all.len() - 1
    }
}

/// Pool groups: joins sets of pools until no two share a pool.
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
    groups.into_iter().map(|pools| GroupShape { pools, ..GroupShape::default() }).collect()
}

#[cfg(test)]
pub(crate) mod tests;
pub mod unattainable;
