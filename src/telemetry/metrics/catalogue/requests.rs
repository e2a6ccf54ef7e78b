//! Metrics of the section "Requests". Their buckets are dense where objectives lie: around 150 ms for
//! TTFT, from 20 to 60 ms for ITL.

use crate::core::model::event::RejectReason;
use crate::core::placement::unattainable::ObjectiveKind;
use crate::telemetry::metrics::catalogue::row::{
    CLASS, DURATION_BUCKETS, FIRST_TOKEN_BUCKETS, MODEL, POOL, TENANT, ZeroSeries, codes, counter, gauge,
    histogram, label,
};
use crate::telemetry::summary::{GuardrailOutcome, GuardrailStage, RequestOutcome};
use crate::tokens::CountSource;

/// The objective that every request has: the client gets its whole answer.
const ANSWER: &str = "answer";

/// Values of the label `objective`.
pub(in crate::telemetry::metrics) const OBJECTIVE_NAMES: [&str; 3] =
    [ObjectiveKind::Ttft.name(), ObjectiveKind::Itl.name(), ANSWER];

/// Values of the label `kept`.
pub(in crate::telemetry::metrics) const OBJECTIVE_KEPT: [&str; 2] = ["true", "false"];

section! {
    REQUESTS = counter(
        "penstock_requests_total",
        "Finished requests by outcome and reason; reason is `none` for a success.",
        &[
            TENANT,
            CLASS,
            MODEL,
            POOL,
            codes("outcome", || vec![RequestOutcome::Success.name()]),
            codes("reason", || vec!["none"]),
        ],
        ZeroSeries::Owners,
    );

    // `slow_down` is the code of a refusal that is not the scheduler's: there is no memory for the body.
    REJECTIONS = counter(
        "penstock_rejections_total",
        "Requests that the gateway refused, by reason.",
        &[codes("reason", || [&RejectReason::NAMES[..], &["slow_down"]].concat())],
        ZeroSeries::Codes,
    );

    REQUEST_DURATION = histogram(
        "penstock_request_duration_seconds",
        "Time from a request's head to the end of its answer.",
        &[TENANT, CLASS, MODEL, POOL],
        DURATION_BUCKETS,
    );

    QUEUE_WAIT = histogram(
        "penstock_queue_wait_seconds",
        "Time in the gateway's queue, over all tries of a request.",
        &[TENANT, CLASS, MODEL, POOL],
        &[
            0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
            120.0, 300.0, 600.0,
        ],
    );

    FIRST_TOKEN = histogram(
        "penstock_time_to_first_token_seconds",
        "Time from a request's head to its first token, the queue included.",
        &[TENANT, CLASS, MODEL, POOL],
        FIRST_TOKEN_BUCKETS,
    );

    INTER_TOKEN = histogram(
        "penstock_inter_token_seconds",
        "Mean time between two tokens of a stream; one sample for each request.",
        &[TENANT, CLASS, MODEL, POOL],
        &[
            0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.075, 0.1, 0.15,
            0.25, 0.5, 1.0, 2.5,
        ],
    );

    INTER_TOKEN_MAX = histogram(
        "penstock_inter_token_max_seconds",
        "Longest time between two tokens of a stream; one sample for each request.",
        &[TENANT, CLASS, MODEL, POOL],
        &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0],
    );

    TOKENS = counter(
        "penstock_tokens_total",
        "Tokens as counted by the engines; cached ones are part of input. Source is `exact`, or `partial` for a lower bound.",
        &[
            TENANT,
            MODEL,
            codes("kind", || vec!["input", "cached", "output"]),
            codes("source", || vec!["exact"]),
        ],
        ZeroSeries::Owners,
    );

    USAGE_UNKNOWN = counter(
        "penstock_usage_unknown_total",
        "Requests that reached an engine and whose tokens nobody counted.",
        &[TENANT, MODEL],
        ZeroSeries::Owners,
    );

    PROMPT_COUNTS = counter(
        "penstock_prompt_counts_total",
        "Prompts by how their tokens were known before an engine had them: `estimate`, `bound` (the bytes alone show that the prompt fits), `ids`, `exact` (the model's own tokenizer), `engine` (asked).",
        &[MODEL, codes("source", || CountSource::ALL.map(CountSource::name).into())],
        ZeroSeries::Models,
    );

    FALLBACKS = counter(
        "penstock_fallbacks_total",
        "Requests that went on as another model, by the two models and why the first could not serve.",
        &[label("from"), codes("reason", || RejectReason::NAMES.into()), label("to")],
        ZeroSeries::Fallbacks,
    );

    LIMITS_MET = counter(
        "penstock_limits_met_total",
        "Requests that a limit refused, or in shadow mode would have.",
        &[TENANT, label("scope"), label("unit"), label("period"), label("shadow")],
        ZeroSeries::TenantLimits,
    );

    OBJECTIVES = counter(
        "penstock_objective_total",
        "Requests by class and by whether they kept the objective: `ttft` and `itl` of streams, `answer` (neither failed nor refused for lack of capacity) of all.",
        &[CLASS, codes("objective", || OBJECTIVE_NAMES.into()), codes("kept", || OBJECTIVE_KEPT.into())],
        ZeroSeries::ObjectiveClasses,
    );

    GUARDRAIL_CHECKS = counter(
        "penstock_guardrail_checks_total",
        "Questions to the guardrail service, by what they were about and how they ended.",
        &[
            codes("stage", || GuardrailStage::ALL.map(GuardrailStage::name).into()),
            codes("outcome", || GuardrailOutcome::ALL.map(GuardrailOutcome::name).into()),
        ],
        ZeroSeries::Codes,
    );

    GUARDRAIL_DURATION = histogram(
        "penstock_guardrail_check_seconds",
        "Time of a question to the guardrail service, the wait for a free call included.",
        &[label("stage")],
        &[0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
    );

    JOBS = gauge("penstock_jobs", "Admitted requests in any phase.", &[]);
}
