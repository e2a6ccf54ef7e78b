//! A job that cannot keep its deadline goes on in a slower class.
//!
//! It goes where its class says, as long as its tenant may use that class and
//! has time to win there: the new class's longest wait, counted from the job's
//! arrival, but never beyond what its client said it would wait. Each step
//! leads to a class that is served later, so the steps end.

use crate::core::model::ids::{ClassId, JobId};
use crate::core::model::job::JobSpec;
use crate::core::model::time::Tick;
use crate::core::queue::LaneKey;

use crate::core::scheduler::Scheduler;
use crate::core::scheduler::job::Job;

impl Scheduler {
    /// Moves a waiting job to the nearest slower class in which its start is
    /// not hopeless. False when there is none; the job may then wait in any of
    /// them.
    pub(in crate::core::scheduler) fn demote(&mut self, id: JobId) -> bool {
        while let Some((class, deadline)) = self.jobs.get(&id).and_then(|job| self.slower(&job.spec)) {
            self.move_to(id, class, deadline);
            if !self.is_hopeless(id) {
                return true;
            }
        }
        false
    }

    /// The class in which a job may go on, and until when.
    fn slower(&self, spec: &JobSpec) -> Option<(ClassId, Tick)> {
        let next = self.policy.classes.get(spec.class)?.demote_to?;
        let allowed = self.policy.tenants.get(spec.tenant)?.classes.contains(&next);
        let here = self.lane_position(LaneKey::of(spec))?;
        let there = self.lane_position(LaneKey { class: next, ..LaneKey::of(spec) })?;
        let deadline = (spec.arrived + self.policy.classes.get(next)?.max_wait).min(spec.patience);
        let wins = deadline > spec.deadline && deadline > self.now;
        (allowed && wins && there.class > here.class).then_some((next, deadline))
    }

    /// The job keeps its age. What its tenant paid for it in the class that it
    /// leaves is given back: it pays where it is served.
    fn move_to(&mut self, id: JobId, class: ClassId, deadline: Tick) {
        self.dequeue(id);
        let Some(job) = self.jobs.get(&id) else { return };
        let before = job.spec;
        let mut job = Job {
            spec: JobSpec { class, deadline, ..before },
            charged: None,
            held_until: None,
            demoted_from: job.demoted_from.or(Some(before.class)),
            ..job.clone()
        };
        job.place.late = false;
        self.set_place(&mut job);
        self.demand.profiles.moved(before.class, class);
        let paid = self.jobs.insert(id, job).and_then(|job| job.charged);
        if let (Some(paid), Some(account)) = (paid, self.lane_accounts(LaneKey::of(&before))) {
            self.recharge(account, LaneKey::of(&before), paid, 0);
        }
        self.enqueue(id);
        self.vain_waits_possible = true;
    }
}
