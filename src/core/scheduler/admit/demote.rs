//! Demotion: moves a job that cannot keep its deadline to a slower class.
//!
//! A job goes to the class in its own class's `demote_to`, if its tenant may use that class and
//! the new deadline is later. The new deadline is the arrival plus the new class's `max_wait`,
//! but never beyond the client's patience. Each step leads to a class that is served later, so
//! the steps end.

use crate::model::event::{Action, RejectReason};
use crate::model::ids::{ClassId, JobId};
use crate::model::job::JobSpec;
use crate::model::time::Tick;
use crate::queue::lane_key::LaneKey;

use crate::scheduler::Scheduler;
use crate::scheduler::job::Job;

impl Scheduler {
    /// Ends the wait of jobs whose deadline lies before `now`, or is `now` if `even_now`. A job
    /// goes on in a slower class where there is one; otherwise the scheduler refuses it.
    /// Returns whether there were such jobs.
    pub(in crate::scheduler) fn expire(&mut self, even_now: bool, out: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some((at, job)) = self.timers.next_wait_end() {
            if at > self.now || (at == self.now && !even_now) {
                break;
            }
            if self.timers.holds.contains(at, job) && !self.end_hold_unless_cold(at, job) {
                continue;
            }
            if !self.demote(job) {
                self.reject(job, self.wait_reason(job, RejectReason::DeadlineExceeded), out);
            }
            any = true;
        }
        any
    }

    /// Moves a waiting job to the nearest slower class in which it can start in time. Returns
    /// false when there is none; the job may then be left in any of the slower classes.
    pub(in crate::scheduler) fn demote(&mut self, id: JobId) -> bool {
        while let Some((class, deadline)) = self.jobs.get(&id).and_then(|job| self.slower_class(&job.spec)) {
            self.move_to_class(id, class, deadline);
            if !self.cannot_start_in_time(id) {
                return true;
            }
        }
        false
    }

    /// The next slower class of a job, and the job's deadline there.
    fn slower_class(&self, spec: &JobSpec) -> Option<(ClassId, Tick)> {
        let next = self.policy.classes.get(spec.class)?.demote_to?;
        let allowed = self.policy.tenants.get(spec.tenant)?.classes.contains(&next);
        let here = self.lane_position(LaneKey::of(spec))?;
        let there = self.lane_position(LaneKey { class: next, ..LaneKey::of(spec) })?;
        let deadline = spec.arrived + self.policy.classes.get(next)?.max_wait;
        let deadline = self.latest_start(&JobSpec { class: next, deadline, ..*spec });
        let wins = deadline > spec.deadline && deadline > self.now;
        (allowed && wins && there.class > here.class).then_some((next, deadline))
    }

    /// Moves a job to another class. The job keeps its age. The tenant gets back the charge in
    /// the class that the job leaves: a job is charged in the class that serves it.
    fn move_to_class(&mut self, id: JobId, class: ClassId, deadline: Tick) {
        self.dequeue(id);
        let Some(job) = self.jobs.get(&id) else { return };
        let before = job.spec;
        let mut job = Job {
            spec: JobSpec { class, deadline, ..before },
            demoted_from: job.demoted_from.or(Some(before.class)),
            ..job.clone()
        };
        (job.place.late, job.wait.held_until, job.charges.fair_share) = (false, None, None);
        self.set_place(&mut job);
        self.demand.note_moved(before.class, class, self.now);
        let paid = self.jobs.insert(id, job).and_then(|job| job.charges.fair_share);
        if let (Some(paid), Some(account)) = (paid, self.lane_accounts(LaneKey::of(&before))) {
            self.recharge(account, LaneKey::of(&before), paid, 0);
        }
        self.enqueue(id);
        self.vain_waits_possible = true;
    }
}
