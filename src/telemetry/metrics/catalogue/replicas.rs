//! Metrics of the section "Replicas and engines".

use crate::core::model::event::{EngineFault, PreemptReason};
use crate::telemetry::metrics::catalogue::row::{
    LabelKey, POOL, REPLICA, ZeroSeries, codes, counter, gauge, label,
};

const FAULT: LabelKey = codes("fault", || EngineFault::NAMES.into());

section! {
    REPLICA_RUNNING = gauge(
        "penstock_replica_running",
        "Sequences that the ledger books on the replica.",
        &[POOL, REPLICA],
    );

    REPLICA_LIMIT = gauge(
        "penstock_replica_limit",
        "Sequences that the replica may have now.",
        &[POOL, REPLICA],
    );

    REPLICA_PREFILL = gauge(
        "penstock_replica_prefill_tokens",
        "Prompt tokens sent to the replica whose first token has not come or, for plain answers, is not due.",
        &[POOL, REPLICA],
    );

    REPLICA_KV = gauge(
        "penstock_replica_kv_tokens",
        "KV tokens that the ledger books on the replica.",
        &[POOL, REPLICA],
    );

    REPLICA_STATE = gauge(
        "penstock_replica_state",
        "1 for the state that the replica is in, 0 for the others.",
        &[POOL, REPLICA, label("state")],
    );

    ENGINE_RUNNING = gauge(
        "penstock_engine_running",
        "Sequences that the engine says it runs.",
        &[POOL, REPLICA],
    );

    ENGINE_WAITING = gauge(
        "penstock_engine_waiting",
        "Requests that the engine says it holds back.",
        &[POOL, REPLICA],
    );

    ENGINE_KV_USAGE = gauge(
        "penstock_engine_kv_usage",
        "Use of the KV cache as the engine says it, from 0 to 1.",
        &[POOL, REPLICA],
    );

    ENGINE_REPORT_AGE = gauge(
        "penstock_engine_report_age_seconds",
        "Age of the engine's last report, or time without one.",
        &[POOL, REPLICA],
    );

    EJECTIONS = counter(
        "penstock_ejections_total",
        "Replicas taken out of service, by what was wrong.",
        &[POOL, FAULT],
        ZeroSeries::Pools,
    );

    EJECTIONS_SPARED = counter(
        "penstock_ejections_spared_total",
        "Replicas that failed and stayed in service, since too many of their pool were out already, by what was wrong.",
        &[POOL, FAULT],
        ZeroSeries::Pools,
    );

    READMISSIONS = counter(
        "penstock_readmissions_total",
        "Replicas taken back into service.",
        &[POOL],
        ZeroSeries::Pools,
    );

    PROBES_FAILED = counter(
        "penstock_probes_failed_total",
        "Probes of ejected replicas that failed.",
        &[POOL],
        ZeroSeries::Pools,
    );

    SCRAPES_FAILED = counter(
        "penstock_scrapes_failed_total",
        "Failed reads of an engine's own metrics.",
        &[POOL],
        ZeroSeries::Pools,
    );

    MODEL_MISMATCHES = counter(
        "penstock_model_mismatches_total",
        "Times an engine did not serve the model of the file.",
        &[POOL],
        ZeroSeries::Pools,
    );

    REST_ORDERS = counter(
        "penstock_rest_orders_total",
        "Times that a replica was told to sleep or to wake, by what came of it.",
        &[
            codes("order", || vec!["sleep", "wake"]),
            codes("outcome", || vec!["done", "failed", "unknown"]),
            POOL,
        ],
        ZeroSeries::PoolsWithSleep,
    );

    REQUEUES = counter(
        "penstock_requeues_total",
        "Requests that an engine failed before the first token, queued again.",
        &[POOL, FAULT],
        ZeroSeries::Pools,
    );

    RECALLS = counter(
        "penstock_recalls_total",
        "Requests that were taken away from a replica before their client saw anything, by reason.",
        &[POOL, codes("reason", || PreemptReason::NAMES.into())],
        ZeroSeries::Pools,
    );

    STREAMS_BROKEN = counter(
        "penstock_streams_broken_total",
        "Streams that broke after the client had got part of them, and stayed broken.",
        &[POOL, FAULT],
        ZeroSeries::Pools,
    );

    CONTINUATIONS = counter(
        "penstock_continuations_total",
        "Streams that broke at a replica of the pool and were to go on elsewhere, by outcome.",
        &[POOL, codes("outcome", || vec!["continued", "failed"])],
        ZeroSeries::Pools,
    );
}
