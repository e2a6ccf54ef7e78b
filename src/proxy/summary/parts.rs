//! Parts of a request record: what was asked for, the counts of its prompt, what happened at
//! engines, and how it ended.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::HeaderValue;

use crate::auth::Identity;
use crate::core::limits::rule::LimitId;
use crate::core::model::event::PreemptReason;
use crate::core::model::ids::{ClassId, ModelId};
use crate::core::model::job::JobUsage;
use crate::core::model::time::Tick;
use crate::protocol::api::Api;
use crate::proxy::request::superseding::LiveRequestGuard;
use crate::telemetry::event::RequestOutcome;
use crate::telemetry::summary::{AttemptCounts, CountedPrompt, LastDispatch, ModelFallback};
use crate::tokens::ratio::{TokenRatioKey, TokenRatios};

/// Work that the client asked for, and the model that serves it.
#[derive(Debug)]
pub(in crate::proxy) struct RequestedWork {
    pub(in crate::proxy) api: Api,
    pub(in crate::proxy) class: Option<ClassId>,
    /// Model that serves the request, or is to serve it.
    pub(in crate::proxy) model: Option<ModelId>,
    pub(in crate::proxy) fallback: Option<ModelFallback>,
    /// Model name that the client sent.
    pub(in crate::proxy) requested_model: Option<String>,
    /// Whether the client asked for a stream.
    pub(in crate::proxy) stream: bool,
}

/// Who sent the request, and the gateway's own name for it.
#[derive(Debug, Default)]
pub(in crate::proxy) struct RecordCaller {
    /// Caller. `None` until authentication.
    pub(in crate::proxy) identity: Option<Identity>,
    /// Client's address, as far as it may be logged.
    pub(in crate::proxy) address: Option<String>,
    /// The gateway's own request id. `None` if the request id is that one.
    pub(in crate::proxy) gateway_id: Option<HeaderValue>,
}

/// Estimate of a prompt whose exact count will correct the token ratio.
#[derive(Debug)]
pub(in crate::proxy) struct EstimatedPrompt {
    /// The ratios to correct.
    pub(in crate::proxy) ratios: Arc<TokenRatios>,
    pub(in crate::proxy) key: TokenRatioKey,
    /// Estimate in tokens, before any ratio.
    pub(in crate::proxy) tokens: u64,
}

/// Counts of the prompt before dispatch.
#[derive(Debug, Default)]
pub(in crate::proxy) struct PromptCounts {
    /// The prompt as counted before dispatch.
    pub(in crate::proxy) counted: Option<CountedPrompt>,
    /// Lowered output limit in tokens, if the requested one did not fit the window.
    pub(in crate::proxy) lowered: Option<u64>,
    /// The estimate, to learn the token ratio from the engine's count. `None` = nothing is learned.
    pub(in crate::proxy) learn_from: Option<EstimatedPrompt>,
}

/// Attempts of the request, and what the engines answered.
#[derive(Debug, Default)]
pub(in crate::proxy) struct AtEngine {
    /// Dispatch of the last attempt.
    pub(in crate::proxy) dispatch: LastDispatch,
    /// Number of attempts.
    pub(in crate::proxy) attempts: u32,
    /// Number of times that the engine may have got the request in the last attempt.
    pub(in crate::proxy) sends: u32,
    /// Number of continuations at another replica.
    pub(in crate::proxy) continued: u32,
    /// Number of preemptions.
    pub(in crate::proxy) preemptions: u32,
    /// Reason of the last preemption.
    pub(in crate::proxy) preempt_reason: Option<PreemptReason>,
    /// Set-up time of the last connection.
    pub(in crate::proxy) connect: Option<Duration>,
    /// Arrival of a stream's first token.
    pub(in crate::proxy) first_token: Option<Tick>,
    /// Dispatch to the engine that sent the first token, else the last dispatch.
    pub(in crate::proxy) sent_at: Option<Tick>,
    /// Time that the engine took for a whole answer, in the last attempt.
    pub(in crate::proxy) whole_answer: Option<Duration>,
    /// Finish reason that the engine gave.
    pub(in crate::proxy) finish_reason: Option<&'static str>,
    /// Gaps between the pieces of a stream.
    pub(in crate::proxy) gaps: ChunkGaps,
}

