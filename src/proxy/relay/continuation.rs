//! Continuation: a stream that broke after its first token goes on at another replica. The job
//! waits again, and the next engine gets the part of the answer that the client already has.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::Deserialize;
use tokio::time::timeout;

use crate::config::settings::{Settings, UpstreamLimits};
use crate::core::model::event::{AttemptOutcome, EngineFault, PreemptReason};
use crate::core::model::job::JobUsage;
use crate::engines::Ability;
use crate::protocol::error::ApiError;
use crate::protocol::request::edit::{EditedBody, json_string};
use crate::protocol::response::engine_error::EngineError;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::proxy::body::BodyReservation;
use crate::proxy::data_plane::Proxy;
use crate::proxy::relay::engine_stream::EngineStream;
use crate::proxy::request::InferenceRequest;
use crate::proxy::request::superseding::replaced;
use crate::proxy::response::client_answer::ClientAnswer;
use crate::proxy::summary::active::ActiveRequest;
use crate::proxy::upstream::whole_body::whole_body;
use crate::proxy::upstream::{UpstreamCall, UpstreamReplica};
use crate::telemetry::event::{RequestOutcome, StreamBroken};

/// Longest tokenize answer that is read, in bytes.
const MAX_COUNT_BYTES: u64 = 4 * 1024 * 1024;

/// A stream on its way to its client, with its request and its continuation.
#[derive(Debug)]
pub(in crate::proxy) struct LiveStream {
    pub(in crate::proxy) stream: Box<EngineStream>,
    pub(in crate::proxy) request: ActiveRequest,
    /// `None` if no other replica could continue the stream.
    pub(in crate::proxy) continuation: Option<Continuation>,
}

/// Data that a stream needs to continue at another replica.
#[derive(Debug)]
pub(in crate::proxy) struct Continuation {
    pub(in crate::proxy) proxy: Arc<Proxy>,
    pub(in crate::proxy) order: InferenceRequest,
    /// The client's headers that go upstream.
    pub(in crate::proxy) headers: HeaderMap,
    /// Reservation of the body's bytes.
    #[expect(dead_code, reason = "held until it is dropped")]
    pub(in crate::proxy) held: BodyReservation,
}

/// Result of the search for another replica.
#[derive(Debug)]
pub(in crate::proxy) enum ContinuationSearch {
    /// Another replica continues the stream. The value is the usage, if the stream is complete.
    Found(Option<JobUsage>),
    /// No replica continues the stream, and the stream stays broken.
    Broken,
    /// The request has ended for another reason: shutdown or a superseding retry.
    Ended(ApiError),
}

/// Whether a stream of this request could continue at another replica. The request's parameters
/// must allow it, every engine that serves the model must support it, and there must be memory to
/// hold the body until the stream's end.
pub(in crate::proxy) fn is_possible(
    settings: &Settings,
    order: &InferenceRequest,
    held: &BodyReservation,
) -> bool {
    let model = settings.policy.models.get(order.spec.model);
    let can_go_on =
        |pool| settings.edge.pools.get(pool).is_some_and(|pool| pool.engine.can(Ability::Continue));
    settings.edge.continue_streams
        && order.parsed.is_resumable
        && held.can_hold_for_stream(settings.edge.requests.max_total_body_bytes)
        && model.is_some_and(|model| model.pools.iter().copied().all(can_go_on))
}

impl LiveStream {
    /// Ends the request with success: the answer is complete.
    pub(in crate::proxy) fn completed(&mut self, usage: JobUsage) {
        self.request.record.succeeded();
        self.request.record.at_engine.finish_reason = self.stream.finish_reason();
        self.request.end(AttemptOutcome::Done(usage));
    }

    /// Ends the request after its stream broke for good.
    pub(in crate::proxy) fn broken(&mut self, error: EngineError, usage: JobUsage) {
        let (fault, error) = match error {
            EngineError::Fault(fault) => (Some(fault), ApiError::broken_stream(fault)),
            EngineError::Client(error) => (None, error),
        };
        let reason = fault.map_or(error.kind().code(), |fault| fault.name());
        let outcome = if fault.is_some() { RequestOutcome::Failed } else { RequestOutcome::ClientError };
        self.request.record.ended(outcome, reason);
        if let (Some(fault), Some(grant)) = (fault, self.request.record.at_engine.grant) {
            let request_id = self.request.record.request_id.to_str().unwrap_or_default();
            let output_tokens = usage.tokens().map_or(0, |tokens| tokens.output);
            StreamBroken { request_id, replica: grant.replica, fault, output_tokens }
                .emit(&self.request.record.telemetry);
        }
        self.close(&error, fault, usage);
    }

