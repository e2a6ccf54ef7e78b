//! Metric catalogue: the name and HELP text of every metric, and the buckets of the histograms.
//! All durations are in seconds. What a new metric needs beside its row here: "Add a metric" in
//! CONTRIBUTING.md.

/// Metric: its name and HELP text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help }
}

// Counters. Those that a scrape writes have no row in `COUNTERS`.
pub(super) const REQUESTS: Metric = metric(
    "penstock_requests_total",
    "Finished requests by outcome and reason; reason is `none` for a success.",
);
pub(super) const REJECTIONS: Metric =
    metric("penstock_rejections_total", "Requests that the gateway refused, by reason.");
pub(super) const OBJECTIVES: Metric = metric(
    "penstock_objective_total",
    "Requests by class and by whether they kept the objective: `ttft` and `itl` of streams, `answer` (neither failed nor refused for lack of capacity) of all.",
);
pub(super) const TOKENS: Metric = metric(
    "penstock_tokens_total",
    "Tokens as counted by the engines; cached ones are part of input. Source is `exact`, or `partial` for a lower bound.",
);
pub(super) const USAGE_UNKNOWN: Metric = metric(
    "penstock_usage_unknown_total",
    "Requests that reached an engine and whose tokens nobody counted.",
);
pub(super) const PROMPT_COUNTS: Metric = metric(
    "penstock_prompt_counts_total",
    "Prompts by how their tokens were known before an engine had them: `estimate`, `bound` (the bytes alone show that the prompt fits), `ids`, `exact` (the model's own tokenizer), `engine` (asked).",
);
pub(super) const REQUEUES: Metric =
    metric("penstock_requeues_total", "Requests that an engine failed before the first token, queued again.");
pub(super) const FALLBACKS: Metric = metric(
    "penstock_fallbacks_total",
    "Requests that went on as another model, by the two models and why the first could not serve.",
);
pub(super) const LIMITS_MET: Metric =
    metric("penstock_limits_met_total", "Requests that a limit refused, or in shadow mode would have.");
pub(super) const GPU_SECONDS: Metric = metric(
    "penstock_gpu_seconds_total",
    "Replicas' time that requests took, each step shared by its tokens; of one replica, whatever accelerators it has.",
);
pub(super) const COST: Metric = metric(
    "penstock_cost_total",
    "What that time costs at the price of its pool, in the currency of the configuration.",
);
pub(super) const REPLICA_SECONDS: Metric = metric(
    "penstock_replica_seconds_total",
    "Time that the replicas of a pool were there, awake and not gone, by whether they had work of ours.",
);
pub(super) const WASTED_TOKENS: Metric = metric(
    "penstock_wasted_tokens_total",
    "Tokens that engines read or wrote for nobody, by reason; where nobody counted, the part of the prompt that was not cached.",
);
pub(super) const RECALLS: Metric = metric(
    "penstock_recalls_total",
    "Requests that were taken away from a replica before their client saw anything, by reason.",
);
pub(super) const STREAMS_BROKEN: Metric = metric(
    "penstock_streams_broken_total",
    "Streams that broke after the client had got part of them, and stayed broken.",
);
pub(super) const CONTINUATIONS: Metric = metric(
    "penstock_continuations_total",
    "Streams that broke at a replica of the pool and were to go on elsewhere, by outcome.",
);
pub(super) const EJECTIONS: Metric =
    metric("penstock_ejections_total", "Replicas taken out of service, by what was wrong.");
pub(super) const EJECTIONS_SPARED: Metric = metric(
    "penstock_ejections_spared_total",
    "Replicas that failed and stayed in service, since too many of their pool were out already, by what was wrong.",
);
pub(super) const REST_ORDERS: Metric = metric(
    "penstock_rest_orders_total",
    "Times that a replica was told to sleep or to wake, by what came of it.",
);
pub(super) const READMISSIONS: Metric =
    metric("penstock_readmissions_total", "Replicas taken back into service.");
pub(super) const PROBES_FAILED: Metric =
    metric("penstock_probes_failed_total", "Probes of ejected replicas that failed.");
