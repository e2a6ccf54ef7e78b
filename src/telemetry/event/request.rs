//! Events in the life of one request.

use std::time::Duration;

use tracing::{Level, debug, info, warn};

use crate::core::billing::bill::StayBill;
use crate::core::model::event::{DispatchReason, EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::job::JobUsage;
use crate::core::model::policy::Policy;
use crate::core::replica::affinity::adapter_slots::AdapterState;
use crate::telemetry::Telemetry;
use crate::telemetry::event::shadow::ShadowSide;
use crate::telemetry::event::{known, millis, pool_of, shorten};
use crate::telemetry::request_history::RequestEnd;
use crate::tokens::CountSource;

/// Summary of one request, from its head to its last byte: the one value that its
/// log line, metrics, trace, usage rows, trail and shadow comparison are made of.
/// Emitted exactly once for every request that got as far as a request id.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestSummary<'a> {
    /// The id that the client was told.
    pub request_id: &'a str,
    /// The trace it belongs to, when it is traced.
    pub trace_id: Option<&'a str>,
    /// The public part of the API key.
    pub key_id: Option<&'a str>,
    /// Who it was for; absent = nobody known.
    pub tenant: Option<TenantId>,
    /// The class it was served under.
    pub class: Option<ClassId>,
    /// The model, when it is one of ours.
    pub model: Option<ModelId>,
    /// The model as the client wrote it. For the log only: it is never a label.
    pub requested_model: Option<&'a str>,
    /// The model that it was for, when another one served in its place.
    pub fallback_from: Option<ModelId>,
    /// Why that one did not.
    pub fallback_reason: Option<&'static str>,
    /// The pool that served it last.
    pub pool: Option<PoolId>,
    /// The replica that served it last.
    pub replica: Option<ReplicaId>,
    /// The software that served it (`vllm`, ...): `gen_ai.provider.name`.
    pub engine: Option<&'static str>,
    /// The dialect: `openai`, `anthropic`.
    pub api: &'static str,
    /// `gen_ai.operation.name`: `chat`, `text_completion`, `embeddings`, ...
    pub operation: &'static str,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// The HTTP status that was sent, 499 when the client left before one.
    pub status: u16,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// The code of the error or refusal; absent for a success.
    pub reason: Option<&'static str>,
    /// Tokens of its prompt before any engine counted them, and how they are
    /// known; absent = it did not get so far.
    pub prompt: Option<(u64, CountSource)>,
    /// What it consumed; absent = it never reached an engine.
    pub usage: Option<JobUsage>,
    /// Whether an engine saw it. Else its usage is exactly nothing.
    pub reached_engine: bool,
    /// Bills of its stays at replicas, in their order.
    pub bills: &'a [StayBill],
    /// Its durations.
    pub timings: Timings,
    /// Its durations since it was sent to the engine that answered it; absent = it
    /// was not sent.
    pub at_engine: Option<EngineTimings>,
    /// Engines it was sent to.
    pub attempts: u32,
    /// How often its stream went on at another replica.
    pub continued: u32,
    /// How often it was taken away from one before the client saw anything.
    pub recalls: u32,
    /// Why, the last time.
    pub recall_reason: Option<&'static str>,
    /// The id of the try that it repeats and whose place it took.
    pub replaces: Option<&'a str>,
    /// The id of the retry that took its place.
    pub replaced_by: Option<&'a str>,
    /// Why it went where it went, the last time.
    pub placed: Option<DispatchReason>,
    /// The engine's finish reason.
    pub finish_reason: Option<&'a str>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RequestOutcome {
    /// The whole answer was sent.
    Success,
    /// The request itself was at fault.
    ClientError,
    /// The gateway refused it: limits, a full queue, a deadline, a drain.
    Rejected,
    /// The client left before the end.
    ClientGone,
    /// An engine or the gateway failed it.
    #[default]
    Failed,
}

