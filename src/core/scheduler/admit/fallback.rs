//! Fallbacks: refuses jobs whose model is down, so that another model can serve them.

use crate::model::event::{Action, RejectReason};
use crate::model::ids::{JobId, PoolId};
use crate::queue::lane_key::LaneKey;

use crate::scheduler::Scheduler;

impl Scheduler {
    /// Whether a job waits although no replica of its model is in service and another model
    /// may serve the job.
    pub(in crate::scheduler) fn waits_in_vain(&self, id: JobId) -> bool {
        let job = self.jobs.get(&id).filter(|job| job.spec.has_fallback && job.part().is_some());
        job.is_some_and(|job| self.is_down(LaneKey::of(&job.spec)))
    }

    /// Refuses the jobs that wait in vain because the last replica of their model was lost.
    /// Returns whether there were any.
    pub(in crate::scheduler) fn refuse_vain_waits(&mut self, out: &mut Vec<Action>) -> bool {
        if !std::mem::take(&mut self.vain_waits_possible)
            || self.queue.waiting_with_fallback() == 0
            || self.has_all_pools_up()
        {
            return false;
        }
        let down = self.queue.lanes().filter(|(lane, _)| self.is_down(*lane));
        let jobs = down.flat_map(|(_, lane)| lane.jobs()).filter(|id| self.waits_in_vain(*id));
        let jobs: Vec<JobId> = jobs.collect();
        for id in &jobs {
            self.reject(*id, RejectReason::NoReplica, out);
        }
        !jobs.is_empty()
    }

    /// Whether every pool has a replica in service.
    fn has_all_pools_up(&self) -> bool {
        self.policy.pools.iter().all(|(pool, ..)| self.fleet.count_up(&[pool]) > 0)
    }

    /// Whether no replica is in service for the lane and no pool start is under way for it. A
    /// job that waits for a pool start is not down: it is refused at the end of that wait.
    fn is_down(&self, lane: LaneKey) -> bool {
        let is_down = |pools: &[PoolId]| self.fleet.is_down(pools, self.now);
        let down = self.placement.pool_set(lane).is_none_or(|pool_set| is_down(&pool_set.pools));
        down && self.cold_pools(lane).is_none()
    }
}
