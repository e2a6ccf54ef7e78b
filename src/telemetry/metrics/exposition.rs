//! Exposition: the text of a scrape.

use std::fmt::{Display, Write};

use crate::telemetry::metrics::catalogue::Metric;

/// Writer of the Prometheus exposition format 0.0.4.
pub(super) struct Exposition<'a>(pub(super) &'a mut String);

impl Exposition<'_> {
    pub(super) fn family(&mut self, metric: &Metric) {
        let Metric { name, help, kind, .. } = metric;
        let kind = kind.name();
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, metric: &Metric, labels: &[(&str, &str)], value: impl Display) {
        debug_assert!(
            metric.has_labels(labels.iter().map(|(key, _)| *key)),
            "{} with {labels:?}",
            metric.name
        );
        self.0.push_str(metric.name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push_str(if index == 0 { "{" } else { "," });
            let _ = write!(self.0, "{label}=\"");
            for character in text.chars() {
                match character {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    plain => self.0.push(plain),
                }
            }
            self.0.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    pub(super) fn plain(&mut self, metric: &Metric, value: impl Display) {
        self.family(metric);
        self.sample(metric, &[], value);
    }
}
