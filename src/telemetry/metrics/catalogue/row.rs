//! Rows of the catalogue: a metric with its name, HELP text, kind and labels, and the series with
//! which it starts.

/// All that is declared about a metric.
#[derive(Debug, Clone, Copy)]
pub(in crate::telemetry::metrics) struct Metric {
    pub(in crate::telemetry::metrics) name: &'static str,
    pub(in crate::telemetry::metrics) help: &'static str,
    pub(in crate::telemetry::metrics) kind: MetricKind,
    /// Labels of each series, in their order.
    pub(in crate::telemetry::metrics) labels: &'static [LabelKey],
    pub(in crate::telemetry::metrics) zeros: ZeroSeries,
}

impl Metric {
    /// Whether a series of the metric has exactly these labels, in this order.
    pub(in crate::telemetry::metrics) fn has_labels<'a>(&self, keys: impl Iterator<Item = &'a str>) -> bool {
        let mut keys = keys.peekable();
        let fits = |label: &LabelKey| keys.next_if_eq(&label.name).is_some() || label.is_optional;
        self.labels.iter().all(fits) && keys.next().is_none()
    }
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::telemetry::metrics) enum MetricKind {
    Counter,
    Gauge,
    /// Histogram with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

impl MetricKind {
    /// Name of the kind in the exposition format.
    pub(in crate::telemetry::metrics) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// Label of a metric.
#[derive(Debug, Clone, Copy)]
pub(in crate::telemetry::metrics) struct LabelKey {
    pub(in crate::telemetry::metrics) name: &'static str,
    /// Values that series which start at 0 have, where [`ZeroSeries`] gives none.
    pub(in crate::telemetry::metrics) codes: fn() -> Vec<&'static str>,
    /// Whether there are series without the label.
    pub(in crate::telemetry::metrics) is_optional: bool,
}

/// Series of a counter that start at 0: those of each subject of the policy that is named here, with
/// every combination of the codes of the other labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::telemetry::metrics) enum ZeroSeries {
    /// None: the code that feeds the metric starts its series.
    None,
    /// Of the codes alone.
    Codes,
    /// Of each `pool`.
    Pools,
    /// Of each `pool` whose replicas sleep.
    PoolsWithSleep,
    /// Of each `model`.
    Models,
    /// Of each `class` with objectives.
    ObjectiveClasses,
    /// Of each `class` with objectives and each `model`.
    ObjectiveClassModels,
    /// Of each model (`from`) and its fallbacks (`to`).
    Fallbacks,
    /// Of each `model` and the one that gets copies of its requests (`to`).
    Shadows,
    /// Of each limit of a tenant, on all models or on one: `tenant`, `scope`, `unit`, `period`,
    /// `shadow`. Whose the limits of keys are, the policy does not say.
    TenantLimits,
    /// Of each `tenant`, `class`, `model` and `pool` that the policy allows together.
    Owners,
}

/// Buckets for TTFT, dense around 150 ms.
pub(super) const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0,
    10.0, 30.0, 60.0, 120.0, 300.0,
];
pub(super) const DURATION_BUCKETS: &[f64] =
    &[0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0];

pub(super) const TENANT: LabelKey = label("tenant");
pub(super) const CLASS: LabelKey = label("class");
pub(super) const MODEL: LabelKey = label("model");
pub(super) const POOL: LabelKey = label("pool");
pub(super) const REPLICA: LabelKey = label("replica");

/// Label whose values the configuration has, or only an event or a scrape knows.
pub(super) const fn label(name: &'static str) -> LabelKey {
    codes(name, Vec::new)
}

/// Label whose values are this program's own codes, with those for which series start at 0.
pub(super) const fn codes(name: &'static str, codes: fn() -> Vec<&'static str>) -> LabelKey {
    LabelKey { name, codes, is_optional: false }
}

/// Label that some series lack.
pub(super) const fn optional(name: &'static str) -> LabelKey {
    LabelKey { is_optional: true, ..label(name) }
}

/// Counter. The HELP text is a sentence with its full stop.
pub(super) const fn counter(
    name: &'static str,
    help: &'static str,
    labels: &'static [LabelKey],
    zeros: ZeroSeries,
) -> Metric {
    Metric { name, help, kind: MetricKind::Counter, labels, zeros }
}

/// Gauge. The HELP text is a sentence with its full stop.
pub(super) const fn gauge(name: &'static str, help: &'static str, labels: &'static [LabelKey]) -> Metric {
    Metric { name, help, kind: MetricKind::Gauge, labels, zeros: ZeroSeries::None }
}

/// Histogram. The HELP text is a sentence with its full stop; buckets of durations are in seconds.
pub(super) const fn histogram(
    name: &'static str,
    help: &'static str,
    labels: &'static [LabelKey],
    buckets: &'static [f64],
) -> Metric {
    Metric { name, help, kind: MetricKind::Histogram(buckets), labels, zeros: ZeroSeries::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_the_labels_of_its_row_in_their_order() {
        const METRIC: Metric = gauge("m", "Test.", &[POOL, optional("reason"), MODEL]);
        let has = |keys: &[&str]| METRIC.has_labels(keys.iter().copied());
        assert!(has(&["pool", "reason", "model"]) && has(&["pool", "model"]));
        for keys in
            [&["pool"][..], &["model", "pool"], &["pool", "model", "reason"], &["pool", "tenant", "model"]]
        {
            assert!(!has(keys), "{keys:?}");
        }
    }
}
