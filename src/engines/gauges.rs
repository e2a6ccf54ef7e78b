//! Engine gauges: metric samples by a table of names per engine.

use crate::engines::promtext::{PromSample, samples};

/// Gauges of an engine. `None`: the engine does not report the value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineGauges {
    /// Running sequences.
    pub running: Option<u64>,
    /// Requests that wait inside the engine.
    pub waiting: Option<u64>,
    /// Used share of the KV cache, `0.0..=1.0`. The mean over the data-parallel ranks, to match the
    /// sum in `kv_tokens`.
    pub kv_usage: Option<f64>,
    /// Sequences that the engine can run at once, at least 1.
    pub slots: Option<u32>,
    /// Capacity of the KV cache in tokens, at least 1; the sum over the ranks.
    pub kv_tokens: Option<u64>,
    /// Counter that moves while the engine works.
    pub progress: Option<u64>,
    /// Prompt tokens that came from the prefix cache, since the engine's start; the sum over the
    /// ranks.
    pub cached_tokens: Option<u64>,
    /// Whether the engine sleeps (vLLM). A sleeping engine accepts requests and answers none.
    pub asleep: Option<bool>,
}

/// Samples that hold a gauge: all rows of a metric, or the rows with one label value.
#[derive(Debug, Clone, Copy)]
pub(super) struct GaugeSeries {
    name: &'static str,
    only: Option<GaugeLabel>,
}

#[derive(Debug, Clone, Copy)]
struct GaugeLabel {
    label: &'static str,
    value: &'static str,
}

impl GaugeSeries {
    pub(super) const fn all(name: &'static str) -> Self {
        Self { name, only: None }
    }

    /// Rows of a metric whose `label` is `value`.
    pub(super) const fn only(name: &'static str, label: &'static str, value: &'static str) -> Self {
        Self { name, only: Some(GaugeLabel { label, value }) }
    }

    pub(super) fn matches(&self, sample: &PromSample<'_>) -> bool {
        self.name == sample.name
            && self.only.is_none_or(|only| sample.label(only.label).as_deref() == Some(only.value))
    }
}

/// Series of each gauge. The first series that is present counts, so newer names come first.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GaugeNames {
    pub(super) running: &'static [GaugeSeries],
    pub(super) waiting: &'static [GaugeSeries],
    pub(super) kv_usage: &'static [GaugeSeries],
    pub(super) slots: &'static [GaugeSeries],
    pub(super) kv_tokens: &'static [GaugeSeries],
    pub(super) progress: &'static [GaugeSeries],
    pub(super) cached_tokens: &'static [GaugeSeries],
}

/// Reads `text` by `names`; `None` when `text` has no sample. `keep` sees every sample first and
/// may leave it out.
pub(super) fn read_gauges<'a>(
    text: &'a str,
    names: &GaugeNames,
    mut keep: impl FnMut(&PromSample<'a>) -> bool,
) -> Option<EngineGauges> {
    let fields = [
        names.running,
        names.waiting,
        names.kv_usage,
        names.slots,
        names.kv_tokens,
        names.progress,
        names.cached_tokens,
    ];
    let mut folds = [SeriesFold::default(); 7];
    let mut seen = false;
    for sample in samples(text) {
        seen = true;
        if !keep(&sample) {
            continue;
        }
        for (series, fold) in fields.iter().zip(&mut folds) {
            if let Some(rank) = series.iter().position(|series| series.matches(&sample)) {
                fold.add(rank, sample.value);
            }
        }
    }
    let [running, waiting, kv_usage, slots, kv_tokens, progress, cached_tokens] = folds;
    seen.then(|| EngineGauges {
        running: running.sum(),
        waiting: waiting.sum(),
        kv_usage: kv_usage.mean_share(),
        slots: slots.sum().and_then(|slots| u32::try_from(slots).ok()).filter(|slots| *slots > 0),
        kv_tokens: kv_tokens.sum().filter(|tokens| *tokens > 0),
        progress: progress.sum(),
        cached_tokens: cached_tokens.sum(),
        asleep: None,
    })
}

/// Fold over the rows of the best series so far.
#[derive(Debug, Clone, Copy, Default)]
struct SeriesFold {
    rank: usize,
    rows: u32,
    total: f64,
    highest: f64,
}

impl SeriesFold {
    /// Adds a row. A row that is no number makes the total NaN, because the other rows alone would
    /// be too little.
    fn add(&mut self, rank: usize, value: f64) {
        if self.rows > 0 && rank > self.rank {
            return;
        }
        if rank < self.rank || self.rows == 0 {
            *self = Self { rank, ..Self::default() };
        }
        self.rows += 1;
        self.total += if value >= 0.0 { value } else { f64::NAN };
        self.highest = self.highest.max(value);
    }

    fn sum(self) -> Option<u64> {
        (self.rows > 0).then(|| exact_count(self.total)).flatten()
    }

    fn mean_share(self) -> Option<f64> {
        let mean = self.total / f64::from(self.rows);
        (self.rows > 0 && self.highest <= 1.0 && mean.is_finite()).then_some(mean.min(1.0))
    }
}

/// `value` as a count. `None` when it is negative, not finite, or too large for an `f64` to count
/// exactly.
pub(super) fn exact_count(value: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..=2^53")]
    (0.0..=EXACT).contains(&value).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: GaugeNames = GaugeNames {
        running: &[GaugeSeries::all("new"), GaugeSeries::all("old")],
        waiting: &[GaugeSeries::only("rows", "kind", "waiting")],
        kv_usage: &[GaugeSeries::all("usage")],
        slots: &[GaugeSeries::all("slots")],
        kv_tokens: &[],
        progress: &[],
        cached_tokens: &[GaugeSeries::all("cached")],
    };

    fn read(text: &str) -> EngineGauges {
        read_gauges(text, &NAMES, |_| true).unwrap()
    }

    #[test]
    fn rows_of_one_series_add_up() {
        assert_eq!(read("new{e=\"0\"} 1\nnew{e=\"1\"} 2\n").running, Some(3));
        assert_eq!(read("usage{e=\"0\"} 0.25\nusage{e=\"1\"} 0.75\n").kv_usage, Some(0.5));
    }

    #[test]
    fn the_first_name_wins_in_any_order() {
        assert_eq!(read("new 1\nold 7\nnew 1\n").running, Some(2));
        assert_eq!(read("old 7\nnew 1\nold 7\n").running, Some(1));
        assert_eq!(read("old 7\n").running, Some(7));
    }

    #[test]
    fn only_the_rows_with_the_label_count() {
        assert_eq!(read("rows{kind=\"waiting\"} 3\nrows{kind=\"max\"} 9\nrows 4\n").waiting, Some(3));
    }

    #[test]
    fn nonsense_is_absent_and_not_zero() {
        for value in ["NaN", "-1", "+Inf", "1e300"] {
            assert_eq!(read(&format!("new{{e=\"0\"}} 5\nnew{{e=\"1\"}} {value}\n")).running, None, "{value}");
        }
        assert_eq!(read("usage 62.5\n").kv_usage, None);
        assert_eq!(read("usage{e=\"0\"} 1.5\nusage{e=\"1\"} 0.1\n").kv_usage, None);
        assert_eq!(read("usage NaN\n").kv_usage, None);
        assert_eq!(read("slots 0\n").slots, None);
        assert_eq!(read("slots 1e12\n").slots, None);
        assert_eq!(read("other 1\n"), EngineGauges::default());
    }
}
