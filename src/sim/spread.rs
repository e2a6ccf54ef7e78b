//! Spread of a figure over several runs: its median and range.

use serde::Serialize;

/// Median and range of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct RunSpread {
    /// Median; of an even number of values the mean of the middle two.
    pub median: f64,
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
}

impl RunSpread {
    /// The spread of the values that are numbers; `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median, low, high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_in_its_range() {
        assert_eq!(RunSpread::of([3.0, 1.0, 2.0]), Some(RunSpread { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(RunSpread::of([4.0, 1.0]), Some(RunSpread { median: 2.5, low: 1.0, high: 4.0 }));
        assert_eq!(RunSpread::of([f64::INFINITY]), None);
    }
}
