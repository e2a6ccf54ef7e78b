//! Surges of work: the surges of a source, and which of them a scaler can
//! answer.
//!
//! Work is given in bins of equal length. The slow window is a minute, or a
//! replica's start time if that is longer. A surge begins with a bin of at
//! least [`SURGE_FACTOR`] times the mean of the bins in the slow window before. A surge
//! ends with two bins in a row below that level, or after three slow windows,
//! when the surge has become the new level. A surge that ends before a replica
//! could start is noise to a scaler: only warm replicas can carry such a surge.

use std::time::Duration;

use serde::Serialize;

/// Multiple of the level before at which a surge begins.
pub const SURGE_FACTOR: f64 = 1.5;
/// Slow windows after which a surge becomes the new level.
const NEW_LEVEL: usize = 3;

/// A surge of work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Surge {
    /// Begin, in seconds.
    pub at_s: f64,
    /// Length, in seconds.
    pub lasts_s: f64,
    /// Highest bin of the surge over the level before the surge.
    pub height: f64,
}

impl Surge {
    /// Whether the surge ends before a replica could start.
    pub fn is_noise(&self, start: Duration) -> bool {
        self.lasts_s < start.as_secs_f64()
    }
}

/// The surges in `work`. Each bin of `work` is `bin_s` seconds long; `slow` is
/// the slow window.
pub fn surges(work: &[f64], bin_s: f64, slow: Duration) -> Vec<Surge> {
    let window = ((slow.as_secs_f64() / bin_s).ceil() as usize).max(2);
    let overall = work.iter().sum::<f64>() / work.len().max(1) as f64;
    let mut sum = 0.0;
    let mut sums = vec![0.0];
    sums.extend(work.iter().map(|amount| {
        sum += amount;
        sum
    }));
    // After a time without work any work would be a surge. Such work is
    // compared with the overall mean instead.
    let before = |bin: usize| match bin.saturating_sub(window) {
        _ if bin < window => overall,
        from => Some((sums[bin] - sums[from]) / window as f64).filter(|mean| *mean > 0.0).unwrap_or(overall),
    };
    let mut found = Vec::new();
    let mut bin = 0;
    while bin < work.len() {
        let level = before(bin);
        let high =
            |bin: usize| work.get(bin).is_some_and(|amount| *amount > 0.0 && *amount >= SURGE_FACTOR * level);
        if !high(bin) {
            bin += 1;
            continue;
        }
        let mut end = bin + 1;
        while end - bin < NEW_LEVEL * window && (high(end) || high(end + 1)) {
            end += 1;
        }
        let top = work[bin..end.min(work.len())].iter().copied().fold(0.0, f64::max);
        found.push(Surge {
            at_s: bin as f64 * bin_s,
            lasts_s: (end - bin) as f64 * bin_s,
            height: top / level.max(f64::MIN_POSITIVE),
        });
        bin = end;
    }
    found
}

/// The intervals in order, with touching ones merged.
pub fn merge_touching(mut stretches: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    stretches.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut apart: Vec<(f64, f64)> = Vec::new();
    for (from, to) in stretches {
        match apart.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => apart.push((from, to)),
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn with(bins: std::ops::Range<usize>, height: f64) -> Vec<f64> {
        (0..120).map(|bin| if bins.contains(&bin) { height } else { 1.0 }).collect()
    }

    #[test]
    fn stretches_that_touch_are_one() {
        assert_eq!(
            merge_touching(vec![(5.0, 6.0), (0.0, 3.0), (1.0, 2.0), (3.0, 4.0)]),
            [(0.0, 4.0), (5.0, 6.0)]
        );
        assert_eq!(merge_touching(Vec::new()), []);
    }

    #[test]
    fn what_is_over_before_a_replica_has_started_is_noise() {
        let start = Duration::from_secs(180);
        let short = surges(&with(30..34, 3.0), 10.0, start);
        assert_eq!(short, [Surge { at_s: 300.0, lasts_s: 40.0, height: 3.0 }]);
        assert!(short[0].is_noise(start) && !short[0].is_noise(Duration::from_secs(40)));
        let long = surges(&with(30..50, 2.0), 10.0, start);
        assert_eq!((long.len(), long[0].lasts_s), (1, 200.0));
        assert!(!long[0].is_noise(start));
    }

    #[test]
    fn steady_work_and_small_waves_are_no_surge() {
        assert_eq!(surges(&[2.0; 100], 10.0, MINUTE), []);
        assert_eq!(surges(&with(30..34, 1.4), 10.0, MINUTE), []);
        assert_eq!(surges(&[], 10.0, MINUTE), []);
        assert_eq!(surges(&[0.0; 20], 10.0, MINUTE), []);
    }

    #[test]
    fn a_gap_of_one_bin_does_not_end_it_and_a_new_level_does() {
        let mut work = with(30..34, 3.0);
        work[32] = 1.0;
        assert_eq!(surges(&work, 10.0, MINUTE).len(), 1);
        let risen = surges(&with(30..120, 3.0), 10.0, MINUTE);
        assert_eq!((risen.len(), risen[0].lasts_s), (1, 180.0), "{risen:?}");
    }
}
