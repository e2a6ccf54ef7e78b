//! Recorder: where counters, gauges and histograms are registered.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use crate::telemetry::metrics::catalogue::{self, Metric, MetricKind};

const METADATA: Metadata<'static> = Metadata::new("penstock", Level::INFO, None);

/// Makes the recorder with the HELP texts and buckets of the catalogue.
pub(super) fn recorder() -> PrometheusRecorder {
    let mut builder = PrometheusBuilder::new();
    for metric in catalogue::all() {
        if let MetricKind::Histogram(buckets) = metric.kind {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.name.into()), buckets)
                .expect("every histogram of the catalogue has buckets");
        }
    }
    let recorder = builder.build_recorder();
    for Metric { name, help, kind, .. } in catalogue::all() {
        let (name, help) = ((*name).into(), (*help).into());
        match kind {
            MetricKind::Counter => recorder.describe_counter(name, None, help),
            MetricKind::Gauge => recorder.describe_gauge(name, None, help),
            MetricKind::Histogram(_) => recorder.describe_histogram(name, None, help),
        }
    }
    recorder
}

pub(super) fn counter(recorder: &PrometheusRecorder, metric: &Metric, labels: Vec<Label>) -> Counter {
    recorder.register_counter(&key(metric, labels), &METADATA)
}

pub(super) fn gauge(recorder: &PrometheusRecorder, metric: &Metric, labels: Vec<Label>) -> Gauge {
    recorder.register_gauge(&key(metric, labels), &METADATA)
}

pub(super) fn histogram(recorder: &PrometheusRecorder, metric: &Metric, labels: Vec<Label>) -> Histogram {
    recorder.register_histogram(&key(metric, labels), &METADATA)
}

fn key(metric: &Metric, labels: Vec<Label>) -> Key {
    debug_assert!(metric.has_labels(labels.iter().map(Label::key)), "{} with {labels:?}", metric.name);
    Key::from_parts(metric.name, labels)
}
