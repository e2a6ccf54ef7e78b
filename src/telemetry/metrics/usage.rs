//! The usage journal's metrics, as handles that its threads keep.

use metrics::{Counter, Gauge, Label, Recorder};

use crate::telemetry::metrics::catalogue::{
    Metric, USAGE_DATABASE_ROWS, USAGE_DATABASE_UP, USAGE_DROPPED, USAGE_ROWS, USAGE_UNREAD,
};
use crate::telemetry::metrics::{METADATA, Metrics, counter, labels};

/// What the usage journal counts.
#[derive(Clone)]
pub struct UsageMeters {
    /// Rows written to the journal.
    pub written: Counter,
    /// Rows that the disk did not take in time.
    pub dropped_queue: Counter,
    /// Rows whose segment went before the database had read it.
    pub dropped_unread: Counter,
    /// Rows that the database has taken.
    pub stored: Counter,
    /// Bytes of the journal that the database has not read yet.
    pub unread: Gauge,
}

impl std::fmt::Debug for UsageMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UsageMeters")
    }
}

impl Metrics {
    pub(in crate::telemetry) fn usage_meters(&self) -> UsageMeters {
        let count = |metric: &Metric, labels| counter(&self.recorder, metric, labels);
        let dropped = |reason| count(&USAGE_DROPPED, vec![Label::from_static_parts("reason", reason)]);
        UsageMeters {
            written: count(&USAGE_ROWS, Vec::new()),
            dropped_queue: dropped("queue"),
            dropped_unread: dropped("unread"),
            stored: count(&USAGE_DATABASE_ROWS, Vec::new()),
            unread: self.recorder.register_gauge(&USAGE_UNREAD.name.into(), &METADATA),
        }
    }

    pub(in crate::telemetry) fn usage_database(&self, database: &'static str, up: bool) {
        let labels = vec![Label::from_static_parts("database", database)];
        let key = labels::key(USAGE_DATABASE_UP.name, labels);
        self.recorder.register_gauge(&key, &METADATA).set(if up { 1.0 } else { 0.0 });
    }
}
