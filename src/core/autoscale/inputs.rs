//! Inputs of an evaluation of the demand: a copy of what waits and runs at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::autoscale::demand::utilization::ReplicasInUse;
use crate::autoscale::demand_report::{PeerDemand, PoolSetKey, PoolSetReport};
use crate::autoscale::facts::GroupClasses;
use crate::model::ids::{ClassId, ClassIndex, GroupIndex, PoolId, PoolSetIndex};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::{GroupShape, Placement, PoolSet};
use crate::queue::lane_key::{LaneKey, LanePosition};

/// What the observer sees of the scheduler. The scheduler fills it in one call, with plain copies
/// only; sums over lanes are made by [`Self::waiting_demand`].
#[derive(Debug, Clone)]
pub struct DemandInputs {
    pub policy: Arc<Policy>,
    pub placement: Arc<Placement>,
    pub classes: GroupClasses,
    pub now: Tick,
    /// Waiting jobs by group, by pool set, then by class.
    pub waiting: Vec<Vec<u64>>,
    /// Pools of the policy, by id.
    pub pools: BTreeMap<PoolId, PoolLoad>,
    /// All lanes, in no order.
    pub lanes: Vec<LaneDemand>,
}

/// Load of one pool.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolLoad {
    /// Replicas in use now, in each of the ways in which a replica can be full.
    pub used: ReplicasInUse,
    /// Replicas in service.
    pub ready: u32,
    /// Replicas with a job of this gateway.
    pub active: u32,
    /// Jobs that run there.
    pub running: u64,
    /// Mean time of a start; `None` = no start was measured.
    pub start: Option<Duration>,
}

/// Demand of one lane.
#[derive(Debug, Clone, Copy)]
pub struct LaneDemand {
    pub key: LaneKey,
    pub requests: u64,
    pub tokens: u64,
    /// Arrival of the oldest job.
    pub oldest: Option<Tick>,
    /// Whether the tenant is paused.
    pub paused: bool,
    /// Whether the tenant's quota allows one more sequence.
    pub allowed: bool,
}

/// Waiting load, summed over the lanes.
#[derive(Debug, Default)]
pub struct WaitingDemand {
    /// Tokens, prompts and asked output, by pool that may serve them.
    pub tokens: BTreeMap<PoolId, u64>,
    /// How long the oldest job of a class has waited in a pool set.
    pub oldest: BTreeMap<LanePosition, Duration>,
    /// The same for lanes whose tenants' quotas allow more sequences.
    pub oldest_allowed: BTreeMap<LanePosition, Duration>,
    /// Jobs of a class in a pool set whose tenants are paused: replicas are no help to
    /// them.
    pub parked: BTreeMap<LanePosition, u64>,
}

impl WaitingDemand {
    /// Jobs of paused tenants in a pool set.
    pub fn parked_in(&self, group: GroupIndex, pool_set: PoolSetIndex) -> u64 {
        let here = self.parked.iter().filter(|(at, _)| (at.group, at.pool_set) == (group, pool_set));
        here.map(|(_, jobs)| jobs).sum()
    }
}

impl DemandInputs {
    /// Indexes of the pool groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupIndex> + use<> {
        (0..self.placement.groups().len()).map(GroupIndex::from)
    }

    pub fn shape(&self, group: GroupIndex) -> &GroupShape {
        &self.placement.groups()[group.index()]
    }

    /// Classes of a group, in the order of service.
    pub fn classes(&self, group: GroupIndex) -> &[ClassId] {
        &self.classes[group.index()]
    }

    /// Jobs that wait at a position.
    pub fn waiting_at(&self, at: LanePosition) -> u64 {
        let index = at.pool_set.index() * self.classes(at.group).len() + at.class.index();
        self.waiting[at.group.index()].get(index).copied().unwrap_or_default()
    }

    /// Jobs of all classes that wait in a pool set.
    pub fn waiting_in_pool_set(&self, group: GroupIndex, pool_set: PoolSetIndex) -> u64 {
        let classes = (0..self.classes(group).len()).map(ClassIndex::from);
        classes.map(|class| self.waiting_at(LanePosition { group, class, pool_set })).sum()
    }

    pub fn pool(&self, pool: PoolId) -> PoolLoad {
        self.pools.get(&pool).copied().unwrap_or_default()
    }

    fn position(&self, lane: LaneKey) -> Option<LanePosition> {
        let route = self.placement.route(lane)?;
        let class = self.classes(route.group).iter().position(|class| *class == lane.class)?;
        Some(LanePosition { group: route.group, class: class.into(), pool_set: route.pool_set })
    }

    /// Sums over all lanes.
    pub fn waiting_demand(&self) -> WaitingDemand {
        let mut waits = WaitingDemand::default();
        for lane in &self.lanes {
            let Some(at) = self.position(lane.key) else { continue };
            if lane.paused {
                *waits.parked.entry(at).or_default() += lane.requests;
                continue;
            }
            for pool in &self.shape(at.group).pool_set(at.pool_set).pools {
                let sum = waits.tokens.entry(*pool).or_default();
                *sum = sum.saturating_add(lane.tokens);
            }
            let age = lane.oldest.map_or(Duration::ZERO, |oldest| self.now.since(oldest));
            let oldest = waits.oldest.entry(at).or_default();
            *oldest = age.max(*oldest);
            if lane.allowed {
                let hindered = waits.oldest_allowed.entry(at).or_default();
                *hindered = age.max(*hindered);
            }
        }
        waits
    }

    /// Jobs that run in each pool.
    pub fn running(&self) -> BTreeMap<PoolId, u64> {
        self.pools.iter().map(|(pool, load)| (*pool, load.running)).collect()
    }

    /// The key under which gateways add up what a class asks of a pool set.
    pub fn key_of(&self, class: ClassId, order: &[PoolId]) -> PoolSetKey {
        let pools = order.iter().map(|id| self.policy.pools.name(*id).to_owned()).collect();
        PoolSetKey { class: self.policy.classes.name(class).to_owned(), pools }
    }

    /// What the others see of a pool set, by class. Pool sets of a group that differ in other ways
    /// than their pools are one to others: the first of them counts.
    pub fn peer_demand(
        &self,
        group: GroupIndex,
        pool_set: PoolSetIndex,
        order: &[PoolId],
        others: &PeerDemand,
    ) -> Vec<(ClassId, PoolSetReport)> {
        if others.sum.pool_sets.is_empty() {
            return Vec::new();
        }
        let same = |row: &PoolSet| row.tiers.iter().flat_map(|tier| &tier.pools).eq(order.iter());
        if self.shape(group).pool_sets.iter().position(same) != Some(pool_set.index()) {
            return Vec::new();
        }
        let part = |id: &ClassId| Some((*id, *others.sum.pool_sets.get(&self.key_of(*id, order))?));
        self.classes(group).iter().filter_map(part).collect()
    }

    /// Adds what waits and runs elsewhere.
    pub fn add_peer_load(
        &self,
        others: &PeerDemand,
        waits: &mut WaitingDemand,
        running: &mut BTreeMap<PoolId, u64>,
    ) {
        for (name, part) in &others.sum.pools {
            let Some(id) = self.policy.pools.id(name) else { continue };
            let tokens = waits.tokens.entry(id).or_default();
            *tokens = tokens.saturating_add(part.queued_tokens);
            let jobs = running.entry(id).or_default();
            *jobs = jobs.saturating_add(part.in_flight);
        }
    }
}