impl RequestOutcome {
    /// A short stable name for logs and metric labels.
    #[must_use]
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

/// The durations of a request. Absent = that point was never reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timings {
    /// In the queue, over all tries.
    pub queue: Option<Duration>,
    /// To get a connection to the engine, the last try.
    pub connect: Option<Duration>,
    /// From the request's head to the first token of a stream.
    pub first_token: Option<Duration>,
    /// From the request's head to the end.
    pub total: Duration,
    /// Mean time between two tokens of the stream.
    pub gap_mean: Option<Duration>,
    /// Longest time between two tokens of the stream.
    pub gap_max: Option<Duration>,
}

/// The durations of a request at the engine that answered it. The queue's are not in
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineTimings {
    /// To the first token; absent for what is not a stream.
    pub first_token: Option<Duration>,
    /// To the end.
    pub total: Duration,
}

impl RequestSummary<'_> {
    /// Writes the request's one log line and counts it.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        match self.tenant {
            Some(_) => telemetry.log(|| self.log(&policy)),
            None => telemetry.log_stranger(|| self.log(&policy)),
        }
        telemetry.metrics().request_finished(&policy, self);
    }

    /// Its part of replicas' time, over all its stays; absent = it had none.
    #[must_use]
    pub fn gpu(&self) -> Option<Duration> {
        (!self.bills.is_empty()).then(|| self.bills.iter().map(|bill| bill.time).sum())
    }

    /// The cost of its stays, in the currency of the configuration; absent = its
    /// pools have no price.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn cost(&self) -> Option<f64> {
        let is_priced = self.bills.iter().any(|bill| bill.price.is_some());
        is_priced.then(|| self.bills.iter().map(|bill| bill.money).sum::<u64>() as f64 / 1e9)
    }

    /// Its side of the comparison with its shadow copy, or with its original;
    /// absent = it was not sent to an engine.
    #[must_use]
    pub fn shadow_side(&self) -> Option<ShadowSide> {
        let EngineTimings { first_token, total } = self.at_engine?;
        Some(ShadowSide {
            outcome: self.outcome,
            pool: self.pool,
            first_token,
            total,
            output_tokens: self.usage.and_then(JobUsage::tokens).map(|tokens| tokens.output),
        })
    }

    /// The end of its trail.
    #[must_use]
    pub const fn end(&self) -> RequestEnd {
        RequestEnd {
            outcome: self.outcome,
            reason: self.reason,
            status: self.status,
            total: self.timings.total,
        }
    }

    /// `error.type` of the semantic conventions; absent for a success.
    #[must_use]
    pub fn error_type(&self) -> Option<&'static str> {
        match self.outcome {
            RequestOutcome::Success => None,
            outcome => Some(self.reason.unwrap_or(outcome.name())),
        }
    }

    #[expect(clippy::too_many_lines, reason = "a line for each field")]
    fn log(&self, policy: &Policy) {
        let tokens = self.usage.and_then(JobUsage::tokens);
        let times = &self.timings;
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "penstock::request",
                    $level,
                    request_id = shorten(self.request_id),
                    trace_id = self.trace_id,
                    key_id = self.key_id.map(shorten),
                    tenant = self.tenant.and_then(|id| known(policy.tenants.name(id))),
                    class = self.class.and_then(|id| known(policy.classes.name(id))),
                    model = self.model.and_then(|id| known(policy.models.name(id))),
                    requested_model = self.requested_model.map(shorten),
                    fallback_from = self.fallback_from.and_then(|id| known(policy.models.name(id))),
                    fallback_reason = self.fallback_reason,
                    pool = self.pool.and_then(|id| known(policy.pools.name(id))),
                    replica = self.replica.and_then(|id| known(policy.replicas.name(id))),
                    api = self.api,
                    operation = self.operation,
                    stream = self.stream,
                    status = self.status,
                    outcome = self.outcome.name(),
                    reason = self.reason,
                    prompt_tokens = self.prompt.map(|(tokens, _)| tokens),
                    prompt_source = self.prompt.map(|(_, source)| source.name()),
                    usage = usage_name(self.usage),
                    input_tokens = tokens.map(|tokens| tokens.input),
                    cached_tokens = tokens.map(|tokens| tokens.cached),
                    output_tokens = tokens.map(|tokens| tokens.output),
                    gpu_ms = self.gpu().map(millis),
                    cost = self.cost(),
                    queue_ms = times.queue.map(millis),
                    connect_ms = times.connect.map(millis),
                    ttft_ms = times.first_token.map(millis),
                    total_ms = millis(times.total),
                    gap_mean_ms = times.gap_mean.map(millis),
                    gap_max_ms = times.gap_max.map(millis),
                    attempts = self.attempts,
                    continued = (self.continued > 0).then_some(self.continued),
                    recalls = (self.recalls > 0).then_some(self.recalls),
                    recall_reason = self.recall_reason,
                    replaces = self.replaces.map(shorten),
                    replaced_by = self.replaced_by.map(shorten),
                    finish_reason = self.finish_reason.map(shorten),
                    turn = self.placed.map(|why| why.turn.name()),
                    choice = self.placed.map(|why| why.choice.name()),
                    adapter = self.placed.and_then(|why| why.adapter).map(AdapterState::name),
                    demoted_to = self.placed.and_then(|why| known(policy.classes.name(why.demoted_to()?))),
                    behind = self.placed.map(|why| why.behind),
                    candidates = self.placed.map(|why| why.candidates),
                    outstanding_tokens = self.placed.map(|why| why.outstanding_tokens),
                    expected_ms = self.placed.map(|why| millis(why.expected)),
                    expected_cached_tokens = self.placed.map(|why| why.cached_tokens),
                    replica_running = self.placed.map(|why| why.running),
                    replica_limit = self.placed.map(|why| why.limit),
                    "request finished"
                )
            };
        }
        match self.outcome {
            RequestOutcome::Failed => line!(Level::WARN),
            _ => line!(Level::INFO),
        }
    }
}

