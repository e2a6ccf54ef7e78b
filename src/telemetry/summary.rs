//! Request summary: what became of a request, for the log, metrics, trace, usage rows and trail.

use std::sync::Arc;
use std::time::Duration;

use crate::core::billing::bill::AttemptBill;
use crate::core::model::event::{DispatchGrant, DispatchReason, RejectReason};
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::job::JobUsage;
use crate::tokens::CountSource;

/// Summary of one request, from its head to its last byte. The log line, metrics, trace, usage
/// rows, trail and shadow comparison of the request are all made of this value. It is emitted
/// exactly once for each request to a path of the inference API.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestSummary<'a> {
    pub ids: RequestIds<'a>,
    pub caller: CallerFacts<'a>,
    pub models: ModelFacts<'a>,
    pub dispatch: LastDispatch,
    pub call: CallFacts,
    /// HTTP status that the client got; 499 when the client left before one was sent.
    pub status: u16,
    pub outcome: RequestOutcome,
    /// Code of the error or refusal; absent for a success.
    pub reason: Option<&'static str>,
    pub tokens: TokenFacts,
    /// Bills of the request's attempts, in order.
    pub bills: &'a [AttemptBill],
    pub timings: Timings,
    /// Durations since the dispatch to the engine that answered; absent = not dispatched.
    pub at_engine: Option<EngineTimings>,
    pub attempts: AttemptCounts,
    /// Checks of the prompt and the answer by the operator's guardrails, in order.
    pub guardrails: &'a [GuardrailCheck],
    /// Finish reason that the engine reported.
    pub finish_reason: Option<&'a str>,
}

/// Caller of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallerFacts<'a> {
    /// Public part of the API key.
    pub key_id: Option<&'a str>,
    /// Client's address, as far as the configuration lets it be logged.
    pub address: Option<&'a str>,
    /// Tenant; absent = no known tenant.
    pub tenant: Option<TenantId>,
    /// Latency class that the request asked for. The class after a demotion is in
    /// [`LastDispatch::why`].
    pub class: Option<ClassId>,
}

/// Models of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelFacts<'a> {
    /// Model that served the request; absent when it is not configured.
    pub served: Option<ModelId>,
    /// Model as the client wrote it. For the log and traces only, never a label.
    pub requested: Option<&'a str>,
    /// The fallback, when another model than the one that the client asked for served the request.
    pub fallback: Option<ModelFallback>,
}

/// First fallback of a request.
#[derive(Debug, Clone, Copy)]
pub struct ModelFallback {
    /// Model that the request was for.
    pub from: ModelId,
    /// Why that model could not serve it.
    pub why: RejectReason,
}

/// Last dispatch of a request to an engine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LastDispatch {
    /// The scheduler's grant; absent when the request was never dispatched.
    pub grant: Option<DispatchGrant>,
    /// Kind of engine (`vllm`, ...): `gen_ai.provider.name`.
    pub engine: Option<&'static str>,
}

impl LastDispatch {
    pub fn pool(&self) -> Option<PoolId> {
        self.grant.map(|grant| grant.pool)
    }

    pub fn replica(&self) -> Option<ReplicaId> {
        self.grant.map(|grant| grant.replica)
    }

    /// Reason of the dispatch, with the state of the ledger at that moment.
    pub fn why(&self) -> Option<DispatchReason> {
        self.grant.map(|grant| grant.why)
    }
}

/// Call that the client made.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallFacts {
    /// API of the call, as its path at the engine, such as `/v1/chat/completions`.
    pub api: &'static str,
    /// `gen_ai.operation.name`: `chat`, `text_completion`, `embeddings`, ...
    pub operation: &'static str,
    /// Whether the client asked for a stream.
    pub stream: bool,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenFacts {
    /// The prompt before any engine counted it; absent = the request ended before its prompt was
    /// counted.
    pub prompt: Option<CountedPrompt>,
    /// Tokens that the request consumed. Absent, or exactly zero, when no engine got the request.
    pub usage: Option<JobUsage>,
    /// Whether an engine got the request. If not, its usage is exactly zero.
    pub reached_engine: bool,
}

/// Size of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedPrompt {
    pub tokens: u64,
    /// Source of the number.
    pub source: CountSource,
}

/// Attempts of a request at engines.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttemptCounts {
    pub made: u32,
    /// Number of continuations at another replica.
    pub continued: u32,
    /// Number of preemptions: the job was taken back before its first token.
    pub recalls: u32,
    /// Reason of the last preemption.
    pub recall_reason: Option<&'static str>,
}

