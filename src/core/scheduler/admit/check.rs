//! Entry check: refuses a job before anything is reserved for it or learned from it.
//!
//! A scavenger is a job of a class that takes only capacity that no other job needs. It starts at
//! once, in a pool group where no job waits, or is refused. A scavenger therefore takes no space in
//! the queue, goes before no other job and starts no pool. At a replica it is background to every
//! class before its own, and is preempted for them.

use crate::limits::rule::LimitUnit;
use crate::model::event::RejectReason;
use crate::model::ids::ClassId;
use crate::model::job::JobSpec;
use crate::model::time::Tick;
use crate::queue::bounds;
use crate::queue::lane_key::{LaneKey, LanePart};

use crate::scheduler::Scheduler;

impl Scheduler {
    /// The reason to refuse a job at arrival; `None` if it may come in.
    pub(in crate::scheduler) fn reason_to_refuse(&self, spec: &JobSpec) -> Option<RejectReason> {
        if self.draining {
            return Some(RejectReason::Draining);
        }
        let late = spec.deadline < self.now;
        self.reason_to_withdraw(LaneKey::of(spec))
            .or_else(|| late.then_some(RejectReason::DeadlineExceeded))
            .or_else(|| self.reason_too_many_sequences(spec))
            .or_else(|| self.no_room_reason(spec))
    }

    /// Whether jobs of the class take only capacity that no other job needs.
    pub(in crate::scheduler) fn is_scavenger(&self, class: ClassId) -> bool {
        self.policy.classes.get(class).is_some_and(|class| class.scavenger)
    }

    /// The reason to refuse a scavenger at arrival: other jobs wait in its group. `None` for a
    /// job of another class, which may wait.
    fn no_room_reason(&self, spec: &JobSpec) -> Option<RejectReason> {
        let group = self.placement.group_of_model(spec.model)?;
        let others = self.groups[group].waiting() > 0;
        (others && self.is_scavenger(spec.class)).then_some(RejectReason::NoRoom)
    }

    /// The reason why the policy in force cannot serve jobs of this lane.
    pub(in crate::scheduler) fn reason_to_withdraw(&self, lane: LaneKey) -> Option<RejectReason> {
        let known =
            self.policy.tenants.get(lane.tenant).is_some() && self.policy.classes.get(lane.class).is_some();
        if !known {
            return Some(RejectReason::Withdrawn);
        }
        self.placement.route(lane).is_none().then_some(RejectReason::NoPool)
    }

    /// Refuses a job of more sequences than any replica runs at once. Such a job could only
    /// start at a replica that is emptied for it, and would still wait inside the engine.
    fn reason_too_many_sequences(&self, spec: &JobSpec) -> Option<RejectReason> {
        let pools = self.placement.pool_set(LaneKey::of(spec)).map(|pool_set| &*pool_set.pools)?;
        let fits = spec.sequences <= 1 || self.fleet.runs(pools, spec.sequences);
        (!fits).then(|| RejectReason::TooManySequences { most: self.fleet.most_sequences(pools) })
    }

    /// Whether the scheduler would surely refuse a job that arrived now, while `others` of its
    /// tenant are about to arrive. The edge then spends no work on the job. False where the
    /// refusal depends on the job's token count.
    pub fn would_refuse(&mut self, spec: &JobSpec, others: u64, now: Tick) -> bool {
        self.refuses_at_entry(spec, others, now) || self.would_wait_in_vain(spec)
    }

    /// The same without the bounds of the queue: the refusal then comes before the job joins a
    /// lane, and changes nothing for others.
    pub fn refuses_at_entry(&mut self, spec: &JobSpec, others: u64, now: Tick) -> bool {
        if self.reason_to_refuse(spec).is_some() {
            return true;
        }
        let taken = |unit: LimitUnit| if unit == LimitUnit::Requests { others } else { 0 };
        let limits = self.limits_of(spec, now);
        let mut limits = limits.iter().filter(|status| !status.rule.id.shadow);
        limits.any(|status| status.left <= taken(status.rule.id.unit))
    }

    /// Whether the job would have to wait, as others of its lane do, and the queue has no space
    /// for one more.
    fn would_wait_in_vain(&self, spec: &JobSpec) -> bool {
        let lane = self.queue.lane(LaneKey::of(spec));
        let Some(own) = self.policy.tenants.get(spec.tenant).map(|tenant| tenant.bounds) else {
            return true;
        };
        lane.is_some_and(|lane| lane.head(LanePart::New).is_some())
            && !(bounds::has_space(&self.queue.tenant_load(spec.tenant), &own)
                && bounds::has_space(&self.queue.total(), &self.policy.bounds))
    }
}
