//! Request trail: what became of one request so far.

use std::time::{Duration, SystemTime};

use http::HeaderValue;
use smallvec::SmallVec;

use crate::core::model::event::{DispatchGrant, EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ClassId, JobId, ModelId, TenantId};
use crate::telemetry::summary::{GuardrailCheck, RequestOutcome};
use crate::tokens::CountSource;

/// Trail of one request: its facts, its attempts and its end.
#[derive(Debug, Clone)]
pub struct RequestTrail {
    /// Request id, from the client or given by the gateway.
    pub request_id: HeaderValue,
    /// The gateway's own id; absent = `request_id` is that one.
    pub gateway_id: Option<HeaderValue>,
    /// Id of the request in the scheduler.
    pub job: JobId,
    /// Arrival of the request.
    pub came: SystemTime,
    pub tenant: TenantId,
    /// Class that the request asked for.
    pub class: ClassId,
    pub model: ModelId,
    pub fallback: Option<TrailFallback>,
    /// API of the call, as its path at the engine.
    pub api: &'static str,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// Prompt tokens, before any engine counted them.
    pub prompt_tokens: u64,
    /// Source of `prompt_tokens`.
    pub prompt_source: CountSource,
    /// Attempts in order: the first four and the last four of more than eight.
    pub tries: SmallVec<[AttemptTrail; 1]>,
    /// Number of attempts between the first and the last ones that are not kept.
    pub forgotten_tries: u32,
    /// Checks of the prompt and the answer by the operator's guardrails.
    pub guardrails: Vec<GuardrailCheck>,
    /// End of the request; absent while it waits or runs.
    pub end: Option<RequestEnd>,
}

/// Fallback of a request.
#[derive(Debug, Clone, Copy)]
pub struct TrailFallback {
    /// Model that serves the request instead.
    pub to: ModelId,
    /// Why the model before it could not serve the request.
    pub why: RejectReason,
}

/// State of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    /// In the queue, or not yet there.
    Waiting,
    /// At a replica.
    Running,
    Finished,
}

impl RequestState {
    /// Every state, in the order of a list.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Running, Self::Finished];

    /// Short stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Finished => "finished",
        }
    }
}

impl RequestTrail {
    /// The gateway's own id of the request, which no client can choose.
    pub fn own_id(&self) -> &HeaderValue {
        self.gateway_id.as_ref().unwrap_or(&self.request_id)
    }

    /// State of the request.
    pub fn state(&self) -> RequestState {
        match (&self.end, self.tries.last()) {
            (Some(_), _) => RequestState::Finished,
            (None, Some(last)) if last.back.is_none() => RequestState::Running,
            (None, _) => RequestState::Waiting,
        }
    }

    /// Time of the request's present state, counted from the request's arrival.
    pub fn state_since(&self) -> Duration {
        match (&self.end, self.tries.last()) {
            (Some(end), _) => end.total,
            (None, Some(last)) => last.back.map_or(last.at, |back| back.at),
            (None, None) => Duration::ZERO,
        }
    }

    /// Model that serves the request.
    pub fn serving_model(&self) -> ModelId {
        self.fallback.map_or(self.model, |fallback| fallback.to)
    }
}

/// One attempt of a request. Times count from the arrival of the request.
#[derive(Debug, Clone, Copy)]
pub struct AttemptTrail {
    /// Dispatch of the attempt.
    pub at: Duration,
    /// The replica, and the reason for it with the state of the ledger at that moment.
    pub grant: DispatchGrant,
    /// Arrival of the first token.
    pub first_token: Option<Duration>,
    /// Return of the request to the queue; absent without a return.
    pub back: Option<AttemptReturn>,
}

/// Return of a request to the queue after an attempt.
#[derive(Debug, Clone, Copy)]
pub struct AttemptReturn {
    /// Time from the arrival of the request.
    pub at: Duration,
    /// Cause of the return.
    pub why: AttemptEnd,
}

/// Cause of an attempt's end without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The engine failed the attempt.
    Failed(EngineFault),
    /// The scheduler preempted the job.
    Preempted(PreemptReason),
}

impl AttemptEnd {
    /// Short stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed(fault) => fault.name(),
            Self::Preempted(why) => why.name(),
        }
    }
}

/// End of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestEnd {
    pub outcome: RequestOutcome,
    /// Code of the error or refusal; absent for a success.
    pub reason: Option<&'static str>,
    /// HTTP status that the client got.
    pub status: u16,
    /// Time from the arrival of the request to its end.
    pub total: Duration,
    /// Output tokens; absent = not known.
    pub output_tokens: Option<u64>,
}
