//! Metrics of the section "Pools and the scale signal".

use crate::core::placement::unattainable::ObjectiveKind;
use crate::telemetry::metrics::catalogue::row::{
    CLASS, MODEL, POOL, ZeroSeries, codes, counter, gauge, label,
};

section! {
    POOLS_EMPTIED = counter(
        "penstock_pools_emptied_total",
        "Times a pool lost its last replica that takes work: it left, or was ejected.",
        &[POOL],
        ZeroSeries::Pools,
    );

    POOL_STATE = gauge(
        "penstock_pool_state",
        "1 for the state that the pool is in, 0 for the others.",
        &[POOL, label("state")],
    );

    POOL_WAITING = gauge("penstock_pool_waiting", "Waiting requests that may go to the pool.", &[POOL]);

    POOL_READY = gauge("penstock_pool_ready_replicas", "Replicas of the pool that are in service.", &[POOL]);

    POOL_IN_FLIGHT = gauge("penstock_pool_in_flight", "Requests that run in the pool.", &[POOL]);

    POOL_QUEUED_TOKENS = gauge(
        "penstock_pool_queued_tokens",
        "Tokens (prompt and asked output) of waiting requests that may go to the pool.",
        &[POOL],
    );

    DESIRED = gauge(
        "penstock_desired_replicas",
        "Replicas that demand needs in the pool, in all; not a number when that is not known.",
        &[POOL],
    );

    DESIRED_REASON = gauge(
        "penstock_desired_reason",
        "1, with where the pool's desired number of replicas comes from.",
        &[POOL, label("reason")],
    );

    COLD_START = gauge(
        "penstock_cold_start_seconds",
        "Time from the first request held for a pool without replicas to its first token, smoothed; no sample before the first.",
        &[POOL],
    );

    WAKE = gauge(
        "penstock_wake_seconds",
        "Time that replicas of the pool take to wake, smoothed; no sample before the first.",
        &[POOL],
    );

    SEATS = gauge(
        "penstock_seats",
        "Places of the pool's replicas by use: running, free, out of service, or what keeps them from work; they add up to all places.",
        &[POOL, label("state")],
    );

    SCALER_CALLS = counter(
        "penstock_scaler_calls_total",
        "Calls of the external scaler, by method and how they ended.",
        &[
            codes("code", || vec![
                "ok", "invalid_argument", "not_found", "resource_exhausted", "unavailable",
            ]),
            codes("method", || vec![
                "GetMetricSpec", "GetMetrics", "IsActive", "StreamIsActive", "StreamMetricSpec",
            ]),
        ],
        ZeroSeries::Codes,
    );

    SCALER_CLAMPED = counter(
        "penstock_scaler_clamped_total",
        "Answers of the external scaler that minReplicas or maxReplicas of the trigger changed.",
        &[POOL],
        ZeroSeries::Pools,
    );

    SCALE_PEERS = gauge(
        "penstock_scale_peers",
        "Other gateways that serve the same demand, by state: live, replayed (fell silent, what they said last still counts), silent (missed).",
        &[label("state")],
    );

    REPLICA_SECONDS = counter(
        "penstock_replica_seconds_total",
        "Time that the replicas of a pool were there, awake and not gone, by whether they had work of ours.",
        &[POOL, label("use")],
        ZeroSeries::None,
    );

    REPLICA_CHANGES = counter(
        "penstock_replica_changes_total",
        "Replicas that joined or left a pool, or are about to go, by reload or discovery.",
        &[POOL, codes("change", || vec!["joined", "left", "draining", "spot_notice"])],
        ZeroSeries::Pools,
    );

    SOURCE_FAILURES = counter(
        "penstock_source_failures_total",
        "Times a pool's source of replicas could not be asked.",
        &[POOL],
        ZeroSeries::Pools,
    );

    PROMISES_UNKEPT = counter(
        "penstock_promises_unkept_total",
        "Hours in which a class promised what none of its pools had ever kept, by objective.",
        &[CLASS, MODEL, codes("objective", || ObjectiveKind::ALL.map(ObjectiveKind::name).into())],
        ZeroSeries::ObjectiveClassModels,
    );
}
