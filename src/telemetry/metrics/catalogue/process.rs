//! Metrics of the section "Process and configuration".

use crate::telemetry::metrics::catalogue::row::{ZeroSeries, counter, gauge, histogram, label};

section! {
    CONFIG_SUCCESSFUL = gauge(
        "penstock_config_last_reload_successful",
        "1 when the last load of the configuration succeeded.",
        &[],
    );

    CONFIG_TIMESTAMP = gauge(
        "penstock_config_last_reload_timestamp_seconds",
        "Unix time at which the configuration in force was loaded.",
        &[],
    );

    CONFIG_GENERATION = gauge("penstock_config_generation", "Counts the loaded configurations.", &[]);

    CONFIG_INFO = gauge(
        "penstock_config_info",
        "1, with the digest of the configuration in force.",
        &[label("digest")],
    );

    BUILD_INFO = gauge("penstock_build_info", "1, with the version of the program.", &[label("version")]);

    LOG_LINES_DROPPED = counter(
        "penstock_log_lines_dropped_total",
        "Log lines lost because standard error was too slow.",
        &[],
        ZeroSeries::None,
    );

    WORKER_DELAY = histogram(
        "penstock_worker_delay_seconds",
        "Time for which a task that was ready waited for its worker thread; samples, more of them while requests run.",
        &[],
        &[0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0],
    );

    BROKEN_INVARIANTS = gauge(
        "penstock_broken_invariants",
        "Invariants found broken since the start; 0 in a healthy process.",
        &[],
    );

    OVERRIDES = gauge(
        "penstock_overrides",
        "What operators have set apart from the file and is in force, by kind.",
        &[label("kind")],
    );

    AUDIT_LOST = counter(
        "penstock_audit_lost_total",
        "Lines that the audit file could not take; the log has them.",
        &[],
        ZeroSeries::Codes,
    );

    RECORD_STEPS = counter(
        "penstock_record_steps_total",
        "Steps of the scheduler written to the record (`serve --record`).",
        &[],
        ZeroSeries::None,
    );

    RECORD_LOST = counter(
        "penstock_record_steps_lost_total",
        "Steps of the scheduler that the record lacks: the disk did not keep up, or could not be written.",
        &[],
        ZeroSeries::None,
    );
}
