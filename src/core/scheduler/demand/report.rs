//! Demand reports: this gateway's report for its peers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::autoscale::DEFAULT_START;
use crate::core::autoscale::demand_report::{DemandReport, PoolReport, PoolSetKey, PoolSetReport};
use crate::core::model::ids::{GroupIndex, PoolId};
use crate::core::model::time::Tick;
use crate::core::queue::lane_key::LanePosition;

use super::autoscaler::{Autoscaler, pool_order};
use super::inputs::{DemandInputs, WaitingDemand};

impl Autoscaler {
    /// What this gateway sees of the demand, for others to count.
    pub(super) fn demand_report(&mut self, inputs: &DemandInputs<'_>, now: Tick) -> DemandReport {
        let watched = self.demand.advance(now);
        let (waits, running) = (inputs.waiting_demand(now), inputs.running());
        let pools = inputs.policy.pools.iter().map(|(id, name, _)| {
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
        for group in inputs.groups.indexes() {
            self.add_pool_sets(inputs, group, &waits, watched, &mut pool_sets);
        }
        DemandReport { pools, pool_sets }
    }

    fn add_pool_sets(
        &self,
        inputs: &DemandInputs<'_>,
        group: GroupIndex,
        waits: &WaitingDemand,
        watched: Duration,
        pool_sets: &mut BTreeMap<PoolSetKey, PoolSetReport>,
    ) {
        let here = &inputs.groups[group];
        for pool_set in here.shape.pool_set_indexes() {
            let order = pool_order(here.shape.pool_set(pool_set));
            let start = order.first().map_or(DEFAULT_START, |id| self.start_of(inputs, *id));
            let wants = self.class_demands(inputs, (group, pool_set), (start, 0), waits, watched);
            for (id, want) in wants {
                let Some(class) = here.class(id) else { continue };
                let at = LanePosition { group, class, pool_set };
                let parked = waits.parked.get(&at).copied().unwrap_or_default();
                let part = PoolSetReport::of(&want, here.waiting_in(class, pool_set).saturating_sub(parked));
                if part != PoolSetReport::default() {
                    let sum = pool_sets.entry(inputs.key_of(id, &order)).or_default();
                    *sum = sum.merged(&part);
                }
            }
        }
    }

    fn start_of(&self, inputs: &DemandInputs<'_>, pool: PoolId) -> Duration {
        let row = inputs.policy.pools.get(pool);
        let start = self.starts.measured(pool).or_else(|| row?.cold_start);
        start.unwrap_or(DEFAULT_START)
    }
}
