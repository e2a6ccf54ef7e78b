//! Into the queue and out of it.

use crate::core::admission;
use crate::core::board::Entry;
use crate::core::event::{Action, RejectReason, Rejection};
use crate::core::ids::{ClassId, JobId, TenantId};
use crate::core::invariant::InvariantId;
use crate::core::job::JobSpec;
use crate::core::order::{Head, HeadEntry, HeadKey};
use crate::core::queue::{LaneKey, Part};

use super::Scheduler;
use super::job::Job;

/// Where a lane stands in the order: group, class by place, line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) group: usize,
    pub(super) class: usize,
    pub(super) line: usize,
}

impl Scheduler {
    /// A request arrived. It may wait only if no replica takes it at once, so
    /// the queue's bounds are looked at after that was tried.
    pub(super) fn arrived(&mut self, spec: JobSpec, out: &mut Vec<Action>) {
        let id = spec.id;
        if self.jobs.contains_key(&id) {
            return;
        }
        if let Some(reason) = self.unwelcome(&spec) {
            out.push(Action::Reject { job: id, why: self.rejection(&spec, reason, None) });
            return;
        }
        self.arrivals += 1;
        let job = Job::new(spec, self.arrivals, self.now);
        let tenant = job.spec.tenant;
        self.jobs.insert(id, job);
        self.join(id);
        self.dispatch(out);
        let waits = self.jobs.get(&id).is_some_and(|job| job.part().is_some());
        let refusal = admission::refusal(&self.policy, &self.queue, tenant);
        if let Some(reason) = refusal.filter(|_| waits) {
            self.reject(id, reason, out);
        }
    }

    /// Why a job of this kind cannot be taken at all.
    fn unwelcome(&self, spec: &JobSpec) -> Option<RejectReason> {
        if self.draining {
            return Some(RejectReason::Draining);
        }
        let late = spec.deadline < self.now;
        self.orphaned(LaneKey::of(spec)).or_else(|| late.then_some(RejectReason::DeadlineExceeded))
    }

    /// Why jobs of this lane cannot be served under the policy in force.
    pub(super) fn orphaned(&self, lane: LaneKey) -> Option<RejectReason> {
        let known =
            self.policy.tenants.get(lane.tenant).is_some() && self.policy.classes.get(lane.class).is_some();
        if !known {
            return Some(RejectReason::Withdrawn);
        }
        self.placement.route(lane.model).is_none().then_some(RejectReason::NoPool)
    }

    /// The words for a refusal. `job` is absent when it never waited.
    pub(super) fn rejection(&self, spec: &JobSpec, reason: RejectReason, job: Option<&Job>) -> Rejection {
        let group = self.placement.route(spec.model).and_then(|route| self.groups.get(route.group));
        let retry_after = match reason {
            RejectReason::NoPool | RejectReason::Withdrawn => None,
            RejectReason::Draining => Some(admission::MIN_RETRY_AFTER),
            _ => group.map(|group| admission::retry_after(group.waiting(), &group.drain, self.now)),
        };
        let retry_after = retry_after.map(|wait| admission::spread(wait, spec.id));
        let queued = job.map(|job| job.queued(self.now)).unwrap_or_default();
        Rejection { reason, queued, retry_after }
    }

    /// Puts a job that is in phase `Waiting` into its lane.
    pub(super) fn join(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (spec, seq, Some(part)) = (job.spec, job.seq, job.part()) else { return };
        let Some(spot) = self.spot(LaneKey::of(&spec)) else { return };
        if !self.waits_in(spot, spec.class, spec.tenant) {
            let lifted = self.groups[spot.group].lift(spot.class, spot.line, spec.tenant);
            if lifted {
                self.refresh_tenant(spot.group, spec.class, spec.tenant);
            }
        }
        self.queue.push(&spec, part, seq);
        self.groups[spot.group].joined(spot.class, spot.line);
        self.deadlines.insert((spec.deadline, id));
        self.refresh_lane(LaneKey::of(&spec));
        self.touched.insert(spot.group);
    }

    /// Takes a waiting job out of its lane.
    pub(super) fn leave(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (spec, seq, Some(part)) = (job.spec, job.seq, job.part()) else { return };
        let key = LaneKey::of(&spec);
        let mut whole = self.queue.remove(&spec, part, seq);
        whole &= self.deadlines.remove(&(spec.deadline, id));
        if let Some(spot) = self.spot(key) {
            whole &= self.groups[spot.group].left(spot.class, spot.line);
            self.touched.insert(spot.group);
        }
        self.invariants.check(InvariantId::QueueConsistent, whole);
        self.refresh_lane(key);
        self.queue.drop_empty(key);
    }

    /// Where the lane stands; `None` when the policy no longer has a place.
    pub(super) fn spot(&self, lane: LaneKey) -> Option<Spot> {
        let route = self.placement.route(lane.model)?;
        let class = self.groups[route.group].class(lane.class)?;
        Some(Spot { group: route.group, class, line: route.line })
    }

    /// Whether fresh jobs of the tenant wait in the line already.
    fn waits_in(&self, spot: Spot, class: ClassId, tenant: TenantId) -> bool {
        let mut lanes = self.queue.lanes_of(class, tenant);
        lanes.any(|(key, lane)| lane.head(Part::Fresh).is_some() && self.spot(key) == Some(spot))
    }

    /// Brings the places of a tenant's lanes up to date after its counter
    /// moved.
    pub(super) fn refresh_tenant(&mut self, group: usize, class: ClassId, tenant: TenantId) {
        let lanes = self.queue.lanes_of(class, tenant).map(|(key, _)| key);
        let here = |key: &LaneKey| self.placement.route(key.model).is_some_and(|route| route.group == group);
        for key in lanes.filter(here).collect::<Vec<_>>() {
            self.refresh_lane(key);
        }
    }

    /// Brings the places of a lane's two heads up to date. This is when a head
    /// is priced: with what is known now of the output it will have.
    pub(super) fn refresh_lane(&mut self, key: LaneKey) {
        let Some(spot) = self.spot(key) else { return };
        let group = &mut self.groups[spot.group];
        let Some(lane) = self.queue.lane_mut(key) else { return };
        for part in Part::ALL {
            let job = lane.head(part).and_then(|id| self.jobs.get_mut(&id));
            let entry: Option<HeadEntry> = job.map(|job| {
                job.output = self.lengths.expect(&job.spec);
                let counter = if part == Part::Fresh { group.counter(spot.class, key.tenant) } else { 0 };
                let value = Head { job: job.spec.id, lane: key, part };
                Entry { key: HeadKey { counter, seq: job.seq }, size: job.need(), value }
            });
            let slot = &mut lane.slots[part as usize];
            *slot = group.put(spot.class, spot.line, part, *slot, entry);
        }
    }
}
