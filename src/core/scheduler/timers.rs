//! Timers: named queues of instants at which the scheduler has something to do, and the names of all
//! its timers.

use std::collections::BTreeSet;

use crate::model::ids::{JobId, ReplicaId};
use crate::model::time::Tick;
use crate::queue::lane_key::LaneKey;

/// Kind of a timer: what the scheduler does when nothing but time has passed.
///
/// [`super::Scheduler::wakes`] has the next instant of each kind. The fleet, the pool groups and the
/// overrides keep theirs, because an instant changes together with the state that it follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) enum WakeReason {
    /// The deadline of a waiting job.
    Deadline,
    /// The end of a job's wait for a pool start.
    PoolStartWaitEnd,
    /// The check of a job that arrived before the drain rate was known.
    WaitCheck,
    /// The end of a prefill.
    PrefillEnd,
    /// The head of a lane starts or stops considering all of its pools.
    HeadUpdate,
    /// A replica that leaves is to be empty.
    Departure,
    /// A probe, the end of a busy spell, a step of a slow start, a check for a stall, or the end of
    /// a replica's idle time.
    ReplicaCheck,
    /// The urgent class of a pool group has been idle for long enough.
    UrgentClassIdle,
    /// A job stops waiting for the replica of its session.
    SessionWait,
    /// The end of an override.
    OverrideEnd,
    /// A step in which the leads of other gateways' tenants fade.
    RemoteLeadFade,
}

impl WakeReason {
    /// The timer of this kind, if there is an instant for it.
    pub(in crate::scheduler) fn at(self, at: Option<Tick>) -> Option<Wake> {
        at.map(|at| Wake { at, reason: self })
    }
}

/// The next timer of one kind. Order: by instant, then by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) struct Wake {
    pub(in crate::scheduler) at: Tick,
    pub(in crate::scheduler) reason: WakeReason,
}

/// Timers of one kind, by the instant at which they are due. A timer is cancelled by its instant and
/// its key.
#[derive(Debug)]
pub(in crate::scheduler) struct TimerQueue<K>(BTreeSet<(Tick, K)>);

impl<K> Default for TimerQueue<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Copy + Ord> TimerQueue<K> {
    pub(in crate::scheduler) fn add(&mut self, at: Tick, key: K) {
        self.0.insert((at, key));
    }

    /// Removes a timer. Returns whether the queue had it.
    pub(in crate::scheduler) fn cancel(&mut self, at: Tick, key: K) -> bool {
        self.0.remove(&(at, key))
    }

    /// The next timer. Timers of the same instant are in the order of their keys.
    pub(in crate::scheduler) fn next(&self) -> Option<(Tick, K)> {
        self.0.first().copied()
    }

    /// The instant of the next timer.
    fn next_at(&self) -> Option<Tick> {
        self.next().map(|(at, _)| at)
    }

    /// Takes the next timer, if it is due at `now`.
    pub(in crate::scheduler) fn pop_due(&mut self, now: Tick) -> Option<K> {
        self.next().filter(|(at, _)| *at <= now)?;
        self.0.pop_first().map(|(_, key)| key)
    }

    pub(in crate::scheduler) fn contains(&self, at: Tick, key: K) -> bool {
        self.0.contains(&(at, key))
    }

    pub(in crate::scheduler) fn iter(&self) -> impl Iterator<Item = (Tick, K)> {
        self.0.iter().copied()
    }

    pub(in crate::scheduler) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::scheduler) fn clear(&mut self) {
        self.0.clear();
    }

    /// Cancels the timers whose key `keep` rejects.
    pub(in crate::scheduler) fn retain(&mut self, keep: impl Fn(K) -> bool) {
        self.0.retain(|(_, key)| keep(*key));
    }
}

/// The scheduler's own timers. The fleet, the overrides and the pool groups keep further ones; see
/// [`WakeReason`].
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Timers {
    /// Waiting jobs, by their deadline.
    pub(in crate::scheduler) deadlines: TimerQueue<JobId>,
    /// Jobs whose wait for a pool start ends before their deadline, by its end.
    pub(in crate::scheduler) pool_start_waits: TimerQueue<JobId>,
    /// Waiting jobs that arrived before the drain rate was known, by the instant at which the
    /// scheduler checks their wait.
    pub(in crate::scheduler) unchecked_waits: TimerQueue<JobId>,
    /// Jobs in prefill, by the instant at which their prompts may count as prefilled.
    pub(in crate::scheduler) prefills: TimerQueue<JobId>,
    /// Lanes whose head starts or stops considering all of its pools, by the instant of the change.
    pub(in crate::scheduler) head_updates: TimerQueue<LaneKey>,
    /// Replicas that drain or have left the policy, by the instant at which they are to be empty.
    pub(in crate::scheduler) departures: TimerQueue<ReplicaId>,
}

impl Timers {
    /// The next timer of each kind. The ends of prefills count from `earliest_prefill` on. A job may
    /// wait without end, so that an instant of [`Tick::NEVER`] is no timer.
    pub(in crate::scheduler) fn wakes(&self, earliest_prefill: Tick) -> [Option<Wake>; 6] {
        let ends = |queue: &TimerQueue<JobId>| queue.next_at().filter(|at| *at != Tick::NEVER);
        [
            WakeReason::Deadline.at(ends(&self.deadlines)),
            WakeReason::PoolStartWaitEnd.at(ends(&self.pool_start_waits)),
            WakeReason::WaitCheck.at(self.unchecked_waits.next_at()),
            WakeReason::PrefillEnd.at(self.prefills.next_at().map(|at| at.max(earliest_prefill))),
            WakeReason::HeadUpdate.at(self.head_updates.next_at()),
            WakeReason::Departure.at(self.departures.next_at()),
        ]
    }

    /// The next job whose wait ends: at its deadline, or at the end of its wait for a pool start.
    pub(in crate::scheduler) fn next_wait_end(&self) -> Option<(Tick, JobId)> {
        let ends = [self.deadlines.next(), self.pool_start_waits.next()];
        ends.into_iter().flatten().min().filter(|(at, _)| *at != Tick::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_the_order_of_their_instants() {
        let (at, id) = (Tick::from_millis, JobId::new);
        let mut timers = Timers::default();
        timers.deadlines.add(Tick::NEVER, id(1));
        let next_from = |timers: &Timers, earliest: Tick| timers.wakes(earliest).into_iter().flatten().min();
        let next = |timers: &Timers| next_from(timers, Tick::ZERO);
        assert_eq!((next(&timers), timers.next_wait_end()), (None, None), "a job may wait without end");
        timers.deadlines.add(at(30), id(2));
        timers.pool_start_waits.add(at(20), id(3));
        timers.prefills.add(at(10), id(4));
        let wake = |reason: WakeReason, millis| reason.at(Some(at(millis)));
        assert_eq!(next(&timers), wake(WakeReason::PrefillEnd, 10));
        assert_eq!(timers.next_wait_end(), Some((at(20), id(3))));
        assert_eq!(next_from(&timers, at(15)), wake(WakeReason::PrefillEnd, 15));
        assert_eq!(next_from(&timers, at(25)), wake(WakeReason::PoolStartWaitEnd, 20));
        assert_eq!(timers.prefills.pop_due(at(9)), None);
        assert_eq!(timers.prefills.pop_due(at(10)), Some(id(4)));
        assert!(
            timers.pool_start_waits.cancel(at(20), id(3)) && !timers.pool_start_waits.cancel(at(20), id(3))
        );
        assert_eq!(next(&timers), wake(WakeReason::Deadline, 30));
    }
}
