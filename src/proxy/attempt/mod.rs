//! Attempt: one dispatch to one replica, up to the point where the client may be told.

pub(super) mod resets;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::config::settings::{PoolSettings, RequestLimits, Settings, UpstreamLimits};
use crate::core::model::event::EngineFault;
use crate::core::model::job::JobUsage;
use crate::engines::{Ability, EngineKind};
use crate::protocol::error::ApiError;
use crate::protocol::headers::X_REQUEST_ID;
use crate::protocol::request::edit::{EditedBody, PartialText, RequestEdits, edit};
use crate::protocol::response::answer::{AnswerVerdict, judge_answer};
use crate::protocol::response::engine_error::EngineError;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::protocol::response::stream::{StreamClassifier, UsageVisibility};
use crate::proxy::body::gather::GatheredBody;
use crate::proxy::handler::NOTHING;
use crate::proxy::relay::continuation::counted;
use crate::proxy::relay::engine_stream::{EngineStream, StreamStep};
use crate::proxy::relay::itl::{ItlCounters, ReplicaCounters};
use crate::proxy::relay::memory::{AnswerMemory, AnswerShare};
use crate::proxy::request::InferenceRequest;
use crate::proxy::summary::{DispatchedTo, RequestRecord};
use crate::proxy::upstream::{
    AnswerHead, UpstreamCall, UpstreamError, UpstreamExchange, UpstreamReplica, Upstreams,
};
use crate::telemetry::trace::RequestPhase;

/// Bytes that may be held back before the first token; a stream that says
/// more without one is relayed.
const MAX_HELD_BYTES: usize = 1024 * 1024;

/// What came of a try.
#[derive(Debug)]
pub(super) enum AttemptResult {
    /// A stream whose first token is here; with its usage when it is whole.
    Stream { stream: Box<EngineStream>, head: HeaderMap, whole: Option<JobUsage> },
    /// A whole answer.
    Answer {
        status: StatusCode,
        head: HeaderMap,
        body: EditedBody,
        usage: JobUsage,
        finish_reason: Option<&'static str>,
    },
    /// The request gets no answer for a reason that is the client's: the engine
    /// refuses it, having consumed nothing, or answers more than is taken or
    /// there is memory for.
    Refused(ApiError, JobUsage),
    /// The engine failed, having consumed this; the client has seen nothing.
    Failed(EngineFault, JobUsage),
}

impl AttemptResult {
    fn of_error(error: EngineError, usage: JobUsage) -> Self {
        match error {
            EngineError::Fault(fault) => Self::Failed(fault, usage),
            EngineError::Client(error) => Self::Refused(error, NOTHING),
        }
    }

    pub(super) const fn failed(fault: EngineFault) -> Self {
        Self::Failed(fault, JobUsage::Unknown)
    }
}

/// What stays the same over all tries of a request.
#[derive(Debug)]
pub(super) struct AttemptContext<'a> {
    pub(super) upstreams: &'a Upstreams,
    pub(super) paces: &'a ItlCounters,
    pub(super) answers: &'a Arc<AnswerMemory>,
    pub(super) order: &'a InferenceRequest,
    /// The client's headers that go upstream.
    pub(super) headers: &'a HeaderMap,
    /// The part of the answer that the client has; absent when no other engine
    /// can go on with the answer.
    pub(super) so_far: Option<&'a PartialAnswer>,
}

