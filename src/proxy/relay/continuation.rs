//! A stream that broke after its first token goes on at another replica: the
//! job waits again, and the next engine is told what the client has.

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
use crate::proxy::attempt::whole_body;
use crate::proxy::body::BodyReservation;
use crate::proxy::handler::{ClientAnswer, Proxy, replaced};
use crate::proxy::relay::engine_stream::EngineStream;
use crate::proxy::request::InferenceRequest;
use crate::proxy::summary::active::ActiveRequest;
use crate::proxy::upstream::{UpstreamCall, UpstreamReplica};
use crate::telemetry::event::{RequestOutcome, StreamBroken};

/// The longest answer of a tokenizer that is read, in bytes.
const MAX_COUNT_BYTES: u64 = 4 * 1024 * 1024;

/// A stream on its way to its client, and what belongs to it.
#[derive(Debug)]
pub(in crate::proxy) struct LiveStream {
    pub(in crate::proxy) stream: Box<EngineStream>,
    pub(in crate::proxy) request: ActiveRequest,
    /// Absent when no other replica could go on with it.
    pub(in crate::proxy) continuation: Option<Continuation>,
}

/// What a stream needs to go on elsewhere.
#[derive(Debug)]
pub(in crate::proxy) struct Continuation {
    pub(in crate::proxy) proxy: Arc<Proxy>,
    pub(in crate::proxy) order: InferenceRequest,
    /// The client's headers that go upstream.
    pub(in crate::proxy) headers: HeaderMap,
    /// The body's share of the budget.
    #[expect(dead_code, reason = "held until it is dropped")]
    pub(in crate::proxy) held: BodyReservation,
}

/// How the search for another replica ended.
#[derive(Debug)]
pub(in crate::proxy) enum ContinuationSearch {
    /// The rest of the stream is here; with its usage when it is whole.
    Found(Option<JobUsage>),
    /// There is none, and the stream stays broken.
    Broken,
    /// The request is not to go on, for another reason.
    Ended(ApiError),
}

/// Whether a stream of this order could go on elsewhere: by what it asks for,
/// on every engine that serves its model, and with its body held until its end.
pub(in crate::proxy) fn is_possible(
    settings: &Settings,
    order: &InferenceRequest,
    held: &BodyReservation,
) -> bool {
    let model = settings.policy.models.get(order.spec.model);
    let can_go_on =
        |pool| settings.edge.pools.get(pool).is_some_and(|pool| pool.engine.can(Ability::Continue));
    settings.edge.continue_streams
        && order.peek.can_go_on
        && held.may_stay(settings.edge.requests.max_total_body_bytes)
        && model.is_some_and(|model| model.pools.iter().copied().all(can_go_on))
}

impl LiveStream {
    /// The answer is whole.
    pub(in crate::proxy) fn completed(&mut self, usage: JobUsage) {
        self.request.record.succeeded(usage);
        self.request.record.finish_reason = self.stream.finish_reason();
        self.request.finish(AttemptOutcome::Done(usage));
    }

    /// It broke, and stays so.
    pub(in crate::proxy) fn broken(&mut self, error: EngineError, usage: JobUsage) {
        let (fault, error) = match error {
            EngineError::Fault(fault) => (Some(fault), ApiError::broken_stream(fault)),
            EngineError::Client(error) => (None, error),
        };
        let reason = fault.map_or(error.kind().code(), |fault| fault.name());
        let outcome = if fault.is_some() { RequestOutcome::Failed } else { RequestOutcome::ClientError };
        self.request.record.ended(outcome, reason);
        if let (Some(fault), Some(place)) = (fault, self.request.record.place) {
            let request_id = self.request.record.request_id.to_str().unwrap_or_default();
            let output_tokens = usage.tokens().map_or(0, |tokens| tokens.output);
            StreamBroken { request_id, replica: place.replica, fault, output_tokens }
                .emit(&self.request.record.telemetry);
        }
        self.close(&error, fault, usage);
    }

    /// Ends it with an error event.
    pub(in crate::proxy) fn close(&mut self, error: &ApiError, fault: Option<EngineFault>, usage: JobUsage) {
        self.request.record.usage = Some(usage);
        self.request.finish(match fault {
            Some(fault) => AttemptOutcome::Failed { fault, usage },
            None => AttemptOutcome::Done(usage),
        });
        self.request.give_up(usage);
        self.stream.break_off(error.sse_event(self.request.record.api.dialect()));
    }

    /// Whether another replica may go on with the stream now that it broke; if
    /// so, the job waits for it.
    pub(in crate::proxy) fn goes_on(&mut self, fault: EngineFault, usage: JobUsage) -> Option<PartialAnswer> {
        self.continuation.as_ref()?;
        let so_far = self.stream.interrupted()?;
        self.stream.let_go();
        self.request.record.interrupted(fault);
        self.request.interrupted(fault, usage, so_far.tokens()).then_some(so_far)
    }

    /// Whether the scheduler wants the stream to go on elsewhere; with the fault
    /// that this is for it.
    pub(in crate::proxy) fn poll_handed_over(&mut self, cx: &mut Context<'_>) -> Poll<EngineFault> {
        self.request.poll_migration(cx).map(PreemptReason::fault)
    }

    /// Whether another replica could go on with the stream as far as it is now.
    pub(in crate::proxy) fn can_go_on(&self) -> bool {
        self.continuation.is_some() && self.stream.interrupted().is_some()
    }

    /// Waits for another replica and the rest of the stream from there.
    pub(in crate::proxy) async fn onward(&mut self, so_far: &PartialAnswer) -> ContinuationSearch {
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
            found = timeout(patience, proxy.tries(order, headers, Some(so_far), request)) => found,
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

/// The same with its tokens counted by the engine that is to read them. What
/// events say is less: engines put several tokens into one.
pub(in crate::proxy) async fn counted(
    so_far: &PartialAnswer,
    (name, headers): (&str, &HeaderMap),
    replica: &UpstreamReplica,
    limits: &UpstreamLimits,
) -> PartialAnswer {
    let mut so_far = so_far.clone();
    if so_far.is_resumed() && !so_far.is_counted() {
        let count = match so_far.told() {
            "" => Some(0),
            text => count(text, (name, headers), replica, limits).await,
        };
        count.into_iter().for_each(|count| so_far.count(count));
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
