//! Request events: the summary of a finished request, and its fallbacks, requeues, preemptions and
//! broken streams.

use std::time::Duration;

use tracing::{Level, debug, info, warn};

use crate::core::model::event::{EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ModelId, ReplicaId};
use crate::core::model::job::JobUsage;
use crate::core::model::policy::Policy;
use crate::core::replica::affinity::adapter_slots::AdapterState;
use crate::telemetry::request_history::RequestEnd;
pub(super) use crate::telemetry::summary::{EngineTimings, RequestOutcome, RequestSummary};
use crate::telemetry::summary::{GuardrailStage, RequestIds, ShadowSide};
use crate::telemetry::text::{known, millis, pool_of, shorten};
use crate::telemetry::{RefusalKind, Telemetry};

impl RequestSummary<'_> {
    /// Writes the log line of the request and feeds its metrics. Returns whether the request is written
    /// whole; otherwise it is one of many refusals, and only counted ([`RefusalsCounted`](crate::telemetry::event::RefusalsCounted)).
    pub fn emit(&self, telemetry: &Telemetry) -> bool {
        let policy = telemetry.policy();
        let is_whole = self.refusal().is_none_or(|kind| telemetry.writes_refusal(kind));
        if is_whole {
            telemetry.log(|| self.log(&policy));
        }
        telemetry.metrics().request_finished(&policy, self);
        self.guardrails.iter().for_each(|check| telemetry.metrics().guardrail_checked(check));
        is_whole
    }

    /// The kind of refusal that the request is. `None` for a success, when an engine got the request,
    /// and when its client left the queue.
    fn refusal(&self) -> Option<RefusalKind> {
        let is_refusal = match self.outcome {
            RequestOutcome::Success => false,
            RequestOutcome::ClientGone => self.caller.class.is_none(),
            RequestOutcome::ClientError | RequestOutcome::Rejected | RequestOutcome::Failed => true,
        };
        (is_refusal && self.attempts.made == 0 && self.bills.is_empty()).then(|| RefusalKind {
            listener: "clients",
            tenant: self.caller.tenant,
            reason: self.reason.unwrap_or(self.outcome.name()),
            outcome: Some(self.outcome.name()),
            status: Some(self.status),
        })
    }

    /// Replica time of all attempts of the request; absent = no attempt.
    pub fn gpu(&self) -> Option<Duration> {
        (!self.bills.is_empty()).then(|| self.bills.iter().map(|bill| bill.time).sum())
    }

    /// Cost of all attempts, in the currency of the configuration; absent = none of the pools has a
    /// price.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn cost(&self) -> Option<f64> {
        let is_priced = self.bills.iter().any(|bill| bill.price.is_some());
        is_priced.then(|| self.bills.iter().map(|bill| bill.money).sum::<u64>() as f64 / 1e9)
    }

    /// The request's side of a shadow comparison, as the original or as the copy; absent = not
    /// dispatched to an engine.
    pub fn shadow_side(&self) -> Option<ShadowSide> {
        let EngineTimings { first_token, total } = self.at_engine?;
        Some(ShadowSide {
            outcome: self.outcome,
            pool: self.dispatch.pool(),
            first_token,
            total,
            output_tokens: self.tokens.usage.and_then(JobUsage::tokens).map(|tokens| tokens.output),
        })
    }

    /// End of the request for its trail.
    pub fn end(&self) -> RequestEnd {
        RequestEnd {
            outcome: self.outcome,
            reason: self.reason,
            status: self.status,
            total: self.timings.total,
            output_tokens: self.tokens.usage.and_then(JobUsage::tokens).map(|tokens| tokens.output),
        }
    }

    /// `error.type` of the semantic conventions; absent for a success.
    pub fn error_type(&self) -> Option<&'static str> {
        match self.outcome {
            RequestOutcome::Success => None,
            outcome => Some(self.reason.unwrap_or(outcome.name())),
        }
    }

    #[expect(clippy::too_many_lines, reason = "a line for each field")]
    fn log(&self, policy: &Policy) {
        let tokens = self.tokens.usage.and_then(JobUsage::tokens);
        let times = &self.timings;
        let check = |stage| self.guardrails.iter().find(|check| check.stage == stage);
        let [prompt, answer] = [GuardrailStage::Prompt, GuardrailStage::Answer].map(check);
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "penstock::request",
                    $level,
                    request_id = shorten(self.ids.request),
                    gateway_id = self.ids.gateway,
                    trace_id = self.ids.trace,
                    client_address = self.caller.address,
                    key_id = self.caller.key_id.map(shorten),
                    tenant = self.caller.tenant.and_then(|id| known(policy.tenants.name(id))),
                    class = self.caller.class.and_then(|id| known(policy.classes.name(id))),
                    model = self.models.served.and_then(|id| known(policy.models.name(id))),
                    requested_model = self.models.requested.map(shorten),
                    fallback_from = self.models.fallback.and_then(|fallback| known(policy.models.name(fallback.from))),
                    fallback_reason = self.models.fallback.map(|fallback| fallback.why.name()),
                    pool = self.dispatch.pool().and_then(|id| known(policy.pools.name(id))),
                    replica = self.dispatch.replica().and_then(|id| known(policy.replicas.name(id))),
                    api = self.call.api,
                    operation = self.call.operation,
                    stream = self.call.stream,
                    status = self.status,
                    outcome = self.outcome.name(),
                    reason = self.reason,
                    prompt_tokens = self.tokens.prompt.map(|prompt| prompt.tokens),
                    prompt_source = self.tokens.prompt.map(|prompt| prompt.source.name()),
                    usage = usage_name(self.tokens.usage),
                    input_tokens = tokens.map(|tokens| tokens.input),
                    cached_tokens = tokens.map(|tokens| tokens.from_cache()),
                    output_tokens = tokens.map(|tokens| tokens.output),
                    gpu_ms = self.gpu().map(millis),
                    cost = self.cost(),
                    queue_ms = times.queue.map(millis),
                    connect_ms = times.connect.map(millis),
                    ttft_ms = times.first_token.map(millis),
                    total_ms = millis(times.total),
                    gap_mean_ms = times.gap_mean.map(millis),
                    gap_max_ms = times.gap_max.map(millis),
                    attempts = self.attempts.made,
                    continued = (self.attempts.continued > 0).then_some(self.attempts.continued),
                    recalls = (self.attempts.recalls > 0).then_some(self.attempts.recalls),
                    recall_reason = self.attempts.recall_reason,
                    replaces = self.ids.replaces.map(shorten),
                    replaced_by = self.ids.replaced_by.map(shorten),
                    guardrail = prompt.map(|check| check.outcome.name()),
                    guardrail_reason = prompt.and_then(|check| check.reason.as_deref()),
                    guardrail_ms = prompt.map(|check| millis(check.took)),
                    answer_guardrail = answer.map(|check| check.outcome.name()),
                    answer_guardrail_reason = answer.and_then(|check| check.reason.as_deref()),
                    answer_guardrail_ms = answer.map(|check| millis(check.took)),
                    finish_reason = self.finish_reason.map(shorten),
                    turn = self.dispatch.why().map(|why| why.order.name()),
                    choice = self.dispatch.why().map(|why| why.placement.name()),
                    adapter = self.dispatch.why().and_then(|why| why.adapter).map(AdapterState::name),
                    demoted_to = self.dispatch.why().and_then(|why| known(policy.classes.name(why.demoted_to()?))),
                    behind = self.dispatch.why().map(|why| why.behind),
                    candidates = self.dispatch.why().map(|why| why.candidates),
                    outstanding_tokens = self.dispatch.why().map(|why| why.outstanding_tokens),
                    expected_ms = self.dispatch.why().map(|why| millis(why.expected)),
                    expected_cached_tokens = self.dispatch.why().map(|why| why.cached_tokens),
                    replica_running = self.dispatch.why().map(|why| why.running),
                    replica_limit = self.dispatch.why().map(|why| why.limit),
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

/// Name of the usage's certainty: `exact`, `partial` or `unknown`; absent = no engine got the
/// request.
fn usage_name(usage: Option<JobUsage>) -> Option<&'static str> {
    Some(match usage? {
        JobUsage::Exact(_) => "exact",
        JobUsage::Partial(_) => "partial",
        JobUsage::Unknown => "unknown",
    })
}

