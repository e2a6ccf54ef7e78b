//! Autoscaler: measures the demand and the starts of pools, and remembers the number of replicas
//! that it told for each pool.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::autoscale::class_demand::{ClassDemand, is_patient, total_need};
use crate::core::autoscale::demand::Demand;
use crate::core::autoscale::demand::state::DemandState;
use crate::core::autoscale::demand_report::{PeerDemand, PoolReport, PoolSetReport};
use crate::core::autoscale::desired::DesiredReplicas;
use crate::core::autoscale::pool_start::PoolStarts;
use crate::core::autoscale::share::PoolSetDemand;
use crate::core::autoscale::{ScalingPool, window};
use crate::core::model::event::{DispatchReason, RejectReason};
use crate::core::model::ids::{ClassId, ClassIndex, GroupIndex, PoolId, PoolSetIndex};
use crate::core::model::job::JobSpec;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::placement::{Placement, PoolSet};

use super::inputs::{DemandInputs, WaitingDemand};
use crate::core::queue::lane_key::{LaneAccounts, LaneKey, LanePosition};
use crate::core::scheduler::groups::PoolGroups;

/// How many replicas each pool needs, and what that follows from.
#[derive(Debug, Default)]
pub(in crate::core::scheduler) struct Autoscaler {
    pub(in crate::core::scheduler) starts: PoolStarts,
    pub(in crate::core::scheduler) demand: Demand,
    /// Desired replicas of each pool, for the scale signal.
    pub(super) desired_replicas: BTreeMap<PoolId, DesiredReplicas>,
}

impl Autoscaler {
    /// Takes over a policy.
    pub(in crate::core::scheduler) fn apply(
        &mut self,
        policy: &Policy,
        placement: &Placement,
        groups: &PoolGroups,
    ) {
        let classes: Vec<Vec<ClassId>> = groups.iter().map(|group| group.class_ids().collect()).collect();
        self.demand.apply(placement.groups(), &classes, policy.pools.capacity());
        let Policy { models, pools, classes, tenants, .. } = policy;
        let profiles = &mut self.demand.profiles;
        profiles.resize(models.capacity(), pools.capacity(), classes.capacity(), tenants.capacity());
        self.desired_replicas.retain(|pool, _| pools.get(*pool).is_some());
    }

    /// A job of so much work arrived.
    pub(in crate::core::scheduler) fn note_arrival(
        &mut self,
        spec: &JobSpec,
        spot: LanePosition,
        work: f64,
        now: Tick,
    ) {
        self.demand.profiles.enter(spec);
        self.demand.note_arrival(spot, work, now);
    }

    /// A job of so much work goes to a replica of the pool.
    pub(in crate::core::scheduler) fn note_dispatch(
        &mut self,
        (spec, work): (&JobSpec, f64),
        at: LanePosition,
        pool: PoolId,
        why: &DispatchReason,
        policy: &Policy,
        now: Tick,
    ) {
        let again = why.attempt > 1;
        self.demand.note_dispatch(at, pool, work, again, now);
        self.demand.profiles.sent(spec, pool);
        if !again {
            let class = policy.classes.get(spec.class);
            let in_time = class.is_none_or(|class| why.queued <= class.ttft_objective);
            self.demand.profiles.began(spec, pool, why.queued, in_time);
        }
    }

    /// A job that waits is refused. Where that is for want of replicas, closed loops
    /// included, whose demand never exceeds what is served, demand is not met. A
    /// deadline that is the client's own says nothing of that.
    pub(in crate::core::scheduler) fn note_refused(
        &mut self,
        spec: &JobSpec,
        reason: RejectReason,
        inputs: &DemandInputs<'_>,
    ) {
        self.demand.profiles.refused(spec);
        let longest = inputs.policy.classes.get(spec.class).map(|class| class.max_wait);
        let own = longest.is_some_and(|longest| spec.deadline < spec.arrived + longest);
        let scarce = match reason {
            RejectReason::DeadlineExceeded | RejectReason::Unmeetable => !own,
            RejectReason::QueueFull(_) | RejectReason::Displaced => true,
            _ => false,
        };
        let spot = inputs.groups.position(inputs.placement, LaneKey::of(spec));
        if let Some(spot) = spot.filter(|_| scarce) {
            self.demand.note_refusal(spot, inputs.now);
        }
    }

    /// A job's stay at a replica of the pool ended.
    pub(in crate::core::scheduler) fn note_stay(
        &mut self,
        spec: &JobSpec,
        account: LaneAccounts,
        pool: Option<PoolId>,
        stay: Duration,
    ) {
        self.demand.note_stay(account, stay);
        if let Some(pool) = pool {
            self.demand.profiles.stayed(spec, pool, stay);
        }
    }