impl AttemptContext<'_> {
    /// Sends the request to `place`, at most `sends` times, and waits for the first
    /// token, or for the whole answer when it is not a stream.
    pub(super) async fn at(
        &self,
        settings: &Settings,
        place: DispatchedTo,
        sends: u32,
        record: &mut RequestRecord,
    ) -> AttemptResult {
        record.sends = 0;
        if sends == 0 {
            return AttemptResult::failed(EngineFault::Reset);
        }
        let edge = &settings.edge;
        let pool = place.pool.and_then(|pool| edge.pools.get(pool));
        let (Some(pool), Some(replica)) = (pool, edge.replicas.get(place.replica)) else {
            return AttemptResult::failed(EngineFault::Refused);
        };
        let begun = Instant::now();
        let headers = self.headers_for(pool, record);
        let shown_model = self.shown_model(settings, pool);
        let replica = self.upstreams.replica(place.replica, replica);
        let meter = self.paces.meter(place.replica);
        let trying = async {
            let so_far = self.counted(settings, pool, &replica, &headers).await;
            let begun = so_far.as_ref().filter(|so_far| so_far.is_resumed());
            let call = UpstreamCall {
                method: Method::POST,
                path: self.order.api.upstream_path(),
                headers: &headers,
                body: self.body_for(pool, self.priority(settings, place), begun),
            };
            let sent = match sends {
                1 => replica.send_once(&call, &edge.upstream).await,
                _ => replica.send(&call, &edge.upstream).await,
            };
            record.sends = sent.as_ref().map_or_else(UpstreamError::sends, |_| 1);
            let sent = match sent {
                Ok(sent) => sent,
                Err(error) => {
                    let name = settings.policy.replicas.name(place.replica);
                    tracing::debug!(replica = name, %error, "engine did not answer");
                    return AttemptResult::failed(error.fault());
                }
            };
            note_connect(&sent, record);
            let judge = self.judge(pool.engine, shown_model.clone(), so_far);
            self.read((sent.exchange, judge), shown_model, &edge.requests, &meter).await
        };
        let (limit, too_late) = self.limit(&edge.upstream);
        let deadline = begun + limit;
        let attempt = timeout_at(deadline, Box::pin(trying)).await;
        let clock = record.clock;
        if let Some(trace) = &record.trace {
            let phase = if self.order.peek.stream { RequestPhase::FirstToken } else { RequestPhase::Engine };
            trace.phase(phase, clock.tick(begun), clock.now());
        }
        match attempt.unwrap_or(AttemptResult::failed(too_late)) {
            AttemptResult::Refused(error, usage) => {
                AttemptResult::Refused(self.in_public_words(settings, pool, error), usage)
            }
            other => other,
        }
    }

    /// How long the engine may take, and what it is when it takes longer.
    fn limit(&self, limits: &UpstreamLimits) -> (Duration, EngineFault) {
        match self.order.peek.stream {
            true => (limits.first_token_timeout, EngineFault::Silent),
            false => (limits.answer_timeout, EngineFault::Overtime),
        }
    }

    /// The part of the answer that the client has, as the engine counts it.
    async fn counted(
        &self,
        settings: &Settings,
        pool: &PoolSettings,
        replica: &UpstreamReplica,
        headers: &HeaderMap,
    ) -> Option<PartialAnswer> {
        let name = pool.model_names.get(&self.order.spec.model).map_or("", String::as_str);
        let mut so_far = counted(self.so_far?, (name, headers), replica, &settings.edge.upstream).await;
        so_far.leave_one(self.order.peek.last_token());
        Some(so_far)
    }

    fn in_public_words(&self, settings: &Settings, pool: &PoolSettings, error: ApiError) -> ApiError {
        match (pool.model_names.get(&self.order.spec.model), self.shown_model(settings, pool)) {
            (Some(engine_name), Some(shown)) => error.with_word_replaced(engine_name, &shown),
            _ => error,
        }
    }

    async fn read(
        &self,
        (exchange, judge): (UpstreamExchange, StreamClassifier),
        shown_model: Option<String>,
        limits: &RequestLimits,
        meter: &ReplicaCounters,
    ) -> AttemptResult {
        if self.order.peek.stream && is_event_stream(&exchange) {
            return first_token(exchange, judge, meter).await;
        }
        let status = exchange.head.status;
        let head = exchange.head.headers.clone();
        // A server that refuses says nothing of the engine behind it.
        let heard = || {
            if status.is_success() {
                meter.hear();
            }
        };
        let share = self.answers.share(self.order.spec.tenant, limits);
        let body = match held_body(exchange, limits.max_answer_bytes, share, heard).await {
            Ok(body) => body,
            Err(CutReason::BrokenOff) => return AttemptResult::failed(EngineFault::Reset),
            // Every engine would answer as much, after as much work.
            Err(CutReason::TooLarge) => {
                let error = ApiError::answer_too_large(self.order.api, limits.max_answer_bytes);
                return AttemptResult::Refused(error, JobUsage::Unknown);
            }
            Err(CutReason::NoMemory(error)) => return AttemptResult::Refused(error, JobUsage::Unknown),
        };
        match judge_answer(self.order.api, status, &head, &body, shown_model.as_deref()) {
            AnswerVerdict::Success { body, usage, finish_reason } => {
                AttemptResult::Answer { status, head, body, usage, finish_reason }
            }
            AnswerVerdict::ClientError(error) => AttemptResult::Refused(error, NOTHING),
            AnswerVerdict::Fault { fault, usage } => AttemptResult::Failed(fault, usage),
        }
    }

    fn judge(
        &self,
        engine: EngineKind,
        shown_model: Option<String>,
        so_far: Option<PartialAnswer>,
    ) -> StreamClassifier {
        let peek = &self.order.peek;
        let choices = if engine.can(Ability::ManyChoices) { peek.choices() } else { 1 };
        let usage_shown = match (peek.include_usage, peek.continuous_usage) {
            _ if !self.order.api.has_stream_options() => UsageVisibility::Always,
            (true, true) => UsageVisibility::Always,
            (true, false) => UsageVisibility::AtEnd,
            (false, _) => UsageVisibility::Never,
        };
        let judge = StreamClassifier::new(self.order.api, choices, shown_model, usage_shown);
        match so_far {
            Some(so_far) => judge.going_on(so_far),
            None => judge,
        }
    }

    fn headers_for(&self, pool: &PoolSettings, record: &RequestRecord) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.insert(X_REQUEST_ID, record.request_id.clone());
        if let Some(bearer) = bearer(pool) {
            headers.insert(AUTHORIZATION, bearer);
        }
        if let Some(trace) = &record.trace {
            trace.inject(&mut headers);
        }
        headers
    }

    /// What the engine is told of the request's urgency: lower is sooner, for
    /// ranks as for vLLM's priorities.
    fn priority(&self, settings: &Settings, place: DispatchedTo) -> Option<i64> {
        let pool = settings.policy.pools.get(place.pool?)?;
        let class = settings.policy.classes.get(place.why.class)?;
        (pool.engine_priority && self.order.api.runs_model()).then_some(i64::from(class.rank))
    }

    fn body_for(
        &self,
        pool: &PoolSettings,
        priority: Option<i64>,
        begun: Option<&PartialAnswer>,
    ) -> EditedBody {
        let InferenceRequest { api, body, peek, spec, .. } = self.order;
        let name = pool.model_names.get(&spec.model).map(String::as_str);
        let edits = RequestEdits {
            model: name.filter(|name| peek.model.as_deref().is_some_and(|asked| asked != *name)),
            include_usage: api.has_stream_options() && peek.stream && !peek.include_usage,
            priority,
            begun: begun.map(|so_far| PartialText { text: so_far.told(), tokens: so_far.tokens() }),
        };
        edit(body, peek, &edits)
    }

    /// The name to show in place of the engine's own: what the client asked
    /// for, else the public name.
    fn shown_model(&self, settings: &Settings, pool: &PoolSettings) -> Option<String> {
        let engine_name = pool.model_names.get(&self.order.spec.model).map(String::as_str);
        let public = settings.policy.models.name(self.order.candidates.first);
        let shown = self.order.peek.model.as_deref().unwrap_or(public);
        (engine_name != Some(shown)).then(|| shown.to_owned())
    }
}

