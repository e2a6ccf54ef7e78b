//! Request record: the facts of one request until its end. The end turns the record into one log
//! line, metrics and a trace, also when the client just leaves.

pub(super) mod parts;
mod usage_rows;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderValue;

use crate::config::settings::Settings;
use crate::core::billing::bill::AttemptBill;
use crate::core::limits::LimitsAtEntry;
use crate::core::limits::rule::LimitId;
use crate::core::model::event::{DispatchGrant, EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ModelId, ReplicaId};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::core::model::time::Tick;
use crate::dispatcher::clock::GatewayClock;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::proxy::request::superseding::{LiveRequestGuard, SupersededNotice};
use crate::proxy::shadow::pair::ShadowHalf;
use crate::proxy::summary::parts::{
    AtEngine, PromptCounts, RecordCaller, RecordEnd, RequestedWork, RetryLink, push_timing,
};
use crate::telemetry::Telemetry;
use crate::telemetry::event::{
    AttemptBilled, EngineTimings, LimitMet, RequestFellBack, RequestOutcome, RequestPreempted,
    RequestRequeued, RequestSummary, StreamContinuation, Timings,
};
use crate::telemetry::request_history::{AttemptEnd, AttemptTrail, TrailRecorder};
use crate::telemetry::summary::{
    CallFacts, CallerFacts, CountedPrompt, GuardrailCheck, LastDispatch, ModelFacts, ModelFallback,
    RequestIds, TokenFacts,
};
use crate::telemetry::trace::{EngineCall, RequestTrace};
use crate::tokens::CountSource;
use crate::usage::Journal;

/// Initial capacity of a `Server-Timing` header.
const TIMING_BYTES: usize = 80;

/// The facts of one request. [`ActiveRequest`](crate::proxy::active_request::ActiveRequest) writes the
/// record at the request's end.
#[derive(Debug)]
pub(super) struct RequestRecord {
    pub(super) telemetry: Telemetry,
    /// Usage journal. `None` = usage is not recorded.
    pub(super) journal: Option<Journal>,
    /// Request id, sent by the client or given by the gateway.
    pub(super) request_id: HeaderValue,
    /// Clock of all ticks in the record.
    pub(super) clock: GatewayClock,
    /// Arrival of the request's head.
    pub(super) started: Tick,
    /// Trace of the request. `None` until the request is parsed.
    pub(super) trace: Option<RequestTrace>,
    pub(super) caller: RecordCaller,
    pub(super) work: RequestedWork,
    pub(super) prompt: PromptCounts,
    pub(super) at_engine: AtEngine,
    pub(super) end: RecordEnd,
    /// The request's side of the comparison with its shadow copy, or with its original.
    pub(super) shadow_half: Option<ShadowHalf>,
    pub(super) retry: RetryLink,
    /// State of the limits at admission.
    pub(super) limits: LimitsAtEntry,
    /// Recorder of the request trail. `None` until the request is parsed.
    pub(super) trail: Option<TrailRecorder>,
    /// Checks of the prompt and the answer by the operator's guardrails.
    guardrails: Vec<GuardrailCheck>,
}

impl RequestRecord {
    /// A record of a request that has just arrived. The default outcome is that the client left.
    pub(super) fn new(telemetry: &Telemetry, clock: GatewayClock, request_id: HeaderValue, api: Api) -> Self {
        Self {
            telemetry: telemetry.clone(),
            journal: None,
            request_id,
            clock,
            started: clock.now(),
            trace: None,
            caller: RecordCaller::default(),
            work: RequestedWork {
                api,
                class: None,
                model: None,
                fallback: None,
                requested_model: None,
                stream: false,
            },
            prompt: PromptCounts::default(),
            at_engine: AtEngine::default(),
            end: RecordEnd {
                status: 499,
                outcome: RequestOutcome::ClientGone,
                reason: None,
                usage: None,
                limit: None,
                early_head: None,
            },
            shadow_half: None,
            retry: RetryLink::default(),
            limits: LimitsAtEntry::default(),
            trail: None,
            guardrails: Vec::new(),
        }
    }

