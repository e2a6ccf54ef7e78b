//! Recorder: where counters and gauges are registered.

use metrics::{Counter, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use crate::telemetry::metrics::catalogue::{self, Metric};
use crate::telemetry::metrics::labels;

pub(super) const METADATA: Metadata<'static> = Metadata::new("penstock", Level::INFO, None);

pub(super) fn recorder() -> PrometheusRecorder {
    let mut builder = PrometheusBuilder::new();
    for (metric, buckets) in catalogue::HISTOGRAMS {
        builder = builder
            .set_buckets_for_metric(Matcher::Full(metric.name.into()), buckets)
            .expect("every histogram of the catalogue has buckets");
    }
    builder.build_recorder()
}

pub(super) fn counter(recorder: &PrometheusRecorder, metric: &Metric, labels: Vec<Label>) -> Counter {
    recorder.register_counter(&labels::key(metric.name, labels), &METADATA)
}
