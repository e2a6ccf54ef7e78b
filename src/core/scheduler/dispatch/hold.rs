//! Held replicas: room that is kept for one large job.
//!
//! A large job must not starve behind small jobs that take each bit of free capacity. The job
//! that is first in the order may be passed over [`MAX_PASSED_OVER`] times by jobs that go to a pool
//! it waits for. Then a replica of that pool is held (see
//! [`crate::replica::fleet::Fleet::find_to_hold`]): a held replica takes no other job until the
//! large job fits. At most one replica of a pool is held at a time. The hold ends when the job
//! goes elsewhere or leaves. A job whose adapter finds no slot for half of its TTFT objective
//! gets a held replica, too.

use std::iter;

use smallvec::SmallVec;

use super::place::ReplicaChoice;
use super::{BlockedAdapter, BlockedAdapters, DispatchPick};
use crate::model::ids::{GroupIndex, JobId, PoolId};
use crate::placement::choose_tier::PlacementReason;
use crate::queue::fit_tree::FitSize;
use crate::queue::lane_key::LaneKey;
use crate::queue::order::{Candidate, HeldReplica, LaneHead, OpenRoom, RoomIn};
use crate::scheduler::Scheduler;

/// Number of times that the first job in the order may be passed over before a replica is held
/// for it.
pub(in crate::scheduler) const MAX_PASSED_OVER: u32 = 32;

impl Scheduler {
    /// A job for which a held replica has room now. Ends holds whose job no longer waits for the
    /// replica.
    pub(super) fn pick_held(&mut self, group: GroupIndex) -> Option<DispatchPick> {
        let mut index = 0;
        while let Some(hold) = self.groups[group].held_replicas.get(index).copied() {
            let wanted = self.job_of_hold(group, &hold);
            if wanted.is_some_and(|wanted| !self.fits_held(&hold, &wanted)) {
                index += 1;
                continue;
            }
            self.groups[group].held_replicas.remove(index);
            self.fleet.set_held(hold.replica, false, self.now);
            if let Some(candidate) = wanted {
                let place = ReplicaChoice { replica: hold.replica, choice: PlacementReason::Held, cached: 0 };
                return Some(DispatchPick { candidate, place, pool: hold.pool, held: true, warm: false });
            }
        }
        None
    }

    /// The job of a hold; `None` when the job no longer waits for that replica.
    fn job_of_hold(&self, group: GroupIndex, hold: &HeldReplica) -> Option<Candidate> {
        let job = self.jobs.get(&hold.job)?;
        let part = job.part()?;
        let lane = LaneKey::of(&job.spec);
        let spot = self.lane_position(lane).filter(|spot| spot.group == group)?;
        let pools = &self.groups[group].shape.pool_set(spot.pool_set).pools;
        let usable = pools.contains(&hold.pool)
            && self.fleet.is_up(hold.replica)
            && !self.avoided_replicas(hold.job, pools).contains(&hold.replica);
        let head = LaneHead { job: hold.job, lane, part };
        let quota_state = self.quota_state(group, lane.tenant);
        let allowed = self.allows(group, lane.tenant, job.spec.sequences);
        (usable && allowed).then_some(Candidate {
            class: spot.class,
            pool_set: spot.pool_set,
            head,
            place: job.position_in(part),
            need: job.size(),
            guaranteed: false,
            background: false,
            quota_state,
        })
    }

    /// Whether a held replica has room for the job now.
    fn fits_held(&self, hold: &HeldReplica, wanted: &Candidate) -> bool {
        let job = self.jobs.get(&wanted.head.job);
        job.is_some_and(|job| {
            self.fleet.fits(
                hold.replica,
                &job.requirements(&[], wanted.background, &self.policy),
                true,
                self.now,
            )
        })
    }

    /// The first job in the order among those that wait for the picked pool, whether it fits or
    /// not; `None` if the picked job is that job.
    pub(super) fn passed_by(&self, group: GroupIndex, pick: &DispatchPick) -> Option<JobId> {
        let here = &self.groups[group];
        if here.is_first_for(&pick.candidate, pick.pool) {
            return None;
        }
        let openings = here.openings(iter::once((pick.pool, FitSize::MAX)));
        let rooms = OpenRoom {
            openings: &|_| &openings,
            preferred_tier: &|pool_set| self.preferred_tier(here.shape.pool_set(pool_set)),
            is_skipped: &|_| false,
        };
        let first = here.first(RoomIn::Pools(rooms), &|_| false)?.head.job;
        (first != pick.candidate.head.job).then_some(first)
    }

    /// Counts that another job went before the first in the order. At [`MAX_PASSED_OVER`], holds a
    /// replica for the first.
    pub(super) fn note_passed_over(&mut self, group: GroupIndex, pool: PoolId, first: JobId) {
        if !self.considers_pool(first, pool) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&first) else { return };
        job.wait.passed_over = job.wait.passed_over.saturating_add(1);
        if job.wait.passed_over >= MAX_PASSED_OVER {
            self.hold_for(group, pool, first);
        }
    }

    /// Holds a replica for each job that other adapters shut out and that has waited for half of
    /// its TTFT objective. The hold does not depend on the order: otherwise other adapters could
    /// keep all slots for ever.
    pub(super) fn hold_for_shut_out(&mut self, group: GroupIndex, blocked: &BlockedAdapters) {
        for BlockedAdapter { pool_set, model, job: id } in blocked {
            let Some(job) = self.jobs.get(id) else { continue };
            let objective = self.policy.classes.get(job.spec.class).map(|class| class.ttft_objective);
            if job.queued(self.now) < objective.unwrap_or_default() / 2 {
                continue;
            }
            let pools = self.groups[group].shape.pool_set(*pool_set).pools.iter().copied();
            let can: SmallVec<[PoolId; 4]> = pools
                .filter(|pool| self.fleet.is_adapter(*pool, *model) && self.considers_pool(*id, *pool))
                .collect();
            can.into_iter().for_each(|pool| self.hold_for(group, pool, *id));
        }
    }

    /// Holds a replica of the pool for the job, unless the pool or the job has a hold already.
    fn hold_for(&mut self, group: GroupIndex, pool: PoolId, first: JobId) {
        let Some(job) = self.jobs.get(&first) else { return };
        let holds = &self.groups[group].held_replicas;
        if holds.iter().any(|hold| hold.pool == pool || hold.job == first) {
            return;
        }
        let need = job.size();
        let pool_set = self.placement.pool_set(LaneKey::of(&job.spec));
        let avoided =
            pool_set.map(|pool_set| self.avoided_replicas(first, &pool_set.pools)).unwrap_or_default();
        if let Some(replica) = self.fleet.find_to_hold(pool, need, self.now, &|id| avoided.contains(&id)) {
            self.fleet.set_held(replica, true, self.now);
            self.groups[group].held_replicas.push(HeldReplica { replica, pool, job: first });
        }
    }
}