    /// Ends the request and the stream with an error event.
    pub(in crate::proxy) fn close(&mut self, error: &ApiError, fault: Option<EngineFault>, usage: JobUsage) {
        self.request.end(match fault {
            Some(fault) => AttemptOutcome::Failed { fault, usage },
            None => AttemptOutcome::Done(usage),
        });
        self.stream.break_off(error.sse_event(self.request.record.work.api.dialect()));
    }

    /// After the stream broke, puts the job back to wait for another replica. Returns the part of
    /// the answer that the client has, or `None` if no other replica may continue the stream.
    pub(in crate::proxy) fn interrupt(
        &mut self,
        fault: EngineFault,
        usage: JobUsage,
    ) -> Option<PartialAnswer> {
        self.continuation.as_ref()?;
        let so_far = self.stream.to_partial_answer()?;
        self.stream.close_connection();
        self.request.record.interrupted(fault);
        self.request.interrupted(fault, usage, so_far.tokens()).then_some(so_far)
    }

    /// Ready when the scheduler asks the stream to migrate, with the fault that stands for the
    /// scheduler's reason.
    pub(in crate::proxy) fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<EngineFault> {
        self.request.poll_migration(cx).map(PreemptReason::fault)
    }

    /// Whether another replica could continue the stream from its current state.
    pub(in crate::proxy) fn can_go_on(&self) -> bool {
        self.continuation.is_some() && self.stream.to_partial_answer().is_some()
    }

    /// Waits for another replica to continue the stream, up to `stream_idle_timeout`.
    pub(in crate::proxy) async fn find_replica(&mut self, so_far: &PartialAnswer) -> ContinuationSearch {
        let Self { stream, request, continuation: Some(continuation) } = self else {
            return ContinuationSearch::Broken;
        };
        let Continuation { proxy, order, headers, .. } = continuation;
        let patience = proxy.settings.load().edge.upstream.stream_idle_timeout;
        let notice = request.record.notice().map(Arc::clone);
        let found = tokio::select! {
            biased;
            () = proxy.dispatcher.shutdown().expired() => return ContinuationSearch::Ended(request.record.shut_down()),
            () = replaced(notice) => return ContinuationSearch::Ended(request.record.superseded()),
            found = timeout(patience, proxy.attempt_until_answered(order, headers, Some(so_far), request)) => found,
        };
        match found {
            Ok(Ok(ClientAnswer::Stream { stream: rest, whole, .. })) => {
                *stream = rest;
                ContinuationSearch::Found(whole)
            }
            Ok(Ok(ClientAnswer::Whole { .. }) | Err(_)) | Err(_) => ContinuationSearch::Broken,
        }
    }
}

/// A copy of `so_far` whose tokens the next engine has counted. The number of events would be too
/// low, because engines put several tokens into one event.
pub(in crate::proxy) async fn counted(
    so_far: &PartialAnswer,
    (name, headers): (&str, &HeaderMap),
    replica: &UpstreamReplica,
    limits: &UpstreamLimits,
) -> PartialAnswer {
    let mut so_far = so_far.clone();
    if so_far.is_resumed() && !so_far.is_counted() {
        let count = match so_far.prompt_text() {
            "" => Some(0),
            text => count(text, (name, headers), replica, limits).await,
        };
        count.into_iter().for_each(|count| so_far.set_tokens(count));
    }
    so_far
}

async fn count(
    text: &str,
    (name, headers): (&str, &HeaderMap),
    replica: &UpstreamReplica,
    limits: &UpstreamLimits,
) -> Option<u64> {
    #[derive(Deserialize)]
    struct Counted {
        count: u64,
    }
    let (name, text) = (json_string(name), json_string(text));
    let body = format!("{{\"model\":{name},\"prompt\":{text},\"add_special_tokens\":false}}");
    let body = EditedBody::from(Bytes::from(body));
    let call = UpstreamCall { method: Method::POST, path: "/tokenize", headers, body };
    let sent = replica.send(&call, limits).await.ok()?;
    let answer = whole_body(sent.exchange, MAX_COUNT_BYTES).await.ok()?;
    serde_json::from_slice(&answer).ok().map(|Counted { count }| count)
}
