//! Metrics of the section "OpenTelemetry GenAI conventions", in Prometheus spelling and with
//! the buckets of the conventions.

use crate::telemetry::metrics::catalogue::row::{histogram, label, optional};

section! {
    GEN_AI_DURATION = histogram(
        "gen_ai_server_request_duration_seconds",
        "Time from a request's head to its last byte or token.",
        &[
            label("gen_ai_operation_name"),
            label("gen_ai_provider_name"),
            label("gen_ai_request_model"),
            optional("error_type"),
        ],
        &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92],
    );

    GEN_AI_FIRST_TOKEN = histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "Time to the first token of successful responses, the queue included.",
        &[
            label("gen_ai_operation_name"),
            label("gen_ai_provider_name"),
            label("gen_ai_request_model"),
            optional("error_type"),
        ],
        &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0],
    );

    GEN_AI_PER_TOKEN = histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "Time per output token after the first one of successful responses.",
        &[
            label("gen_ai_operation_name"),
            label("gen_ai_provider_name"),
            label("gen_ai_request_model"),
            optional("error_type"),
        ],
        &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5],
    );
}
