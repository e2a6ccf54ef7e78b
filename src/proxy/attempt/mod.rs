//! Attempt: one dispatch of a request to one replica, up to the first token or the whole answer.

mod partial_tokens;

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::config::settings::{PoolSettings, RequestLimits, Settings, UpstreamLimits};
use crate::core::model::event::{AttemptOutcome, DispatchGrant, EngineFault};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::dispatcher::ticket::Ticket;
use crate::engines::{Ability, EngineKind};
use crate::protocol::error::ApiError;
use crate::protocol::headers::X_REQUEST_ID;
use crate::protocol::request::edit::{EditedBody, PartialText, RequestEdits, edit};
use crate::protocol::response::answer::{AnswerVerdict, classify_answer};
use crate::protocol::response::engine_error::EngineError;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::protocol::response::stream::{StreamClassifier, UsageVisibility};
use crate::proxy::Proxy;
use crate::proxy::attempt::partial_tokens::counted;
use crate::proxy::body::GatheredBody;
use crate::proxy::relay::engine_signals::ReplicaSignals;
use crate::proxy::relay::engine_stream::{EngineStream, StreamStep};
use crate::proxy::relay::memory::AnswerShare;
use crate::proxy::request::InferenceRequest;
use crate::proxy::summary::RequestRecord;
use crate::proxy::upstream::{
    ConnectTimes, CutReason, UpstreamCall, UpstreamError, UpstreamExchange, UpstreamReplica, bearer,
};
use crate::telemetry::trace::RequestPhase;

/// Most sends of a request to a replica that resets its connection. The request may be the cause of
/// the resets.
pub(super) const MOST_SENDS: u32 = 2;
/// Most bytes of a stream that are held back before the first token. A stream that sends more
/// bytes without a token is relayed.
const MAX_HELD_BYTES: usize = 1024 * 1024;

/// Answer of an engine to an attempt.
#[derive(Debug)]
pub(super) enum EngineAnswer {
    /// A stream whose first token has arrived, or that is complete.
    Stream { stream: Box<EngineStream>, head: HeaderMap },
    /// A complete answer that is not a stream.
    Whole {
        status: StatusCode,
        head: HeaderMap,
        body: EditedBody,
        usage: JobUsage,
        finish_reason: Option<&'static str>,
    },
}

impl EngineAnswer {
    /// Reports the first token or the whole answer to the scheduler. False if the job was preempted
    /// before: the answer then reaches no client.
    pub(super) fn report(&self, ticket: &mut Ticket) -> bool {
        match self {
            Self::Stream { .. } => ticket.report_first_token(),
            Self::Whole { usage, .. } => ticket.finish(AttemptOutcome::Done(*usage)),
        }
    }
}

/// Reason why an attempt gave no answer. The client has seen nothing.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// The client's request is the reason. Either the engine refused the request, which uses no
    /// tokens, or the answer exceeds the size limit or the free memory.
    Refused(ApiError, JobUsage),
    /// The engine failed after it used these tokens.
    Failed(EngineFault, JobUsage),
}

impl AttemptError {
    fn of(error: EngineError, usage: JobUsage) -> Self {
        match error {
            EngineError::Fault(fault) => Self::Failed(fault, usage),
            EngineError::Client(error) => Self::Refused(error, NOTHING),
        }
    }

    const fn failed(fault: EngineFault) -> Self {
        Self::Failed(fault, JobUsage::Unknown)
    }
}

