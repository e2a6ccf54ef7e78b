//! Shadow copy: one copied request, from its ticket to its end.

use std::future::poll_fn;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use tokio::time::timeout;

use crate::auth::Identity;
use crate::config::settings::identity::Grant;
use crate::core::model::event::{AttemptOutcome, DispatchGrant, EngineFault, RejectReason};
use crate::core::model::job::{JobSpec, JobUsage};
use crate::dispatcher::ticket::Ticket;
use crate::protocol::error::ApiError;
use crate::protocol::response::engine_error::EngineError;
use crate::proxy::Proxy;
use crate::proxy::active_request::ActiveRequest;
use crate::proxy::attempt::{AttemptError, EngineAnswer, MOST_SENDS};
use crate::proxy::relay::engine_stream::{EngineStream, StreamStep};
use crate::proxy::request::InferenceRequest;
use crate::proxy::shadow::pair::ShadowHalf;
use crate::proxy::summary::RequestRecord;
use crate::telemetry::event::{RequestOutcome, ShadowSkipped};

/// A copy that is ready to be sent.
#[derive(Debug)]
pub(super) struct ShadowCopy {
    pub(super) proxy: Arc<Proxy>,
    pub(super) request: InferenceRequest,
    pub(super) request_id: HeaderValue,
    pub(super) half: ShadowHalf,
    pub(super) skipped: ShadowSkipped,
}

/// Reason why a copy was dropped, as a stable code.
type DropReason = &'static str;

impl ShadowCopy {
    /// Sends the copy and reads its answer to the end, unless another job needs its slot or the
    /// gateway shuts down.
    pub(super) async fn run(self) {
        let Self { proxy, request, request_id, half, skipped } = self;
        let settings = proxy.settings.load_full();
        let prefix = request.prefix(&proxy.prefixes);
        // The answer reaches no client, so the copy can be preempted until its answer is complete.
        let job = JobSpec { streams: false, ..request.job(false) };
        let mut ticket = proxy.dispatcher.admit(job, prefix, &settings.policy);
        let grant = match ticket.wait_for_dispatch().await {
            Ok(grant) => grant,
            Err(rejection) => {
                let reason = rejection.reason.name();
                return ShadowSkipped { reason, ..skipped }.emit(&proxy.telemetry);
            }
        };
        let mut active = ActiveRequest::of_copy(record(&proxy, &request, request_id, half), ticket);
        let Some((ticket, record)) = active.parts() else { return };
        let dropped = tokio::select! {
            biased;
            () = proxy.dispatcher.shutdown().drain_started() => Some(RejectReason::Draining.name()),
            dropped = answer(&proxy, &request, ticket, grant, record) => dropped,
        };
        if let Some(reason) = dropped {
            record.shadow_half = None;
            record.set_outcome(RequestOutcome::ClientGone, reason);
            ShadowSkipped { reason, ..skipped }.emit(&proxy.telemetry);
        }
    }
}

fn record(
    proxy: &Proxy,
    request: &InferenceRequest,
    request_id: HeaderValue,
    half: ShadowHalf,
) -> RequestRecord {
    let clock = proxy.dispatcher.clock();
    let mut record = RequestRecord::new(&proxy.telemetry, clock, request_id, request.parsed.api);
    record.journal.clone_from(&proxy.journal);
    record.caller.identity =
        Some(Identity { tenant: request.tenant, key_id: None, grant: Grant::whole(request.tenant) });
    record.work.class = Some(request.class);
    record.work.model = Some(request.model());
    record.work.requested_model.clone_from(&request.parsed.model);
    record.work.stream = request.parsed.stream;
    record.shadow_half = Some(half);
    record
}

/// Makes the copy's only attempt. Returns the reason if the copy was dropped before its end.
async fn answer(
    proxy: &Proxy,
    request: &InferenceRequest,
    ticket: &mut Ticket,
    grant: DispatchGrant,
    record: &mut RequestRecord,
) -> Option<DropReason> {
    let settings = proxy.settings.load_full();
    record.record_dispatch(grant, &settings);
    let attempt = tokio::select! {
        biased;
        why = ticket.wait_for_preemption() => return Some(why.name()),
        attempt = request.attempt(proxy, &settings, grant, MOST_SENDS, None, record) => attempt,
    };
    match attempt {
        Ok(answer) if answer.report(ticket) => match answer {
            EngineAnswer::Stream { stream, .. } => {
                record.end.status = StatusCode::OK.as_u16();
                record.record_first_token();
                return drain_stream(proxy, stream, ticket, record).await;
            }
            EngineAnswer::Whole { status, usage, .. } => {
                record.end.status = status.as_u16();
                record.at_engine.whole_answer =
                    Some(record.clock.now().since(record.at_engine.sent_at.unwrap_or(record.started)));
                record.succeeded(usage);
            }
        },
        Err(AttemptError::Refused(error, usage)) if ticket.finish(AttemptOutcome::Done(usage)) => {
            refused(&error, usage, record);
        }
        Err(AttemptError::Failed(fault, usage))
            if ticket.report_failure(AttemptOutcome::Failed { fault, usage }) =>
        {
            // Another attempt would not be a comparison.
            ticket.give_up(JobUsage::Unknown);
            failed(fault, usage, record);
        }
        // The result came too late: the copy had been preempted.
        _ => return Some(ticket.wait_for_preemption().await.name()),
    }
    None
}

/// Reads a stream to its end. Returns the reason if the copy was dropped before.
async fn drain_stream(
    proxy: &Proxy,
    mut stream: Box<EngineStream>,
    ticket: &mut Ticket,
    record: &mut RequestRecord,
) -> Option<DropReason> {
    if let Some(usage) = stream.complete() {
        ticket.finish(AttemptOutcome::Done(usage));
        record.succeeded(usage);
        return None;
    }
    let idle_timeout = proxy.settings.load().edge.upstream.stream_idle_timeout;
    loop {
        while stream.next_out().is_some() {}
        let usage = stream.usage_so_far();
        record.end.usage = Some(usage);
        let step = tokio::select! {
            biased;
            why = ticket.wait_for_preemption() => return Some(why.name()),
            step = timeout(idle_timeout, poll_fn(|cx| stream.poll_step(cx))) => step,
        };
        let silent = StreamStep::Failed(EngineError::Fault(EngineFault::Silent), usage);
        match step.unwrap_or(silent) {
            StreamStep::More => record.at_engine.gaps.piece(record.clock.now()),
            StreamStep::KeepAlive => {}
            StreamStep::Complete(usage) => {
                ticket.finish(AttemptOutcome::Done(usage));
                record.succeeded(usage);
                return None;
            }
            StreamStep::Failed(EngineError::Fault(fault), usage) => {
                ticket.finish(AttemptOutcome::Failed { fault, usage });
                failed(fault, usage, record);
                return None;
            }
            StreamStep::Failed(EngineError::Client(error), usage) => {
                ticket.finish(AttemptOutcome::Done(usage));
                refused(&error, usage, record);
                return None;
            }
        }
    }
}

fn failed(fault: EngineFault, usage: JobUsage, record: &mut RequestRecord) {
    record.end.usage = Some(usage);
    record.end.status = StatusCode::BAD_GATEWAY.as_u16();
    record.set_outcome(RequestOutcome::Failed, fault.name());
}

fn refused(error: &ApiError, usage: JobUsage, record: &mut RequestRecord) {
    record.end.usage = Some(usage);
    record.end.status = error.kind().status(record.work.api.dialect()).as_u16();
    record.set_outcome(RequestOutcome::ClientError, error.kind().code());
}
