//! Timers of the scheduler: deadlines that end a wait, and the next instant at which anything is
//! due.

use crate::core::model::event::{Action, RejectReason};
use crate::core::model::ids::JobId;
use crate::core::model::time::Tick;

use super::Scheduler;

impl Scheduler {
    /// When `Event::Timer` is wanted at the latest: the next deadline of a
    /// waiting job, end of a hold, probe, end of a busy spell or of an override, step of a slow
    /// start, end of a replica's drain or of its idle time, a prompt that counts as
    /// read.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        let job = self.next_end().map(|(at, _)| at);
        let unjudged = self.unchecked_waits.first().map(|(at, _)| *at);
        let departing = self.departing.first().map(|(at, _)| *at);
        let read = self.reading.first().map(|(at, _)| *at);
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

    /// Ends the wait of jobs whose deadline lies before now, or is now when asked
    /// for: in a slower class it goes on, where there is one, else they are
    /// refused. Says whether there were any.
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
                self.reject(job, self.reason_of_wait(job, RejectReason::DeadlineExceeded), out);
            }
            any = true;
        }
        any
    }

    /// The next job whose wait ends, by its deadline or since no pool has started
    /// for it.
    fn next_end(&self) -> Option<(Tick, JobId)> {
        let ends = [self.deadlines.first(), self.held.first()];
        ends.into_iter().flatten().copied().min().filter(|(at, _)| *at != Tick::NEVER)
    }
}
