//! Request record: the facts of one request until its end. The end turns the record into one log
//! line, metrics and a trace, also when the client just leaves.

pub(super) mod active;
mod usage_rows;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use smallvec::SmallVec;

use crate::auth::Identity;
use crate::config::settings::Settings;
use crate::core::billing::bill::StayBill;
use crate::core::limits::rule::LimitId;
use crate::core::model::event::{DispatchReason, EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::core::model::time::Tick;
use crate::dispatcher::DispatchGrant;
use crate::dispatcher::clock::GatewayClock;
use crate::dispatcher::limits_at_entry::LimitsAtEntry;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::proxy::request::superseding::{LiveRequestGuard, SupersededNotice};
use crate::proxy::shadow::pair::ShadowHalf;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{
    EngineTimings, LimitMet, RequestFellBack, RequestOutcome, RequestRecalled, RequestRequeued,
    RequestSummary, StayBilled, StreamContinuation, Timings,
};
use crate::telemetry::request_history::{AttemptEnd, AttemptTrail, TrailRecorder};
use crate::telemetry::trace::RequestTrace;
use crate::tokens::CountSource;
use crate::tokens::ratio::TokenRatios;
use crate::usage::Journal;

/// The facts of one request. [`ActiveRequest`](active::ActiveRequest) writes the record at the
/// request's end.
#[derive(Debug)]
pub(super) struct RequestRecord {
    pub(super) telemetry: Telemetry,
    /// Usage journal. `None` = usage is not recorded.
    pub(super) journal: Option<Journal>,
    /// Bills of the request's stays at replicas, in their order. Complete after the tickets have
    /// ended.
    pub(super) bills: SmallVec<[StayBill; 1]>,
    /// Request id, sent by the client or given by the gateway.
    pub(super) request_id: HeaderValue,
    /// Clock of all ticks in the record.
    pub(super) clock: GatewayClock,
    /// Arrival of the request's head.
    pub(super) started: Tick,
    /// Trace of the request. `None` until the request is parsed.
    pub(super) trace: Option<RequestTrace>,
    pub(super) api: Api,
    /// Caller. `None` until authentication.
    pub(super) identity: Option<Identity>,
    pub(super) class: Option<ClassId>,
    /// Model that serves the request, or is to serve it.
    pub(super) model: Option<ModelId>,
    /// Model before the first fallback, and the reason for that fallback.
    pub(super) fallback: Option<(ModelId, RejectReason)>,
    /// Prompt tokens as counted before dispatch, and the source of the count.
    pub(super) prompt: Option<(u64, CountSource)>,
    /// Lowered output limit in tokens, if the requested one did not fit the window.
    pub(super) lowered: Option<u64>,
    /// Inputs for learning token ratios from the engine's count: the ratios, their key, and the
    /// estimate in tokens.
    pub(super) learn_from: Option<(Arc<TokenRatios>, (u32, u32), u64)>,
    /// Model name that the client sent.
    pub(super) requested_model: Option<String>,
    /// Whether the client asked for a stream.
    pub(super) stream: bool,
    /// Replica of the last attempt.
    pub(super) place: Option<DispatchedTo>,
    /// Number of attempts.
    pub(super) attempts: u32,
    /// Number of times that the engine may have got the request in the last attempt.
    pub(super) sends: u32,
    /// Number of continuations at another replica.
    pub(super) continued: u32,
    /// Number of preemptions, and the reason of the last one.
    pub(super) preemptions: (u32, Option<PreemptReason>),
    /// HTTP status that the client got. 499 if the client left before.
    pub(super) status: u16,
    /// Outcome of the request.
    pub(super) outcome: RequestOutcome,
    /// Reason why the request did not succeed, as a stable code.
    pub(super) reason: Option<&'static str>,
    /// Usage of the request. `None` until an engine got the request, which counts as no tokens.
    pub(super) usage: Option<JobUsage>,
    /// Set-up time of the last connection.
    pub(super) connect: Option<Duration>,
    /// Arrival of a stream's first token.
    pub(super) first_token: Option<Tick>,
    /// Dispatch to the engine that sent the first token, else the last dispatch.
    pub(super) sent_at: Option<Tick>,
    /// The request's side of the comparison with its shadow copy, or with its original.
    pub(super) shadow_half: Option<ShadowHalf>,
    /// Time that the engine took for a whole answer, in the last attempt.
    pub(super) engine: Option<Duration>,
    /// Finish reason that the engine gave.
    pub(super) finish_reason: Option<&'static str>,
    /// Gaps between the pieces of a stream.
    pub(super) gaps: ChunkGaps,
    /// Entry among the live requests that a retry may supersede. `None` if the client sends no
    /// retry count.
    pub(super) live_guard: Option<LiveRequestGuard>,
    /// Request id of the request that this retry superseded.
    pub(super) replaces: Option<HeaderValue>,
    /// State of the limits at admission.
    pub(super) limits: LimitsAtEntry,
    /// Whether an early head was sent. `None` if the request may not have one.
    pub(super) early_head: Option<Arc<AtomicBool>>,
    /// Recorder of the request trail. `None` until the request is parsed.
    pub(super) trail: Option<TrailRecorder>,
}

/// Replica that a request was dispatched to, and the reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct DispatchedTo {
    /// `None` if a reload has just removed the replica.
    pub(super) pool: Option<PoolId>,
    pub(super) replica: ReplicaId,
    /// Name of the pool's engine.
    pub(super) engine: Option<&'static str>,
    pub(super) why: DispatchReason,
}

