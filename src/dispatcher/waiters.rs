//! Waiters: one entry for each live job, with the channel to its ticket. All waiters are read and
//! changed under the dispatcher's lock.
//!
//! The scheduler ends an attempt at once, but the attempt's ticket learns of the end later. In
//! between, the ticket may report on an attempt that it no longer owns, while the job waits again
//! or runs at another replica. Each report therefore carries the number of its attempt, and reports
//! that carry an older number are ignored.

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::core::billing::bill::AttemptBill;
use crate::core::model::event::{DispatchGrant, JobAction, PreemptReason, Rejection};
use crate::core::model::ids::JobId;
use crate::core::model::number_map::NumberMap;

/// Bills of a job's attempts, in their order.
pub type AttemptBills = SmallVec<[AttemptBill; 1]>;

/// End of a job's wait.
#[derive(Debug)]
pub(super) enum WaitEnd {
    /// An attempt begins. `signal` receives the scheduler's one signal to it.
    Granted { grant: DispatchGrant, signal: oneshot::Receiver<Signal> },
    /// The job is over.
    Rejected(Rejection),
}

/// Signal of the scheduler to a running attempt. An attempt gets at most one.
#[derive(Debug)]
pub(super) enum Signal {
    /// The scheduler preempted the job. `again` receives the end of the job's next wait, and may
    /// already hold it.
    Preempted { why: PreemptReason, again: oneshot::Receiver<WaitEnd> },
    /// The stream must migrate. The attempt owns the job until the stream has left the replica.
    Migrate(PreemptReason),
}

/// Message to a ticket, delivered after the lock is released.
#[derive(Debug)]
pub(super) enum Notification {
    Answer(oneshot::Sender<WaitEnd>, WaitEnd),
    Signal(oneshot::Sender<Signal>, Signal),
}

/// Notifications of one step under the lock.
pub(super) type Notifications = SmallVec<[Notification; 1]>;

impl Notification {
    /// Sends the notification. A ticket that was dropped has already reported its job's end to the
    /// scheduler, so a failed send is ignored.
    pub(super) fn deliver(self) {
        match self {
            Self::Answer(to, answer) => drop(to.send(answer)),
            Self::Signal(to, signal) => drop(to.send(signal)),
        }
    }
}

/// The entry of one job, which lives as long as the job's ticket.
#[derive(Debug)]
struct Waiter {
    state: WaiterState,
    bills: AttemptBills,
}

#[derive(Debug)]
enum WaiterState {
    Waiting(oneshot::Sender<WaitEnd>),
    /// At a replica. `signal` is `None` after the attempt's one signal was sent.
    Running {
        attempt: u32,
        signal: Option<oneshot::Sender<Signal>>,
    },
    /// The job has ended, and the ticket gets no more notifications. The entry keeps the bills until
    /// the ticket ends.
    Left,
}

/// The waiters of all live jobs.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiters: NumberMap<JobId, Waiter>,
}