pub(super) const SCRAPES_FAILED: Metric =
    metric("penstock_scrapes_failed_total", "Failed reads of an engine's own metrics.");
pub(super) const MODEL_MISMATCHES: Metric =
    metric("penstock_model_mismatches_total", "Times an engine did not serve the model of the file.");
pub(super) const REPLICA_CHANGES: Metric = metric(
    "penstock_replica_changes_total",
    "Replicas that joined or left a pool, or are about to go, by reload or discovery.",
);
pub(super) const POOLS_EMPTIED: Metric = metric(
    "penstock_pools_emptied_total",
    "Times a pool lost its last replica that takes work: it left, or was ejected.",
);
pub(super) const SOURCE_FAILURES: Metric =
    metric("penstock_source_failures_total", "Times a pool's source of replicas could not be asked.");
pub(super) const PROMISES_UNKEPT: Metric = metric(
    "penstock_promises_unkept_total",
    "Hours in which a class promised what none of its pools had ever kept, by objective.",
);
pub(super) const SHADOW_REQUESTS: Metric = metric(
    "penstock_shadow_requests_total",
    "Requests with a copy for another model, and the copies, by side and outcome.",
);
pub(super) const SHADOW_TOKENS: Metric = metric(
    "penstock_shadow_output_tokens_total",
    "Tokens that requests with a copy came to, and the copies, by side.",
);
pub(super) const SHADOW_SKIPPED: Metric = metric(
    "penstock_shadow_skipped_total",
    "Copies that were not made or not finished, by reason: they take only what nobody else needs.",
);
pub(super) const AUTH_FAILURES: Metric =
    metric("penstock_auth_failures_total", "Requests with no valid key, by reason.");
pub(super) const LINES_KEPT_BACK: Metric = metric(
    "penstock_log_lines_kept_back_total",
    "Refused requests that were counted and not logged, since there were too many of their kind in a second.",
);
pub(super) const CONNECTIONS_REFUSED: Metric =
    metric("penstock_connections_refused_total", "Connections turned away, by reason.");

pub(super) const ANSWERS_CUT_OFF: Metric = metric(
    "penstock_answers_cut_off_total",
    "Answers that were cut off because their clients took them too slowly.",
);
pub(super) const HANDSHAKES_FAILED: Metric = metric(
    "penstock_tls_handshakes_failed_total",
    "Connections lost in the TLS handshake, by listener and reason.",
);
pub(super) const ISSUER_FAILURES: Metric =
    metric("penstock_issuer_failures_total", "Times an identity provider's keys could not be fetched.");
pub(super) const ADMIN_REFUSALS: Metric =
    metric("penstock_admin_refusals_total", "Requests refused at the operators' port, by reason.");
pub(super) const AUDIT_LOST: Metric =
    metric("penstock_audit_lost_total", "Lines that the audit file could not take; the log has them.");

pub(super) const USAGE_ROWS: Metric =
    metric("penstock_usage_rows_total", "Usage rows written to the journal.");
pub(super) const USAGE_DROPPED: Metric = metric(
    "penstock_usage_rows_dropped_total",
    "Usage rows that are gone, by reason: `queue` (the disk did not keep up), `unread` (deleted before the database read them).",
);
pub(super) const RECORD_STEPS: Metric =
    metric("penstock_record_steps_total", "Steps of the scheduler written to the record (`serve --record`).");
pub(super) const RECORD_LOST: Metric = metric(
    "penstock_record_steps_lost_total",
    "Steps of the scheduler that the record lacks: the disk did not keep up, or could not be written.",
);
pub(super) const USAGE_DATABASE_ROWS: Metric =
    metric("penstock_usage_database_rows_total", "Usage rows that the database has taken.");
pub(super) const USAGE_DATABASE_DELETED: Metric = metric(
    "penstock_usage_database_rows_deleted_total",
    "Usage rows that were deleted from the database for their age (`usage.retention`).",
);
pub(super) const SCALER_CALLS: Metric =
    metric("penstock_scaler_calls_total", "Calls of the external scaler, by method and how they ended.");
pub(super) const SCALER_CLAMPED: Metric = metric(
    "penstock_scaler_clamped_total",
    "Answers of the external scaler that minReplicas or maxReplicas of the trigger changed.",
);