/// The credentials that the pool's engines want.
pub(super) fn bearer(pool: &PoolSettings) -> Option<HeaderValue> {
    let text = format!("Bearer {}", pool.api_key.as_ref()?.expose());
    let mut bearer = HeaderValue::try_from(text).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}

/// Reads a stream up to its first token. What comes first without a token is no
/// sign of life: servers say it before their engines have done anything.
async fn first_token(
    mut exchange: UpstreamExchange,
    judge: StreamClassifier,
    meter: &ReplicaCounters,
) -> AttemptResult {
    let head = std::mem::take(&mut exchange.head.headers);
    let mut stream = Box::new(EngineStream::new(exchange, judge));
    let mut has_begun = false;
    loop {
        match poll_fn(|cx| stream.poll_step(cx)).await {
            StreamStep::More | StreamStep::KeepAlive => {
                if std::mem::replace(&mut has_begun, true) {
                    meter.hear();
                }
                if stream.has_output() || stream.held_bytes() > MAX_HELD_BYTES {
                    return AttemptResult::Stream { stream, head, whole: None };
                }
            }
            StreamStep::Complete(usage) => return AttemptResult::Stream { stream, head, whole: Some(usage) },
            StreamStep::Failed(error, usage) => return AttemptResult::of_error(error, usage),
        }
    }
}