impl Waiters {
    /// Puts the job into the waiting state, for the first time or again.
    pub(super) fn wait(&mut self, job: JobId) -> oneshot::Receiver<WaitEnd> {
        let (sender, receiver) = oneshot::channel();
        self.put(job, WaiterState::Waiting(sender));
        receiver
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Stops all notifications to the job, which is about to end. False if the job has ended already.
    pub(super) fn set_left(&mut self, job: JobId) -> bool {
        self.take_state(job).is_some_and(|state| !matches!(state, WaiterState::Left))
    }

    fn put(&mut self, job: JobId, state: WaiterState) {
        match self.waiters.get_mut(&job) {
            Some(waiter) => waiter.state = state,
            None => drop(self.waiters.insert(job, Waiter { state, bills: AttemptBills::new() })),
        }
    }

    /// Removes the job's entry at the end of the ticket, and returns the job's bills.
    pub(super) fn close(&mut self, job: JobId) -> AttemptBills {
        self.waiters.remove(&job).map(|waiter| waiter.bills).unwrap_or_default()
    }

    /// Whether `attempt` is the job's current attempt.
    pub(super) fn is_current(&self, job: JobId, attempt: u32) -> bool {
        let state = self.waiters.get(&job).map(|waiter| &waiter.state);
        matches!(state, Some(WaiterState::Running { attempt: present, .. }) if *present == attempt)
    }

    /// Rejects all jobs that wait. Returns the jobs with the notifications for their tickets.
    pub(super) fn reject_waiting(&mut self, why: Rejection) -> Vec<(JobId, Notification)> {
        let waits = |waiter: &Waiter| matches!(waiter.state, WaiterState::Waiting(_));
        let waiting = self.waiters.iter().filter(|(_, waiter)| waits(waiter)).map(|(job, _)| *job);
        let waiting: Vec<JobId> = waiting.collect();
        let reject = |job| Some((job, Notification::Answer(self.take_waiter(job)?, WaitEnd::Rejected(why))));
        waiting.into_iter().filter_map(reject).collect()
    }

    /// Applies an action of the scheduler to its job. An action that does not fit the job's state
    /// belongs to a job that has just ended, and changes nothing.
    pub(super) fn apply(&mut self, action: JobAction, notifications: &mut Notifications) {
        match action {
            JobAction::Dispatch(grant) => {
                if let Some(waiter) = self.take_waiter(grant.job) {
                    let (sender, signal) = oneshot::channel();
                    let attempt = grant.why.attempt;
                    self.put(grant.job, WaiterState::Running { attempt, signal: Some(sender) });
                    notifications.push(Notification::Answer(waiter, WaitEnd::Granted { grant, signal }));
                }
            }
            JobAction::Reject { job, why } => {
                if let Some(waiter) = self.take_waiter(job) {
                    notifications.push(Notification::Answer(waiter, WaitEnd::Rejected(why)));
                }
            }
            JobAction::Preempt { job, why, .. } => {
                if let Some(signal) = self.take_runner(job) {
                    let again = self.wait(job);
                    notifications
                        .extend(signal.map(|to| Notification::Signal(to, Signal::Preempted { why, again })));
                }
            }
            JobAction::Migrate { job, why, .. } => {
                if let Some(Waiter { state: WaiterState::Running { signal, .. }, .. }) =
                    self.waiters.get_mut(&job)
                {
                    notifications
                        .extend(signal.take().map(|to| Notification::Signal(to, Signal::Migrate(why))));
                }
            }
            JobAction::Billed { job, bill } => {
                if let Some(waiter) = self.waiters.get_mut(&job) {
                    waiter.bills.push(bill);
                }
            }
            // The ticket's owner reported the failure and needs no notification.
            JobAction::Requeue { .. } => {}
        }
    }

    /// Takes the channel of a job that waits, and leaves `Left` in its place.
    fn take_waiter(&mut self, job: JobId) -> Option<oneshot::Sender<WaitEnd>> {
        match self.take_state(job)? {
            WaiterState::Waiting(sender) => Some(sender),
            other => {
                self.put(job, other);
                None
            }
        }
    }

    fn take_runner(&mut self, job: JobId) -> Option<Option<oneshot::Sender<Signal>>> {
        match self.take_state(job)? {
            WaiterState::Running { signal, .. } => Some(signal),
            other => {
                self.put(job, other);
                None
            }
        }
    }

    /// Takes a job's state and leaves `Left` in its place, for the caller to replace.
    fn take_state(&mut self, job: JobId) -> Option<WaiterState> {
        self.waiters.get_mut(&job).map(|waiter| std::mem::replace(&mut waiter.state, WaiterState::Left))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::model::event::{DispatchReason, EngineFault, RejectReason};
    use crate::core::model::ids::{PoolId, ReplicaId};

    const JOB: JobId = JobId::new(7);

    /// The dispatch of the job's next attempt.
    fn dispatch(replica: u32, attempt: u32) -> JobAction {
        let why = DispatchReason { attempt, ..DispatchReason::ALONE };
        JobAction::Dispatch(DispatchGrant {
            job: JOB,
            pool: PoolId::new(0),
            replica: ReplicaId::new(replica),
            why,
        })
    }

    fn preempt(replica: u32) -> JobAction {
        JobAction::Preempt { job: JOB, replica: ReplicaId::new(replica), why: PreemptReason::Stalled }
    }

    fn reject() -> JobAction {
        let why = Rejection { reason: RejectReason::Draining, queued: Duration::ZERO, retry_after: None };
        JobAction::Reject { job: JOB, why }
    }

    /// Applies the actions as those of one step, and delivers the notifications.
    fn step(waiters: &mut Waiters, actions: impl IntoIterator<Item = JobAction>) {
        let mut notifications = Notifications::new();
        for action in actions {
            waiters.apply(action, &mut notifications);
        }
        notifications.into_iter().for_each(Notification::deliver);
    }

    fn started(mut answer: oneshot::Receiver<WaitEnd>) -> (DispatchGrant, oneshot::Receiver<Signal>) {
        match answer.try_recv() {
            Ok(WaitEnd::Granted { grant, signal }) => (grant, signal),
            other => panic!("{other:?}"),
        }
    }

    /// The next wait of an attempt that was preempted because its engine stalled.
    fn taken_away(mut signal: oneshot::Receiver<Signal>) -> oneshot::Receiver<WaitEnd> {
        match signal.try_recv() {
            Ok(Signal::Preempted { why: PreemptReason::Stalled, again }) => again,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_preempted_attempt_may_not_report_even_when_the_job_runs_again_in_the_same_step() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0, 1)]);
        let (_, mut signal) = started(answer);
        assert!(waiters.is_current(JOB, 1));
        assert!(signal.try_recv().is_err());

        step(&mut waiters, [preempt(0), dispatch(1, 2)]);
        assert!(!waiters.is_current(JOB, 1));
        let (second, _) = started(taken_away(signal));
        assert_eq!((second.replica, second.why.attempt), (ReplicaId::new(1), 2));
        assert!(waiters.is_current(JOB, 2));
    }

