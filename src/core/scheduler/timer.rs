//! What time alone brings.

use crate::core::event::{Action, RejectReason};
use crate::core::time::Tick;

use super::Scheduler;

impl Scheduler {
    /// When `Event::Timer` is wanted at the latest: the next deadline of a
    /// waiting job, probe, end of a busy spell or of an override, step of a slow
    /// start, or end of a replica's drain.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        let job = self.deadlines.first().map(|(at, _)| *at).filter(|at| *at != Tick::NEVER);
        let departed = self.departed.first().map(|(at, _)| *at);
        let others = [self.fleet.next_wake(), self.next_release(), self.overrides.next_end(), departed];
        job.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Ends the wait of jobs whose deadline lies before now, or is now when asked
    /// for: in a slower class it goes on, where there is one, else they are
    /// refused. Says whether there were any.
    pub(super) fn expire(&mut self, even_now: bool, out: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some(&(at, job)) = self.deadlines.first() {
            if at > self.now || (at == self.now && !even_now) || at == Tick::NEVER {
                break;
            }
            if !self.demote(job) {
                let tenant = self.jobs.get(&job).map(|job| job.spec.tenant);
                let usual = RejectReason::DeadlineExceeded;
                self.reject(job, tenant.map_or(usual, |tenant| self.reason_for(tenant, usual)), out);
            }
            any = true;
        }
        any
    }
}
