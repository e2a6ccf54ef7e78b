//! Shadow metrics: series of requests with a shadow copy, and of the copies. Few requests have a
//! copy, so no handle is kept.

use metrics::Label;
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::telemetry::metrics::catalogue;
use crate::telemetry::metrics::recorder::{counter, histogram};
use crate::telemetry::summary::ShadowSide;

/// Labels of a request for `model` and its copy at the model `to`, and one more.
pub(super) fn labels(model: &str, to: &str, more: Label) -> Vec<Label> {
    vec![Label::new("model", model.to_owned()), Label::new("to", to.to_owned()), more]
}

/// Records one side of a comparison under its labels.
pub(super) fn record(recorder: &PrometheusRecorder, labels: &[Label], side: &ShadowSide) {
    let outcome = Label::from_static_parts("outcome", side.outcome.name());
    let with_outcome = labels.iter().cloned().chain([outcome]).collect();
    counter(recorder, &catalogue::shadows::SHADOW_REQUESTS, with_outcome).increment(1);
    if let Some(tokens) = side.output_tokens {
        counter(recorder, &catalogue::shadows::SHADOW_TOKENS, labels.to_vec()).increment(tokens);
    }
    for (metric, sample) in [
        (&catalogue::shadows::SHADOW_FIRST_TOKEN, side.first_token),
        (&catalogue::shadows::SHADOW_DURATION, Some(side.total)),
    ] {
        if let Some(sample) = sample {
            histogram(recorder, metric, labels.to_vec()).record(sample);
        }
    }
}
