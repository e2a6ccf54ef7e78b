//! Histograms and counters that the engine model does not keep itself.

use super::feed::GeneratedChoice;
use crate::server::target::SequenceTarget;
use penstock_core::model::time::Tick;

/// Bucket bounds of `vllm:time_to_first_token_seconds`.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Bucket bounds of the ITL histograms.
const ITL: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Bucket bounds of the histograms over whole requests.
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Bucket bounds of the token count histograms.
const TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0];

/// A Prometheus histogram.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    pub(crate) edges: &'static [f64],
    /// Count per bucket, not cumulative; one more than `edges`.
    pub(crate) counts: Vec<u64>,
    pub(crate) sum: f64,
}

impl Histogram {
    fn new(edges: &'static [f64]) -> Self {
        Self { edges, counts: vec![0; edges.len() + 1], sum: 0.0 }
    }

    fn record(&mut self, value: f64) {
        let bucket = self.edges.partition_point(|edge| *edge < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }
}

/// Histograms and counters of one engine.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) ttft: Histogram,
    pub(crate) itl: Histogram,
    pub(crate) queue: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) inference: Histogram,
    pub(crate) e2e: Histogram,
    pub(crate) per_token: Histogram,
    pub(crate) prompt_tokens: Histogram,
    pub(crate) generated_tokens: Histogram,
    pub(crate) stopped: u64,
    pub(crate) length: u64,
    pub(crate) aborted: u64,
    pub(crate) rejected: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            ttft: Histogram::new(TTFT),
            itl: Histogram::new(ITL),
            queue: Histogram::new(REQUEST),
            prefill: Histogram::new(REQUEST),
            decode: Histogram::new(REQUEST),
            inference: Histogram::new(REQUEST),
            e2e: Histogram::new(REQUEST),
            per_token: Histogram::new(ITL),
            prompt_tokens: Histogram::new(TOKENS),
            generated_tokens: Histogram::new(TOKENS),
            stopped: 0,
            length: 0,
            aborted: 0,
            rejected: 0,
        }
    }
}

fn seconds(from: Tick, to: Tick) -> f64 {
    to.since(from).as_secs_f64()
}

impl Stats {
    /// Records one token of a sequence; `choice` has the state before the
    /// token.
    pub(crate) fn token(&mut self, target: &SequenceTarget, choice: &GeneratedChoice, at: Tick) {
        if choice.tokens == 0 {
            self.ttft.record(seconds(target.feed.arrived, at));
        } else {
            self.itl.record(seconds(choice.last_token, at));
        }
    }

    /// Records a complete sequence.
    pub(crate) fn finished(&mut self, target: &SequenceTarget, choice: &GeneratedChoice, at: Tick) {
        let arrived = target.feed.arrived;
        let scheduled = choice.scheduled.unwrap_or(arrived);
        let first = if choice.tokens == 0 { at } else { choice.first_token };
        *(if target.stops { &mut self.stopped } else { &mut self.length }) += 1;
        self.queue.record(seconds(arrived, scheduled));
        self.prefill.record(seconds(scheduled, first));
        self.decode.record(seconds(first, at));
        self.inference.record(seconds(scheduled, at));
        self.e2e.record(seconds(arrived, at));
        if choice.tokens > 1 {
            self.per_token.record(seconds(first, at) / f64::from(choice.tokens - 1));
        }
        self.prompt_tokens.record(f64::from(target.prompt_tokens));
        self.generated_tokens.record(f64::from(choice.tokens));
    }
}
