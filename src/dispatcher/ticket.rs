//! Ticket: a request's hold on its job in the scheduler.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::core::billing::bill::StayBill;
use crate::core::model::event::{AttemptOutcome, EngineFault, Event, PreemptReason, Rejection};
use crate::core::model::ids::JobId;
use crate::core::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::core::model::policy::Policy;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::limits_at_entry::LimitsAtEntry;
use crate::dispatcher::waiters::{AttemptId, AttemptStart, DispatchGrant, Signal, StayBills, WaitResult};

/// A request's handle on its job: the job's position in the queue, then its attempt at a replica.
/// The ticket reports the job's end exactly once, at the latest when dropped.
///
/// The scheduler may preempt the job before its client has seen anything. [`Ticket::preempted`]
/// then returns, and the dispatcher ignores later reports on the preempted attempt.
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

#[derive(Debug)]
enum TicketState {
    Waiting(oneshot::Receiver<WaitResult>),
    /// At a replica. `signal` is `None` after the scheduler has sent the attempt's one signal.
    Running {
        dispatch: AttemptId,
        signal: Option<oneshot::Receiver<Signal>>,
    },
    Over,
}

impl Dispatcher {
    /// Admits the job. Dropping the returned ticket ends the job. The ids in `spec` are those of
    /// `policy`. If the scheduler does not know `policy` yet, `policy` comes into force first.
    #[must_use]
    pub fn admit(self: &Arc<Self>, spec: JobSpec, prefix: PromptPrefix, policy: &Arc<Policy>) -> Ticket {
        let (answer, bills, limits) = self.with_lock(|inner, now| {
            let answer = inner.waiters.wait(spec.id);
            let bills = inner.waiters.bills(spec.id);
            inner.apply_policy(policy, now);
            (answer, bills, inner.arrive(now, spec, prefix))
        });
        if self.arrival_awaited.load(Ordering::Relaxed) && self.arrival_awaited.swap(false, Ordering::Relaxed)
        {
            self.arrival.notify_one();
        }
        Ticket::new(Arc::clone(self), spec.id, answer, (limits, bills))
    }
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

    /// Takes the state of the job's limits right after the job's arrival.
    pub fn take_limits(&mut self) -> LimitsAtEntry {
        std::mem::take(&mut self.limits)
    }

    #[cfg(test)]
    pub(super) const fn job(&self) -> JobId {
        self.job
    }

    /// Waits for a replica. Dropping the future keeps the ticket.
    ///
    /// # Errors
    /// The rejection. The job is then over.
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
            // Another owner ended the job, and also drops this future.
            Err(_) => pending().await,
        }
    }

    /// Waits until the scheduler preempts the job. The caller then waits for another replica with
    /// [`Ticket::dispatched`]. The future never ends while the job is not at a replica. Dropping
    /// the future keeps the ticket.
    pub async fn preempted(&mut self) -> PreemptReason {
        let TicketState::Running { signal, .. } = &mut self.state else { return pending().await };
        let Some(receiver) = signal else { return pending().await };
        let said = receiver.await;
        // A oneshot receiver that has returned must not be polled again.
        *signal = None;
        match said {
            Ok(Signal::Preempted { why, again }) => {
                self.state = TicketState::Waiting(again);
                why
            }
            // A stream migrates only after its first token, when no caller waits here. Or another
            // owner ended the job.
            Ok(Signal::Migrate(_)) | Err(_) => pending().await,
        }
    }

    /// Ready, once, with the reason when the stream must migrate to another replica. Wakes `cx`
    /// when the scheduler asks for the migration.
    pub fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<PreemptReason> {
        let TicketState::Running { signal, .. } = &mut self.state else { return Poll::Pending };
        let Some(receiver) = signal else { return Poll::Pending };
        let Poll::Ready(said) = Pin::new(receiver).poll(cx) else { return Poll::Pending };
        *signal = None;
        match said {
            Ok(Signal::Migrate(why)) => Poll::Ready(why),
            // A job that streams is never preempted.
            Ok(Signal::Preempted { .. }) | Err(_) => Poll::Pending,
        }
    }

    /// Reports the job's first token. The token may be sent to the client only if the result is
    /// true. False means that the job has been preempted.
    #[must_use]
    pub fn report_first_token(&self) -> bool {
        let TicketState::Running { dispatch, .. } = self.state else { return false };
        self.dispatcher.report(self.job, dispatch, Event::FirstToken { job: self.job })
    }

    /// Sets the job's usage so far. The ticket reports this usage if it is dropped.
    pub fn note_usage(&mut self, usage: JobUsage) {
        self.usage = usage;
    }

    /// Reports that the replica failed the job before the client saw any of its answer. After true,
    /// wait for another replica with [`Ticket::dispatched`]. False means that the job had been
    /// preempted: then wait for [`Ticket::preempted`] first.
    #[must_use]
    pub fn requeue(&mut self, fault: EngineFault, usage: JobUsage) -> bool {
        self.retry(AttemptOutcome::Failed { fault, usage })
    }

    /// Reports that the replica broke off a stream of which the client has seen `output` tokens and
    /// which another replica can continue. The result is that of [`Ticket::requeue`].
    #[must_use]
    pub fn requeue_stream(&mut self, fault: EngineFault, usage: JobUsage, output: u64) -> bool {
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

    /// Reports the end of the answer. The answer counts as the job's answer only if the result is
    /// true. False means that the job has been preempted or has ended in another way.
    pub fn finish(&mut self, outcome: AttemptOutcome) -> bool {
        let TicketState::Running { dispatch, .. } = self.state else { return false };
        let finished = self.dispatcher.finish(self.job, dispatch, Event::Finished { job: self.job, outcome });
        self.live &= !finished;
        finished
    }

    /// Ends the job, whether it waits or runs.
    pub fn give_up(&mut self, usage: JobUsage) {
        if std::mem::take(&mut self.live) {
            self.state = TicketState::Over;
            self.dispatcher.event(Event::ClientLeft { job: self.job, usage });
        }
    }

    /// Ends the job, whether it waits or runs. Returns the bills of its stays at replicas, in their
    /// order.
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