fn note_connect(sent: &AnswerHead, record: &mut RequestRecord) {
    let Some((from, to)) = sent.connect else {
        record.connect = None;
        return;
    };
    record.connect = Some(to - from);
    if let Some(trace) = &record.trace {
        trace.phase(RequestPhase::Connect, record.clock.tick(from), record.clock.tick(to));
    }
}

fn is_event_stream(exchange: &UpstreamExchange) -> bool {
    let content_type = exchange.head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    exchange.head.status == StatusCode::OK
        && content_type.is_some_and(|value| value.starts_with("text/event-stream"))
}

/// Why an answer is not there whole.
#[derive(Debug)]
pub(super) enum CutReason {
    /// The engine's connection broke.
    BrokenOff,
    /// It is longer than the limit.
    TooLarge,
    /// There is no room for it.
    NoMemory(ApiError),
}

/// Reads an answer of at most `limit` bytes whole; one that comes in one piece is
/// not copied.
pub(super) async fn whole_body(mut exchange: UpstreamExchange, limit: u64) -> Result<Bytes, CutReason> {
    let mut gathered = GatheredBody::default();
    while let Some(data) = exchange.data().await {
        let data = data.map_err(|_| CutReason::BrokenOff)?;
        if (gathered.len() + data.len()) as u64 > limit {
            return Err(CutReason::TooLarge);
        }
        gathered.push(data);
    }
    Ok(gathered.finish())
}

/// The same for an answer on its way to a client: its bytes are counted in
/// `share` until the last of them is gone. Says `heard` for each piece.
async fn held_body(
    mut exchange: UpstreamExchange,
    limit: u64,
    mut share: AnswerShare,
    heard: impl Fn(),
) -> Result<Bytes, CutReason> {
    let declared =
        exchange.head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let expected = declared.filter(|bytes: &u64| *bytes <= limit);
    if let Some(bytes) = expected {
        share.grow(bytes).await.map_err(CutReason::NoMemory)?;
    }
    let mut gathered = GatheredBody::new(expected.and_then(|bytes| usize::try_from(bytes).ok()));
    while let Some(data) = exchange.data().await {
        let data = data.map_err(|_| CutReason::BrokenOff)?;
        heard();
        let bytes = (gathered.len() + data.len()) as u64;
        if bytes > limit {
            return Err(CutReason::TooLarge);
        }
        share.grow(bytes).await.map_err(CutReason::NoMemory)?;
        gathered.push(data);
    }
    Ok(share.bind(gathered.finish()))
}
