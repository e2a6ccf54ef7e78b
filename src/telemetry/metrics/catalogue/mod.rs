//! Catalogue of the metrics: a row holds all that is declared about a metric, and the code that feeds
//! the metric names the row. A section is a file here and a heading of docs/reference/metrics.md,
//! which `tests/commands/reference.py` makes from the rows: it takes sections and rows in the order in
//! which they stand.

/// Declares the metrics of a section: a static for each, and `ALL`, which lists them.
macro_rules! section {
    ($($metric:ident = $row:expr;)+) => {
        use crate::telemetry::metrics::catalogue::row::Metric;

        $(pub(in crate::telemetry::metrics) static $metric: Metric = $row;)+

        pub(super) const ALL: &[&Metric] = &[$(&$metric),+];
    };
}

pub(super) mod access;
pub(super) mod cluster;
pub(super) mod gen_ai;
pub(super) mod pools;
pub(super) mod process;
pub(super) mod queues;
pub(super) mod replicas;
pub(super) mod requests;
mod row;
pub(super) mod shadows;
pub(super) mod usage;

pub(super) use self::row::{LabelKey, Metric, MetricKind, ZeroSeries};

const SECTIONS: [&[&Metric]; 10] = [
    requests::ALL,
    queues::ALL,
    pools::ALL,
    replicas::ALL,
    usage::ALL,
    cluster::ALL,
    shadows::ALL,
    access::ALL,
    process::ALL,
    gen_ai::ALL,
];

/// Iterates over every metric.
pub(super) fn all() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.into_iter().flatten().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_row_is_complete() {
        let mut names = BTreeSet::new();
        for metric in all() {
            let Metric { name, help, kind, .. } = metric;
            assert!(names.insert(name), "{name} twice");
            assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
            assert_eq!(*kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
            let labels: BTreeSet<_> = metric.labels.iter().map(|label| label.name).collect();
            assert_eq!(labels.len(), metric.labels.len(), "{name}: a label twice");
        }
    }
}