impl InferenceRequest {
    /// Sends the request to the replica of `grant`, at most `sends` times. Waits for the first token
    /// of a stream, or for the whole answer of another request. `so_far` is the part of the answer
    /// that the client has; `None` if no other engine can continue the answer.
    pub(super) async fn attempt(
        &self,
        proxy: &Proxy,
        settings: &Settings,
        grant: DispatchGrant,
        sends: u32,
        so_far: Option<&PartialAnswer>,
        record: &mut RequestRecord,
    ) -> Result<EngineAnswer, AttemptError> {
        record.at_engine.sends = 0;
        if sends == 0 {
            return Err(AttemptError::failed(EngineFault::Reset));
        }
        let edge = &settings.edge;
        // A reload may have removed the replica since the dispatch.
        let (Some(pool), Some(replica)) = (edge.pools.get(grant.pool), edge.replicas.get(grant.replica))
        else {
            return Err(AttemptError::failed(EngineFault::Refused));
        };
        let begun = Instant::now();
        let headers = self.headers_for(pool, record);
        let shown_model = self.shown_model(settings, pool);
        let replica = proxy.upstreams.replica(grant.replica, replica, pool);
        let signals = proxy.engine_signals.attach(grant.replica);
        let trying = async {
            let so_far = match so_far {
                Some(so_far) => Some(self.counted(so_far, pool, &replica, &headers, &edge.upstream).await),
                None => None,
            };
            let begun = so_far.as_ref().filter(|so_far| so_far.is_resumed());
            let call = UpstreamCall {
                path: self.parsed.api.upstream_path(),
                headers: &headers,
                body: self.body_for(pool, self.priority(settings, grant), begun),
            };
            let sent = match sends {
                1 => replica.send_once(&call, &edge.upstream).await,
                _ => replica.send(&call, &edge.upstream).await,
            };
            record.at_engine.sends = sent.as_ref().map_or_else(UpstreamError::sends, |_| 1);
            let exchange = sent.map_err(|error| {
                let name = settings.policy.replicas.name(grant.replica);
                tracing::debug!(replica = name, %error, "engine did not answer");
                AttemptError::failed(error.fault())
            })?;
            note_connect(&exchange, record);
            if let Some(trace) = &record.trace {
                trace.attempt_answered(exchange.head.status);
            }
            let classifier = self.classifier(pool.engine, shown_model.clone(), so_far);
            self.read(proxy, exchange, classifier, shown_model, &edge.requests, &signals).await
        };
        let (limit, too_late) = self.limit(&edge.upstream);
        let deadline = begun + limit;
        let attempt = timeout_at(deadline, Box::pin(trying)).await;
        let clock = record.clock;
        if let Some(trace) = record.trace.as_ref().filter(|_| self.parsed.stream) {
            trace.phase(RequestPhase::FirstToken, clock.tick(begun), clock.now());
        }
        attempt.unwrap_or(Err(AttemptError::failed(too_late))).map_err(|error| match error {
            AttemptError::Refused(error, usage) => {
                AttemptError::Refused(self.with_public_model_name(settings, pool, error), usage)
            }
            failed @ AttemptError::Failed(..) => failed,
        })
    }

    /// Time limit of the attempt, and the fault of an engine that exceeds the limit.
    fn limit(&self, limits: &UpstreamLimits) -> (Duration, EngineFault) {
        match self.parsed.stream {
            true => (limits.first_token_timeout, EngineFault::Silent),
            false => (limits.answer_timeout, EngineFault::AnswerTimeout),
        }
    }

    /// The part of the answer that the client has, with the engine's own token count.
    async fn counted(
        &self,
        so_far: &PartialAnswer,
        pool: &PoolSettings,
        replica: &UpstreamReplica,
        headers: &HeaderMap,
        limits: &UpstreamLimits,
    ) -> PartialAnswer {
        let name = pool.model_names.get(&self.model()).map_or("", String::as_str);
        let mut so_far = counted(so_far, name, headers, replica, limits).await;
        so_far.cap_tokens(self.parsed.max_partial_tokens());
        so_far
    }

    fn with_public_model_name(&self, settings: &Settings, pool: &PoolSettings, error: ApiError) -> ApiError {
        match (pool.model_names.get(&self.model()), self.shown_model(settings, pool)) {
            (Some(engine_name), Some(shown)) => error.with_word_replaced(engine_name, &shown),
            _ => error,
        }
    }

    async fn read(
        &self,
        proxy: &Proxy,
        exchange: UpstreamExchange,
        classifier: StreamClassifier,
        shown_model: Option<String>,
        limits: &RequestLimits,
        signals: &ReplicaSignals,
    ) -> Result<EngineAnswer, AttemptError> {
        if self.parsed.stream && is_event_stream(&exchange) {
            return first_token(exchange, classifier, signals).await;
        }
        let (api, status) = (self.parsed.api, exchange.head.status);
        let head = exchange.head.headers.clone();
        // A refusal comes from the HTTP server and is no sign of life from the engine behind it.
        let heard = || {
            if status.is_success() {
                signals.record_bytes();
            }
        };
        let share = proxy.memory.answers.share(self.tenant, limits);
        let body = held_body(exchange, limits.max_answer_bytes, share, heard).await;
        let body = body.map_err(|cut| match cut {
            CutReason::BrokenOff => AttemptError::failed(EngineFault::Reset),
            // Every engine would produce as long an answer, after as much work.
            CutReason::TooLarge => {
                let error = ApiError::answer_too_large(api, limits.max_answer_bytes);
                AttemptError::Refused(error, JobUsage::Unknown)
            }
            CutReason::NoMemory(error) => AttemptError::Refused(error, JobUsage::Unknown),
        })?;
        match classify_answer(api, status, &head, &body, shown_model.as_deref()) {
            AnswerVerdict::Success { body, usage, finish_reason } => {
                Ok(EngineAnswer::Whole { status, head, body, usage, finish_reason })
            }
            AnswerVerdict::ClientError(error) => Err(AttemptError::Refused(error, NOTHING)),
            AnswerVerdict::Fault { fault, usage } => Err(AttemptError::Failed(fault, usage)),
        }
    }

