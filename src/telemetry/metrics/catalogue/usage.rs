//! Metrics of the section "Cost and usage".

use crate::core::billing::bill::WasteCause;
use crate::telemetry::metrics::catalogue::row::{POOL, TENANT, ZeroSeries, codes, counter, gauge, label};

section! {
    GPU_SECONDS = counter(
        "penstock_gpu_seconds_total",
        "Replicas' time that requests took, each step shared by its tokens; of one replica, whatever accelerators it has.",
        &[TENANT, POOL],
        ZeroSeries::None,
    );

    COST = counter(
        "penstock_cost_total",
        "What that time costs at the price of its pool, in the currency of the configuration.",
        &[TENANT, POOL],
        ZeroSeries::None,
    );

    WASTED_TOKENS = counter(
        "penstock_wasted_tokens_total",
        "Tokens that engines read or wrote for nobody, by reason; where nobody counted, the part of the prompt that was not cached.",
        &[codes("reason", || WasteCause::ALL.map(WasteCause::name).into())],
        ZeroSeries::Codes,
    );

    USAGE_ROWS = counter(
        "penstock_usage_rows_total",
        "Usage rows written to the journal.",
        &[],
        ZeroSeries::None,
    );

    USAGE_DROPPED = counter(
        "penstock_usage_rows_dropped_total",
        "Usage rows that are gone, by reason: `queue` (the disk did not keep up), `unread` (deleted before the database read them).",
        &[label("reason")],
        ZeroSeries::None,
    );

    USAGE_DATABASE_ROWS = counter(
        "penstock_usage_database_rows_total",
        "Usage rows that the database has taken.",
        &[],
        ZeroSeries::None,
    );

    USAGE_DATABASE_DELETED = counter(
        "penstock_usage_database_rows_deleted_total",
        "Usage rows that were deleted from the database for their age (`usage.retention`).",
        &[],
        ZeroSeries::None,
    );

    USAGE_UNREAD = gauge(
        "penstock_usage_unread_bytes",
        "Bytes of the usage journal that the database has not read yet.",
        &[],
    );

    USAGE_DATABASE_UP = gauge(
        "penstock_usage_database_up",
        "1 while the usage database takes rows, else 0.",
        &[label("database")],
    );
}
