//! A stream that broke after its first token goes on at another replica: the
//! job waits again, and the next engine is told what the client has.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::Deserialize;
use tokio::time::timeout;

use crate::config::settings::{Settings, UpstreamLimits};
use crate::core::event::{Fault, Outcome, Recalled};
use crate::core::job::Usage;
use crate::proxy::attempt::whole_body;
use crate::proxy::gate::Ticket;
use crate::proxy::handler::{Answered, Proxy, replaced};
use crate::proxy::intake::Held;
use crate::proxy::order::Order;
use crate::proxy::record::Record;
use crate::proxy::stream::EngineStream;
use crate::proxy::upstream::{Call, Replica};
use crate::telemetry::event::{RequestOutcome, StreamBroken};
use crate::wire::error::ApiError;
use crate::wire::judge::refusal::EngineError;
use crate::wire::judge::so_far::SoFar;
use crate::wire::splice::{Spliced, json_string};

/// The longest answer of a tokenizer that is read, in bytes.
const MAX_COUNT_BYTES: u64 = 4 * 1024 * 1024;

/// A stream on its way to its client, and what belongs to it.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) stream: Box<EngineStream>,
    pub(super) ticket: Ticket,
    pub(super) record: Record,
    /// Absent when no other replica could go on with it.
    pub(super) continuation: Option<Continuation>,
}

/// What a stream needs to go on elsewhere.
#[derive(Debug)]
pub(super) struct Continuation {
    pub(super) proxy: Arc<Proxy>,
    pub(super) order: Order,
    /// The client's headers that go upstream.
    pub(super) headers: HeaderMap,
    /// The body's share of the budget.
    #[expect(dead_code, reason = "held until it is dropped")]
    pub(super) held: Held,
}

/// How the search for another replica ended.
#[derive(Debug)]
pub(super) enum Onward {
    /// The rest of the stream is here; with its usage when it is whole.
    Found(Option<Usage>),
    /// There is none, and the stream stays broken.
    Broken,
    /// The request is not to go on, for another reason.
    Ended(ApiError),
}

/// Whether a stream of this order could go on elsewhere: by what it asks for,
/// on every engine that serves its model, and with its body held until its end.
pub(super) fn is_possible(settings: &Settings, order: &Order, held: &Held) -> bool {
    let model = settings.policy.models.get(order.spec.model);
    let can_go_on = |pool| settings.edge.pools.get(pool).is_some_and(|pool| pool.engine.can_go_on());
    settings.edge.continue_streams
        && order.peek.can_go_on
        && held.may_stay(settings.edge.requests.max_total_body_bytes)
        && model.is_some_and(|model| model.pools.iter().copied().all(can_go_on))
}

impl Live {
    /// The answer is whole.
    pub(super) fn completed(&mut self, usage: Usage) {
        self.record.succeeded(usage);
        self.record.finish_reason = self.stream.finish_reason();
        self.ticket.finish(Outcome::Done(usage));
    }

    /// It broke, and stays so.
    pub(super) fn broken(&mut self, error: EngineError, usage: Usage) {
        let (fault, error) = match error {
            EngineError::Fault(fault) => (Some(fault), ApiError::broken_stream(fault)),
            EngineError::Client(error) => (None, error),
        };
        let reason = fault.map_or(error.kind().code(), |fault| fault.name());
        let outcome = if fault.is_some() { RequestOutcome::Failed } else { RequestOutcome::ClientError };
        self.record.ended(outcome, reason);
        if let (Some(fault), Some(place)) = (fault, self.record.place) {
            let request_id = self.record.request_id.to_str().unwrap_or_default();
            let output_tokens = usage.tokens().map_or(0, |tokens| tokens.output);
            StreamBroken { request_id, replica: place.replica, fault, output_tokens }
                .emit(&self.record.telemetry);
        }
        self.close(&error, fault, usage);
    }

    /// Ends it with an error event.
    pub(super) fn close(&mut self, error: &ApiError, fault: Option<Fault>, usage: Usage) {
        self.record.usage = Some(usage);
        self.ticket.finish(match fault {
            Some(fault) => Outcome::Failed { fault, usage },
            None => Outcome::Done(usage),
        });
        self.ticket.give_up(usage);
        self.stream.break_off(error.sse_event(self.record.api.dialect()));
    }

    /// Whether another replica may go on with the stream now that it broke; if
    /// so, the job waits for it.
    pub(super) fn goes_on(&mut self, fault: Fault, usage: Usage) -> Option<SoFar> {
        self.continuation.as_ref()?;
        let so_far = self.stream.interrupted()?;
        self.stream.let_go();
        self.record.interrupted(fault);
        self.record.usage = Some(usage);
        self.ticket.note_usage(usage);
        self.ticket.interrupted(fault, usage, so_far.tokens()).then_some(so_far)
    }

    /// Whether the scheduler wants the stream to go on elsewhere; with the fault
    /// that this is for it.
    pub(super) fn poll_handed_over(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        self.ticket.poll_handed_over(cx).map(Recalled::fault)
    }

    /// Whether another replica could go on with the stream as far as it is now.
    pub(super) fn can_go_on(&self) -> bool {
        self.continuation.is_some() && self.stream.interrupted().is_some()
    }

    /// Waits for another replica and the rest of the stream from there.
    pub(super) async fn onward(&mut self, so_far: &SoFar) -> Onward {
        let Self { stream, ticket, record, continuation: Some(continuation) } = self else {
            return Onward::Broken;
        };
        let Continuation { proxy, order, headers, .. } = continuation;
        let patience = proxy.settings.load().edge.upstream.stream_idle_timeout;
        let notice = record.notice().map(Arc::clone);
        let found = tokio::select! {
            biased;
            () = proxy.grace.ended() => return Onward::Ended(record.shut_down()),
            () = replaced(notice) => return Onward::Ended(record.superseded()),
            found = timeout(patience, proxy.tries(order, headers, Some(so_far), ticket, record)) => found,
        };
        match found {
            Ok(Ok(Answered::Stream { stream: rest, whole, .. })) => {
                *stream = rest;
                Onward::Found(whole)
            }
            Ok(Ok(Answered::Whole { .. }) | Err(_)) | Err(_) => Onward::Broken,
        }
    }
}

/// The same with its tokens counted by the engine that is to read them. What
/// events say is less: engines put several tokens into one.
pub(super) async fn counted(
    so_far: &SoFar,
    (name, headers): (&str, &HeaderMap),
    replica: &Replica,
    limits: &UpstreamLimits,
) -> SoFar {
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
    replica: &Replica,
    limits: &UpstreamLimits,
) -> Option<u64> {
    #[derive(Deserialize)]
    struct Counted {
        count: u64,
    }
    let (name, text) = (json_string(name), json_string(text));
    let body = format!("{{\"model\":{name},\"prompt\":{text},\"add_special_tokens\":false}}");
    let body = Spliced::from(Bytes::from(body));
    let call = Call { method: Method::POST, path: "/tokenize", headers, body };
    let sent = replica.send(&call, limits).await.ok()?;
    let answer = whole_body(sent.exchange, MAX_COUNT_BYTES).await.ok()?;
    serde_json::from_slice(&answer).ok().map(|Counted { count }| count)
}
