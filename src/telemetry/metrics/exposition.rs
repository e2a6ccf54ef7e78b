//! Exposition: the text of a scrape.

use std::fmt::{Display, Write};

use crate::telemetry::metrics::catalogue::Metric;

/// Writer of the Prometheus exposition format 0.0.4.
pub(super) struct Exposition<'a>(pub(super) &'a mut String);

impl Exposition<'_> {
    pub(super) fn family(&mut self, metric: &Metric, kind: &str) {
        let Metric { name, help } = metric;
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, metric: &Metric, labels: &[(&str, &str)], value: impl Display) {
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

    pub(super) fn plain(&mut self, metric: &Metric, kind: &str, value: impl Display) {
        self.family(metric, kind);
        self.sample(metric, &[], value);
    }
}