pub(super) const GUARDRAIL_CHECKS: Metric = metric(
    "penstock_guardrail_checks_total",
    "Questions to the guardrail service, by what they were about and how they ended.",
);

pub(super) const COUNTERS: &[Metric] = &[
    REQUESTS,
    REJECTIONS,
    OBJECTIVES,
    TOKENS,
    USAGE_UNKNOWN,
    PROMPT_COUNTS,
    REQUEUES,
    FALLBACKS,
    LIMITS_MET,
    WASTED_TOKENS,
    RECALLS,
    STREAMS_BROKEN,
    CONTINUATIONS,
    EJECTIONS,
    EJECTIONS_SPARED,
    REST_ORDERS,
    READMISSIONS,
    PROBES_FAILED,
    SCRAPES_FAILED,
    MODEL_MISMATCHES,
    REPLICA_CHANGES,
    POOLS_EMPTIED,
    SOURCE_FAILURES,
    PROMISES_UNKEPT,
    SHADOW_REQUESTS,
    SHADOW_TOKENS,
    SHADOW_SKIPPED,
    AUTH_FAILURES,
    LINES_KEPT_BACK,
    CONNECTIONS_REFUSED,
    ANSWERS_CUT_OFF,
    HANDSHAKES_FAILED,
    ISSUER_FAILURES,
    ADMIN_REFUSALS,
    AUDIT_LOST,
    USAGE_ROWS,
    USAGE_DROPPED,
    RECORD_STEPS,
    RECORD_LOST,
    USAGE_DATABASE_ROWS,
    USAGE_DATABASE_DELETED,
    SCALER_CALLS,
    SCALER_CLAMPED,
    GUARDRAIL_CHECKS,
];

// Gauges that events set.
pub(super) const OPEN_CONNECTIONS: Metric = metric("penstock_open_connections", "Open client connections.");

pub(super) const CERTIFICATE_ENDS: Metric = metric(
    "penstock_tls_certificate_ends_timestamp_seconds",
    "Unix time at which the listener's certificate ends.",
);

pub(super) const KEYS: Metric = metric(
    "penstock_keys",
    "API keys of tenants by state: active, expiring (active, and ends within 14 days), expired.",
);

pub(super) const KEY_NEXT_EXPIRY: Metric = metric(
    "penstock_key_next_expiry_timestamp_seconds",
    "Unix time at which the next API key ends; 0 = none of those in force ends.",
);

pub(super) const KEY_FILE_PROBLEMS: Metric = metric(
    "penstock_key_file_problems",
    "Files of `auth.keys_dir` that are broken, or some of whose keys are left out; at most 20 are counted.",
);

pub(super) const USAGE_UNREAD: Metric =
    metric("penstock_usage_unread_bytes", "Bytes of the usage journal that the database has not read yet.");

pub(super) const USAGE_DATABASE_UP: Metric =
    metric("penstock_usage_database_up", "1 while the usage database takes rows, else 0.");

pub(super) const CLUSTER_STORE_UP: Metric = metric(
    "penstock_cluster_store_up",
    "1 while the store of `cluster` answers, else 0: the gateway then goes on with its last leases of limits.",
);

pub(super) const CLUSTER_LEASES_OVER: Metric =
    metric("penstock_cluster_leases_over", "1 while leases have ended (`cluster.outage`), else 0.");

pub(super) const CLUSTER_GATEWAYS: Metric =
    metric("penstock_cluster_gateways", "Gateways that share limits, this one included, as last heard.");

pub(super) const SCALE_PEERS: Metric = metric(
    "penstock_scale_peers",
    "Other gateways that serve the same demand, by state: live, replayed (fell silent, what they said last still counts), silent (missed).",
);

pub(super) const GAUGES: &[Metric] = &[
    OPEN_CONNECTIONS,
    CERTIFICATE_ENDS,
    KEYS,
    KEY_NEXT_EXPIRY,
    KEY_FILE_PROBLEMS,
    CLUSTER_STORE_UP,
    CLUSTER_LEASES_OVER,
    CLUSTER_GATEWAYS,
    SCALE_PEERS,
    USAGE_UNREAD,
    USAGE_DATABASE_UP,
];

