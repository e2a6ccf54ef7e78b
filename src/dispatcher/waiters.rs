//! Waiters: one entry for each live job, with the channel to its ticket. All waiters are read and
//! changed under the dispatcher's lock.
//!
//! The scheduler ends an attempt at once, but the attempt's ticket learns of the end later. In
//! between, the ticket may report on an attempt that it no longer owns, while the job waits again
//! or runs at another replica. Each dispatch therefore has a number, and reports that carry an
//! older number are ignored.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::core::billing::bill::StayBill;
use crate::core::model::event::{DispatchReason, JobAction, PreemptReason, Rejection};
use crate::core::model::ids::{JobId, ReplicaId};

/// Permission for a job to start at a replica.
#[derive(Debug, Clone, Copy)]
pub struct DispatchGrant {
    /// The replica. The ledger already holds the job's booking there.
    pub replica: ReplicaId,
    pub why: DispatchReason,
}

/// Number of an attempt. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttemptId(u64);

/// End of a job's wait: the start of an attempt, or a rejection.
pub(super) type WaitResult = Result<AttemptStart, Rejection>;

/// An attempt that begins.
#[derive(Debug)]
pub(super) struct AttemptStart {
    pub(super) grant: DispatchGrant,
    pub(super) attempt: AttemptId,
    /// Receiver of the scheduler's one signal to the running attempt.
    pub(super) signal: oneshot::Receiver<Signal>,
}

/// Signal of the scheduler to a running attempt. An attempt gets at most one.
#[derive(Debug)]
pub(super) enum Signal {
    /// The scheduler preempted the job. `again` receives the end of the job's next wait, and may
    /// already hold it.
    Preempted { why: PreemptReason, again: oneshot::Receiver<WaitResult> },
    /// The stream must migrate. The attempt owns the job until the stream has left the replica.
    Migrate(PreemptReason),
}

/// Message to a ticket, delivered after the lock is released.
#[derive(Debug)]
pub(super) enum Notification {
    Answer(oneshot::Sender<WaitResult>, WaitResult),
    Signal(oneshot::Sender<Signal>, Signal),
}

/// Notifications of one step under the lock.
pub(super) type Notifications = SmallVec<[Notification; 4]>;

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

/// Bills of a job's stays at replicas, in their order. Complete once the job is over.
#[derive(Debug, Default)]
pub(super) struct StayBills(Mutex<SmallVec<[StayBill; 1]>>);

impl StayBills {
    pub(super) fn take(&self) -> SmallVec<[StayBill; 1]> {
        std::mem::take(&mut self.0.lock())
    }

    fn add(&self, bill: StayBill) {
        self.0.lock().push(bill);
    }
}

#[derive(Debug)]
struct Waiter {
    state: WaiterState,
    bills: Arc<StayBills>,
}

#[derive(Debug)]
enum WaiterState {
    Waiting(oneshot::Sender<WaitResult>),
    /// At a replica. `signal` is `None` after the attempt's one signal was sent.
    Running {
        dispatch: AttemptId,
        signal: Option<oneshot::Sender<Signal>>,
    },
    /// The ticket has ended the job. The entry stays only until the job's last bill has arrived.
    Left,
}

/// The waiters of all live jobs.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiters: HashMap<JobId, Waiter>,
    attempts: u64,
}