    /// The factor by which the replicas in service are expected to grow: that of the pool that
    /// grows most.
    pub(in crate::core::scheduler) fn growth<'a>(&self, pools: impl Iterator<Item = &'a PoolId>) -> f64 {
        let known = pools.filter_map(|pool| self.desired_replicas.get(pool));
        known.map(DesiredReplicas::growth).fold(1.0, f64::max)
    }

    /// The demand measured so far, to be kept over a restart.
    pub(super) fn save(&self, inputs: &DemandInputs<'_>) -> DemandState {
        let mut state = self.demand.save(inputs.policy);
        for kept in &mut state.pools {
            let Some(id) = inputs.policy.pools.id(&kept.name) else { continue };
            let usual = inputs.fleet.typical(id);
            kept.start = self.starts.measured(id).map(|start| start.as_secs_f64());
            kept.read_per_second = usual.read_per_second;
            kept.gap = usual.gap.map(|gap| gap.as_secs_f64());
            (kept.ready, kept.max_seqs, kept.kv_tokens) = inputs.fleet.sizes(id);
            kept.waiting = inputs.waiting_for(id);
        }
        state
    }

    /// Takes over the demand that was seen before a restart, as far as the policy
    /// has what it is of. False when it is of another version, and nothing was
    /// taken over.
    pub(super) fn restore(&mut self, policy: &Policy, state: &DemandState) -> bool {
        let taken = self.demand.restore(policy, state);
        for kept in state.pools.iter().filter(|_| taken) {
            let start = kept.start.and_then(|start| Duration::try_from_secs_f64(start).ok());
            if let (Some(id), Some(start)) = (policy.pools.id(&kept.name), start) {
                self.starts.restore(id, start);
            }
        }
        taken
    }

    /// What was measured here of the pool's replicas.
    pub(super) fn measured(&self, pool: PoolId) -> PoolReport {
        let Some(own) = self.demand.pool(pool) else { return PoolReport::default() };
        let (used, work) = own.evidence();
        PoolReport { used, work, cost: own.cost(), ..PoolReport::default() }
    }

    /// What each pool set of a group asks for, of the pools given.
    pub(super) fn demand_of(
        &self,
        inputs: &DemandInputs<'_>,
        group: GroupIndex,
        pools: &[ScalingPool],
        (waits, others): (&WaitingDemand, &PeerDemand),
        watched: Duration,
    ) -> Vec<PoolSetDemand> {
        let here = &inputs.groups[group];
        let view = |id: &PoolId| pools.iter().find(|pool| pool.pool == *id);
        let pool_sets = here.shape.pool_set_indexes().map(|pool_set| {
            let order = pool_order(here.shape.pool_set(pool_set));
            let views = || order.iter().filter_map(view);
            let first = views().find(|pool| !pool.short).or_else(|| views().next());
            let start = first.map_or(Duration::ZERO, |pool| pool.start);
            let known = views().find_map(|pool| pool.cost);
            let ready: u32 = views().map(|pool| pool.ready).sum();
            let speed =
                |pool: &ScalingPool| pool.cost.or(known).map_or(0.0, |cost| f64::from(pool.ready) / cost);
            let capacity = views().map(speed).sum();
            let theirs = inputs.peer_demand((group, pool_set), &order, others);
            let mut wants = self.class_demands(inputs, (group, pool_set), (start, ready), waits, watched);
            for (class, part) in &theirs {
                let same = wants.iter_mut().filter(|(id, _)| id == class);
                same.for_each(|(_, want)| part.add_to(want));
            }
            let wants: Vec<ClassDemand> = wants.into_iter().map(|(_, want)| want).collect();
            PoolSetDemand {
                waiting: here.waiting_in_pool_set(pool_set).saturating_sub(waits.parked_in(group, pool_set))
                    + waiting(&theirs),
                need: total_need(&wants, start, capacity),
                order,
            }
        });
        pool_sets.collect()
    }

    /// What each class asks for in the pool set, in the order of service.
    pub(super) fn class_demands(
        &self,
        inputs: &DemandInputs<'_>,
        (group, pool_set): (GroupIndex, PoolSetIndex),
        (start, ready): (Duration, u32),
        waits: &WaitingDemand,
        watched: Duration,
    ) -> Vec<(ClassId, ClassDemand)> {
        let here = &inputs.groups[group];
        let (window, now) = (window(start), inputs.now);
        let want = |class: ClassIndex| {
            let (id, at) = (here.class_id(class), LanePosition { group, class, pool_set });
            let row = inputs.policy.classes.get(id).filter(|row| !row.scavenger)?;
            let flow = self.demand.flow(at)?;
            let parked = waits.parked.get(&at).copied().unwrap_or_default();
            let waiting = here.waiting_in(class, pool_set).saturating_sub(parked);
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
        here.class_indexes().filter_map(want).collect()
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
