//! Report of a run, as a table or as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::Instant;

use crate::meter::{Meter, Totals, Verdict};

/// Writes results as JSON, if a file was named.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(path: Option<&Path>, results: &impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, serde_json::to_string_pretty(results)?)
        .with_context(|| format!("write {}", path.display()))
}

/// A moment of the run.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// When.
    pub at: Instant,
    /// Live counters.
    pub totals: Totals,
    /// CPU time of the watched processes, in microseconds.
    pub cpu_micros: u64,
}

/// Figures of one run. Latencies are of the requests that were meant to be
/// sent in the measured window; rates and CPU are of what ended in it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Length of the measured window.
    pub seconds: f64,
    /// Requests that ended in the window.
    pub completed: u64,
    /// Data events that came in the window.
    pub events: u64,
    /// Requests a second.
    pub requests_per_second: f64,
    /// Events a second.
    pub events_per_second: f64,
    /// CPU time of the watched processes a request; absent without any.
    pub cpu_us_per_request: Option<f64>,
    /// CPU time of the watched processes an event.
    pub cpu_us_per_event: Option<f64>,
    /// Intended send to the end of the answer.
    pub total: Option<Quantiles>,
    /// Intended send to the first output.
    pub ttft: Option<Quantiles>,
    /// Between token events.
    pub gap: Option<Quantiles>,
    /// Intended to real send.
    pub send_lag: Option<Quantiles>,
    /// Requests by how they ended.
    pub outcomes: BTreeMap<String, u64>,
}

/// A distribution in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Quantiles {
    /// How many values.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90 %.
    pub p90_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// 99.9 %.
    pub p999_ms: f64,
    /// Highest.
    pub max_ms: f64,
}

impl Quantiles {
    /// The figures of a histogram of microseconds; none of an empty one.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Quantiles {
            count: histogram.len(),
            mean_ms: histogram.mean() / 1e3,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: histogram.max() as f64 / 1e3,
        })
    }
}

impl Report {
    /// Puts a run's figures together.
    pub fn new(meter: &Meter, before: &Reading, after: &Reading, watched: bool) -> Self {
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let completed = after.totals.completed - before.totals.completed;
        let events = after.totals.events - before.totals.events;
        let cpu = after.cpu_micros.saturating_sub(before.cpu_micros) as f64;
        let share = |n: u64| (watched && n > 0).then(|| cpu / n as f64);
        Report {
            seconds,
            completed,
            events,
            requests_per_second: completed as f64 / seconds,
            events_per_second: events as f64 / seconds,
            cpu_us_per_request: share(completed),
            cpu_us_per_event: share(events),
            total: Quantiles::of(&meter.total),
            ttft: Quantiles::of(&meter.ttft),
            gap: Quantiles::of(&meter.gap),
            send_lag: Quantiles::of(&meter.lag),
            outcomes: meter.verdicts.iter().map(|(verdict, n)| (verdict.to_string(), *n)).collect(),
        }
    }

    /// Requests with a whole answer.
    pub fn ok(&self) -> u64 {
        self.outcomes.get(&Verdict::Ok.to_string()).copied().unwrap_or(0)
    }

    /// One line of JSON.
    ///
    /// # Errors
    /// When a figure cannot stand in JSON.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// Lines for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "measured {:.1} s: {} requests ({:.1}/s), {} events ({:.1}/s)\n\n",
            self.seconds, self.completed, self.requests_per_second, self.events, self.events_per_second
        );
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "ms", "count", "mean", "p50", "p90", "p99", "p99.9", "max"
        );
        let rows = [
            ("total", self.total),
            ("first token", self.ttft),
            ("gap", self.gap),
            ("send lag", self.send_lag),
        ];
        for (name, quantiles) in rows {
            let Some(q) = quantiles else {
                continue;
            };
            let _ = writeln!(
                text,
                "{name:<14}{:>10}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}",
                q.count, q.mean_ms, q.p50_ms, q.p90_ms, q.p99_ms, q.p999_ms, q.max_ms
            );
        }
        text.push('\n');
        for (name, count) in &self.outcomes {
            let _ = writeln!(text, "{name:<30}{count:>10}");
        }
        if let Some(cpu) = self.cpu_us_per_request {
            let _ = write!(text, "\nCPU: {cpu:.1} us a request");
        }
        if let Some(cpu) = self.cpu_us_per_event {
            let _ = write!(text, ", {cpu:.2} us an event");
        }
        text.trim_end().to_owned()
    }
}
