//! Inputs of the scale signal: what waits and what runs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::autoscale::demand_report::{PeerDemand, PoolSetKey, PoolSetReport};
use crate::core::model::ids::{ClassId, GroupIndex, PoolId, PoolSetIndex};
use crate::core::model::overrides::Overrides;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::placement::{Placement, PoolSet};
use crate::core::queue::Queue;
use crate::core::queue::lane_key::LanePosition;
use crate::core::replica::fleet::Fleet;

use crate::core::scheduler::groups::PoolGroups;

/// What the autoscaler sees of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(in crate::core::scheduler) struct DemandInputs<'a> {
    pub(in crate::core::scheduler) policy: &'a Policy,
    pub(in crate::core::scheduler) placement: &'a Placement,
    pub(in crate::core::scheduler) groups: &'a PoolGroups,
    pub(in crate::core::scheduler) fleet: &'a Fleet,
    pub(in crate::core::scheduler) queue: &'a Queue,
    pub(in crate::core::scheduler) overrides: &'a Overrides,
    /// Time of the last event.
    pub(in crate::core::scheduler) now: Tick,
}

/// Waiting load, summed over the lanes.
#[derive(Debug, Default)]
pub(super) struct WaitingDemand {
    /// Tokens, prompts and asked output, by pool that may serve them.
    pub(super) tokens: BTreeMap<PoolId, u64>,
    /// How long the oldest job of a class has waited in a pool set.
    pub(super) oldest: BTreeMap<LanePosition, Duration>,
    /// The same for lanes whose tenants' quotas allow more sequences.
    pub(super) oldest_allowed: BTreeMap<LanePosition, Duration>,
    /// Jobs of a class in a pool set whose tenants are paused: replicas are no help to
    /// them.
    pub(super) parked: BTreeMap<LanePosition, u64>,
}

impl WaitingDemand {
    /// Jobs of paused tenants in a pool set.
    pub(super) fn parked_in(&self, group: GroupIndex, pool_set: PoolSetIndex) -> u64 {
        let here = self.parked.iter().filter(|(at, _)| (at.group, at.pool_set) == (group, pool_set));
        here.map(|(_, jobs)| jobs).sum()
    }
}

impl DemandInputs<'_> {
    /// Jobs that wait for the pool.
    pub(super) fn waiting_for(&self, pool: PoolId) -> u64 {
        self.groups.waiting_for(self.placement, pool)
    }

    /// Looks at all lanes, once.
    pub(super) fn waiting_demand(&self, now: Tick) -> WaitingDemand {
        let mut waits = WaitingDemand::default();
        for (key, lane) in self.queue.lanes() {
            let Some(at) = self.groups.position(self.placement, key) else { continue };
            if self.overrides.paused_until(key.tenant).is_some() {
                *waits.parked.entry(at).or_default() += lane.load().requests;
                continue;
            }
            let load = u64::try_from(lane.load().tokens).unwrap_or(u64::MAX);
            for pool in &self.groups[at.group].shape.pool_set(at.pool_set).pools {
                let sum = waits.tokens.entry(*pool).or_default();
                *sum = sum.saturating_add(load);
            }
            let age = lane.oldest().map_or(Duration::ZERO, |oldest| now.since(oldest));
            let oldest = waits.oldest.entry(at).or_default();
            *oldest = age.max(*oldest);
            if self.groups[at.group].quotas.allows(key.tenant, 1) {
                let hindered = waits.oldest_allowed.entry(at).or_default();
                *hindered = age.max(*hindered);
            }
        }
        waits
    }

    /// Jobs that run in each pool.
    pub(super) fn running(&self) -> BTreeMap<PoolId, u64> {
        let mut running: BTreeMap<PoolId, u64> = BTreeMap::new();
        for (replica, ledger) in self.fleet.ledgers().filter(|(_, ledger)| ledger.jobs > 0) {
            if let Some(pool) = self.fleet.pool_of(replica) {
                *running.entry(pool).or_default() += u64::from(ledger.jobs);
            }
        }
        running
    }

    /// The key under which gateways add up what a class asks of a pool set.
    pub(super) fn key_of(&self, class: ClassId, order: &[PoolId]) -> PoolSetKey {
        let pools = order.iter().map(|id| self.policy.pools.name(*id).to_owned()).collect();
        PoolSetKey { class: self.policy.classes.name(class).to_owned(), pools }
    }

    /// What the others see of a pool set, by class. Pool sets of a group that differ in other ways
    /// than their pools are one to others: the first of them counts.
    pub(super) fn peer_demand(
        &self,
        (group, pool_set): (GroupIndex, PoolSetIndex),
        order: &[PoolId],
        others: &PeerDemand,
    ) -> Vec<(ClassId, PoolSetReport)> {
        if others.sum.pool_sets.is_empty() {
            return Vec::new();
        }
        let here = &self.groups[group];
        let same = |row: &PoolSet| row.tiers.iter().flat_map(|tier| &tier.pools).eq(order.iter());
        if here.shape.pool_sets.iter().position(same) != Some(pool_set.index()) {
            return Vec::new();
        }
        let part = |id: ClassId| Some((id, *others.sum.pool_sets.get(&self.key_of(id, order))?));
        here.class_ids().filter_map(part).collect()
    }

    /// Adds what waits and runs elsewhere.
    pub(super) fn add_peer_load(
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
