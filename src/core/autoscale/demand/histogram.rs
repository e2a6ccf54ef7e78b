//! Coarse histogram: 61 buckets of half an octave, small enough to keep many.

use std::f64::consts::SQRT_2;

use serde::{Deserialize, Serialize};

/// Buckets: half an octave each, from 1 to somewhat over a billion.
const BUCKETS: usize = 61;
/// Buckets per octave.
const STEPS: f64 = 2.0;

/// Coarse histogram: how often values were seen, to within a fifth of each value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoarseHistogram {
    counts: Vec<f64>,
}

impl Default for CoarseHistogram {
    fn default() -> Self {
        Self { counts: vec![0.0; BUCKETS] }
    }
}

/// Bucket of a value, from the bits of the value: its exponent, and whether it lies in the upper
/// half of its octave.
fn bucket(value: f64) -> usize {
    const MANTISSA: u64 = (1 << 52) - 1;
    if value.is_nan() || value < 1.0 {
        return 0;
    }
    let bits = value.to_bits();
    let octave = (bits >> 52) as usize - 1023;
    let upper = (bits & MANTISSA) >= (SQRT_2.to_bits() & MANTISSA);
    (1 + 2 * octave + usize::from(upper)).min(BUCKETS - 1)
}

impl CoarseHistogram {
    /// Counts a value with this weight.
    pub fn add(&mut self, value: f64, weight: f64) {
        if self.counts.len() != BUCKETS {
            self.counts.resize(BUCKETS, 0.0);
        }
        self.counts[bucket(value)] += weight;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts.resize(BUCKETS, 0.0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
    }

    /// Multiplies all counts by `kept`, so that older values weigh less.
    pub fn fade(&mut self, kept: f64) {
        self.counts.iter_mut().for_each(|count| *count *= kept);
    }

    /// Sum of all weights.
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Quantile `part`, `0.0..=1.0`: the middle of its bucket. Zero while the histogram is empty.
    pub fn quantile(&self, part: f64) -> f64 {
        match self.at(part) {
            None | Some(0) => 0.0,
            Some(at) => ((at as f64 - 0.5) / STEPS).exp2(),
        }
    }

    /// Value at quantile `part`, at the position `within` its bucket, `0.0..1.0`; `None` while the
    /// histogram is empty. With both arguments at random, the values follow the histogram's
    /// distribution.
    pub fn draw(&self, part: f64, within: f64) -> Option<f64> {
        match self.at(part)? {
            0 => Some(within),
            at => Some(((at as f64 - 1.0 + within) / STEPS).exp2()),
        }
    }

    fn at(&self, part: f64) -> Option<usize> {
        let mut left = self.total() * part.clamp(0.0, 1.0);
        self.counts.iter().position(|count| {
            left -= count;
            *count > 0.0 && left <= 1e-9
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_fifth() {
        let mut hist = CoarseHistogram::default();
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

    #[test]
    fn a_bucket_is_half_an_octave() {
        for value in [1.0, 1.3, 1.5, 2.0, 3.0, 1000.0, 1e6, 1.23e8] {
            assert_eq!(bucket(value), 1 + (f64::log2(value) * STEPS) as usize, "{value}");
        }
        assert_eq!((bucket(0.5), bucket(-3.0), bucket(f64::NAN)), (0, 0, 0));
        assert_eq!((bucket(1e300), bucket(f64::INFINITY)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn what_is_drawn_is_as_it_was_seen() {
        let mut hist = CoarseHistogram::default();
        assert_eq!(hist.draw(0.5, 0.5), None);
        hist.add(100.0, 3.0);
        hist.add(5_000.0, 1.0);
        let drawn: Vec<f64> = (0..100).filter_map(|i| hist.draw(f64::from(i) / 100.0, 0.5)).collect();
        let small = drawn.iter().filter(|value| (70.0..130.0).contains(*value)).count();
        assert!((74..=76).contains(&small) && drawn.len() == 100, "{small}");
    }
}