/// Gaps between the pieces of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChunkGaps {
    last: Option<Tick>,
    first: Option<Tick>,
    count: u32,
    longest: Duration,
}

impl ChunkGaps {
    /// Notes the arrival of a piece.
    pub(super) fn piece(&mut self, now: Tick) {
        let Some(last) = self.last.replace(now) else {
            self.first = Some(now);
            return;
        };
        self.count += 1;
        self.longest = self.longest.max(now.since(last));
    }

    /// Mean gap. The mean is over generated tokens if their number is known, because engines put
    /// several tokens into one piece. Otherwise the mean is over pieces.
    fn mean(&self, output_tokens: Option<u64>) -> Option<Duration> {
        let span = self.last?.since(self.first?);
        let tokens = output_tokens.and_then(|tokens| u32::try_from(tokens).ok());
        let gaps = tokens.map_or(self.count, |tokens| tokens.saturating_sub(1));
        (gaps > 0).then(|| span / gaps)
    }
}

/// Displays a duration in milliseconds with two decimals, truncated.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.0.as_micros() / 10;
        write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)
    }
}

impl RequestRecord {
    /// A record of a request that has just arrived. The default outcome is that the client left.
    #[must_use]
    pub(super) fn new(telemetry: &Telemetry, clock: GatewayClock, request_id: HeaderValue, api: Api) -> Self {
        Self {
            telemetry: telemetry.clone(),
            journal: None,
            bills: SmallVec::new(),
            request_id,
            clock,
            started: clock.now(),
            trace: None,
            api,
            identity: None,
            class: None,
            model: None,
            fallback: None,
            prompt: None,
            lowered: None,
            learn_from: None,
            requested_model: None,
            stream: false,
            place: None,
            attempts: 0,
            sends: 0,
            continued: 0,
            preemptions: (0, None),
            status: 499,
            outcome: RequestOutcome::ClientGone,
            reason: None,
            usage: None,
            connect: None,
            first_token: None,
            sent_at: None,
            shadow_half: None,
            engine: None,
            finish_reason: None,
            gaps: ChunkGaps::default(),
            live_guard: None,
            replaces: None,
            limits: LimitsAtEntry::default(),
            early_head: None,
            trail: None,
        }
    }

