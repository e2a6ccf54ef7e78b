//! Usage metrics: handles that the threads of the usage journal and of the record keep.

use metrics::{Counter, Gauge, Label};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::telemetry::metrics::catalogue::Metric;
use crate::telemetry::metrics::catalogue::process::{RECORD_LOST, RECORD_STEPS};
use crate::telemetry::metrics::catalogue::usage::{
    USAGE_DATABASE_DELETED, USAGE_DATABASE_ROWS, USAGE_DROPPED, USAGE_ROWS, USAGE_UNREAD,
};
use crate::telemetry::metrics::recorder::{counter, gauge};

/// Metric handles of the usage journal and its database.
#[derive(Clone)]
pub struct UsageMeters {
    /// Counts rows written to the journal.
    pub written: Counter,
    /// Counts rows dropped because the queue to the disk was full.
    pub dropped_queue: Counter,
    /// Counts rows whose segment was deleted before the database had read it.
    pub dropped_unread: Counter,
    /// Counts rows stored in the database.
    pub stored: Counter,
    /// Counts rows deleted from the database for their age.
    pub deleted: Counter,
    /// Bytes of the journal that the database has not read yet.
    pub unread: Gauge,
}

impl std::fmt::Debug for UsageMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UsageMeters")
    }
}

impl UsageMeters {
    pub(super) fn register(recorder: &PrometheusRecorder) -> Self {
        let count = |metric: &Metric, labels| counter(recorder, metric, labels);
        let dropped = |reason| count(&USAGE_DROPPED, vec![Label::from_static_parts("reason", reason)]);
        Self {
            written: count(&USAGE_ROWS, Vec::new()),
            dropped_queue: dropped("queue"),
            dropped_unread: dropped("unread"),
            deleted: count(&USAGE_DATABASE_DELETED, Vec::new()),
            stored: count(&USAGE_DATABASE_ROWS, Vec::new()),
            unread: gauge(recorder, &USAGE_UNREAD, Vec::new()),
        }
    }
}

/// Metric handles of the record.
#[derive(Clone)]
pub struct RecordMeters {
    /// Counts steps written to the record.
    pub written: Counter,
    /// Counts steps that the record lacks.
    pub lost: Counter,
}

impl std::fmt::Debug for RecordMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordMeters")
    }
}

impl RecordMeters {
    pub(super) fn register(recorder: &PrometheusRecorder) -> Self {
        Self {
            written: counter(recorder, &RECORD_STEPS, Vec::new()),
            lost: counter(recorder, &RECORD_LOST, Vec::new()),
        }
    }
}
