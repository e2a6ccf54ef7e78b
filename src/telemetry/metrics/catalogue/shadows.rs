//! Metrics of the section "Shadows".

use crate::core::model::event::RejectReason;
use crate::telemetry::metrics::catalogue::row::{
    DURATION_BUCKETS, FIRST_TOKEN_BUCKETS, LabelKey, MODEL, ZeroSeries, codes, counter, histogram, label,
};
use crate::telemetry::summary::{RequestOutcome, ShadowSide};

const SIDE: LabelKey = codes("side", || ShadowSide::NAMES.into());

section! {
    SHADOW_REQUESTS = counter(
        "penstock_shadow_requests_total",
        "Requests with a copy for another model, and the copies, by side and outcome.",
        &[
            MODEL,
            label("to"),
            SIDE,
            codes("outcome", || RequestOutcome::ALL.map(RequestOutcome::name).into()),
        ],
        ZeroSeries::Shadows,
    );

    SHADOW_TOKENS = counter(
        "penstock_shadow_output_tokens_total",
        "Tokens that requests with a copy came to, and the copies, by side.",
        &[MODEL, label("to"), SIDE],
        ZeroSeries::Shadows,
    );

    // Three reasons come before the scheduler has the copy; its own are those of refusals.
    SHADOW_SKIPPED = counter(
        "penstock_shadow_skipped_total",
        "Copies that were not made or not finished, by reason: they take only what nobody else needs.",
        &[
            MODEL,
            label("to"),
            codes("reason", || [&["placement", "in_flight", "memory"], &RejectReason::NAMES[..]].concat()),
        ],
        ZeroSeries::Shadows,
    );

    SHADOW_FIRST_TOKEN = histogram(
        "penstock_shadow_first_token_seconds",
        "Time from an engine to the first token of requests with a copy and of the copies, by side.",
        &[MODEL, label("to"), SIDE],
        FIRST_TOKEN_BUCKETS,
    );

    SHADOW_DURATION = histogram(
        "penstock_shadow_duration_seconds",
        "Time from an engine to the end of requests with a copy and of the copies, by side.",
        &[MODEL, label("to"), SIDE],
        DURATION_BUCKETS,
    );
}
