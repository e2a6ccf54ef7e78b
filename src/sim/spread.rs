//! Spread of a figure over several runs: its median and range.

use serde::Serialize;

/// The median with the range.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct RunSpread {
    /// The middle one; of an even number the mean of both.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl RunSpread {
    /// Of these values; of none where none is a number.
    #[must_use]
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
