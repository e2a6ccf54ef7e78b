//! Replica demand: the number of replicas that each pool needs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::autoscale::demand_report::{DecidedNumber, PeerDemand};
use crate::autoscale::desired::whole;
use crate::autoscale::replica_demand::ReplicaDemand;
use crate::autoscale::share::{PoolSetDemand, PoolShare, share};
use crate::autoscale::{DEFAULT_START, ScaleReason, ScalingPool, hold, window};
use crate::model::ids::PoolId;
use crate::model::policy::Pool;
use crate::model::time::Tick;
use crate::placement::rules::Capacity;

use super::DemandObserver;
use super::needs::NeedInputs;
use crate::autoscale::inputs::DemandInputs;

/// The part of a replica that patient work must keep busy to be worth a start.
const WORTH_A_START: f64 = 0.5;

/// A pool whose number of replicas is to be found.
#[derive(Debug, Clone, Copy)]
struct PoolInputs<'a> {
    view: &'a ScalingPool,
    /// The pool in the policy.
    row: &'a Pool,
    /// The number that another gateway decided.
    told: Option<&'a DecidedNumber>,
    /// Whether that number counts, and not our own.
    follow: bool,
}

impl DemandObserver {
    /// One row for each pool of the policy, by what this gateway and others see together. Asked
    /// twice at the same instant, it says the same.
    pub fn replica_demand(&mut self, inputs: &DemandInputs, others: &PeerDemand) -> Vec<ReplicaDemand> {
        self.observe();
        let now = inputs.now;
        let watched = self.demand.advance(now);
        let mut waits = inputs.waiting_demand();
        let mut running = inputs.running();
        inputs.add_peer_load(others, &mut waits, &mut running);
        let views = self.sample_pool_use(inputs, others);
        let mut needs = Vec::new();
        for group in inputs.groups() {
            let here = |view: &&ScalingPool| inputs.placement.group_of(view.pool) == Some(group);
            let pools: Vec<ScalingPool> = views.iter().filter(here).copied().collect();
            let seen = NeedInputs { demand: &self.demand, inputs, waits: &waits, watched };
            let pool_sets = seen.pool_sets(group, &pools, others);
            let parts = share(&pool_sets, &pools);
            for (view, part) in pools.iter().zip(parts) {
                let Some(row) = inputs.policy.pools.get(view.pool) else { continue };
                let counted = ReplicaDemand {
                    pool: view.pool,
                    desired: None,
                    reason: ScaleReason::Idle.name(),
                    keep_above_zero: false,
                    ready: view.ready,
                    queued: waiting_at(&pool_sets, &pools, view, &part),
                    due: false,
                    queued_tokens: waits.tokens.get(&view.pool).copied().unwrap_or_default(),
                    in_flight: running.get(&view.pool).copied().unwrap_or_default(),
                    cold_start: inputs.pool(view.pool).start,
                };
                let told = others.decided.get(inputs.policy.pools.name(view.pool));
                let pool = PoolInputs { view, row, told, follow: others.follow };
                needs.push(self.decide(counted, &pool, &part, watched, now));
            }
        }
        let alone = |view: &&ScalingPool| inputs.placement.group_of(view.pool).is_none();
        needs.extend(views.iter().filter(alone).map(|view| unused(view, &running)));
        needs.sort_by_key(|need| need.pool);
        needs
    }

    /// Takes note of how much of each pool is in use.
    fn sample_pool_use(&mut self, inputs: &DemandInputs, others: &PeerDemand) -> Vec<ScalingPool> {
        let now = inputs.now;
        let look = |(id, name, row): (PoolId, &str, &Pool)| {
            let load = inputs.pool(id);
            self.demand.sample_use(id, load.used, now);
            let theirs = others.sum.pools.get(name);
            let measured = load.start.or_else(|| theirs?.start);
            let start = measured.or(row.cold_start).unwrap_or(DEFAULT_START);
            let ready = load.ready;
            self.demand.sample_residency(id, ready, load.active, now);
            let may_be_taken = row.traits.capacity == Capacity::Spot;
            let memory = self.desired_replicas.entry(id).or_default();
            let short = memory.update_shortage(ready, start, may_be_taken, now);
            let own = self.demand.pool(id).and_then(|pool| pool.cost());
            let cost = theirs.map_or(own, |theirs| self.measured(id).merged(theirs).cost());
            ScalingPool { pool: id, cost, start, ready, max: row.max_replicas, short }
        };
        inputs.policy.pools.iter().map(look).collect()
    }

