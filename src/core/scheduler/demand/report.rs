//! Demand reports: this gateway's report for its peers, and the use of theirs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::autoscale::DEFAULT_START;
use crate::core::autoscale::demand_report::{
    DemandReport, PeerDemand, PoolReport, PoolSetKey, PoolSetReport,
};
use crate::core::model::ids::{ClassId, PoolId};
use crate::core::model::time::Tick;

use crate::core::scheduler::Scheduler;
use crate::core::scheduler::demand::waiting::WaitingDemand;

impl Scheduler {
    /// What this gateway sees of the demand, for others to count.
    pub fn demand_report(&mut self, now: Tick) -> DemandReport {
        let now = self.now.max(now);
        let watched = self.demand.advance(now);
        let (waits, running) = (self.waiting_demand(now), self.running());
        let pools = self.policy.pools.iter().map(|(id, name, _)| {
            let part = PoolReport {
                in_flight: running.get(&id).copied().unwrap_or_default(),
                queued_tokens: waits.tokens.get(&id).copied().unwrap_or_default(),
                start: self.starts.measured(id),
                ..self.measured(id)
            };
            (name.to_owned(), part)
        });
        let pools = pools.collect();
        let mut pool_sets: BTreeMap<PoolSetKey, PoolSetReport> = BTreeMap::new();
        for group in 0..self.groups.len() {
            self.add_pool_sets(group, &waits, watched, &mut pool_sets);
        }
        DemandReport { pools, pool_sets }
    }

    fn add_pool_sets(
        &self,
        group: usize,
        waits: &WaitingDemand,
        watched: Duration,
        pool_sets: &mut BTreeMap<PoolSetKey, PoolSetReport>,
    ) {
        let here = &self.groups[group];
        for (pool_set, row) in here.shape.pool_sets.iter().enumerate() {
            let order: Vec<PoolId> = row.tiers.iter().flat_map(|tier| &tier.pools).copied().collect();
            let start = order.first().map_or(DEFAULT_START, |id| self.start_of(*id));
            let wants = self.class_demands((group, pool_set), (start, 0), waits, watched);
            for (id, want) in wants {
                let class = here.class_ids().position(|other| other == id).unwrap_or_default();
                let parked = waits.parked.get(&(group, class, pool_set)).copied().unwrap_or_default();
                let part = PoolSetReport::of(&want, here.waiting_in(class, pool_set).saturating_sub(parked));
                if part != PoolSetReport::default() {
                    let sum = pool_sets.entry(self.key_of(id, &order)).or_default();
                    *sum = sum.merged(&part);
                }
            }
        }
    }

    fn start_of(&self, pool: PoolId) -> Duration {
        let row = self.policy.pools.get(pool);
        let start = self.starts.measured(pool).or_else(|| row?.cold_start);
        start.unwrap_or(DEFAULT_START)
    }

    /// What was measured here of the pool's replicas.
    pub(in crate::core::scheduler) fn measured(&self, id: PoolId) -> PoolReport {
        let Some(own) = self.demand.pool(id) else { return PoolReport::default() };
        let (used, work) = own.evidence();
        PoolReport { used, work, cost: own.cost(), ..PoolReport::default() }
    }

    fn key_of(&self, class: ClassId, order: &[PoolId]) -> PoolSetKey {
        let pools = order.iter().map(|id| self.policy.pools.name(*id).to_owned()).collect();
        PoolSetKey { class: self.policy.classes.name(class).to_owned(), pools }
    }

    /// What the others see of a pool set, by class. Lines of a group that differ in
    /// other ways than their pools are one to others: the first of them counts.
    pub(in crate::core::scheduler) fn peer_demand(
        &self,
        (group, pool_set): (usize, usize),
        order: &[PoolId],
        others: &PeerDemand,
    ) -> Vec<(ClassId, PoolSetReport)> {
        if others.sum.pool_sets.is_empty() {
            return Vec::new();
        }
        let here = &self.groups[group];
        let same = |row: &crate::core::placement::PoolSet| {
            row.tiers.iter().flat_map(|tier| &tier.pools).eq(order.iter())
        };
        if here.shape.pool_sets.iter().position(same) != Some(pool_set) {
            return Vec::new();
        }
        let part = |id: ClassId| Some((id, *others.sum.pool_sets.get(&self.key_of(id, order))?));
        here.class_ids().filter_map(part).collect()
    }

    /// Adds what waits and runs elsewhere.
    pub(in crate::core::scheduler) fn add_peer_load(
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

/// Jobs that wait in the pool sets.
pub(in crate::core::scheduler) fn waiting(parts: &[(ClassId, PoolSetReport)]) -> u64 {
    parts.iter().map(|(_, part)| part.waiting).fold(0, u64::saturating_add)
}
