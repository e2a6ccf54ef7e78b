//! Demand: what the scheduler tells the demand observer ([`DemandObserver`]), and what the observer
//! tells the scheduler.

pub(super) mod record;

use std::collections::BTreeMap;

use crate::autoscale::demand::state::DemandState;
use crate::autoscale::inputs::{DemandInputs, LaneDemand, PoolLoad};
use crate::autoscale::observer::DemandObserver;
use crate::model::ids::PoolId;
use crate::model::time::Tick;
use crate::queue::Lane;
use crate::queue::lane_key::LaneKey;
use crate::queue::order::PoolGroup;

use super::Scheduler;

impl Scheduler {
    /// Records demand facts from now on. The caller hands them over with
    /// [`Self::flush_demand_facts`], at the latest when [`Self::must_flush_demand_facts`] says so.
    pub fn record_demand(&mut self) {
        self.demand.start(&self.policy, &self.placement, self.now);
    }

    /// Whether so many demand facts are recorded that they have to be handed over now.
    pub const fn must_flush_demand_facts(&self) -> bool {
        self.demand.facts.is_full()
    }

    /// Hands the recorded facts over to the observer.
    pub fn flush_demand_facts(&mut self, observer: &mut DemandObserver) {
        observer.receive(self.demand.facts.list());
    }

    /// Hands the recorded facts over, and copies what waits and runs now. `shared` says that other
    /// gateways may use a part of each replica.
    pub fn demand_inputs(&mut self, observer: &mut DemandObserver, now: Tick, shared: bool) -> DemandInputs {
        self.flush_demand_facts(observer);
        DemandInputs {
            policy: self.policy.clone(),
            placement: self.placement.clone(),
            classes: self.demand.classes(),
            now: self.now.max(now),
            waiting: self.groups.iter().map(waiting_by_position).collect(),
            pools: self.pool_loads(shared),
            lanes: self.queue.lanes_unsorted().map(|(key, lane)| self.lane_demand(*key, lane)).collect(),
        }
    }

    fn pool_loads(&self, shared: bool) -> BTreeMap<PoolId, PoolLoad> {
        let pools = self.policy.pools.iter().map(|(id, ..)| id);
        let mut loads = self.fleet.pool_loads(pools, |pool| self.waiting_for(pool) > 0, shared);
        loads.iter_mut().for_each(|(pool, load)| load.start = self.demand.starts.measured(*pool));
        loads
    }

    fn lane_demand(&self, key: LaneKey, lane: &Lane) -> LaneDemand {
        let group = self.groups.get(self.placement.group_of_model(key.model));
        LaneDemand {
            key,
            requests: lane.load().requests,
            tokens: u64::try_from(lane.load().tokens).unwrap_or(u64::MAX),
            oldest: lane.oldest(),
            paused: self.overrides.paused_until(key.tenant).is_some(),
            allowed: group.is_some_and(|group| group.quotas.allows(key.tenant, 1)),
        }
    }

    /// Adds what the scheduler knows of the pools to the demand that the observer saves.
    pub fn complete_demand_state(&self, state: &mut DemandState) {
        for kept in &mut state.pools {
            let Some(id) = self.policy.pools.id(&kept.name) else { continue };
            let usual = self.fleet.typical(id);
            kept.start = self.demand.starts.measured(id).map(|start| start.as_secs_f64());
            kept.read_per_second = usual.prefill_tokens_per_second;
            kept.gap = usual.gap.map(|gap| gap.as_secs_f64());
            let size = self.fleet.pool_size(id);
            (kept.ready, kept.max_seqs, kept.kv_tokens) = (size.up, size.max_seqs, size.kv_tokens);
            kept.waiting = self.waiting_for(id);
        }
    }
}

/// Waiting jobs of a group by pool set, then by class.
fn waiting_by_position(group: &PoolGroup) -> Vec<u64> {
    let pool_sets = group.shape.pool_set_indexes();
    let classes = |pool_set| group.class_indexes().map(move |class| group.waiting_in(class, pool_set));
    pool_sets.flat_map(classes).collect()
}
