//! Demand reports: this gateway's report for its peers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::autoscale::DEFAULT_START;
use crate::autoscale::demand_report::{DemandReport, PoolReport, PoolSetKey, PoolSetReport};
use crate::model::ids::{GroupIndex, PoolId};
use crate::queue::lane_key::LanePosition;

use super::DemandObserver;
use super::needs::{NeedInputs, pool_order};
use crate::autoscale::inputs::DemandInputs;

impl DemandObserver {
    /// What this gateway sees of the demand, for others to count.
    pub fn demand_report(&mut self, inputs: &DemandInputs) -> DemandReport {
        self.observe();
        let watched = self.demand.advance(inputs.now);
        let (waits, running) = (inputs.waiting_demand(), inputs.running());
        let pools = inputs.policy.pools.iter().map(|(id, name, _)| {
            let part = PoolReport {
                in_flight: running.get(&id).copied().unwrap_or_default(),
                queued_tokens: waits.tokens.get(&id).copied().unwrap_or_default(),
                start: inputs.pool(id).start,
                ..self.measured(id)
            };
            (name.to_owned(), part)
        });
        let pools = pools.collect();
        let mut pool_sets: BTreeMap<PoolSetKey, PoolSetReport> = BTreeMap::new();
        let seen = NeedInputs { demand: &self.demand, inputs, waits: &waits, watched };
        for group in inputs.groups() {
            add_pool_sets(&seen, group, &mut pool_sets);
        }
        DemandReport { pools, pool_sets }
    }
}

fn add_pool_sets(
    seen: &NeedInputs<'_>,
    group: GroupIndex,
    pool_sets: &mut BTreeMap<PoolSetKey, PoolSetReport>,
) {
    let NeedInputs { inputs, waits, .. } = *seen;
    let shape = inputs.shape(group);
    for pool_set in shape.pool_set_indexes() {
        let order = pool_order(shape.pool_set(pool_set));
        let start = order.first().map_or(DEFAULT_START, |id| start_of(inputs, *id));
        for (id, want) in seen.classes(group, pool_set, start, 0) {
            let Some(class) = inputs.classes(group).iter().position(|class| *class == id) else { continue };
            let at = LanePosition { group, class: class.into(), pool_set };
            let parked = waits.parked.get(&at).copied().unwrap_or_default();
            let part = PoolSetReport::of(&want, inputs.waiting_at(at).saturating_sub(parked));
            if part != PoolSetReport::default() {
                let sum = pool_sets.entry(inputs.key_of(id, &order)).or_default();
                *sum = sum.merged(&part);
            }
        }
    }
}

fn start_of(inputs: &DemandInputs, pool: PoolId) -> Duration {
    let row = inputs.policy.pools.get(pool);
    inputs.pool(pool).start.or_else(|| row?.cold_start).unwrap_or(DEFAULT_START)
}