// Histograms.
pub(super) const QUEUE_WAIT: Metric =
    metric("penstock_queue_wait_seconds", "Time in the gateway's queue, over all tries of a request.");
pub(super) const FIRST_TOKEN: Metric = metric(
    "penstock_time_to_first_token_seconds",
    "Time from a request's head to its first token, the queue included.",
);
pub(super) const INTER_TOKEN: Metric = metric(
    "penstock_inter_token_seconds",
    "Mean time between two tokens of a stream; one sample for each request.",
);
pub(super) const INTER_TOKEN_MAX: Metric = metric(
    "penstock_inter_token_max_seconds",
    "Longest time between two tokens of a stream; one sample for each request.",
);
pub(super) const REQUEST_DURATION: Metric =
    metric("penstock_request_duration_seconds", "Time from a request's head to the end of its answer.");
pub(super) const GUARDRAIL_DURATION: Metric = metric(
    "penstock_guardrail_check_seconds",
    "Time of a question to the guardrail service, the wait for a free call included.",
);
pub(super) const SHADOW_FIRST_TOKEN: Metric = metric(
    "penstock_shadow_first_token_seconds",
    "Time from an engine to the first token of requests with a copy and of the copies, by side.",
);
pub(super) const SHADOW_DURATION: Metric = metric(
    "penstock_shadow_duration_seconds",
    "Time from an engine to the end of requests with a copy and of the copies, by side.",
);
pub(super) const GEN_AI_DURATION: Metric =
    metric("gen_ai_server_request_duration_seconds", "Time from a request's head to its last byte or token.");
pub(super) const GEN_AI_FIRST_TOKEN: Metric = metric(
    "gen_ai_server_time_to_first_token_seconds",
    "Time to the first token of successful responses, the queue included.",
);
pub(super) const GEN_AI_PER_TOKEN: Metric = metric(
    "gen_ai_server_time_per_output_token_seconds",
    "Time per output token after the first one of successful responses.",
);

/// Buckets for TTFT, dense around 150 ms.
const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0,
    10.0, 30.0, 60.0, 120.0, 300.0,
];
const DURATION_BUCKETS: &[f64] =
    &[0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0];

/// Histograms with their buckets. The `penstock_*` buckets are dense where objectives lie: around
/// 150 ms for TTFT, from 20 to 60 ms for ITL. The `gen_ai_*` buckets are those of the OpenTelemetry
/// GenAI conventions.
pub(super) const HISTOGRAMS: &[(Metric, &[f64])] = &[
    (
        QUEUE_WAIT,
        &[
            0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
            120.0, 300.0, 600.0,
        ],
    ),
    (FIRST_TOKEN, FIRST_TOKEN_BUCKETS),
    (SHADOW_FIRST_TOKEN, FIRST_TOKEN_BUCKETS),
    (
        INTER_TOKEN,
        &[
            0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.075, 0.1, 0.15,
            0.25, 0.5, 1.0, 2.5,
        ],
    ),
    (INTER_TOKEN_MAX, &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]),
    (REQUEST_DURATION, DURATION_BUCKETS),
    (SHADOW_DURATION, DURATION_BUCKETS),
    (GUARDRAIL_DURATION, &[0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
    (
        GEN_AI_DURATION,
        &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92],
    ),
    (
        GEN_AI_FIRST_TOKEN,
        &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0],
    ),
    (GEN_AI_PER_TOKEN, &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]),
];

// Metrics read from the scheduler, the engines' reports and the process at each scrape.
pub(super) const QUEUE_DEPTH: Metric = metric("penstock_queue_depth", "Waiting requests.");
pub(super) const QUEUE_OLDEST: Metric =
    metric("penstock_queue_oldest_seconds", "Age of the oldest waiting request.");
pub(super) const QUEUE_TOKENS: Metric =
    metric("penstock_queue_tokens", "Tokens (prompt and asked output) of the waiting requests.");
