//! Concurrency: intervals with a begin and an end become levels over time, and
//! percentiles of those levels. Each level is weighted by the time for which it
//! lasts.

use std::time::Duration;

use serde::Serialize;

/// Percentiles of a level over time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LevelPercentiles {
    /// Mean over time.
    pub mean: f64,
    /// Level that is not exceeded for half of the time.
    pub p50: u64,
    /// Level that is not exceeded for nine tenths of the time.
    pub p90: u64,
    /// Level that is not exceeded for 99 % of the time.
    pub p99: u64,
    /// Highest level.
    pub most: u64,
}

/// A stretch of time with its levels.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LevelBin {
    /// Begin, in seconds.
    pub at_s: f64,
    /// Lowest level of the stretch.
    pub low: u64,
    /// Mean level of the stretch.
    pub mean: f64,
    /// Highest level of the stretch.
    pub high: u64,
}

/// A level over time, from 0 to an end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Levels {
    /// In order of time; the first is at 0.
    steps: Vec<LevelStep>,
    end: Duration,
}

/// A level from a moment on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LevelStep {
    at: Duration,
    level: u64,
}

/// A stretch of time without a change of the level.
struct LevelStretch {
    from: Duration,
    lasts: Duration,
    level: u64,
}

impl Levels {
    /// The number of `stays` (begin and end) in progress at each moment from 0
    /// to `end`.
    pub fn of(stays: impl Iterator<Item = (Duration, Duration)>, end: Duration) -> Self {
        let (mut begins, mut ends): (Vec<_>, Vec<_>) =
            stays.filter(|(from, to)| from < to && *from < end).unzip();
        begins.sort_unstable();
        ends.sort_unstable();
        let mut steps = vec![LevelStep { at: Duration::ZERO, level: 0 }];
        let (mut level, mut ended) = (0u64, 0);
        let mut set = |at: Duration, level: u64| match steps.last_mut() {
            Some(last) if last.at == at => last.level = level,
            _ => steps.push(LevelStep { at, level }),
        };
        for begin in begins {
            while ends[ended] <= begin {
                level -= 1;
                set(ends[ended], level);
                ended += 1;
            }
            level += 1;
            set(begin, level);
        }
        for at in &ends[ended..] {
            level -= 1;
            if *at < end {
                set(*at, level);
            }
        }
        Self { steps, end }
    }

    fn stretches(&self) -> impl Iterator<Item = LevelStretch> {
        let nexts = self.steps.iter().skip(1).map(|step| step.at).chain([self.end]);
        let stretch = |(step, next): (&LevelStep, Duration)| LevelStretch {
            from: step.at,
            lasts: next.saturating_sub(step.at),
            level: step.level,
        };
        self.steps.iter().zip(nexts).map(stretch)
    }

    /// Percentiles over the whole time.
    pub fn percentiles(&self) -> LevelPercentiles {
        let most = self.steps.iter().map(|step| step.level).max().unwrap_or(0);
        let mut times = vec![Duration::ZERO; usize::try_from(most).unwrap_or(0) + 1];
        let mut sum = 0.0;
        for LevelStretch { lasts, level, .. } in self.stretches() {
            times[level as usize] += lasts;
            sum += lasts.as_secs_f64() * level as f64;
        }
        let band = |part: f64| {
            let mut left = self.end.mul_f64(part);
            let below = times.iter().position(|time| {
                let reached = *time >= left;
                left = left.saturating_sub(*time);
                reached
            });
            below.map_or(most, |level| level as u64)
        };
        let mean = sum / self.end.as_secs_f64().max(1e-9);
        LevelPercentiles { mean, p50: band(0.5), p90: band(0.9), p99: band(0.99), most }
    }

