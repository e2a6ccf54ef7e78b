//! What time alone brings.

use crate::core::event::{Action, RejectReason};
use crate::core::time::Tick;

use super::Scheduler;

impl Scheduler {
    /// When `Event::Timer` is wanted at the latest: the next deadline of a
    /// waiting job, probe, end of a busy spell or step of a slow start.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        let job = self.deadlines.first().map(|(at, _)| *at).filter(|at| *at != Tick::NEVER);
        job.into_iter().chain(self.fleet.next_wake()).chain(self.next_release()).min()
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
                self.reject(job, RejectReason::DeadlineExceeded, out);
            }
            any = true;
        }
        any
    }
}