/// `exact`, `partial` or `unknown`; absent for work no engine saw.
fn usage_name(usage: Option<JobUsage>) -> Option<&'static str> {
    Some(match usage? {
        JobUsage::Exact(_) => "exact",
        JobUsage::Partial(_) => "partial",
        JobUsage::Unknown => "unknown",
    })
}

/// A model could not serve a request, of which its client has seen nothing, and
/// another one is to serve in its place.
#[derive(Debug, Clone, Copy)]
pub struct RequestFellBack<'a> {
    /// The request.
    pub request_id: &'a str,
    /// The model that could not.
    pub from: ModelId,
    /// The model in its place.
    pub to: ModelId,
    /// Why.
    pub why: RejectReason,
}

impl RequestFellBack<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (from, to) = (policy.models.name(self.from), policy.models.name(self.to));
        let reason = self.why.name();
        telemetry.log(|| {
            info!(request_id = shorten(self.request_id), from, to, reason, "request fell back");
        });
        telemetry.metrics().fell_back(from, to, reason);
    }
}

/// An engine failed a request before its first token, and it waits again.
#[derive(Debug, Clone, Copy)]
pub struct RequestRequeued<'a> {
    /// The request.
    pub request_id: &'a str,
    /// The replica that failed it.
    pub replica: ReplicaId,
    /// What was wrong.
    pub fault: EngineFault,
    /// The try that failed, from 1.
    pub attempt: u32,
}

impl RequestRequeued<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let fault = self.fault.name();
        telemetry.log(|| {
            info!(
                request_id = shorten(self.request_id),
                replica = policy.replicas.name(self.replica),
                fault,
                attempt = self.attempt,
                "request requeued"
            );
        });
        telemetry.metrics().requeued(&policy, pool_of(&policy, self.replica), fault);
    }
}

/// A request was taken away from its replica before its client saw anything,
/// and it waits again.
#[derive(Debug, Clone, Copy)]
pub struct RequestRecalled<'a> {
    /// The request.
    pub request_id: &'a str,
    /// The replica it was taken from.
    pub replica: ReplicaId,
    /// Why.
    pub why: PreemptReason,
    /// The try that ended so, from 1.
    pub attempt: u32,
}

impl RequestRecalled<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let reason = self.why.name();
        telemetry.log(|| {
            info!(
                request_id = shorten(self.request_id),
                replica = policy.replicas.name(self.replica),
                reason,
                attempt = self.attempt,
                "request recalled"
            );
        });
        telemetry.metrics().recalled(&policy, pool_of(&policy, self.replica), reason);
    }
}

