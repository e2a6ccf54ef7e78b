//! Ticket: a request's hold on its job in the scheduler.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::core::limits::LimitsAtEntry;
use crate::core::model::event::{AttemptOutcome, DispatchGrant, Event, PreemptReason, Rejection};
use crate::core::model::ids::JobId;
use crate::core::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::core::model::policy::Policy;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::waiters::{AttemptBills, Signal, WaitEnd};

/// A request's handle on its job: the job's position in the queue, then its attempt at a replica.
/// The ticket reports the job's end exactly once, at the latest when dropped.
///
/// The scheduler may preempt the job before its client has seen anything. [`Ticket::wait_for_preemption`]
/// then returns, and the dispatcher ignores later reports on the preempted attempt.
#[derive(Debug)]
pub struct Ticket {
    dispatcher: Arc<Dispatcher>,
    job: JobId,
    state: TicketState,
    limits: LimitsAtEntry,
}

#[derive(Debug)]
enum TicketState {
    Waiting(oneshot::Receiver<WaitEnd>),
    /// At a replica. `signal` is `None` after the scheduler has sent the attempt's one signal.
    Running {
        attempt: u32,
        signal: Option<oneshot::Receiver<Signal>>,
    },
    /// The job has ended, with these bills.
    Over(AttemptBills),
}

impl Dispatcher {
    /// Admits the job. Dropping the returned ticket ends the job. The ids in `spec` are those of
    /// `policy`. If the scheduler does not know `policy` yet, `policy` comes into force first.
    pub fn admit(self: &Arc<Self>, spec: JobSpec, prefix: PromptPrefix, policy: &Arc<Policy>) -> Ticket {
        self.apply_policy(policy);
        let (answer, limits) = self.with_lock(|inner, now| {
            let answer = inner.waiters.wait(spec.id);
            (answer, inner.arrive(now, spec, prefix))
        });
        if self.arrival_awaited.load(Ordering::Relaxed) && self.arrival_awaited.swap(false, Ordering::Relaxed)
        {
            self.arrival.notify_one();
        }
        Ticket { dispatcher: Arc::clone(self), job: spec.id, state: TicketState::Waiting(answer), limits }
    }

    /// Admits the job only if the policy or a limit refuses it at its entry. The ticket then has the
    /// rejection.
    pub fn admit_if_refused(
        self: &Arc<Self>,
        spec: JobSpec,
        prefix: PromptPrefix,
        policy: &Arc<Policy>,
    ) -> Option<Ticket> {
        self.apply_policy(policy);
        let (mut answer, limits) = self.with_lock(|inner, now| {
            let refuses = inner.scheduler.refuses_at_entry(&spec, 0, now);
            refuses.then(|| (inner.waiters.wait(spec.id), inner.arrive(now, spec, prefix)))
        })?;
        let end = answer.try_recv();
        let mut ticket = Ticket {
            dispatcher: Arc::clone(self),
            job: spec.id,
            state: TicketState::Waiting(answer),
            limits,
        };
        let Ok(end @ WaitEnd::Rejected(_)) = end else { return None };
        let (sender, answer) = oneshot::channel();
        sender.send(end).ok()?;
        ticket.state = TicketState::Waiting(answer);
        Some(ticket)
    }
}

impl Ticket {
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
    pub async fn wait_for_dispatch(&mut self) -> Result<DispatchGrant, Rejection> {
        let TicketState::Waiting(receiver) = &mut self.state else {
            unreachable!("a ticket waits only after admit, after a failure and after a preemption");
        };
        match receiver.await {
            Ok(WaitEnd::Granted { grant, signal }) => {
                self.state = TicketState::Running { attempt: grant.why.attempt, signal: Some(signal) };
                Ok(grant)
            }
            Ok(WaitEnd::Rejected(why)) => {
                self.state = TicketState::Over(self.dispatcher.leave(self.job, JobUsage::Unknown));
                Err(why)
            }
            // Another owner ended the job, and also drops this future.
            Err(_) => pending().await,
        }
    }

    /// Waits until the scheduler preempts the job. The caller then waits for another replica with
    /// [`Ticket::wait_for_dispatch`]. The future never ends while the job is not at a replica. Dropping
    /// the future keeps the ticket.
    pub async fn wait_for_preemption(&mut self) -> PreemptReason {
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
        let TicketState::Running { attempt, .. } = self.state else { return false };
        self.dispatcher.report(self.job, attempt, Event::FirstToken { job: self.job })
    }

    /// Reports that the replica failed the job before the client saw any of its answer, or broke off
    /// a stream that another replica can continue. After true, wait for the scheduler's decision with
    /// [`Ticket::wait_for_dispatch`]. False means that the job had been preempted: then wait for
    /// [`Ticket::wait_for_preemption`] first.
    #[must_use]
    pub fn report_failure(&mut self, outcome: AttemptOutcome) -> bool {
        let TicketState::Running { attempt, .. } = self.state else { return false };
        let again = self.dispatcher.retry(self.job, attempt, Event::Finished { job: self.job, outcome });
        match again {
            Some(answer) => self.state = TicketState::Waiting(answer),
            None => return false,
        }
        true
    }

    /// Reports the end of the answer. The answer counts as the job's answer only if the result is
    /// true. False means that the job has been preempted or has ended in another way.
    pub fn finish(&mut self, outcome: AttemptOutcome) -> bool {
        let TicketState::Running { attempt, .. } = self.state else { return false };
        let finished = Event::Finished { job: self.job, outcome };
        let Some(bills) = self.dispatcher.finish(self.job, attempt, finished) else { return false };
        self.state = TicketState::Over(bills);
        true
    }

    /// Ends the job, whether it waits or runs. `usage` is what the job has used until now.
    pub fn give_up(&mut self, usage: JobUsage) {
        if !matches!(self.state, TicketState::Over(_)) {
            self.state = TicketState::Over(self.dispatcher.leave(self.job, usage));
        }
    }

    /// Ends the job as [`Self::give_up`] does, unless it has ended. Returns the bills of its
    /// attempts.
    pub fn end(mut self, usage: JobUsage) -> AttemptBills {
        self.give_up(usage);
        match std::mem::replace(&mut self.state, TicketState::Over(AttemptBills::new())) {
            TicketState::Over(bills) => bills,
            TicketState::Waiting(_) | TicketState::Running { .. } => AttemptBills::new(),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_up(JobUsage::Unknown);
    }
}
