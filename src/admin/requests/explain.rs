//! `GET /admin/v1/requests/{id}`: the reasons for a request's replica, or for its wait. Times are
//! in seconds. Fields with `after` count from the request's arrival.

use serde_json::{Value, json};

use crate::admin::requests::secs;
use crate::core::model::event::DispatchReason;
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::WaitExplanation;
use crate::core::replica::affinity::adapter_slots::AdapterState;
use crate::core::replica::bottleneck::Bottleneck;
use crate::core::replica::scores::OtherReplica;
use crate::dispatcher::Dispatcher;
use crate::telemetry::Telemetry;
use crate::telemetry::request_history::{AttemptTrail, RequestState, RequestTrail, TrailFallback};
use crate::telemetry::summary::GuardrailCheck;
use crate::telemetry::wall;

/// The request with this id as JSON; `None` if this gateway does not remember it.
pub fn find(id: &str, telemetry: &Telemetry, dispatcher: &Dispatcher, policy: &Policy) -> Option<Value> {
    let trail = telemetry.history().find(id)?.look(RequestTrail::clone);
    let waiting = dispatcher.explain(trail.job);
    let mut view = request(&trail, waiting.as_ref(), policy);
    let others = telemetry.history().same_request_id(&trail);
    view["same_request_id"] = others.iter().filter_map(|id| id.to_str().ok()).collect();
    Some(view)
}

/// Request trail as JSON.
pub(in crate::admin) fn request(
    trail: &RequestTrail,
    waiting: Option<&WaitExplanation>,
    policy: &Policy,
) -> Value {
    let tries = trail.tries.iter().map(|attempt| attempt_json(attempt, policy));
    // The scheduler may have taken the request back a moment ago.
    let state = match (trail.state(), waiting) {
        (RequestState::Running, Some(_)) => RequestState::Waiting,
        (state, _) => state,
    };
    json!({
        "request_id": trail.request_id.to_str().unwrap_or_default(),
        "gateway_id": trail.own_id().to_str().unwrap_or_default(),
        "state": state.name(),
        "came_at_unix": wall::unix_seconds(trail.came),
        "age": wall::seconds_since(trail.came),
        "tenant": policy.tenants.name(trail.tenant),
        "tenant_parent": policy
            .tenants
            .get(trail.tenant)
            .and_then(|row| row.parent)
            .map(|parent| policy.tenants.name(parent)),
        "asked_class": policy.classes.name(trail.class),
        "model": policy.models.name(trail.model),
        "fallback": trail.fallback.map(|TrailFallback { to, why }| {
            json!({ "model": policy.models.name(to), "why": why.name() })
        }),
        "api": trail.api,
        "stream": trail.stream,
        "prompt_tokens": trail.prompt_tokens,
        "prompt_source": trail.prompt_source.name(),
        "tries": tries.collect::<Vec<_>>(),
        "forgotten_tries": trail.forgotten_tries,
        "guardrails": trail.guardrails.iter().map(guardrail_json).collect::<Vec<_>>(),
        "waiting": waiting.filter(|_| trail.end.is_none()).map(|view| waits(view, policy)),
        "end": trail.end.map(|end| json!({
            "outcome": end.outcome.name(),
            "reason": end.reason,
            "status": end.status,
            "total": secs(end.total),
        })),
    })
}

fn guardrail_json(check: &GuardrailCheck) -> Value {
    json!({
        "stage": check.stage.name(),
        "outcome": check.outcome.name(),
        "reason": check.reason.as_deref(),
        "passed": check.passed,
        "took": secs(check.took),
    })
}

fn attempt_json(attempt: &AttemptTrail, policy: &Policy) -> Value {
    let mut why = decision(&attempt.grant.why, policy);
    let scores = &attempt.grant.why.scores;
    why["score"] = json!(secs(scores.chosen.into()));
    why["others"] = scores.others().map(|other| other_json(other, policy)).collect();
    json!({
        "sent_after": secs(attempt.at),
        "pool": policy.pools.name(attempt.grant.pool),
        "replica": policy.replicas.name(attempt.grant.replica),
        "why": why,
        "first_token_after": attempt.first_token.map(secs),
        "back": attempt.back.map(|back| json!({ "after": secs(back.at), "why": back.why.name() })),
    })
}

/// A replica that a decision did not choose.
fn other_json(other: &OtherReplica, policy: &Policy) -> Value {
    json!({
        "replica": policy.replicas.name(other.replica),
        "score": secs(other.score.into()),
        "expected_ttft": secs(other.ttft.into()),
        "cached_tokens": other.cached_tokens,
        "why_not": other.why_not.name(),
    })
}

/// Dispatch decision, with the ledger on which the decision was made.
pub(super) fn decision(why: &DispatchReason, policy: &Policy) -> Value {
    json!({
        "turn": why.order.name(),
        "choice": why.placement.name(),
        "passed_over": why.passed_over.map(|over| {
            json!({ "pool": policy.pools.name(over.pool), "why": if over.busy { "busy" } else { "too_late" } })
        }),
        "class": policy.classes.name(why.class),
        "demoted_from": why.demoted_from.map(|class| policy.classes.name(class)),
        "attempt": why.attempt,
        "queued": secs(why.queued),
        "left_waiting": why.behind,
        "candidates": why.candidates,
        "expected_ttft": secs(why.expected),
        "cached_tokens": why.cached_tokens,
        "adapter": why.adapter.map(AdapterState::name),
        "outstanding_tokens": why.outstanding_tokens,
        "running": why.running,
        "limit": why.limit,
    })
}

fn waits(view: &WaitExplanation, policy: &Policy) -> Value {
    let replicas = view.replicas.iter().map(|choice| {
        json!({
            "replica": policy.replicas.name(choice.replica),
            "state": choice.state.name(),
            "running": choice.running,
            "limit": choice.limit,
            "fits": choice.fits,
            "held_back_by": choice.bottleneck.map(Bottleneck::name),
            "failed_it_before": choice.failed_before,
            "adapter": choice.adapter.map(AdapterState::name),
            "expected_ttft": secs(choice.expected),
        })
    });
    json!({
        "obstacle": view.obstacle.name(),
        "class": policy.classes.name(view.class),
        "demoted_from": view.demoted_from.map(|class| policy.classes.name(class)),
        "queued": secs(view.queued),
        "may_wait_on": secs(view.left),
        "ahead_of_it": view.ahead,
        "waiting_in_group": view.waiting,
        "waits_for_replica": view.waits_for.map(|replica| policy.replicas.name(replica)),
        "decides_again_in": view.decides_again_in.map(secs),
        "starts_in": view.starts_in.map(secs),
        "replicas_in_all": view.replicas_in_all,
        "replicas": replicas.collect::<Vec<_>>(),
    })
}