/// A stream broke after the client had got part of it, and another replica was
/// to go on with it.
#[derive(Debug, Clone, Copy)]
pub struct StreamContinuation<'a> {
    /// The request.
    pub request_id: &'a str,
    /// The replica that broke it.
    pub from: ReplicaId,
    /// The one that goes on; absent when none did.
    pub to: Option<ReplicaId>,
    /// What was wrong.
    pub fault: EngineFault,
}

impl StreamContinuation<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let fault = self.fault.name();
        let outcome = if self.to.is_some() { "continued" } else { "failed" };
        telemetry.log(|| {
            info!(
                request_id = shorten(self.request_id),
                replica = policy.replicas.name(self.from),
                to = self.to.and_then(|id| known(policy.replicas.name(id))),
                fault,
                outcome,
                "stream continuation"
            );
        });
        telemetry.metrics().continuation(&policy, pool_of(&policy, self.from), outcome);
    }
}

/// A stream broke after the client had got part of it, and stays broken.
#[derive(Debug, Clone, Copy)]
pub struct StreamBroken<'a> {
    /// The request.
    pub request_id: &'a str,
    /// The replica that broke it.
    pub replica: ReplicaId,
    /// What was wrong.
    pub fault: EngineFault,
    /// Tokens that the client has.
    pub output_tokens: u64,
}

impl StreamBroken<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let fault = self.fault.name();
        telemetry.log(|| {
            warn!(
                request_id = shorten(self.request_id),
                replica = policy.replicas.name(self.replica),
                fault,
                output_tokens = self.output_tokens,
                "stream broken"
            );
        });
        telemetry.metrics().stream_broken(&policy, pool_of(&policy, self.replica), fault);
    }
}

/// Somebody was not let in. The request's own line follows.
#[derive(Debug, Clone, Copy)]
pub struct AuthFailed<'a> {
    /// Why, as a stable code.
    pub reason: &'static str,
    /// The public part of the key, never the key.
    pub key_id: Option<&'a str>,
}

impl AuthFailed<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| {
            debug!(reason = self.reason, key_id = self.key_id.map(shorten), "authentication failed");
        });
        telemetry.metrics().auth_failed(self.reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::fixtures::{success, telemetry};

    const KEYS: &str = "api attempts behind cached_tokens candidates choice class connect_ms expected_cached_tokens \
        expected_ms finish_reason gap_max_ms gap_mean_ms input_tokens key_id level message model operation outcome output_tokens \
        outstanding_tokens pool queue_ms replica replica_limit replica_running request_id requested_model status \
        stream target tenant timestamp total_ms ttft_ms turn usage";

    #[test]
    fn the_one_line_of_a_request_is_json_with_stable_keys() {
        let telemetry = telemetry(1);
        success().emit(&telemetry);
        let log = telemetry.captured_log();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.join(" "), KEYS);
        assert_eq!(line["tenant"], "team-0");
        assert_eq!(line["replica"], "a100/http://10.0.0.1:8000");
        assert_eq!((&line["ttft_ms"], &line["connect_ms"]), (&140.0.into(), &0.25.into()));
        assert_eq!(
            (&line["status"], &line["stream"], &line["level"]),
            (&200.into(), &true.into(), &"INFO".into())
        );

        RequestSummary { outcome: RequestOutcome::Failed, reason: Some("upstream_failed"), ..success() }
            .emit(&telemetry);
        let log = telemetry.captured_log();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!((&line["level"], &line["reason"]), (&"WARN".into(), &"upstream_failed".into()));

        let (replaces, replaced_by) = (Some("try-0"), Some("try-2"));
        RequestSummary { replaces, replaced_by, ..success() }.emit(&telemetry);
        let log = telemetry.captured_log();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!((&line["replaces"], &line["replaced_by"]), (&"try-0".into(), &"try-2".into()));

        RequestSummary { recalls: 2, recall_reason: Some("stalled"), ..success() }.emit(&telemetry);
        let log = telemetry.captured_log();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!((&line["recalls"], &line["recall_reason"]), (&2.into(), &"stalled".into()));
        assert_eq!((&line["expected_ms"], &line["expected_cached_tokens"]), (&130.0.into(), &0.into()));
    }
}
