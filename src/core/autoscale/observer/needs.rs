//! Needs of a group: the replicas that its classes and pool sets ask for.

use std::time::Duration;

use crate::autoscale::class_demand::{ClassDemand, is_patient, total_need};
use crate::autoscale::demand::Demand;
use crate::autoscale::demand_report::{PeerDemand, PoolSetReport};
use crate::autoscale::inputs::{DemandInputs, WaitingDemand};
use crate::autoscale::share::PoolSetDemand;
use crate::autoscale::{ScalingPool, window};
use crate::model::ids::{ClassId, GroupIndex, PoolId, PoolSetIndex};
use crate::placement::PoolSet;
use crate::queue::lane_key::LanePosition;

/// What an evaluation of one moment looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct NeedInputs<'a> {
    pub(super) demand: &'a Demand,
    pub(super) inputs: &'a DemandInputs,
    pub(super) waits: &'a WaitingDemand,
    /// How long demand has been watched.
    pub(super) watched: Duration,
}

impl NeedInputs<'_> {
    /// What each pool set of a group asks for, of the pools given.
    pub(super) fn pool_sets(
        &self,
        group: GroupIndex,
        pools: &[ScalingPool],
        others: &PeerDemand,
    ) -> Vec<PoolSetDemand> {
        let Self { inputs, waits, .. } = *self;
        let shape = inputs.shape(group);
        let view = |id: &PoolId| pools.iter().find(|pool| pool.pool == *id);
        let pool_sets = shape.pool_set_indexes().map(|pool_set| {
            let order = pool_order(shape.pool_set(pool_set));
            let views = || order.iter().filter_map(view);
            let first = views().find(|pool| !pool.short).or_else(|| views().next());
            let start = first.map_or(Duration::ZERO, |pool| pool.start);
            let known = views().find_map(|pool| pool.cost);
            let ready: u32 = views().map(|pool| pool.ready).sum();
            let speed =
                |pool: &ScalingPool| pool.cost.or(known).map_or(0.0, |cost| f64::from(pool.ready) / cost);
            let capacity = views().map(speed).sum();
            let theirs = inputs.peer_demand(group, pool_set, &order, others);
            let mut wants = self.classes(group, pool_set, start, ready);
            for (class, part) in &theirs {
                let same = wants.iter_mut().filter(|(id, _)| id == class);
                same.for_each(|(_, want)| part.add_to(want));
            }
            let wants: Vec<ClassDemand> = wants.into_iter().map(|(_, want)| want).collect();
            let ours = inputs.waiting_in_pool_set(group, pool_set);
            PoolSetDemand {
                waiting: ours.saturating_sub(waits.parked_in(group, pool_set)) + waiting(&theirs),
                need: total_need(&wants, start, capacity),
                order,
            }
        });
        pool_sets.collect()
    }

    /// What each class asks for in the pool set, in the order of service. `start`: how long its next
    /// replica takes to start; `ready`: its replicas in service.
    pub(super) fn classes(
        &self,
        group: GroupIndex,
        pool_set: PoolSetIndex,
        start: Duration,
        ready: u32,
    ) -> Vec<(ClassId, ClassDemand)> {
        let Self { demand, inputs, waits, watched } = *self;
        let (window, now) = (window(start), inputs.now);
        let want = |(class, id): (usize, &ClassId)| {
            let at = LanePosition { group, class: class.into(), pool_set };
            let id = *id;
            let row = inputs.policy.classes.get(id).filter(|row| !row.scavenger)?;
            let flow = demand.flow(at)?;
            let parked = waits.parked.get(&at).copied().unwrap_or_default();
            let waiting = inputs.waiting_at(at).saturating_sub(parked);
            let slow = flow.sustained(window);
            let held = row.cold_start_tolerance.filter(|_| ready == 0);
            let tolerance = held.unwrap_or(row.max_wait).min(row.max_wait);
            let hindered = waits.oldest_allowed.get(&at).copied().unwrap_or_default();
            let endured = if is_patient(tolerance, start) { tolerance / 2 } else { row.ttft_objective };
            let want = ClassDemand {
                tolerance,
                unmet: hindered > endured || flow.has_refused(window, now),
                sustained: slow,
                deviation: flow.deviation(slow),
                rise: flow.rise(window, start, watched),
                fast: flow.fast(),
                backlog: waiting as f64 * flow.work_per_job(),
                oldest: waits.oldest.get(&at).copied().unwrap_or_default(),
            };
            Some((id, want))
        };
        inputs.classes(group).iter().enumerate().filter_map(want).collect()
    }
}

/// The pools of a pool set, by preference.
pub(super) fn pool_order(pool_set: &PoolSet) -> Vec<PoolId> {
    pool_set.tiers.iter().flat_map(|tier| &tier.pools).copied().collect()
}

/// Jobs that wait in the pool sets.
fn waiting(parts: &[(ClassId, PoolSetReport)]) -> u64 {
    parts.iter().map(|(_, part)| part.waiting).fold(0, u64::saturating_add)
}