    /// Ids by which log lines name the request.
    pub(super) fn ids(&self) -> RequestIds<'_> {
        RequestIds {
            request: self.request_id.to_str().unwrap_or_default(),
            gateway: self.caller.gateway_id.as_ref().and_then(|id| id.to_str().ok()),
            ..RequestIds::default()
        }
    }

    /// Reports a limit that refused the request, or would have in shadow mode.
    pub(super) fn report_limit(&self, rule: LimitId, is_logged: bool) {
        let tenant = self.caller.identity.as_ref().map(|who| who.tenant);
        LimitMet { ids: self.ids(), tenant, rule, is_logged }.emit(&self.telemetry);
    }

    /// Records a check by the operator's guardrails.
    pub(super) fn record_guardrail(&mut self, check: GuardrailCheck) {
        self.with_trail(|trail| trail.guarded(check.clone()));
        self.guardrails.push(check);
    }

    /// Sets the count of the prompt's tokens and its source.
    pub(super) fn record_prompt_tokens(&mut self, tokens: u64, source: CountSource) {
        self.prompt.counted = Some(CountedPrompt { tokens, source });
        self.with_trail(|trail| trail.counted(tokens, source));
    }

    /// Header value of the lowered output limit.
    pub(super) fn lowered(&self) -> Option<HeaderValue> {
        self.prompt.lowered.map(HeaderValue::from)
    }

    /// Learns the token ratio from the engine's exact count, if the request succeeded without a
    /// continuation.
    fn learn(&self) {
        if let (Some(estimated), Some(JobUsage::Exact(counted))) = (&self.prompt.learn_from, self.end.usage)
            && self.end.outcome == RequestOutcome::Success
            && self.at_engine.continued == 0
        {
            estimated.ratios.learn(estimated.key, estimated.tokens, counted.input);
        }
    }

    /// Records success: the engine answered in full.
    pub(super) fn succeeded(&mut self, usage: JobUsage) {
        self.end.outcome = RequestOutcome::Success;
        self.end.usage = Some(usage);
    }

    /// Records that the whole answer waits for a check. If the request ends meanwhile, its client has
    /// left without the answer.
    pub(super) fn hold_answer(&mut self) {
        self.end.outcome = RequestOutcome::ClientGone;
    }

    /// Records that the answer has passed the check.
    pub(super) fn release_answer(&mut self) {
        self.end.outcome = RequestOutcome::Success;
    }

    /// Records another outcome and its reason.
    pub(super) fn set_outcome(&mut self, outcome: RequestOutcome, reason: &'static str) {
        self.end.outcome = outcome;
        self.end.reason = Some(reason);
    }

    /// Records that the stream has started to the client.
    pub(super) fn mark_streaming(&mut self) {
        self.end.status = 200;
        if let Some(notice) = self.notice() {
            notice.mark_streaming();
        }
    }

    /// Records the dispatch to a replica.
    pub(super) fn record_dispatch(&mut self, grant: DispatchGrant, settings: &Settings) {
        let engine = settings.edge.pools.get(grant.pool).map(|pool| pool.engine.name());
        self.at_engine.dispatch = LastDispatch { grant: Some(grant), engine };
        self.at_engine.attempts += 1;
        if self.at_engine.first_token.is_none() {
            self.at_engine.sent_at = Some(self.clock.now());
        }
        self.end.usage.get_or_insert(JobUsage::Unknown);
        self.trace_attempt(grant, settings);
        let at = self.age();
        self.with_trail(|trail| trail.sent(AttemptTrail { at, grant, first_token: None, back: None }));
    }

    /// Starts the trace's span of the attempt.
    fn trace_attempt(&mut self, grant: DispatchGrant, settings: &Settings) {
        let now = self.clock.now();
        let policy = &settings.policy;
        let Some(trace) = &mut self.trace else { return };
        let call = EngineCall {
            url: settings.edge.replicas.get(grant.replica).map(|replica| &replica.url),
            path: self.work.api.upstream_path(),
            pool: policy.pools.name(grant.pool),
            replica: policy.replicas.name(grant.replica),
            number: self.at_engine.attempts,
        };
        trace.attempt(&call, now);
    }

    /// Ends the trace's span of the attempt. `error` = why the attempt failed.
    pub(super) fn attempt_ended(&mut self, error: Option<&'static str>) {
        let now = self.clock.now();
        if let Some(trace) = &mut self.trace {
            trace.attempt_ended(error, now);
        }
    }

    /// Records the first token of a stream.
    pub(super) fn record_first_token(&mut self) {
        self.at_engine.first_token.get_or_insert(self.clock.now());
        let at = self.age();
        self.with_trail(|trail| trail.first_token(at));
    }

    /// Records the number of output events that the stream has had.
    pub(super) fn record_output_events(&self, outputs: u64) {
        self.with_trail(|trail| trail.wrote(outputs));
    }

    /// Records that an engine failed before the client saw anything. The request waits again, or is
    /// refused next.
    pub(super) fn attempt_failed(&mut self, replica: ReplicaId, fault: EngineFault) {
        self.attempt_ended(Some(fault.name()));
        self.with_trail(|trail| trail.back(self.age(), AttemptEnd::Failed(fault)));
        RequestRequeued { ids: self.ids(), replica, fault, attempt: self.at_engine.attempts }
            .emit(&self.telemetry);
    }

    /// Records that the stream broke, and that the request waits for another replica to continue
    /// it.
    pub(super) fn interrupted(&mut self, fault: EngineFault) {
        self.attempt_ended(Some(fault.name()));
        self.with_trail(|trail| trail.back(self.age(), AttemptEnd::Failed(fault)));
    }

    /// Records the result of a continuation after the stream broke at `from`. With `goes_on`, the
    /// stream continues at the record's current replica.
    pub(super) fn record_continuation(&mut self, from: ReplicaId, fault: EngineFault, goes_on: bool) {
        let to = self.at_engine.dispatch.replica().filter(|_| goes_on);
        self.at_engine.continued += u32::from(goes_on);
        StreamContinuation { ids: self.ids(), from, to, fault }.emit(&self.telemetry);
    }

    /// Records the fallback to another model. The request's usage so far is not charged.
    pub(super) fn fell_back(&mut self, to: ModelId, why: RejectReason) {
        let Some(from) = self.work.model.replace(to) else { return };
        self.work.fallback.get_or_insert(ModelFallback { from, why });
        self.end.usage = None;
        RequestFellBack { ids: self.ids(), from, to, why }.emit(&self.telemetry);
        self.with_trail(|trail| trail.fell_back(to, why));
    }

    /// Name of the model that serves the request. `None` if the client used the same name.
    pub(super) fn serving_model(&self) -> Option<HeaderValue> {
        let policy = self.telemetry.policy();
        let name = policy.models.name(self.work.model?);
        let other = self.work.requested_model.as_deref() != Some(name);
        HeaderValue::from_bytes(name.as_bytes()).ok().filter(|_| other)
    }

    /// Records that the scheduler preempted the request at the replica, and that the request waits
    /// again.
    pub(super) fn preempted(&mut self, replica: ReplicaId, why: PreemptReason) {
        self.attempt_ended(Some(why.name()));
        self.at_engine.preemptions += 1;
        self.at_engine.preempt_reason = Some(why);
        self.with_trail(|trail| trail.back(self.age(), AttemptEnd::Preempted(why)));
        RequestPreempted { ids: self.ids(), replica, why, attempt: self.at_engine.attempts }
            .emit(&self.telemetry);
    }

    /// Completes usage, status and the entry among live requests at the request's end.
    fn conclude(&mut self) {
        if let (Some(usage), Some(counted)) = (&mut self.end.usage, self.prompt.counted) {
            *usage = usage.with_prompt(counted.tokens);
        }
        if matches!(self.end.outcome, RequestOutcome::Rejected | RequestOutcome::Failed)
            && let Some(guard) = &mut self.retry.live_guard
        {
            guard.refused();
        }
        if self.end.early_head.as_ref().is_some_and(|sent| sent.load(Ordering::Relaxed)) {
            self.end.status = 200;
        }
    }

    /// Durations at the engine that answered the request.
    fn timings_at_engine(&self, now: Tick) -> Option<EngineTimings> {
        let sent = self.at_engine.sent_at?;
        Some(EngineTimings {
            first_token: self.at_engine.first_token.map(|at| at.since(sent)),
            total: self.at_engine.whole_answer.unwrap_or(now.since(sent)),
        })
    }

    /// Durations of the ended request.
    fn timings(&self, now: Tick) -> Timings {
        let output = self.end.usage.and_then(JobUsage::tokens).map(|tokens| tokens.output);
        Timings {
            queue: self.at_engine.dispatch.why().map(|why| why.queued),
            connect: self.at_engine.connect,
            first_token: self.at_engine.first_token.map(|at| at.since(self.started)),
            total: now.since(self.started),
            gap_mean: self.at_engine.gaps.mean(output),
            gap_max: self.at_engine.gaps.longest(),
        }
    }

    /// Counts the bills in metrics, and writes them to the journal if the request is written whole.
    fn write_bills(&self, summary: &RequestSummary<'_>, is_whole: bool) {
        let tenant = summary.caller.tenant;
        summary.bills.iter().for_each(|bill| AttemptBilled { tenant, bill }.emit(&self.telemetry));
        // A request without a tenant is counted (`penstock_auth_failures_total`) and logged, but
        // not billed. Otherwise, anyone who reaches the port could fill the journal.
        if let Some(journal) = self.journal.as_ref().filter(|_| tenant.is_some() && is_whole) {
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
        self.retry.live_guard.as_ref().map(LiveRequestGuard::notice)
    }

    /// Ends the request because the gateway shuts down. Returns the client's error.
    pub(super) fn end_for_shutdown(&mut self) -> ApiError {
        self.set_outcome(RequestOutcome::Failed, "draining");
        ApiError::new(ErrorKind::Draining, "The gateway is shutting down. Send the request again.")
    }

    /// Ends the request because a retry has superseded it. Returns the client's error.
    pub(super) fn end_as_superseded(&mut self) -> ApiError {
        self.set_outcome(RequestOutcome::ClientGone, "superseded");
        ApiError::new(ErrorKind::Superseded, "A retry of this request has taken its place.")
    }

    /// The `Server-Timing` header, in milliseconds: queue, connect, the TTFT of a stream or the engine's
    /// time for a whole answer, and the guardrails' time.
    pub(super) fn server_timing(&self) -> Option<HeaderValue> {
        let queue = self.at_engine.dispatch.why()?.queued;
        let (last, time) = match (self.at_engine.first_token, self.at_engine.whole_answer) {
            (Some(at), _) => ("ttft", at.since(self.started)),
            (None, Some(engine)) => ("engine", engine),
            (None, None) => return None,
        };
        let mut text = String::with_capacity(TIMING_BYTES);
        push_timing(&mut text, "queue", queue);
        push_timing(&mut text, "connect", self.at_engine.connect.unwrap_or_default());
        push_timing(&mut text, last, time);
        if !self.guardrails.is_empty() {
            push_timing(&mut text, "guardrail", self.guardrails.iter().map(|check| check.took).sum());
        }
        HeaderValue::try_from(text).ok()
    }
}

