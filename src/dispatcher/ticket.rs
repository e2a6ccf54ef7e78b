//! Ticket: a request's hold on its job in the scheduler.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::core::billing::bill::StayBill;
use crate::core::limits::LimitStatus;
use crate::core::limits::rule::LimitId;
use crate::core::model::event::{AttemptOutcome, EngineFault, Event, PreemptReason, Rejection};
use crate::core::model::ids::JobId;
use crate::core::model::job::JobUsage;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::waiters::{AttemptId, AttemptStart, DispatchGrant, Signal, StayBills, WaitResult};

/// One job's place in the queue, then its credit at a replica. Reports the
/// job's end exactly once, at the latest when dropped.
///
/// The scheduler may take the job away from its replica before its client has
/// seen anything: [`Ticket::preempted`] says so, and what the ticket is told of
/// that try from then on is not passed on.
#[derive(Debug)]
pub struct Ticket {
    dispatcher: Arc<Dispatcher>,
    job: JobId,
    state: TicketState,
    usage: JobUsage,
    limits: LimitsAtEntry,
    bills: Arc<StayBills>,
    live: bool,
}

/// How it stood with a job's limits when it had come. Empty where it has none.
#[derive(Debug, Clone, Default)]
pub struct LimitsAtEntry {
    /// Each, with what the job reserved taken off.
    pub statuses: SmallVec<[LimitStatus; 4]>,
    /// Those in shadow mode that would have refused it.
    pub shadowed: SmallVec<[LimitId; 1]>,
}

#[derive(Debug)]
enum TicketState {
    Waiting(oneshot::Receiver<WaitResult>),
    /// Nothing more is to be heard where there is no receiver.
    Running {
        dispatch: AttemptId,
        signal: Option<oneshot::Receiver<Signal>>,
    },
    Over,
}

impl Ticket {
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        job: JobId,
        answer: oneshot::Receiver<WaitResult>,
        (limits, bills): (LimitsAtEntry, Arc<StayBills>),
    ) -> Self {
        Self {
            dispatcher,
            job,
            state: TicketState::Waiting(answer),
            usage: JobUsage::Unknown,
            limits,
            bills,
            live: true,
        }
    }

    /// How it stood with the job's limits when it had come.
    pub fn take_limits(&mut self) -> LimitsAtEntry {
        std::mem::take(&mut self.limits)
    }

    /// The job's id.
    #[cfg(test)]
    pub(super) const fn job(&self) -> JobId {
        self.job
    }

    /// Waits for a replica. Dropping the future keeps the ticket.
    ///
    /// # Errors
    /// The rejection, after which the job is over.
    pub async fn dispatched(&mut self) -> Result<DispatchGrant, Rejection> {
        let TicketState::Waiting(receiver) = &mut self.state else {
            unreachable!("a ticket waits only after admit, after a failure and after a recall");
        };
        match receiver.await {
            Ok(Ok(AttemptStart { grant: placement, attempt: dispatch, signal })) => {
                self.state = TicketState::Running { dispatch, signal: Some(signal) };
                Ok(placement)
            }
            Ok(Err(rejection)) => {
                self.state = TicketState::Over;
                self.live = false;
                Err(rejection)
            }
            // Somebody else ended the job, and ends this wait too.
            Err(_) => pending().await,
        }
    }

    /// Waits until the job is taken away from its replica; then wait for
    /// another with `placed`. Never ends while the ticket is not at a replica.
    /// Dropping the future keeps the ticket.
    pub async fn preempted(&mut self) -> PreemptReason {
        let TicketState::Running { signal, .. } = &mut self.state else { return pending().await };
        let Some(receiver) = signal else { return pending().await };
        let said = receiver.await;
        // A receiver that has spoken must not be polled again.
        *signal = None;
        match said {
            Ok(Signal::Preempted { why, again }) => {
                self.state = TicketState::Waiting(again);
                why
            }
            // A stream is handed over after its first token; nobody waits here
            // for that. Or somebody else ended the job.
            Ok(Signal::Migrate(_)) | Err(_) => pending().await,
        }
    }

    /// Whether another replica is to go on with the stream, and why. Says so
    /// once; `cx` is woken when that changes.
    pub fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<PreemptReason> {
        let TicketState::Running { signal, .. } = &mut self.state else { return Poll::Pending };
        let Some(receiver) = signal else { return Poll::Pending };
        let Poll::Ready(said) = Pin::new(receiver).poll(cx) else { return Poll::Pending };
        *signal = None;
        match said {
            Ok(Signal::Migrate(why)) => Poll::Ready(why),
            // What streams is never preempted.
            Ok(Signal::Preempted { .. }) | Err(_) => Poll::Pending,
        }
    }

    /// The job's first token is here. Only if this is true may it be shown to
    /// the client; otherwise the job has been preempted.
    #[must_use]
    pub fn first_token(&self) -> bool {
        let TicketState::Running { dispatch, .. } = self.state else { return false };
        self.dispatcher.report(self.job, dispatch, Event::FirstToken { job: self.job })
    }

    /// What is known so far of the job's consumption; used if it is dropped.
    pub fn note_usage(&mut self, usage: JobUsage) {
        self.usage = usage;
    }

    /// The replica failed the job, and the client has seen nothing of it:
    /// wait for another with `placed`. False if the job had been preempted:
    /// then wait for [`Ticket::preempted`] first.
    #[must_use]
    pub fn failed_unseen(&mut self, fault: EngineFault, usage: JobUsage) -> bool {
        self.retry(AttemptOutcome::Failed { fault, usage })
    }

    /// The same for a stream of which the client has seen `output` tokens and
    /// which another replica can go on with.
    #[must_use]
    pub fn interrupted(&mut self, fault: EngineFault, usage: JobUsage, output: u64) -> bool {
        self.retry(AttemptOutcome::Interrupted { fault, usage, output })
    }

    fn retry(&mut self, outcome: AttemptOutcome) -> bool {
        let TicketState::Running { dispatch, .. } = self.state else { return false };
        let again = self.dispatcher.retry(self.job, dispatch, Event::Finished { job: self.job, outcome });
        match again {
            Some(answer) => self.state = TicketState::Waiting(answer),
            None => return false,
        }
        true
    }

    /// The answer is over. Only if this is true is it the job's answer;
    /// otherwise the job has been preempted, or ended otherwise.
    pub fn finish(&mut self, outcome: AttemptOutcome) -> bool {
        let TicketState::Running { dispatch, .. } = self.state else { return false };
        let finished = self.dispatcher.finish(self.job, dispatch, Event::Finished { job: self.job, outcome });
        self.live &= !finished;
        finished
    }

    /// Ends the job wherever it is.
    pub fn give_up(&mut self, usage: JobUsage) {
        if std::mem::take(&mut self.live) {
            self.state = TicketState::Over;
            self.dispatcher.event(Event::ClientLeft { job: self.job, usage });
        }
    }

    /// Ends the job wherever it is. Returns the bills of its stays at replicas, in
    /// their order.
    #[must_use]
    pub fn end(mut self) -> SmallVec<[StayBill; 1]> {
        self.give_up(self.usage);
        self.bills.take()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_up(self.usage);
    }
}