    fn classifier(
        &self,
        engine: EngineKind,
        shown_model: Option<String>,
        so_far: Option<PartialAnswer>,
    ) -> StreamClassifier {
        let parsed = &self.parsed;
        let choices = if engine.can(Ability::ManyChoices) { parsed.choices() } else { 1 };
        let usage_shown = match (parsed.stream_usage.at_end, parsed.stream_usage.in_each_event) {
            _ if !parsed.api.has_stream_options() => UsageVisibility::Always,
            (true, true) => UsageVisibility::Always,
            (true, false) => UsageVisibility::AtEnd,
            (false, _) => UsageVisibility::Never,
        };
        let classifier = StreamClassifier::new(parsed.api, choices, shown_model, usage_shown);
        match so_far {
            Some(so_far) => classifier.with_partial_answer(so_far),
            None => classifier,
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

    /// The priority that is sent to the engine: the rank of the class. A lower value runs sooner,
    /// for ranks and for vLLM's priorities.
    fn priority(&self, settings: &Settings, grant: DispatchGrant) -> Option<i64> {
        let pool = settings.policy.pools.get(grant.pool)?;
        let class = settings.policy.classes.get(grant.why.class)?;
        (pool.engine_priority && self.parsed.api.runs_model()).then_some(i64::from(class.rank))
    }

    fn body_for(
        &self,
        pool: &PoolSettings,
        priority: Option<i64>,
        begun: Option<&PartialAnswer>,
    ) -> EditedBody {
        let Self { body, parsed, .. } = self;
        let name = pool.model_names.get(&self.model()).map(String::as_str);
        let edits = RequestEdits {
            model: name.filter(|name| parsed.model.as_deref().is_some_and(|asked| asked != *name)),
            include_usage: parsed.api.has_stream_options() && parsed.stream && !parsed.stream_usage.at_end,
            priority,
            cache_salt: self.cache_salt.as_deref().filter(|_| pool.engine.can(Ability::CacheSalt)),
            usual_priority: Some(if pool.engine.can(Ability::Priority) { "0" } else { "null" }),
            partial_text: begun
                .map(|so_far| PartialText { text: so_far.prompt_text(), tokens: so_far.tokens() }),
        };
        edit(&body.bytes, parsed, &edits)
    }

    /// The model name that replaces the engine's own name in answers: the name that the client
    /// sent, else the public name. `None` if the engine's name is the same.
    fn shown_model(&self, settings: &Settings, pool: &PoolSettings) -> Option<String> {
        let engine_name = pool.model_names.get(&self.model()).map(String::as_str);
        let public = settings.policy.models.name(self.candidates.asked);
        let shown = self.parsed.model.as_deref().unwrap_or(public);
        (engine_name != Some(shown)).then(|| shown.to_owned())
    }
}

/// Reads a stream up to its first token. A first event without a token is no sign of life: HTTP
/// servers send it before their engines have done anything.
async fn first_token(
    mut exchange: UpstreamExchange,
    classifier: StreamClassifier,
    signals: &ReplicaSignals,
) -> Result<EngineAnswer, AttemptError> {
    let head = std::mem::take(&mut exchange.head.headers);
    let mut stream = Box::new(EngineStream::new(exchange, classifier));
    let mut has_begun = false;
    loop {
        match poll_fn(|cx| stream.poll_step(cx)).await {
            StreamStep::More | StreamStep::KeepAlive => {
                if std::mem::replace(&mut has_begun, true) {
                    signals.record_bytes();
                }
                if stream.has_output() || stream.held_bytes() > MAX_HELD_BYTES {
                    return Ok(EngineAnswer::Stream { stream, head });
                }
            }
            StreamStep::Complete(_) => return Ok(EngineAnswer::Stream { stream, head }),
            StreamStep::Failed(error, usage) => return Err(AttemptError::of(error, usage)),
        }
    }
}

fn note_connect(exchange: &UpstreamExchange, record: &mut RequestRecord) {
    record.at_engine.connect = exchange.connect.map(|connect| connect.done - connect.begun);
    if let (Some(trace), Some(connect)) = (&record.trace, exchange.connect) {
        let ConnectTimes { begun, done } = connect;
        trace.phase(RequestPhase::Connect, record.clock.tick(begun), record.clock.tick(done));
    }
}

fn is_event_stream(exchange: &UpstreamExchange) -> bool {
    let content_type = exchange.head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    exchange.head.status == StatusCode::OK
        && content_type.is_some_and(|value| value.starts_with("text/event-stream"))
}

/// Reads a whole answer that goes to a client, of at most `limit` bytes. `share` counts the bytes
/// until the last of them is sent. `heard` is called for each piece.
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

/// Usage of a request that an engine refused.
pub(super) const NOTHING: JobUsage = JobUsage::Exact(TokenCounts { input: 0, cached: None, output: 0 });