impl RequestRecord {
    /// Ends the record: writes the log line, metrics, usage rows, trail and trace. `bills` are those of
    /// the request's attempts, in their order.
    pub(super) fn finish(&mut self, bills: &[AttemptBill]) {
        self.learn();
        let now = self.clock.now();
        self.conclude();
        let trace_id = self.trace.as_ref().and_then(RequestTrace::trace_id);
        let text = |id: &'_ HeaderValue| id.to_str().unwrap_or_default().to_owned();
        let replaces = self.retry.replaces.as_ref().map(text);
        let replaced_by = self.notice().and_then(|notice| notice.replaced_by()).map(text);
        let summary = RequestSummary {
            ids: RequestIds {
                request: self.request_id.to_str().unwrap_or_default(),
                gateway: self.caller.gateway_id.as_ref().and_then(|id| id.to_str().ok()),
                trace: trace_id.as_deref(),
                replaces: replaces.as_deref(),
                replaced_by: replaced_by.as_deref(),
            },
            caller: CallerFacts {
                key_id: self.caller.identity.as_ref().and_then(|identity| identity.key_id.as_deref()),
                address: self.caller.address.as_deref(),
                tenant: self.caller.identity.as_ref().map(|identity| identity.tenant),
                class: self.work.class,
            },
            models: ModelFacts {
                served: self.work.model,
                requested: self.work.requested_model.as_deref(),
                fallback: self.work.fallback,
            },
            dispatch: self.at_engine.dispatch,
            call: CallFacts {
                api: self.work.api.upstream_path(),
                operation: self.work.api.operation_name(),
                stream: self.work.stream,
            },
            status: self.end.status,
            outcome: self.end.outcome,
            reason: self.end.reason,
            tokens: TokenFacts {
                prompt: self.prompt.counted,
                usage: Some(self.end.usage.unwrap_or(JobUsage::Exact(TokenCounts::default()))),
                reached_engine: self.end.usage.is_some(),
            },
            bills,
            timings: self.timings(now),
            at_engine: self.timings_at_engine(now),
            attempts: self.at_engine.counts(),
            guardrails: &self.guardrails,
            finish_reason: self.at_engine.finish_reason,
        };
        let is_whole = summary.emit(&self.telemetry);
        self.end.limit.iter().for_each(|rule| self.report_limit(*rule, is_whole));
        self.write_bills(&summary, is_whole);
        self.with_trail(|trail| self.telemetry.history().ended(trail, summary.end()));
        if let (Some(half), Some(side)) = (&self.shadow_half, summary.shadow_side()) {
            half.ended(side);
        }
        let trace = self.trace.take();
        if let Some(trace) = trace {
            trace.finish(&summary, &self.telemetry.policy(), now);
        }
    }
}
