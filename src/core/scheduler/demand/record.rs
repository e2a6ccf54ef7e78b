//! Demand record: facts for the demand observer, the starts of pools, and the growth that the
//! observer expects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::autoscale::facts::{DemandFactKind, DemandFacts, GroupClasses, ObservedJob};
use crate::autoscale::pool_start::PoolStarts;
use crate::model::event::{DispatchReason, PoolGrowth, PoolStartTime, RejectReason};
use crate::model::ids::{ClassId, PoolId};
use crate::model::job::JobSpec;
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::Placement;
use crate::queue::lane_key::{LaneAccounts, LanePosition};
use crate::scheduler::groups::PoolGroups;

/// The scheduler's side of demand.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct DemandRecord {
    pub(in crate::scheduler) starts: PoolStarts,
    pub(super) facts: DemandFacts,
    classes: GroupClasses,
    /// Growth of pools as the observer last said, where it is not 1.
    growth: BTreeMap<PoolId, f64>,
}

impl DemandRecord {
    /// Records facts from now on, the policy in force first.
    pub(super) fn start(&mut self, policy: &Arc<Policy>, placement: &Arc<Placement>, now: Tick) {
        self.facts.start();
        self.push_policy(policy, placement, now);
    }

    /// Takes over a policy.
    pub(in crate::scheduler) fn apply(
        &mut self,
        policy: &Arc<Policy>,
        placement: &Arc<Placement>,
        groups: &PoolGroups,
        now: Tick,
    ) {
        self.classes = groups.iter().map(|group| group.class_ids().collect()).collect();
        self.growth.retain(|pool, _| policy.pools.get(*pool).is_some());
        self.push_policy(policy, placement, now);
    }

    fn push_policy(&mut self, policy: &Arc<Policy>, placement: &Arc<Placement>, now: Tick) {
        let (policy, placement, classes) = (policy.clone(), placement.clone(), self.classes());
        self.facts.push(now, DemandFactKind::PolicyChanged { policy, placement, classes });
    }

    /// Classes of each pool group.
    pub(super) fn classes(&self) -> GroupClasses {
        Arc::clone(&self.classes)
    }

    /// A job of so much work arrived.
    pub(in crate::scheduler) fn note_arrival(
        &mut self,
        spec: &JobSpec,
        at: LanePosition,
        work: f64,
        now: Tick,
    ) {
        self.facts.push(now, DemandFactKind::Arrived { job: spec.into(), at, work });
    }

    /// A job of so much work goes to a replica of the pool.
    pub(in crate::scheduler) fn note_dispatch(
        &mut self,
        spec: &JobSpec,
        at: LanePosition,
        pool: PoolId,
        work: f64,
        why: &DispatchReason,
        now: Tick,
    ) {
        let (queued, again) = (why.queued, why.attempt > 1);
        let job = ObservedJob::from(spec);
        self.facts.push(now, DemandFactKind::Dispatched { job, at, pool, work, queued, again });
    }

    /// A job that waits at `at` is refused. Where that is for want of replicas, closed loops
    /// included, whose demand never exceeds what is served, demand is not met. A
    /// deadline that is the client's own says nothing of that.
    pub(in crate::scheduler) fn note_refused(
        &mut self,
        spec: &JobSpec,
        reason: RejectReason,
        at: Option<LanePosition>,
        policy: &Policy,
        now: Tick,
    ) {
        let longest = policy.classes.get(spec.class).map(|class| class.max_wait);
        let own = longest.is_some_and(|longest| spec.deadline < spec.arrived + longest);
        let is_scarce = match reason {
            RejectReason::DeadlineExceeded | RejectReason::Unmeetable => !own,
            RejectReason::QueueFull(_) | RejectReason::Displaced => true,
            _ => false,
        };
        let scarce = at.filter(|_| is_scarce);
        self.facts.push(now, DemandFactKind::Refused { job: spec.into(), scarce });
    }

    /// A job that was at a replica is refused.
    pub(in crate::scheduler) fn note_given_up(&mut self, spec: &JobSpec, now: Tick) {
        self.facts.push(now, DemandFactKind::Refused { job: spec.into(), scarce: None });
    }

    /// A job's attempt at a replica of the pool ended.
    pub(in crate::scheduler) fn note_attempt_end(
        &mut self,
        spec: &JobSpec,
        accounts: LaneAccounts,
        pool: Option<PoolId>,
        lasted: Duration,
        now: Tick,
    ) {
        self.facts.push(now, DemandFactKind::AttemptEnded { job: spec.into(), accounts, pool, lasted });
    }

    /// A job moved to another class.
    pub(in crate::scheduler) fn note_moved(&mut self, from: ClassId, to: ClassId, now: Tick) {
        self.facts.push(now, DemandFactKind::Moved { from, to });
    }

    /// A job ended after this many output tokens.
    pub(in crate::scheduler) fn note_left(&mut self, spec: &JobSpec, output: u64, now: Tick) {
        self.facts.push(now, DemandFactKind::Left { job: spec.into(), output });
    }

    /// Takes over the growth that the observer expects.
    pub(in crate::scheduler) fn set_growth(&mut self, pools: &[PoolGrowth], policy: &Policy) {
        for PoolGrowth { pool, factor } in pools {
            if *factor > 1.0 && policy.pools.get(*pool).is_some() {
                self.growth.insert(*pool, *factor);
            } else {
                self.growth.remove(pool);
            }
        }
    }

    /// The factor by which the replicas in service are expected to grow: that of the pool that
    /// grows most.
    pub(in crate::scheduler) fn growth<'a>(&self, pools: impl Iterator<Item = &'a PoolId>) -> f64 {
        pools.filter_map(|pool| self.growth.get(pool)).copied().fold(1.0, f64::max)
    }

    /// Takes over start times that were measured before the gateway started.
    pub(in crate::scheduler) fn restore_starts(&mut self, starts: &[PoolStartTime]) {
        starts.iter().for_each(|start| self.starts.restore(start.pool, start.took));
    }
}
