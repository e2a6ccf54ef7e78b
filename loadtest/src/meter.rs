//! Measurements: one sample per request, histograms over samples, and live counters over
//! everything.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

/// Longest time a histogram holds: one hour, in microseconds.
const MAX_MICROS: u64 = 3_600_000_000;

/// How one request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// 2xx and whole.
    Ok,
    /// Another HTTP status.
    Status(u16),
    /// 2xx, but the answer is not whole.
    Broken(&'static str),
    /// No connection.
    Connect,
    /// The connection broke during the exchange.
    Reset,
    /// Not over in time.
    Timeout,
    /// Never sent, because too many were open; open loop only.
    Overflow,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Ok => f.write_str("ok"),
            Verdict::Status(code) => write!(f, "status {code}"),
            Verdict::Broken(what) => write!(f, "broken: {what}"),
            Verdict::Connect => f.write_str("no connection"),
            Verdict::Reset => f.write_str("connection broke"),
            Verdict::Timeout => f.write_str("timeout"),
            Verdict::Overflow => f.write_str("not sent: too many open"),
        }
    }
}

/// One request's figures.
#[derive(Debug)]
pub struct Sample {
    /// When it was meant to be sent.
    pub intended: Instant,
    /// When it was sent.
    pub sent: Option<Instant>,
    /// When the first output came; streams only.
    pub first_token: Option<Instant>,
    /// When it was over, and how.
    pub ended: Option<(Instant, Verdict)>,
    /// Data events of its stream.
    pub events: u64,
    gaps: Vec<(u32, u32)>,
}

impl Sample {
    /// A request that was meant to be sent at `intended`.
    pub fn new(intended: Instant) -> Self {
        Sample { intended, sent: None, first_token: None, ended: None, events: 0, gaps: Vec::new() }
    }

    /// Notes a pause and the `events` that came together after it.
    pub fn gap(&mut self, pause: Duration, events: u64) {
        let micros = u32::try_from(pause.as_micros()).unwrap_or(u32::MAX);
        self.gaps.push((micros, u32::try_from(events).unwrap_or(u32::MAX)));
    }

    /// Notes the end.
    pub fn end(&mut self, verdict: Verdict) {
        self.ended = Some((Instant::now(), verdict));
    }
}

/// Histograms in microseconds and counts by verdict.
#[derive(Debug)]
pub struct Meter {
    /// Intended send to first output.
    pub ttft: Histogram<u64>,
    /// Intended send to the end.
    pub total: Histogram<u64>,
    /// Between token events; events that came together count 0 each.
    pub gap: Histogram<u64>,
    /// Intended to real send: the load generator's own lateness plus the
    /// time for a connection.
    pub lag: Histogram<u64>,
    /// Requests by how they ended.
    pub verdicts: BTreeMap<Verdict, u64>,
}

impl Default for Meter {
    fn default() -> Self {
        Meter {
            ttft: histogram(),
            total: histogram(),
            gap: histogram(),
            lag: histogram(),
            verdicts: BTreeMap::new(),
        }
    }
}

impl Meter {
    /// Adds one request. Only whole answers count in the latencies, so that
    /// quick refusals do not flatter them.
    pub fn record(&mut self, sample: &Sample) {
        let Some((ended, verdict)) = sample.ended else {
            return;
        };
        self.count(verdict);
        if let Some(sent) = sample.sent {
            add(&mut self.lag, sent.duration_since(sample.intended));
        }
        if verdict != Verdict::Ok {
            return;
        }
        add(&mut self.total, ended.duration_since(sample.intended));
        if let Some(first) = sample.first_token {
            add(&mut self.ttft, first.duration_since(sample.intended));
        }
        for &(micros, events) in &sample.gaps {
            self.gap.saturating_record(u64::from(micros));
            self.gap.saturating_record_n(0, u64::from(events.saturating_sub(1)));
        }
    }

    /// Counts a request without latencies.
    pub fn count(&mut self, verdict: Verdict) {
        *self.verdicts.entry(verdict).or_default() += 1;
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_MICROS, 3).expect("constant bounds are valid")
}

pub(crate) fn add(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(MAX_MICROS));
}

/// Live counters over all requests, warm-up included.
#[derive(Debug, Default)]
pub struct Progress {
    sent: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    events: AtomicU64,
}

/// A reading of [`Progress`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests started.
    pub sent: u64,
    /// Requests over, failed ones included.
    pub completed: u64,
    /// Requests over without a whole answer.
    pub failed: u64,
    /// Data events received.
    pub events: u64,
}

impl Progress {
    pub(crate) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn completed(&self, ok: bool) {
        self.completed.fetch_add(1, Ordering::Relaxed);
        if !ok {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn events(&self, n: u64) {
        self.events.fetch_add(n, Ordering::Relaxed);
    }

    /// Reads all counters.
    pub fn totals(&self) -> Totals {
        Totals {
            sent: self.sent.load(Ordering::Relaxed),
            completed: self.completed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            events: self.events.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_do_not_enter_the_latencies() {
        let mut meter = Meter::default();
        let mut sample = Sample::new(Instant::now());
        sample.end(Verdict::Status(429));
        meter.record(&sample);
        assert_eq!(meter.total.len(), 0);
        assert_eq!(meter.verdicts.get(&Verdict::Status(429)), Some(&1));
    }

    #[test]
    fn events_in_one_frame_share_one_gap() {
        let mut meter = Meter::default();
        let mut sample = Sample::new(Instant::now());
        sample.gap(Duration::from_millis(10), 3);
        sample.end(Verdict::Ok);
        meter.record(&sample);
        assert_eq!(meter.gap.len(), 3);
        assert_eq!(meter.gap.value_at_quantile(0.5), 0);
        assert!(meter.gap.max() >= 10_000);
    }

    #[test]
    fn latency_counts_from_the_intended_time() {
        let mut meter = Meter::default();
        let mut sample = Sample::new(Instant::now());
        sample.sent = Some(sample.intended + Duration::from_secs(2));
        sample.ended = Some((sample.intended + Duration::from_secs(3), Verdict::Ok));
        meter.record(&sample);
        assert!(meter.total.max() >= 2_990_000, "{}", meter.total.max());
        assert!(meter.lag.max() >= 1_990_000, "{}", meter.lag.max());
    }
}
