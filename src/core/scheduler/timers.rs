//! Timers of the scheduler: deadlines that end a wait, and the next instant at which something
//! is due.

use crate::core::model::event::{Action, RejectReason};
use crate::core::model::ids::JobId;
use crate::core::model::time::Tick;

use super::Scheduler;

impl Scheduler {
    /// The latest instant at which the scheduler needs an `Event::Timer`.
    ///
    /// That is the earliest of: the deadline of a waiting job, the end of a hold, a probe, the
    /// end of a busy spell or of an override, a step of a slow start, the end of a replica's
    /// drain or of its idle time, the end of a prefill.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        let job = self.next_end().map(|(at, _)| at);
        let unjudged = self.unchecked_waits.first().map(|(at, _)| *at);
        let departing = self.departing.first().map(|(at, _)| *at);
        let read = self.prefills.first().map(|(at, _)| *at);
        let reseat = self.head_updates.first().map(|(at, _)| *at);
        let others = [
            self.fleet.next_wake(),
            self.next_release(),
            self.overrides.next_end(),
            departing,
            read,
            reseat,
            unjudged,
        ];
        job.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Ends the wait of jobs whose deadline lies before `now`, or is `now` if `even_now`. A job
    /// goes on in a slower class where there is one; otherwise the scheduler refuses it.
    /// Returns whether there were such jobs.
    pub(super) fn expire(&mut self, even_now: bool, out: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some((at, job)) = self.next_end() {
            if at > self.now || (at == self.now && !even_now) {
                break;
            }
            if self.held.contains(&(at, job)) && !self.is_held_in_vain(at, job) {
                continue;
            }
            if !self.demote(job) {
                self.reject(job, self.wait_reason(job, RejectReason::DeadlineExceeded), out);
            }
            any = true;
        }
        any
    }

    /// The next job whose wait ends: at its deadline, or at the end of its hold for a pool start.
    fn next_end(&self) -> Option<(Tick, JobId)> {
        let ends = [self.deadlines.first(), self.held.first()];
        ends.into_iter().flatten().copied().min().filter(|(at, _)| *at != Tick::NEVER)
    }
}