    /// Reports that a limit refused the request, or would have in shadow mode.
    pub(super) fn met(&self, rule: LimitId) {
        let request_id = self.request_id.to_str().unwrap_or_default();
        let tenant = self.identity.as_ref().map(|who| who.tenant);
        LimitMet { request_id, tenant, rule }.emit(&self.telemetry);
    }

    /// Sets the count of the prompt's tokens and its source.
    pub(super) fn counted(&mut self, tokens: u64, source: CountSource) {
        self.prompt = Some((tokens, source));
        self.with_trail(|trail| trail.counted(tokens, source));
    }

    /// Header value of the lowered output limit.
    pub(super) fn lowered(&self) -> Option<HeaderValue> {
        self.lowered.map(HeaderValue::from)
    }

    /// Learns the token ratio from the engine's exact count, if the request succeeded without a
    /// continuation.
    fn learn(&self) {
        if let (Some((ratios, pair, estimated)), Some(JobUsage::Exact(tokens))) =
            (&self.learn_from, self.usage)
            && self.outcome == RequestOutcome::Success
            && self.continued == 0
        {
            ratios.learn(*pair, *estimated, tokens.input);
        }
    }

    /// Records success: the engine answered in full.
    pub(super) fn succeeded(&mut self, usage: JobUsage) {
        self.outcome = RequestOutcome::Success;
        self.usage = Some(usage);
    }

    /// Records another outcome and its reason.
    pub(super) fn ended(&mut self, outcome: RequestOutcome, reason: &'static str) {
        self.outcome = outcome;
        self.reason = Some(reason);
    }

    /// Records that the stream has started to the client.
    pub(super) fn streams(&mut self) {
        self.status = 200;
        if let Some(notice) = self.notice() {
            notice.streams();
        }
    }

    /// Records the dispatch to a replica.
    pub(super) fn sent(&mut self, place: DispatchedTo) {
        self.place = Some(place);
        self.attempts += 1;
        if self.first_token.is_none() {
            self.sent_at = Some(self.clock.now());
        }
        self.usage = Some(JobUsage::Unknown);
        let DispatchedTo { pool, replica, why, .. } = place;
        let at = self.age();
        self.with_trail(|trail| {
            trail.sent(AttemptTrail { at, pool, replica, why, first_token: None, back: None });
        });
    }

    /// Records the first token of a stream.
    pub(super) fn token_came(&mut self) {
        self.first_token.get_or_insert(self.clock.now());
        let at = self.age();
        self.with_trail(|trail| trail.first_token(at));
    }

    /// Records that an engine failed before the client saw anything, and that the request waits
    /// again.
    pub(super) fn requeued(&self, replica: ReplicaId, fault: EngineFault) {
        self.with_trail(|trail| trail.back(self.age(), AttemptEnd::Failed(fault)));
        let request_id = self.request_id.to_str().unwrap_or_default();
        RequestRequeued { request_id, replica, fault, attempt: self.attempts }.emit(&self.telemetry);
    }

    /// Records that the stream broke, and that the request waits for another replica to continue
    /// it.
    pub(super) fn interrupted(&self, fault: EngineFault) {
        self.with_trail(|trail| trail.back(self.age(), AttemptEnd::Failed(fault)));
    }

    /// Records the result of a continuation after the stream broke at `from`. With `goes_on`, the
    /// stream continues at the record's current replica.
    pub(super) fn broke_off(&mut self, from: ReplicaId, fault: EngineFault, goes_on: bool) {
        let to = self.place.map(|place| place.replica).filter(|_| goes_on);
        self.continued += u32::from(goes_on);
        let request_id = self.request_id.to_str().unwrap_or_default();
        StreamContinuation { request_id, from, to, fault }.emit(&self.telemetry);
    }

