//! Live stream: an answer on its way to its client, with its request. The stream ends its request, and
//! goes on at another replica where it can.

use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::timeout;

use crate::core::model::event::{AttemptOutcome, EngineFault, PreemptReason};
use crate::core::model::job::JobUsage;
use crate::protocol::error::ApiError;
use crate::protocol::response::engine_error::EngineError;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::proxy::Proxy;
use crate::proxy::active_request::ActiveRequest;
use crate::proxy::attempt::EngineAnswer;
use crate::proxy::relay::engine_stream::EngineStream;
use crate::proxy::request::InferenceRequest;
use crate::proxy::request::superseding::replaced;
use crate::telemetry::event::{RequestOutcome, StreamBroken};

/// A stream on its way to its client, with its request.
#[derive(Debug)]
pub(in crate::proxy) struct LiveStream {
    pub(in crate::proxy) stream: Box<EngineStream>,
    pub(in crate::proxy) active: ActiveRequest,
    /// The request, to send it to another replica. `None` if no other replica could continue the
    /// stream.
    pub(in crate::proxy) request: Option<Box<InferenceRequest>>,
}

/// Result of the search for another replica.
#[derive(Debug)]
pub(in crate::proxy) enum ContinuationSearch {
    /// Another replica continues the stream.
    Found,
    /// No replica continues the stream, and the stream stays broken.
    Broken,
    /// The request has ended for another reason: shutdown or a superseding retry.
    Ended(ApiError),
}

impl LiveStream {
    /// Ends the request with success: the answer is complete.
    pub(in crate::proxy) fn completed(&mut self, usage: JobUsage) {
        self.active.record.end.outcome = RequestOutcome::Success;
        self.active.record.at_engine.finish_reason = self.stream.finish_reason();
        self.active.end(AttemptOutcome::Done(usage));
    }

    /// Ends the request after its stream broke for good.
    pub(in crate::proxy) fn broken(&mut self, error: EngineError, usage: JobUsage) {
        let (fault, error) = match error {
            EngineError::Fault(fault) => (Some(fault), ApiError::broken_stream(fault)),
            EngineError::Client(error) => (None, error),
        };
        let reason = fault.map_or(error.kind().code(), |fault| fault.name());
        let outcome = if fault.is_some() { RequestOutcome::Failed } else { RequestOutcome::ClientError };
        self.active.record.set_outcome(outcome, reason);
        if let (Some(fault), Some(replica)) = (fault, self.active.record.at_engine.dispatch.replica()) {
            let record = &self.active.record;
            let output_tokens = usage.tokens().map_or(0, |tokens| tokens.output);
            StreamBroken { ids: record.ids(), replica, fault, output_tokens }.emit(&record.telemetry);
        }
        self.active.end(match fault {
            Some(fault) => AttemptOutcome::Failed { fault, usage },
            None => AttemptOutcome::Done(usage),
        });
        self.stream.break_off(error.sse_event(self.active.record.work.api.dialect()));
    }

    /// Ends a stream that the gateway no longer serves, with an error event. Its partial length says
    /// nothing of answers, and its work is wasted.
    pub(in crate::proxy) fn withdraw(&mut self, error: &ApiError, usage: JobUsage) {
        self.active.withdraw(usage);
        self.stream.break_off(error.sse_event(self.active.record.work.api.dialect()));
    }

    /// After the stream broke, puts the job back to wait for another replica. Returns the part of
    /// the answer that the client has, or `None` if no other replica may continue the stream.
    pub(in crate::proxy) fn interrupt(
        &mut self,
        fault: EngineFault,
        usage: JobUsage,
    ) -> Option<PartialAnswer> {
        self.request.as_ref()?;
        let so_far = self.stream.to_partial_answer()?;
        self.stream.close_connection();
        self.active.record.interrupted(fault);
        self.active.interrupted(fault, usage, so_far.tokens()).then_some(so_far)
    }

    /// Ready when the scheduler asks the stream to migrate, with the fault that stands for the
    /// scheduler's reason.
    pub(in crate::proxy) fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<EngineFault> {
        self.active.poll_migration(cx).map(PreemptReason::fault)
    }

    /// Whether another replica could continue the stream from its current state.
    pub(in crate::proxy) fn can_go_on(&self) -> bool {
        self.request.is_some() && self.stream.to_partial_answer().is_some()
    }

    /// Records the usage so far of a stream whose client has left.
    pub(in crate::proxy) fn record_partial_usage(&mut self) {
        self.active.record.end.usage = Some(self.stream.usage_so_far());
    }

    /// Waits for another replica to continue the stream, up to `stream_idle_timeout`.
    pub(in crate::proxy) async fn find_replica(
        &mut self,
        proxy: &Proxy,
        so_far: &PartialAnswer,
    ) -> ContinuationSearch {
        let Self { stream, active, request: Some(request) } = self else {
            return ContinuationSearch::Broken;
        };
        let idle_timeout = proxy.settings.load().edge.upstream.stream_idle_timeout;
        let notice = active.record.notice().map(Arc::clone);
        let found = tokio::select! {
            biased;
            () = proxy.dispatcher.shutdown().expired() => return ContinuationSearch::Ended(active.record.end_for_shutdown()),
            () = replaced(notice) => return ContinuationSearch::Ended(active.record.end_as_superseded()),
            found = timeout(idle_timeout, proxy.attempt_until_answered(request, Some(so_far), active)) => found,
        };
        match found {
            Ok(Ok(EngineAnswer::Stream { stream: rest, .. })) => {
                *stream = rest;
                ContinuationSearch::Found
            }
            Ok(Ok(EngineAnswer::Whole { .. }) | Err(_)) | Err(_) => ContinuationSearch::Broken,
        }
    }
}