/// Ids by which log lines name a request. Those of its trace and its retries are only in its summary.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestIds<'a> {
    /// Request id that the client got.
    pub request: &'a str,
    /// The gateway's own id, if the request id is the client's.
    pub gateway: Option<&'a str>,
    /// Trace id; absent when the trace is not recorded.
    pub trace: Option<&'a str>,
    /// Id of the earlier request that this request retries and whose arrival time it took over.
    pub replaces: Option<&'a str>,
    /// Id of the retry that took over this request's arrival time.
    pub replaced_by: Option<&'a str>,
}

/// Check of a prompt or an answer by the operator's guardrail service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardrailCheck {
    pub stage: GuardrailStage,
    pub outcome: GuardrailOutcome,
    /// Code of the service's reason, as the service gave it.
    pub reason: Option<Arc<str>>,
    /// Whether the request went on.
    pub passed: bool,
    pub took: Duration,
}

/// What a guardrail check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardrailStage {
    /// The prompt, before the request is queued.
    Prompt,
    /// An answer that is not a stream.
    Answer,
}

impl GuardrailStage {
    pub const ALL: [Self; 2] = [Self::Prompt, Self::Answer];

    /// Short stable name for logs, metric labels and the service itself.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Answer => "answer",
        }
    }
}

/// Outcome of a guardrail check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardrailOutcome {
    Allowed,
    Denied,
    /// There was no free call in time.
    Busy,
    /// The service gave no verdict in time.
    Timeout,
    /// The service could not be connected, or the connection broke.
    Unreachable,
    /// The service answered with a status other than 200.
    BadStatus,
    /// The service's answer is no verdict.
    Malformed,
    /// The prompt or the answer is longer than what is sent to the service.
    TooLarge,
}

impl GuardrailOutcome {
    pub const ALL: [Self; 8] = [
        Self::Allowed,
        Self::Denied,
        Self::Busy,
        Self::Timeout,
        Self::Unreachable,
        Self::BadStatus,
        Self::Malformed,
        Self::TooLarge,
    ];

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::BadStatus => "bad_status",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
        }
    }
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RequestOutcome {
    /// The engine gave the whole answer. The client may have left with the end of it unread.
    Success,
    /// The request itself was at fault.
    ClientError,
    /// The gateway refused the request: limits, a full queue, a deadline, a drain.
    Rejected,
    /// The client left before the engine's end, or sent the request again.
    ClientGone,
    /// An engine or the gateway failed the request.
    #[default]
    Failed,
}

impl RequestOutcome {
    pub const ALL: [Self; 5] =
        [Self::Success, Self::ClientError, Self::Rejected, Self::ClientGone, Self::Failed];

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::ClientError => "client_error",
            Self::Rejected => "rejected",
            Self::ClientGone => "client_gone",
            Self::Failed => "failed",
        }
    }
}

/// Durations of a request. An absent duration means that the request never reached that point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timings {
    /// Time in the queue, over all attempts.
    pub queue: Option<Duration>,
    /// Time to connect to the engine, in the last attempt.
    pub connect: Option<Duration>,
    /// TTFT: time from the request's head to the first token of a stream.
    pub first_token: Option<Duration>,
    /// Time from the request's head to the end.
    pub total: Duration,
    /// Mean ITL: mean time between two tokens of the stream.
    pub gap_mean: Option<Duration>,
    /// Largest ITL: longest time between two tokens of the stream.
    pub gap_max: Option<Duration>,
}

/// Durations of a request at the engine that answered it, without time in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineTimings {
    /// Time to the first token; absent for a plain answer.
    pub first_token: Option<Duration>,
    /// Time from the dispatch to the end.
    pub total: Duration,
}

/// Result of a request or of its shadow copy. Times count from the dispatch to the engine that
/// answered: time in the queue says nothing about an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowSide {
    pub outcome: RequestOutcome,
    /// Pool that served it.
    pub pool: Option<PoolId>,
    /// Time to the first token; absent for a plain answer.
    pub first_token: Option<Duration>,
    /// Time to the end.
    pub total: Duration,
    /// Generated tokens; absent = not counted.
    pub output_tokens: Option<u64>,
}

impl ShadowSide {
    /// Label values of the two sides.
    pub(in crate::telemetry) const NAMES: [&'static str; 2] = ["original", "copy"];
}
