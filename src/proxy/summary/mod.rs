//! Request record: the facts of one request until its end, when they become one log line, its
//! metrics and its trace; also when the client just leaves.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::auth::Identity;
use crate::core::billing::bill::StayBill;
use crate::core::limits::rule::LimitId;
use crate::core::model::event::{DispatchReason, EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::core::model::time::Tick;
use crate::dispatcher::LimitsAtEntry;
use crate::dispatcher::clock::GatewayClock;
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
use http::HeaderValue;
use smallvec::SmallVec;

pub(super) mod active;
mod usage_rows;

/// The facts of one request. [`ActiveRequest`](active::ActiveRequest) writes it at the end.
#[derive(Debug)]
pub(super) struct RequestRecord {
    /// Where it goes.
    pub(super) telemetry: Telemetry,
    /// Where it is written down what it used; absent = nowhere.
    pub(super) journal: Option<Journal>,
    /// Bills of its stays at replicas, in their order. Complete once its tickets
    /// have ended.
    pub(super) bills: SmallVec<[StayBill; 1]>,
    /// The id that the client gave or got.
    pub(super) request_id: HeaderValue,
    /// The time that all its moments are told in.
    pub(super) clock: GatewayClock,
    /// When the request's head had arrived.
    pub(super) started: Tick,
    /// Its spans; absent until it is known what it asks for.
    pub(super) trace: Option<RequestTrace>,
    /// Which call it is.
    pub(super) api: Api,
    /// Who asked.
    pub(super) identity: Option<Identity>,
    /// Under which promise.
    pub(super) class: Option<ClassId>,
    /// For what.
    pub(super) model: Option<ModelId>,
    /// The model that it was for before another one served in its place, and
    /// why that one did not.
    pub(super) fallback: Option<(ModelId, RejectReason)>,
    /// Tokens of its prompt before any engine counted them, and how they are
    /// known.
    pub(super) prompt: Option<(u64, CountSource)>,
    /// What its asked output was lowered to, in tokens.
    pub(super) lowered: Option<u64>,
    /// What the engine's count is compared with: the estimate, and where that
    /// is told.
    pub(super) learn_from: Option<(Arc<TokenRatios>, (u32, u32), u64)>,
    /// The name that the client used for it.
    pub(super) requested_model: Option<String>,
    /// Whether the answer is a stream.
    pub(super) stream: bool,
    /// The last place it was sent to.
    pub(super) place: Option<DispatchedTo>,
    /// How often it was sent somewhere.
    pub(super) attempts: u32,
    /// How often the engine may have got it in the last of these tries.
    pub(super) sends: u32,
    /// How often its stream went on at another replica.
    pub(super) continued: u32,
    /// How often it was taken away from an engine, and why the last time.
    pub(super) recalls: (u32, Option<PreemptReason>),
    /// The status that the client got; 499 when it left before.
    pub(super) status: u16,
    /// How it ended.
    pub(super) outcome: RequestOutcome,
    /// Why it did not succeed.
    pub(super) reason: Option<&'static str>,
    /// What it consumed; absent before any engine saw it, which is nothing.
    pub(super) usage: Option<JobUsage>,
    /// Set-up time of the last connection.
    pub(super) connect: Option<Duration>,
    /// When the first token of a stream came.
    pub(super) first_token: Option<Tick>,
    /// When it was sent to the engine that answered it, or the last time.
    pub(super) sent_at: Option<Tick>,
    /// Its side of the comparison with its copy, or with its original.
    pub(super) half: Option<ShadowHalf>,
    /// How long the engine took for a plain answer, in the last try.
    pub(super) engine: Option<Duration>,
    /// Why the engine ended the answer.
    pub(super) finish_reason: Option<&'static str>,
    /// Gaps between the pieces of a stream.
    pub(super) gaps: ChunkGaps,
    /// Its entry among the requests that may be repeated; absent when its
    /// client does not say which try it is.
    pub(super) seat: Option<LiveRequestGuard>,
    /// The id of the try whose place it took.
    pub(super) replaces: Option<HeaderValue>,
    /// How it stood with its limits when it was admitted.
    pub(super) limits: LimitsAtEntry,
    /// Whether its head went out while it was held; absent where it cannot.
    pub(super) early_head: Option<Arc<AtomicBool>>,
    /// What an operator may ask about it; absent until it is admitted.
    pub(super) trail: Option<TrailRecorder>,
}

/// Where a request was sent, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct DispatchedTo {
    /// The pool; absent when a reload just removed it.
    pub(super) pool: Option<PoolId>,
    /// The replica.
    pub(super) replica: ReplicaId,
    /// What runs there.
    pub(super) engine: Option<&'static str>,
    /// Why there.
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
    /// A piece came.
    pub(super) fn piece(&mut self, now: Tick) {
        let Some(last) = self.last.replace(now) else {
            self.first = Some(now);
            return;
        };
        self.count += 1;
        self.longest = self.longest.max(now.since(last));
    }

    /// The mean over generated tokens when their number is known, since
    /// engines put several into one piece; over pieces otherwise.
    fn mean(&self, output_tokens: Option<u64>) -> Option<Duration> {
        let span = self.last?.since(self.first?);
        let tokens = output_tokens.and_then(|tokens| u32::try_from(tokens).ok());
        let gaps = tokens.map_or(self.count, |tokens| tokens.saturating_sub(1));
        (gaps > 0).then(|| span / gaps)
    }
}