    /// Records the fallback to another model. The request's usage so far is not charged.
    pub(super) fn fell_back(&mut self, to: ModelId, why: RejectReason) {
        let Some(from) = self.model.replace(to) else { return };
        self.fallback.get_or_insert((from, why));
        self.usage = None;
        let request_id = self.request_id.to_str().unwrap_or_default();
        RequestFellBack { request_id, from, to, why }.emit(&self.telemetry);
        self.with_trail(|trail| trail.fell_back(to, why));
    }

    /// Name of the model that serves the request. `None` if the client used the same name.
    pub(super) fn serving_model(&self) -> Option<HeaderValue> {
        let policy = self.telemetry.policy();
        let name = policy.models.name(self.model?);
        let other = self.requested_model.as_deref() != Some(name);
        HeaderValue::from_bytes(name.as_bytes()).ok().filter(|_| other)
    }

    /// Records that the scheduler preempted the request at the replica, and that the request waits
    /// again.
    pub(super) fn preempted(&mut self, replica: ReplicaId, why: PreemptReason) {
        self.preemptions = (self.preemptions.0 + 1, Some(why));
        self.with_trail(|trail| trail.back(self.age(), AttemptEnd::Recalled(why)));
        let request_id = self.request_id.to_str().unwrap_or_default();
        RequestRecalled { request_id, replica, why, attempt: self.attempts }.emit(&self.telemetry);
    }

    /// Completes usage, status and the entry among live requests at the request's end.
    fn conclude(&mut self) {
        if let (Some(usage), Some((counted, _))) = (&mut self.usage, self.prompt) {
            *usage = usage.with_prompt(counted);
        }
        if matches!(self.outcome, RequestOutcome::Rejected | RequestOutcome::Failed)
            && let Some(seat) = &mut self.live_guard
        {
            seat.refused();
        }
        if self.early_head.as_ref().is_some_and(|sent| sent.load(Ordering::Relaxed)) {
            self.status = 200;
        }
    }

    /// Durations at the engine that answered the request.
    fn at_engine(&self, now: Tick) -> Option<EngineTimings> {
        let sent = self.sent_at?;
        Some(EngineTimings {
            first_token: self.first_token.map(|at| at.since(sent)),
            total: self.engine.unwrap_or(now.since(sent)),
        })
    }

    /// Durations of the ended request.
    fn timings(&self, now: Tick) -> Timings {
        let output = self.usage.and_then(JobUsage::tokens).map(|tokens| tokens.output);
        Timings {
            queue: self.place.map(|place| place.why.queued),
            connect: self.connect,
            first_token: self.first_token.map(|at| at.since(self.started)),
            total: now.since(self.started),
            gap_mean: self.gaps.mean(output),
            gap_max: self.gaps.last.map(|_| self.gaps.longest),
        }
    }

    /// Counts the bills in metrics, and writes them to the journal.
    fn write_bills(&self, summary: &RequestSummary<'_>) {
        let tenant = summary.tenant;
        summary.bills.iter().for_each(|bill| StayBilled { tenant, bill }.emit(&self.telemetry));
        // A request without a tenant is counted (`penstock_auth_failures_total`) and logged, but
        // not billed. Otherwise, anyone who reaches the port could fill the journal.
        if let Some(journal) = self.journal.as_ref().filter(|_| tenant.is_some()) {
            let policy = self.telemetry.policy();
            usage_rows::of(summary, &policy).for_each(|row| journal.record(row));
        }
    }