    /// Levels in stretches of equal width; the last may be shorter.
    pub fn bins(&self, width: Duration) -> Vec<LevelBin> {
        let width = width.max(Duration::from_millis(1));
        let count = self.end.as_nanos().div_ceil(width.as_nanos()).max(1) as usize;
        let seconds = width.as_secs_f64();
        let fresh =
            |index: usize| LevelBin { at_s: index as f64 * seconds, low: u64::MAX, ..LevelBin::default() };
        let mut bins: Vec<LevelBin> = (0..count).map(fresh).collect();
        for LevelStretch { mut from, lasts, level } in self.stretches() {
            let to = from + lasts;
            while from < to {
                let index = ((from.as_nanos() / width.as_nanos()) as usize).min(count - 1);
                let last = index + 1 == count;
                let until = if last { to } else { to.min(width.mul_f64(index as f64 + 1.0)) };
                // Rounding must not stop the loop's progress.
                let until = until.max(from + Duration::from_nanos(1));
                let bin = &mut bins[index];
                (bin.low, bin.high) = (bin.low.min(level), bin.high.max(level));
                bin.mean += (until - from).as_secs_f64() * level as f64;
                from = until;
            }
        }
        for bin in &mut bins {
            let length = (self.end.as_secs_f64() - bin.at_s).clamp(1e-9, seconds);
            (bin.low, bin.mean) = (bin.low.min(bin.high), bin.mean / length);
        }
        bins
    }

    /// Level that is nearly always there: nine of ten stretches of length
    /// `window` have at least this mean.
    pub fn floor(&self, window: Duration) -> f64 {
        let mut means: Vec<f64> = self.bins(window).iter().map(|bin| bin.mean).collect();
        // The last stretch is left out when it is shorter than the others.
        if means.len() > 1 && !self.end.as_nanos().is_multiple_of(window.as_nanos().max(1)) {
            means.pop();
        }
        means.sort_unstable_by(f64::total_cmp);
        means.get(means.len() / 10).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn levels(stays: &[(f64, f64)], end: f64) -> Levels {
        Levels::of(stays.iter().map(|(from, to)| (secs(*from), secs(*to))), secs(end))
    }

    #[test]
    fn a_tiny_trace_counted_by_hand() {
        // 0-4, 1-3, 2-6 and 9-12 in ten seconds:
        // 1 in 0-1, 2 in 1-2, 3 in 2-3, 2 in 3-4, 1 in 4-6, 0 in 6-9, 1 in 9-10.
        let levels = levels(&[(0.0, 4.0), (1.0, 3.0), (2.0, 6.0), (9.0, 12.0)], 10.0);
        let bands = levels.percentiles();
        assert_eq!((bands.p50, bands.p90, bands.p99, bands.most), (1, 2, 3, 3));
        assert!((bands.mean - 1.1).abs() < 1e-9, "{bands:?}");
        let bins = levels.bins(secs(5.0));
        assert_eq!((bins[0].low, bins[0].high, bins[1].low, bins[1].high), (1, 3, 0, 1));
        assert!((bins[0].mean - 1.8).abs() < 1e-9 && (bins[1].mean - 0.4).abs() < 1e-9, "{bins:?}");
        assert!((levels.floor(secs(2.0)) - 0.0).abs() < 1e-9, "6-8 is empty");
        assert!((levels.floor(secs(10.0)) - 1.1).abs() < 1e-9);
    }

    #[test]
    fn ends_come_before_begins_and_empty_stays_are_nothing() {
        let levels = levels(&[(0.0, 1.0), (1.0, 2.0), (1.5, 1.5), (7.0, 8.0)], 2.0);
        assert_eq!(levels.percentiles(), LevelPercentiles { mean: 1.0, p50: 1, p90: 1, p99: 1, most: 1 });
        assert_eq!(Levels::of(std::iter::empty(), secs(1.0)).percentiles(), LevelPercentiles::default());
        assert_eq!(Levels::default().percentiles(), LevelPercentiles::default());
        assert_eq!(Levels::default().bins(secs(1.0)).len(), 1);
    }
}