/// A duration in milliseconds with two decimals, the rest cut off.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.0.as_micros() / 10;
        write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)
    }
}

impl RequestRecord {
    /// A record of a request that has just arrived. Until something else is
    /// said, its client left.
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
            recalls: (0, None),
            status: 499,
            outcome: RequestOutcome::ClientGone,
            reason: None,
            usage: None,
            connect: None,
            first_token: None,
            sent_at: None,
            half: None,
            engine: None,
            finish_reason: None,
            gaps: ChunkGaps::default(),
            seat: None,
            replaces: None,
            limits: LimitsAtEntry::default(),
            early_head: None,
            trail: None,
        }
    }

    /// A limit refused it, or would have.
    pub(super) fn met(&self, rule: LimitId) {
        let request_id = self.request_id.to_str().unwrap_or_default();
        let tenant = self.identity.as_ref().map(|who| who.tenant);
        LimitMet { request_id, tenant, rule }.emit(&self.telemetry);
    }

    /// Its prompt was counted, as well as that is possible.
    pub(super) fn counted(&mut self, tokens: u64, source: CountSource) {
        self.prompt = Some((tokens, source));
        self.tell(|trail| trail.counted(tokens, source));
    }

    /// The header that says what the asked output was lowered to.
    pub(super) fn lowered(&self) -> Option<HeaderValue> {
        self.lowered.map(HeaderValue::from)
    }

    /// An engine's count says what the estimate was off by.
    fn learn(&self) {
        if let (Some((ratios, pair, estimated)), Some(JobUsage::Exact(tokens))) =
            (&self.learn_from, self.usage)
            && self.outcome == RequestOutcome::Success
            && self.continued == 0
        {
            ratios.learn(*pair, *estimated, tokens.input);
        }
    }

    /// The engine answered in full.
    pub(super) fn succeeded(&mut self, usage: JobUsage) {
        self.outcome = RequestOutcome::Success;
        self.usage = Some(usage);
    }

    /// It ended otherwise, for the reason.
    pub(super) fn ended(&mut self, outcome: RequestOutcome, reason: &'static str) {
        self.outcome = outcome;
        self.reason = Some(reason);
    }

    /// Its stream is on its way to the client.
    pub(super) fn streams(&mut self) {
        self.status = 200;
        if let Some(notice) = self.notice() {
            notice.streams();
        }
    }

    /// It is sent to a replica.
    pub(super) fn sent(&mut self, place: DispatchedTo) {
        self.place = Some(place);
        self.attempts += 1;
        if self.first_token.is_none() {
            self.sent_at = Some(self.clock.now());
        }
        self.usage = Some(JobUsage::Unknown);
        let DispatchedTo { pool, replica, why, .. } = place;
        let at = self.age();
        self.tell(|trail| {
            trail.sent(AttemptTrail { at, pool, replica, why, first_token: None, back: None });
        });
    }

    /// The first token of a stream came.
    pub(super) fn token_came(&mut self) {
        self.first_token.get_or_insert(self.clock.now());
        let at = self.age();
        self.tell(|trail| trail.first_token(at));
    }

    /// An engine failed it before the client saw anything, and it waits again.
    pub(super) fn requeued(&self, replica: ReplicaId, fault: EngineFault) {
        self.tell(|trail| trail.back(self.age(), AttemptEnd::Failed(fault)));
        let request_id = self.request_id.to_str().unwrap_or_default();
        RequestRequeued { request_id, replica, fault, attempt: self.attempts }.emit(&self.telemetry);
    }

    /// Its stream broke, and it waits for another replica to go on with it.
    pub(super) fn interrupted(&self, fault: EngineFault) {
        self.tell(|trail| trail.back(self.age(), AttemptEnd::Failed(fault)));
    }

    /// Its stream broke at a replica, and it went on at the one where it is
    /// now, or nowhere.
    pub(super) fn broke_off(&mut self, from: ReplicaId, fault: EngineFault, goes_on: bool) {
        let to = self.place.map(|place| place.replica).filter(|_| goes_on);
        self.continued += u32::from(goes_on);
        let request_id = self.request_id.to_str().unwrap_or_default();
        StreamContinuation { request_id, from, to, fault }.emit(&self.telemetry);
    }

    /// Its model could not serve it, and it goes on as another one. Nobody pays
    /// for what it came to before.
    pub(super) fn fell_back(&mut self, to: ModelId, why: RejectReason) {
        let Some(from) = self.model.replace(to) else { return };
        self.fallback.get_or_insert((from, why));
        self.usage = None;
        let request_id = self.request_id.to_str().unwrap_or_default();
        RequestFellBack { request_id, from, to, why }.emit(&self.telemetry);
        self.tell(|trail| trail.fell_back(to, why));
    }

    /// The model that serves it, when that is not the name that the client used.
    pub(super) fn serving_model(&self) -> Option<HeaderValue> {
        let policy = self.telemetry.policy();
        let name = policy.models.name(self.model?);
        let other = self.requested_model.as_deref() != Some(name);
        HeaderValue::from_bytes(name.as_bytes()).ok().filter(|_| other)
    }

    /// The scheduler took it away from the replica, and it waits again.
    pub(super) fn recalled(&mut self, replica: ReplicaId, why: PreemptReason) {
        self.recalls = (self.recalls.0 + 1, Some(why));
        self.tell(|trail| trail.back(self.age(), AttemptEnd::Recalled(why)));
        let request_id = self.request_id.to_str().unwrap_or_default();
        RequestRecalled { request_id, replica, why, attempt: self.attempts }.emit(&self.telemetry);
    }

    /// What its end means for its status and for its retries.
    fn conclude(&mut self) {
        if let (Some(usage), Some((counted, _))) = (&mut self.usage, self.prompt) {
            *usage = usage.with_prompt(counted);
        }
        if matches!(self.outcome, RequestOutcome::Rejected | RequestOutcome::Failed)
            && let Some(seat) = &mut self.seat
        {
            seat.refused();
        }
        if self.early_head.as_ref().is_some_and(|sent| sent.load(Ordering::Relaxed)) {
            self.status = 200;
        }
    }

    /// Its durations at the engine that answered it.
    fn at_engine(&self, now: Tick) -> Option<EngineTimings> {
        let sent = self.sent_at?;
        Some(EngineTimings {
            first_token: self.first_token.map(|at| at.since(sent)),
            total: self.engine.unwrap_or(now.since(sent)),
        })
    }

    /// Its durations, now that it is over.
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

    /// Counts its bills, and writes them to the journal.
    fn write_bills(&self, summary: &RequestSummary<'_>) {
        let tenant = summary.tenant;
        summary.bills.iter().for_each(|bill| StayBilled { tenant, bill }.emit(&self.telemetry));
        // A request of nobody is counted (`penstock_auth_failures_total`) and logged,
        // but is on nobody's bill: whoever reaches the port could fill the journal.
        if let Some(journal) = self.journal.as_ref().filter(|_| tenant.is_some()) {
            let policy = self.telemetry.policy();
            usage_rows::of(summary, &policy).for_each(|row| journal.record(row));
        }
    }

    fn age(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    fn tell(&self, what: impl FnOnce(&TrailRecorder)) {
        if let Some(trail) = &self.trail {
            what(trail);
        }
    }

    /// Where the request is told that a retry has taken its place.
    pub(super) fn notice(&self) -> Option<&Arc<SupersededNotice>> {
        self.seat.as_ref().map(LiveRequestGuard::notice)
    }

    /// The gateway shuts down before its end.
    pub(super) fn shut_down(&mut self) -> ApiError {
        self.ended(RequestOutcome::Failed, "draining");
        ApiError::new(ErrorKind::Draining, "the gateway is shutting down; send the request again")
    }

    /// A retry has taken its place: its client has given it up.
    pub(super) fn superseded(&mut self) -> ApiError {
        self.ended(RequestOutcome::ClientGone, "superseded");
        ApiError::new(ErrorKind::Superseded, "A retry of this request has taken its place.")
    }

    /// The `Server-Timing` header, in milliseconds: queue, connect, and the
    /// time to the first token of a stream or the engine's time for a plain
    /// answer.
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
    /// The request is over: writes its log line, metrics, usage rows, trail and trace.
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
            recalls: self.recalls.0,
            recall_reason: self.recalls.1.map(PreemptReason::name),
            replaces: replaces.as_deref(),
            replaced_by: replaced_by.as_deref(),
            placed: self.place.map(|place| place.why),
            finish_reason: self.finish_reason,
        };
        summary.emit(&self.telemetry);
        self.write_bills(&summary);
        self.tell(|trail| trail.ended(summary.end()));
        if let (Some(half), Some(side)) = (&self.half, summary.shadow_side()) {
            half.ended(side);
        }
        let trace = self.trace.take();
        if let Some(trace) = trace {
            trace.finish(&summary, &self.telemetry, now);
        }
    }
}