    fn age(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    fn with_trail(&self, what: impl FnOnce(&TrailRecorder)) {
        if let Some(trail) = &self.trail {
            what(trail);
        }
    }

    /// The notice on which the request learns that a retry has superseded it.
    pub(super) fn notice(&self) -> Option<&Arc<SupersededNotice>> {
        self.live_guard.as_ref().map(LiveRequestGuard::notice)
    }

    /// Ends the request because the gateway shuts down. Returns the client's error.
    pub(super) fn shut_down(&mut self) -> ApiError {
        self.ended(RequestOutcome::Failed, "draining");
        ApiError::new(ErrorKind::Draining, "the gateway is shutting down; send the request again")
    }

    /// Ends the request because a retry has superseded it. Returns the client's error.
    pub(super) fn superseded(&mut self) -> ApiError {
        self.ended(RequestOutcome::ClientGone, "superseded");
        ApiError::new(ErrorKind::Superseded, "A retry of this request has taken its place.")
    }

    /// The `Server-Timing` header, in milliseconds: queue, connect, and the TTFT of a stream or the
    /// engine's time for a whole answer.
    #[must_use]
    pub(super) fn server_timing(&self) -> Option<HeaderValue> {
        let queue = Millis(self.place?.why.queued);
        let connect = Millis(self.connect.unwrap_or_default());
        let (last, time) = match (self.first_token, self.engine) {
            (Some(at), _) => ("ttft", Millis(at.since(self.started))),
            (None, Some(engine)) => ("engine", Millis(engine)),
            (None, None) => return None,
        };
        let text = format!("queue;dur={queue}, connect;dur={connect}, {last};dur={time}");
        HeaderValue::try_from(text).ok()
    }
}

impl RequestRecord {
    /// Ends the record: writes the log line, metrics, usage rows, trail and trace.
    pub(super) fn finish(&mut self) {
        self.learn();
        let now = self.clock.now();
        self.conclude();
        let trace_id = self.trace.as_ref().and_then(RequestTrace::trace_id);
        let text = |id: &'_ HeaderValue| id.to_str().unwrap_or_default().to_owned();
        let replaces = self.replaces.as_ref().map(text);
        let replaced_by = self.notice().and_then(|notice| notice.replaced_by()).map(text);
        let bills = std::mem::take(&mut self.bills);
        let summary = RequestSummary {
            request_id: self.request_id.to_str().unwrap_or_default(),
            trace_id: trace_id.as_deref(),
            key_id: self.identity.as_ref().and_then(|identity| identity.key_id.as_deref()),
            tenant: self.identity.as_ref().map(|identity| identity.tenant),
            class: self.class,
            model: self.model,
            requested_model: self.requested_model.as_deref(),
            fallback_from: self.fallback.map(|(from, _)| from),
            fallback_reason: self.fallback.map(|(_, why)| why.name()),
            pool: self.place.and_then(|place| place.pool),
            replica: self.place.map(|place| place.replica),
            engine: self.place.and_then(|place| place.engine),
            api: self.api.upstream_path(),
            operation: self.api.operation_name(),
            stream: self.stream,
            status: self.status,
            outcome: self.outcome,
            reason: self.reason,
            prompt: self.prompt,
            usage: Some(self.usage.unwrap_or(JobUsage::Exact(TokenCounts::default()))),
            reached_engine: self.usage.is_some(),
            bills: &bills,
            timings: self.timings(now),
            at_engine: self.at_engine(now),
            attempts: self.attempts,
            continued: self.continued,
            recalls: self.preemptions.0,
            recall_reason: self.preemptions.1.map(PreemptReason::name),
            replaces: replaces.as_deref(),
            replaced_by: replaced_by.as_deref(),
            placed: self.place.map(|place| place.why),
            finish_reason: self.finish_reason,
        };
        summary.emit(&self.telemetry);
        self.write_bills(&summary);
        self.with_trail(|trail| trail.ended(summary.end()));
        if let (Some(half), Some(side)) = (&self.shadow_half, summary.shadow_side()) {
            half.ended(side);
        }
        let trace = self.trace.take();
        if let Some(trace) = trace {
            trace.finish(&summary, &self.telemetry.policy(), now);
        }
    }
}

pub(super) fn place(settings: &Settings, DispatchGrant { replica, why }: DispatchGrant) -> DispatchedTo {
    let pool = settings.policy.replicas.get(replica).map(|row| row.pool);
    let engine = pool.and_then(|pool| settings.edge.pools.get(pool)).map(|pool| pool.engine.name());
    DispatchedTo { pool, replica, engine, why }
}