impl AtEngine {
    /// The numbers of attempts, for the summary.
    pub(super) fn counts(&self) -> AttemptCounts {
        AttemptCounts {
            made: self.attempts,
            continued: self.continued,
            recalls: self.preemptions,
            recall_reason: self.preempt_reason.map(PreemptReason::name),
        }
    }
}

/// End of the request as its client saw it.
#[derive(Debug)]
pub(in crate::proxy) struct RecordEnd {
    /// HTTP status that the client got. 499 if the client left before.
    pub(in crate::proxy) status: u16,
    pub(in crate::proxy) outcome: RequestOutcome,
    /// Reason why the request did not succeed, as a stable code.
    pub(in crate::proxy) reason: Option<&'static str>,
    /// Usage of the request. `None` until an engine got the request, which counts as no tokens.
    pub(in crate::proxy) usage: Option<JobUsage>,
    /// Limit that refused the request.
    pub(in crate::proxy) limit: Option<LimitId>,
    /// Whether an early head was sent. `None` if the request may not have one.
    pub(in crate::proxy) early_head: Option<Arc<AtomicBool>>,
}

/// Link between a request and a retry of it.
#[derive(Debug, Default)]
pub(in crate::proxy) struct RetryLink {
    /// Entry among the live requests that a retry may supersede. `None` if the client sends no
    /// retry count.
    pub(in crate::proxy) live_guard: Option<LiveRequestGuard>,
    /// Whether the client says that it sends the request again.
    pub(in crate::proxy) is_retry: bool,
    /// Request id of the request that this retry superseded.
    pub(in crate::proxy) replaces: Option<HeaderValue>,
}

/// Gaps between the pieces of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::proxy) struct ChunkGaps {
    last: Option<Tick>,
    first: Option<Tick>,
    count: u32,
    longest: Duration,
}

impl ChunkGaps {
    /// Notes the arrival of a piece.
    pub(in crate::proxy) fn piece(&mut self, now: Tick) {
        let Some(last) = self.last.replace(now) else {
            self.first = Some(now);
            return;
        };
        self.count += 1;
        self.longest = self.longest.max(now.since(last));
    }

    /// Longest gap. `None` until the first piece.
    pub(super) fn longest(&self) -> Option<Duration> {
        self.last.map(|_| self.longest)
    }

    /// Mean gap. The mean is over generated tokens if their number is known, because engines put
    /// several tokens into one piece. Otherwise the mean is over pieces.
    pub(super) fn mean(&self, output_tokens: Option<u64>) -> Option<Duration> {
        let span = self.last?.since(self.first?);
        let tokens = output_tokens.and_then(|tokens| u32::try_from(tokens).ok());
        let gaps = tokens.map_or(self.count, |tokens| tokens.saturating_sub(1));
        (gaps > 0).then(|| span / gaps)
    }
}

/// Appends one member of a `Server-Timing` header: milliseconds with two decimals, truncated.
pub(super) fn push_timing(header: &mut String, name: &str, time: Duration) {
    let hundredths = u64::try_from(time.as_micros() / 10).unwrap_or(u64::MAX);
    let separator = if header.is_empty() { "" } else { ", " };
    let zero = if hundredths % 100 < 10 { "0" } else { "" };
    let mut digits = itoa::Buffer::new();
    header.extend([separator, name, ";dur=", digits.format(hundredths / 100), ".", zero]);
    header.push_str(digits.format(hundredths % 100));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_are_milliseconds_with_two_decimals() {
        let mut header = String::new();
        for (name, micros) in [("queue", 0), ("connect", 59), ("ttft", 1_234_567)] {
            push_timing(&mut header, name, Duration::from_micros(micros));
        }
        assert_eq!(header, "queue;dur=0.00, connect;dur=0.05, ttft;dur=1234.56");
    }
}