    #[test]
    fn a_preempted_job_waits_until_it_is_placed_or_refused() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0, 1)]);
        let (_, signal) = started(answer);
        step(&mut waiters, [preempt(0)]);
        let mut again = taken_away(signal);
        assert!(again.try_recv().is_err() && !waiters.is_current(JOB, 1));
        step(&mut waiters, [reject()]);
        let Ok(WaitEnd::Rejected(why)) = again.try_recv() else { panic!("it is refused") };
        assert_eq!(why.reason, RejectReason::Draining);
        assert!(!waiters.set_left(JOB), "the entry only keeps the bills");
        waiters.close(JOB);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_recall_before_the_placement_was_noticed_is_told_after_it() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0, 1), preempt(0), dispatch(0, 2)]);
        let (first, signal) = started(answer);
        let (second, _) = started(taken_away(signal));
        assert_eq!((first.why.attempt, second.why.attempt), (1, 2));
        assert!(waiters.is_current(JOB, 2) && !waiters.is_current(JOB, 1));
    }

    #[test]
    fn a_try_is_asked_once_for_its_stream_and_owns_the_job_until_then() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        let replica = ReplicaId::new(0);
        let ask = |why| JobAction::Migrate { job: JOB, replica, why };
        step(&mut waiters, [ask(PreemptReason::Stalled), dispatch(0, 1)]);
        let (_, mut signal) = started(answer);
        assert!(signal.try_recv().is_err());
        step(&mut waiters, [ask(PreemptReason::Drained), ask(PreemptReason::Stalled)]);
        assert!(matches!(signal.try_recv(), Ok(Signal::Migrate(PreemptReason::Drained))));
        assert!(waiters.is_current(JOB, 1));
        let again = waiters.wait(JOB);
        step(&mut waiters, [dispatch(1, 2)]);
        assert_eq!(started(again).0.replica, ReplicaId::new(1));
    }

    #[test]
    fn a_failed_try_waits_like_a_new_job() {
        let mut waiters = Waiters::default();
        let _answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0, 1)]);
        let answer = waiters.wait(JOB);
        assert!(!waiters.is_current(JOB, 1));
        let replica = ReplicaId::new(0);
        step(
            &mut waiters,
            [JobAction::Requeue { job: JOB, replica, why: EngineFault::Reset }, dispatch(1, 2)],
        );
        assert_eq!(started(answer).0.replica, ReplicaId::new(1));
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut waiters = Waiters::default();
        step(&mut waiters, [dispatch(0, 1), preempt(0), reject()]);
        assert!(waiters.waiters.is_empty());
        let mut answer = waiters.wait(JOB);
        step(&mut waiters, [preempt(0)]);
        assert!(answer.try_recv().is_err());
        step(&mut waiters, [dispatch(0, 1)]);
        started(answer);
        step(&mut waiters, [dispatch(1, 2), reject()]);
        assert!(waiters.is_current(JOB, 1));
        waiters.close(JOB);
        assert!(!waiters.is_current(JOB, 1));
    }

    #[test]
    fn only_those_who_wait_are_taken_out() {
        let mut waiters = Waiters::default();
        let _answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0, 1)]);
        let mut waits = waiters.wait(JobId::new(8));
        let why = Rejection { reason: RejectReason::Draining, queued: Duration::ZERO, retry_after: None };
        let taken = waiters.reject_waiting(why);
        assert_eq!(taken.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [JobId::new(8)]);
        taken.into_iter().for_each(|(_, rejection)| rejection.deliver());
        assert!(matches!(waits.try_recv(), Ok(WaitEnd::Rejected(_))));
        assert!(waiters.is_current(JOB, 1));
    }
}