    /// The pool's number: one that another gateway decided, or our own. `watched`: how long demand has
    /// been watched.
    fn decide(
        &mut self,
        counted: ReplicaDemand,
        pool: &PoolInputs<'_>,
        part: &PoolShare,
        watched: Duration,
        now: Tick,
    ) -> ReplicaDemand {
        let PoolInputs { view, row, told, follow } = *pool;
        let counted = ReplicaDemand { due: is_due(view, part, row), ..counted };
        let part = &if counted.due { *part } else { part.deferred() };
        let part = &self.with_forecast(view, part, now);
        let memory = self.desired_replicas.entry(view.pool).or_default();
        if part.hopeless > 0.0 {
            memory.note_hopeless_burst(part.replicas + part.hopeless, window(view.start), now);
        }
        if part.strained {
            memory.note_long_waits(now);
        }
        let bursts = memory.burst_floor(part.replicas, now);
        let unmet = memory.unmet_floor(part.unmet && view.ready > 0, view.ready, window(view.start), now);
        if let Some(told) = told {
            memory.follow(part.replicas, told.desired, hold(view.start), now);
        }
        if let Some(told) = told.filter(|_| follow) {
            let reason = ScaleReason::named(&told.reason).unwrap_or(part.reason);
            return ReplicaDemand {
                desired: Some(told.desired),
                reason: reason.name(),
                keep_above_zero: told.keep_above_zero,
                ..counted
            };
        }
        let least = least(&counted, pool, part, bursts);
        let least = if unmet > least.0 { (unmet, ScaleReason::Unmet) } else { least };
        let (number, kept) = memory.update(part.replicas, least.0, hold(view.start), view.start, now);
        // Until a whole window was seen, what is there is not known to be too much.
        let held = if watched < window(view.start) { number.max(view.ready) } else { number };
        let bounded = held.min(row.max_replicas.unwrap_or(u32::MAX).max(row.min_replicas));
        let reason = match () {
            () if bounded < held => ScaleReason::Clamp,
            () if held > number => ScaleReason::HoldRestart,
            () if kept => ScaleReason::Hold,
            () if number == 0 && counted.queued > 0 => ScaleReason::Later,
            () if number > whole(part.replicas) || number == 0 => least.1,
            () => part.reason,
        };
        let keep = bursts > 0 || row.min_replicas > 0;
        ReplicaDemand { desired: Some(bounded), reason: reason.name(), keep_above_zero: keep, ..counted }
    }

    /// The share with the replicas that the last days let expect. A pool without replicas waits for
    /// its first job.
    fn with_forecast(&mut self, view: &ScalingPool, part: &PoolShare, now: Tick) -> PoolShare {
        let memory = self.desired_replicas.entry(view.pool).or_default();
        let expected = memory.forecast(part.replicas, view.start, now);
        if view.ready == 0 { *part } else { part.at_least(expected, ScaleReason::Forecast) }
    }
}

/// Whether what waits is to be served now: where that costs no start, or a cheap
/// one, or when it cannot wait longer, or is enough to keep a replica busy.
fn is_due(view: &ScalingPool, part: &PoolShare, row: &Pool) -> bool {
    view.ready > 0 || row.traits.capacity == Capacity::Spot || part.due || part.replicas >= WORTH_A_START
}

/// The least that the pool must have, whatever is asked for, and why. `bursts`: the floor for repeated
/// hopeless bursts.
fn least(
    counted: &ReplicaDemand,
    pool: &PoolInputs<'_>,
    part: &PoolShare,
    bursts: u32,
) -> (u32, ScaleReason) {
    let busy = match pool.view.ready {
        0 if counted.has_due_jobs_above(0) => (1, ScaleReason::Start),
        ready if part.unknown => (ready.max(1), ScaleReason::Sustained),
        _ => (u32::from(counted.is_busy()), ScaleReason::Sustained),
    };
    let floor = (pool.row.min_replicas.max(bursts), ScaleReason::Floor);
    let most = if floor.0 > busy.0 { floor } else { busy };
    Some(most).filter(|(least, _)| *least > 0).unwrap_or_default()
}

/// Jobs that wait for the pool: those of pool sets that it serves or is to serve.
/// Where no pool of a pool set does, they wait for the one wanted most.
fn waiting_at(
    pool_sets: &[PoolSetDemand],
    pools: &[ScalingPool],
    view: &ScalingPool,
    part: &PoolShare,
) -> u64 {
    let is_up = |id: &PoolId| pools.iter().any(|pool| pool.pool == *id && pool.ready > 0);
    let waits = |pool_set: &&PoolSetDemand| {
        let first = pool_set.order.first() == Some(&view.pool) && !pool_set.order.iter().any(is_up);
        let serves = view.ready > 0 || part.replicas > 0.0 || part.unknown;
        pool_set.order.contains(&view.pool) && (first || serves)
    };
    pool_sets.iter().filter(waits).map(|pool_set| pool_set.waiting).sum()
}

/// A pool that no model uses.
fn unused(view: &ScalingPool, running: &BTreeMap<PoolId, u64>) -> ReplicaDemand {
    let in_flight = running.get(&view.pool).copied().unwrap_or_default();
    ReplicaDemand {
        pool: view.pool,
        desired: Some(u32::from(in_flight > 0)),
        reason: ScaleReason::Idle.name(),
        keep_above_zero: false,
        ready: view.ready,
        queued: 0,
        due: false,
        queued_tokens: 0,
        in_flight,
        cold_start: None,
    }
}
