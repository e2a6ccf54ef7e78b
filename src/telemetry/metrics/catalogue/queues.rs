//! Metrics of the section "Queues".

use crate::telemetry::metrics::catalogue::row::{CLASS, MODEL, TENANT, gauge};

section! {
    QUEUE_DEPTH = gauge("penstock_queue_depth", "Waiting requests.", &[TENANT, CLASS, MODEL]);

    QUEUE_OLDEST = gauge(
        "penstock_queue_oldest_seconds",
        "Age of the oldest waiting request.",
        &[TENANT, CLASS, MODEL],
    );

    QUEUE_TOKENS = gauge(
        "penstock_queue_tokens",
        "Tokens (prompt and asked output) of the waiting requests.",
        &[TENANT, CLASS, MODEL],
    );
}
