//! Coarse histograms, small enough to keep many.

use serde::{Deserialize, Serialize};

/// Buckets: half an octave each, from 1 to somewhat over a billion.
const BUCKETS: usize = 61;
/// Buckets of an octave.
const STEPS: f64 = 2.0;

/// How often values were seen, to within a fifth of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hist {
    counts: Vec<f64>,
}

impl Default for Hist {
    fn default() -> Self {
        Self { counts: vec![0.0; BUCKETS] }
    }
}

fn bucket(value: f64) -> usize {
    if value < 1.0 { 0 } else { (1 + (value.log2() * STEPS) as usize).min(BUCKETS - 1) }
}

impl Hist {
    /// A value was seen; it counts for so much.
    pub fn add(&mut self, value: f64, weight: f64) {
        if self.counts.len() != BUCKETS {
            self.counts.resize(BUCKETS, 0.0);
        }
        self.counts[bucket(value)] += weight;
    }

    /// All that was seen, and that of another.
    pub fn merge(&mut self, other: &Self) {
        self.counts.resize(BUCKETS, 0.0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
    }

    /// Makes what was seen so far count for less.
    pub fn fade(&mut self, kept: f64) {
        self.counts.iter_mut().for_each(|count| *count *= kept);
    }

    /// How much was seen.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// The value that a part of what was seen does not exceed, `0.0..=1.0`: the
    /// middle of its bucket. 0 before anything was seen.
    #[must_use]
    pub fn quantile(&self, part: f64) -> f64 {
        let mut left = self.total() * part.clamp(0.0, 1.0);
        let at = self.counts.iter().position(|count| {
            left -= count;
            *count > 0.0 && left <= 1e-9
        });
        match at {
            None | Some(0) => 0.0,
            Some(at) => ((at as f64 - 0.5) / STEPS).exp2(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_fifth() {
        let mut hist = Hist::default();
        assert_eq!(hist.quantile(0.5), 0.0);
        (1..=1000).for_each(|value| hist.add(f64::from(value), 1.0));
        for part in [0.1, 0.5, 0.9, 0.99] {
            let (seen, wanted) = (hist.quantile(part), 1000.0 * part);
            assert!((seen / wanted - 1.0).abs() < 0.2, "{part}: {seen}");
        }
        hist.add(0.0, 3000.0);
        assert_eq!((hist.quantile(0.5), hist.total()), (0.0, 4000.0));
        hist.fade(0.5);
        assert_eq!(hist.total(), 2000.0);
        hist.add(1e300, 1.0);
        assert!(hist.quantile(1.0) > 1e8);
    }
}