pub(super) const JOBS: Metric = metric("penstock_jobs", "Admitted requests in any phase.");
pub(super) const BROKEN_INVARIANTS: Metric =
    metric("penstock_broken_invariants", "Invariants found broken since the start; 0 in a healthy process.");
pub(super) const OVERRIDES: Metric =
    metric("penstock_overrides", "What operators have set apart from the file and is in force, by kind.");
pub(super) const POOL_STATE: Metric =
    metric("penstock_pool_state", "1 for the state that the pool is in, 0 for the others.");
pub(super) const POOL_WAITING: Metric =
    metric("penstock_pool_waiting", "Waiting requests that may go to the pool.");
pub(super) const DESIRED: Metric = metric(
    "penstock_desired_replicas",
    "Replicas that demand needs in the pool, in all; not a number when that is not known.",
);
pub(super) const DESIRED_REASON: Metric =
    metric("penstock_desired_reason", "1, with where the pool's desired number of replicas comes from.");
pub(super) const POOL_READY: Metric =
    metric("penstock_pool_ready_replicas", "Replicas of the pool that are in service.");
pub(super) const POOL_IN_FLIGHT: Metric = metric("penstock_pool_in_flight", "Requests that run in the pool.");
pub(super) const POOL_QUEUED_TOKENS: Metric = metric(
    "penstock_pool_queued_tokens",
    "Tokens (prompt and asked output) of waiting requests that may go to the pool.",
);
pub(super) const COLD_START: Metric = metric(
    "penstock_cold_start_seconds",
    "Time from the first request held for a pool without replicas to its first token, smoothed; no sample before the first.",
);
pub(super) const WAKE: Metric = metric(
    "penstock_wake_seconds",
    "Time that replicas of the pool take to wake, smoothed; no sample before the first.",
);
pub(super) const REPLICA_RUNNING: Metric =
    metric("penstock_replica_running", "Sequences that the ledger books on the replica.");
pub(super) const REPLICA_LIMIT: Metric =
    metric("penstock_replica_limit", "Sequences that the replica may have now.");
pub(super) const REPLICA_PREFILL: Metric = metric(
    "penstock_replica_prefill_tokens",
    "Prompt tokens sent to the replica whose first token has not come or, for plain answers, is not due.",
);
pub(super) const REPLICA_KV: Metric =
    metric("penstock_replica_kv_tokens", "KV tokens that the ledger books on the replica.");
pub(super) const SEATS: Metric = metric(
    "penstock_seats",
    "Places of the pool's replicas by use: running, free, out of service, or what keeps them from work; they add up to all places.",
);
pub(super) const REPLICA_STATE: Metric =
    metric("penstock_replica_state", "1 for the state that the replica is in, 0 for the others.");
pub(super) const ENGINE_RUNNING: Metric =
    metric("penstock_engine_running", "Sequences that the engine says it runs.");
pub(super) const ENGINE_WAITING: Metric =
    metric("penstock_engine_waiting", "Requests that the engine says it holds back.");
pub(super) const ENGINE_KV_USAGE: Metric =
    metric("penstock_engine_kv_usage", "Use of the KV cache as the engine says it, from 0 to 1.");
pub(super) const ENGINE_REPORT_AGE: Metric =
    metric("penstock_engine_report_age_seconds", "Age of the engine's last report, or time without one.");
pub(super) const CONFIG_SUCCESSFUL: Metric =
    metric("penstock_config_last_reload_successful", "1 when the last load of the configuration succeeded.");
pub(super) const CONFIG_TIMESTAMP: Metric = metric(
    "penstock_config_last_reload_timestamp_seconds",
    "Unix time at which the configuration in force was loaded.",
);
pub(super) const CONFIG_GENERATION: Metric =
    metric("penstock_config_generation", "Counts the loaded configurations.");
pub(super) const CONFIG_INFO: Metric =
    metric("penstock_config_info", "1, with the digest of the configuration in force.");
pub(super) const BUILD_INFO: Metric = metric("penstock_build_info", "1, with the version of the program.");
pub(super) const LOG_LINES_DROPPED: Metric =
    metric("penstock_log_lines_dropped_total", "Log lines lost because standard error was too slow.");