/// A model could not serve a request, and a fallback model is to serve it. The client has not got
/// any part of an answer.
#[derive(Debug, Clone, Copy)]
pub struct RequestFellBack<'a> {
    pub ids: RequestIds<'a>,
    /// Model that could not serve the request.
    pub from: ModelId,
    /// Fallback model.
    pub to: ModelId,
    pub why: RejectReason,
}

impl RequestFellBack<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (from, to) = (policy.models.name(self.from), policy.models.name(self.to));
        let reason = self.why.name();
        telemetry.log(|| {
            let (request_id, gateway_id) = (shorten(self.ids.request), self.ids.gateway);
            info!(request_id, gateway_id, from, to, reason, "request fell back");
        });
        telemetry.metrics().fell_back(from, to, reason);
    }
}

/// An engine failed a request before its first token, and the request waits again.
#[derive(Debug, Clone, Copy)]
pub struct RequestRequeued<'a> {
    pub ids: RequestIds<'a>,
    /// Replica that failed the request.
    pub replica: ReplicaId,
    pub fault: EngineFault,
    /// Number of the failed attempt, from 1.
    pub attempt: u32,
}

impl RequestRequeued<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let fault = self.fault.name();
        telemetry.log(|| {
            info!(
                request_id = shorten(self.ids.request),
                gateway_id = self.ids.gateway,
                replica = policy.replicas.name(self.replica),
                fault,
                attempt = self.attempt,
                "request requeued"
            );
        });
        telemetry.metrics().requeued(&policy, pool_of(&policy, self.replica), fault);
    }
}