impl Waiters {
    /// Puts the job into the waiting state, for the first time or again.
    pub(super) fn wait(&mut self, job: JobId) -> oneshot::Receiver<WaitResult> {
        let (sender, receiver) = oneshot::channel();
        self.put(job, WaiterState::Waiting(sender));
        receiver
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The job's bills, shared with its ticket. A job without an entry gets an empty list.
    pub(super) fn bills(&self, job: JobId) -> Arc<StayBills> {
        self.waiters.get(&job).map(|waiter| Arc::clone(&waiter.bills)).unwrap_or_default()
    }

    /// Stops all notifications to the job, which is about to end.
    pub(super) fn set_left(&mut self, job: JobId) {
        if let Some(waiter) = self.waiters.get_mut(&job) {
            waiter.state = WaiterState::Left;
        }
    }

    fn put(&mut self, job: JobId, state: WaiterState) {
        match self.waiters.get_mut(&job) {
            Some(waiter) => waiter.state = state,
            None => drop(self.waiters.insert(job, Waiter { state, bills: Arc::default() })),
        }
    }

    /// Removes the job's entry. The job is over.
    pub(super) fn close(&mut self, job: JobId) {
        self.waiters.remove(&job);
    }

    /// Whether `dispatch` is the job's current attempt.
    pub(super) fn is_current(&self, job: JobId, dispatch: AttemptId) -> bool {
        let state = self.waiters.get(&job).map(|waiter| &waiter.state);
        matches!(state, Some(WaiterState::Running { dispatch: present, .. }) if *present == dispatch)
    }

    /// Removes and returns the entries of all jobs that wait.
    pub(super) fn take_waiting(&mut self) -> Vec<(JobId, oneshot::Sender<WaitResult>)> {
        let waits = |_: &JobId, waiter: &mut Waiter| matches!(waiter.state, WaiterState::Waiting(_));
        let taken = self.waiters.extract_if(waits);
        taken
            .filter_map(|(job, waiter)| match waiter.state {
                WaiterState::Waiting(sender) => Some((job, sender)),
                WaiterState::Running { .. } | WaiterState::Left => None,
            })
            .collect()
    }

    /// Applies an action of the scheduler to its job. An action that does not fit the job's state
    /// belongs to a job that has just ended, and changes nothing.
    pub(super) fn apply(&mut self, action: JobAction, notifications: &mut Notifications) {
        match action {
            JobAction::Dispatch { job, replica, why } => {
                if let Some(waiter) = self.take_waiter(job) {
                    let start = self.start(job, DispatchGrant { replica, why });
                    notifications.push(Notification::Answer(waiter, Ok(start)));
                }
            }
            JobAction::Reject { job, why } => {
                if let Some(waiter) = self.take_waiter(job) {
                    self.close(job);
                    notifications.push(Notification::Answer(waiter, Err(why)));
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
                if let Some(waiter) = self.waiters.get(&job) {
                    waiter.bills.add(bill);
                }
            }
            // The ticket's owner reported the failure and needs no notification.
            JobAction::Requeue { .. } => {}
        }
    }

    fn start(&mut self, job: JobId, placement: DispatchGrant) -> AttemptStart {
        self.attempts += 1;
        let dispatch = AttemptId(self.attempts);
        let (sender, signal) = oneshot::channel();
        self.put(job, WaiterState::Running { dispatch, signal: Some(sender) });
        AttemptStart { grant: placement, attempt: dispatch, signal }
    }

    fn take_waiter(&mut self, job: JobId) -> Option<oneshot::Sender<WaitResult>> {
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
    use crate::core::model::event::{EngineFault, RejectReason};

    const JOB: JobId = JobId::new(7);

    fn dispatch(replica: u32) -> JobAction {
        JobAction::Dispatch { job: JOB, replica: ReplicaId::new(replica), why: DispatchReason::ALONE }
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

    fn started(mut answer: oneshot::Receiver<WaitResult>) -> AttemptStart {
        answer.try_recv().unwrap().unwrap()
    }

    /// The next wait of an attempt that was preempted because its engine stalled.
    fn taken_away(mut start: AttemptStart) -> oneshot::Receiver<WaitResult> {
        match start.signal.try_recv() {
            Ok(Signal::Preempted { why: PreemptReason::Stalled, again }) => again,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_recalled_try_may_not_speak_even_when_the_job_runs_again_in_the_same_step() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0)]);
        let mut first = started(answer);
        assert!(waiters.is_current(JOB, first.attempt));
        assert!(first.signal.try_recv().is_err());

        step(&mut waiters, [preempt(0), dispatch(1)]);
        let before = first.attempt;
        assert!(!waiters.is_current(JOB, before));
        let second = started(taken_away(first));
        assert_eq!(second.grant.replica, ReplicaId::new(1));
        assert!(waiters.is_current(JOB, second.attempt) && second.attempt != before);
    }

    #[test]
    fn a_recalled_job_waits_until_it_is_placed_or_refused() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0)]);
        let first = started(answer);
        let before = first.attempt;
        step(&mut waiters, [preempt(0)]);
        let mut again = taken_away(first);
        assert!(again.try_recv().is_err() && !waiters.is_current(JOB, before));
        step(&mut waiters, [reject()]);
        assert_eq!(again.try_recv().unwrap().unwrap_err().reason, RejectReason::Draining);
        assert!(waiters.waiters.is_empty());
    }

    #[test]
    fn a_recall_before_the_placement_was_noticed_is_told_after_it() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0), preempt(0), dispatch(0)]);
        let first = started(answer);
        let before = first.attempt;
        let second = started(taken_away(first));
        assert!(waiters.is_current(JOB, second.attempt) && !waiters.is_current(JOB, before));
    }

    #[test]
    fn a_try_is_asked_once_for_its_stream_and_owns_the_job_until_then() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        let replica = ReplicaId::new(0);
        let ask = |why| JobAction::Migrate { job: JOB, replica, why };
        step(&mut waiters, [ask(PreemptReason::Stalled), dispatch(0)]);
        let mut first = started(answer);
        assert!(first.signal.try_recv().is_err());
        step(&mut waiters, [ask(PreemptReason::Drained), ask(PreemptReason::Stalled)]);
        assert!(matches!(first.signal.try_recv(), Ok(Signal::Migrate(PreemptReason::Drained))));
        assert!(waiters.is_current(JOB, first.attempt));
        let again = waiters.wait(JOB);
        step(&mut waiters, [dispatch(1)]);
        assert_eq!(started(again).grant.replica, ReplicaId::new(1));
    }

    #[test]
    fn a_failed_try_waits_like_a_new_job() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0)]);
        let first = started(answer);
        let answer = waiters.wait(JOB);
        assert!(!waiters.is_current(JOB, first.attempt));
        step(
            &mut waiters,
            [
                JobAction::Requeue { job: JOB, replica: ReplicaId::new(0), why: EngineFault::Reset },
                dispatch(1),
            ],
        );
        assert_eq!(started(answer).grant.replica, ReplicaId::new(1));
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut waiters = Waiters::default();
        step(&mut waiters, [dispatch(0), preempt(0), reject()]);
        assert!(waiters.waiters.is_empty());
        let mut answer = waiters.wait(JOB);
        step(&mut waiters, [preempt(0)]);
        assert!(answer.try_recv().is_err());
        step(&mut waiters, [dispatch(0)]);
        let start = started(answer);
        step(&mut waiters, [dispatch(1), reject()]);
        assert!(waiters.is_current(JOB, start.attempt));
        waiters.close(JOB);
        assert!(!waiters.is_current(JOB, start.attempt));
    }

    #[test]
    fn only_those_who_wait_are_taken_out() {
        let mut waiters = Waiters::default();
        let answer = waiters.wait(JOB);
        step(&mut waiters, [dispatch(0)]);
        let _waits = waiters.wait(JobId::new(8));
        let taken: Vec<JobId> = waiters.take_waiting().into_iter().map(|(job, _)| job).collect();
        assert_eq!(taken, [JobId::new(8)]);
        assert!(waiters.is_current(JOB, started(answer).attempt));
    }
}
