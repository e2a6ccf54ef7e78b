//! Attempt loop: one request waits for a replica, and goes to the next replica after a fault or a
//! preemption.
//!
//! [`Ticket::report_failure`] only reports a fault; `Scheduler::failed` (`core::scheduler::settle::retry`)
//! decides. A refusal arrives in the next [`Ticket::wait_for_dispatch`].

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tokio::time::sleep_until;

use crate::core::model::event::{AttemptOutcome, EngineFault};
use crate::core::model::ids::ReplicaId;
use crate::core::model::job::JobUsage;
use crate::core::model::time::Tick;
use crate::dispatcher::ticket::Ticket;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::proxy::Proxy;
use crate::proxy::active_request::ActiveRequest;
use crate::proxy::attempt::{AttemptError, EngineAnswer, MOST_SENDS};
use crate::proxy::listener::workers::turn::{self, Step};
use crate::proxy::request::InferenceRequest;
use crate::proxy::summary::RequestRecord;
use crate::telemetry::trace::RequestPhase;

use super::ServeError;

impl Proxy {
    /// Dispatches the request to one replica after another, until a replica answers or the
    /// scheduler rejects the job. `so_far` is the part of the answer that the client has, if another
    /// engine can continue from it.
    ///
    /// # Errors
    /// The reason why there is no answer. The job is then over.
    pub(in crate::proxy) async fn attempt_until_answered(
        &self,
        request: &InferenceRequest,
        so_far: Option<&PartialAnswer>,
        active: &mut ActiveRequest,
    ) -> Result<EngineAnswer, ServeError> {
        match active.parts() {
            Some((ticket, record)) => self.attempt_loop(request, so_far, ticket, record).await,
            None => {
                let error = ApiError::new(ErrorKind::Internal, "the request was not admitted");
                Err(ServeError::Refused(error))
            }
        }
    }

    async fn attempt_loop(
        &self,
        request: &InferenceRequest,
        so_far: Option<&PartialAnswer>,
        ticket: &mut Ticket,
        record: &mut RequestRecord,
    ) -> Result<EngineAnswer, ServeError> {
        let mut resets = EngineResets::default();
        let before = record.end.usage;
        loop {
            let waiting_since = record.clock.now();
            let grant = ticket.wait_for_dispatch().await.map_err(ServeError::Rejected)?;
            turn::take_together(Step::Send).await;
            if let Some(trace) = &record.trace {
                trace.phase(RequestPhase::Queue, waiting_since, record.clock.now());
            }
            let settings = self.settings.load_full();
            record.record_dispatch(grant, &settings);
            let (sent, sends) = (record.clock.now(), resets.left(grant.replica));
            // A preemption drops the attempt's future and with it the connection.
            let attempt = tokio::select! {
                biased;
                why = ticket.wait_for_preemption() => Err(why),
                () = self.client_deadline(request, so_far, record.end.early_head.clone()) => {
                    ticket.give_up(JobUsage::Unknown);
                    return Err(ServeError::Refused(ApiError::client_deadline()));
                }
                attempt = request.attempt(self, &settings, grant, sends, so_far, record) => Ok(attempt),
            };
            match attempt {
                Err(why) => record.preempted(grant.replica, why),
                Ok(Ok(answer)) if answer.report(ticket) => {
                    match &answer {
                        EngineAnswer::Stream { .. } => record.record_first_token(),
                        EngineAnswer::Whole { usage, finish_reason, .. } => {
                            record.at_engine.finish_reason = *finish_reason;
                            record.at_engine.whole_answer = Some(record.clock.now().since(sent));
                            record.attempt_ended(None);
                            record.succeeded(*usage);
                        }
                    }
                    return Ok(answer);
                }
                Ok(Err(AttemptError::Refused(error, usage)))
                    if ticket.finish(AttemptOutcome::Done(before.unwrap_or(usage))) =>
                {
                    record.attempt_ended(Some(error.kind().code()));
                    record.end.usage = Some(before.unwrap_or(usage));
                    return Err(ServeError::Refused(error));
                }
                Ok(Err(AttemptError::Failed(fault, usage))) => {
                    if fault == EngineFault::Reset {
                        resets.note(grant.replica, record.at_engine.sends);
                    }
                    let usage = before.filter(|_| usage == JobUsage::Unknown).unwrap_or(usage);
                    // False: the job was preempted before the fault was reported.
                    if ticket.report_failure(AttemptOutcome::Failed { fault, usage }) {
                        record.attempt_failed(grant.replica, fault);
                    } else {
                        record.preempted(grant.replica, ticket.wait_for_preemption().await);
                    }
                }
                // The result came too late: the job was preempted before the result arrived.
                Ok(_) => record.preempted(grant.replica, ticket.wait_for_preemption().await),
            }
        }
    }

    /// Waits until the client's own deadline, if the client stated one. Waits for ever once the
    /// client has got the start of its answer.
    async fn client_deadline(
        &self,
        request: &InferenceRequest,
        so_far: Option<&PartialAnswer>,
        early: Option<Arc<AtomicBool>>,
    ) {
        if so_far.is_some_and(PartialAnswer::is_resumed) || request.client_deadline == Tick::NEVER {
            return pending().await;
        }
        sleep_until(self.dispatcher.clock().instant(request.client_deadline)).await;
        if early.is_some_and(|sent| sent.load(Ordering::Relaxed)) {
            pending::<()>().await;
        }
    }
}

/// Number of sends of a request to each replica that reset its connection.
#[derive(Debug, Default)]
struct EngineResets(SmallVec<[(ReplicaId, u32); 4]>);

impl EngineResets {
    /// Adds `times` sends of the request to a replica that reset its connection.
    fn note(&mut self, replica: ReplicaId, times: u32) {
        match self.0.iter_mut().find(|(known, _)| *known == replica) {
            Some((_, count)) => *count += times,
            None => self.0.push((replica, times)),
        }
    }

    /// Number of sends that the replica may still get.
    fn left(&self, replica: ReplicaId) -> u32 {
        let count = self.0.iter().find(|(known, _)| *known == replica).map_or(0, |(_, count)| *count);
        MOST_SENDS.saturating_sub(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_gets_a_request_twice() {
        let (mut resets, [a, b]) = (EngineResets::default(), [ReplicaId::new(0), ReplicaId::new(1)]);
        assert_eq!(resets.left(a), 2);
        resets.note(a, 1);
        assert_eq!((resets.left(a), resets.left(b)), (1, 2));
        resets.note(a, 2);
        resets.note(b, 2);
        assert_eq!((resets.left(a), resets.left(b)), (0, 0));
    }
}