/// The scheduler preempted a request: it took the job back from its replica before the first
/// token, and the request waits again.
#[derive(Debug, Clone, Copy)]
pub struct RequestPreempted<'a> {
    pub ids: RequestIds<'a>,
    /// Replica that the job was taken back from.
    pub replica: ReplicaId,
    pub why: PreemptReason,
    /// Number of the preempted attempt, from 1.
    pub attempt: u32,
}

impl RequestPreempted<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let reason = self.why.name();
        telemetry.log(|| {
            info!(
                request_id = shorten(self.ids.request),
                gateway_id = self.ids.gateway,
                replica = policy.replicas.name(self.replica),
                reason,
                attempt = self.attempt,
                "request recalled"
            );
        });
        telemetry.metrics().preempted(&policy, pool_of(&policy, self.replica), reason);
    }
}

/// A stream broke after the client had got part of it, and the gateway tried to continue it at
/// another replica.
#[derive(Debug, Clone, Copy)]
pub struct StreamContinuation<'a> {
    pub ids: RequestIds<'a>,
    /// Replica at which the stream broke.
    pub from: ReplicaId,
    /// Replica that continues the stream; absent when no replica does.
    pub to: Option<ReplicaId>,
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
                request_id = shorten(self.ids.request),
                gateway_id = self.ids.gateway,
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

/// A stream broke after the client had got part of it, and was not continued.
#[derive(Debug, Clone, Copy)]
pub struct StreamBroken<'a> {
    pub ids: RequestIds<'a>,
    /// Replica at which the stream broke.
    pub replica: ReplicaId,
    pub fault: EngineFault,
    /// Number of output tokens that the client got.
    pub output_tokens: u64,
}

impl StreamBroken<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let fault = self.fault.name();
        telemetry.log(|| {
            warn!(
                request_id = shorten(self.ids.request),
                gateway_id = self.ids.gateway,
                replica = policy.replicas.name(self.replica),
                fault,
                output_tokens = self.output_tokens,
                "stream broken"
            );
        });
        telemetry.metrics().stream_broken(&policy, pool_of(&policy, self.replica), fault);
    }
}

/// A client failed to authenticate. The line of the request follows.
#[derive(Debug, Clone, Copy)]
pub struct AuthFailed<'a> {
    /// Reason, as a stable code.
    pub reason: &'static str,
    /// Public part of the API key, never the key.
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
    use crate::telemetry::summary::AttemptCounts;

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

        let ids = RequestIds { replaces: Some("try-0"), replaced_by: Some("try-2"), ..success().ids };
        RequestSummary { ids, ..success() }.emit(&telemetry);
        let log = telemetry.captured_log();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!((&line["replaces"], &line["replaced_by"]), (&"try-0".into(), &"try-2".into()));

        let attempts = AttemptCounts { recalls: 2, recall_reason: Some("stalled"), ..success().attempts };
        RequestSummary { attempts, ..success() }.emit(&telemetry);
        let log = telemetry.captured_log();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!((&line["recalls"], &line["recall_reason"]), (&2.into(), &"stalled".into()));
        assert_eq!((&line["expected_ms"], &line["expected_cached_tokens"]), (&130.0.into(), &0.into()));
    }
}
