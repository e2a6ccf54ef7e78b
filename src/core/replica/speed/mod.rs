//! Speed factor of a replica: one learned factor on its predicted times.
//!
//! The factor is observed over predicted TTFT: the ratio of two sums in which older requests
//! fade. The sum of predictions uses the raw prediction, without the factor. A factor that
//! corrects itself, or a mean of ratios, makes routing swing.
//!
//! Evidence of a replica also fades with time, towards the median of its pool. Otherwise a
//! replica that was slow once, and is no longer chosen, would never show anything new. Replicas
//! whose factor lies near the median count as equal, so that noise does not prefer one of them
//! for ever.

pub mod pool_best;
pub mod prefill_rate;
pub(crate) mod step_time;
pub mod ttft_model;

use std::time::Duration;

use crate::model::job::TokenCounts;
use crate::model::time::Tick;

/// Part of the sums that is left after each request.
const KEEP: f64 = 0.98;
/// Half-life of the evidence.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Weight of "as predicted" at the start, in nanoseconds of either sum.
const PRIOR: f64 = 20e6;
/// Least of either sum that remains however long ago it was learned. The factor then stays, without
/// weight against new samples.
const LEAST: f64 = 1e6;
/// Weight of the pool's median against a replica's own evidence, in requests.
const POOL_WEIGHT: f64 = 5.0;
/// Largest multiple of its expected time that one request may count as. The next one in a row
/// counts in full.
const OUTLIER: f64 = 4.0;
/// Time without a first token after which plain answers show the speed of a replica. Their own
/// first tokens are computed, not seen.
const UNSEEN: Duration = Duration::from_secs(30);
/// Factors between these multiples of the pool's median count as the median.
const DEAD_BAND: std::ops::RangeInclusive<f64> = 0.6..=1.6;
/// Smallest and largest factor that counts.
const BOUNDS: (f64, f64) = (1.0 / 256.0, 256.0);

/// Speed factor of one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeedFactor {
    observed: f64,
    raw: f64,
    /// Number of requests that the sums stand for.
    weight: f64,
    /// Mean predicted TTFT of the recent requests.
    raw_mean: f64,
    at: Tick,
    /// When the last first token was seen.
    seen: Option<Tick>,
    /// True when the last request took far longer than expected.
    outlier: bool,
}

impl Default for SpeedFactor {
    fn default() -> Self {
        Self {
            observed: PRIOR,
            raw: PRIOR,
            weight: 0.0,
            raw_mean: 0.0,
            at: Tick::ZERO,
            seen: None,
            outlier: false,
        }
    }
}

/// TTFT of a request as predicted at speed factor 1, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictedTtft {
    /// If the part of the prompt that is taken to be cached is cached there.
    pub raw: u64,
    /// If no part of the prompt is cached there.
    pub cold: u64,
}

/// A plain answer, which came as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainAnswer {
    /// Time from the dispatch until the answer was complete.
    pub took: Duration,
    pub tokens: TokenCounts,
    /// Sequences that the answer has.
    pub seqs: u32,
}

impl SpeedFactor {
    /// Factor on the replica's predicted times as far as its own evidence goes; above 1 for slow
    /// replicas.
    pub fn factor(&self) -> f64 {
        (self.observed / self.raw).clamp(BOUNDS.0, BOUNDS.1)
    }

    /// Mean of the predicted TTFTs that the factor was learned from, in nanoseconds at speed factor
    /// 1.
    pub fn mean_reference(&self) -> f64 {
        if self.weight > 0.0 { self.raw_mean } else { 0.0 }
    }

    /// Whether anything was learned.
    pub fn is_known(&self) -> bool {
        self.weight > 0.0
    }

    /// Learns from a first token that came `observed` nanoseconds after its dispatch. The gateway
    /// cannot see which of the two predictions applied, so any time between them counts as expected.
    pub fn learn(&mut self, observed: u64, predicted: PredictedTtft, now: Tick) {
        self.seen = Some(now);
        let (observed, raw, cold) = (observed as f64, predicted.raw as f64, predicted.cold as f64);
        let as_expected = observed / self.factor();
        self.add(observed, as_expected.clamp(raw, cold.max(raw)), now);
    }

    /// Learns from a plain answer that took `ratio` times as long as predicted at speed factor 1.
    /// Its first token was predicted after `raw` nanoseconds.
    pub fn learn_whole(&mut self, ratio: f64, raw: u64, now: Tick) {
        if self.seen.is_none_or(|seen| now.since(seen) >= UNSEEN) {
            self.add(raw as f64 * ratio, raw as f64, now);
        }
    }

    fn add(&mut self, observed: f64, raw: f64, now: Tick) {
        let fade = self.fade(now);
        let left = fade.max(LEAST / self.raw).min(1.0) * KEEP;
        let most = raw * self.factor() * OUTLIER;
        let far = observed > most;
        let observed = if far && !self.outlier { most } else { observed };
        self.observed = self.observed * left + observed;
        self.raw = self.raw * left + raw;
        self.weight = self.weight * fade * KEEP + 1.0;
        self.raw_mean += (raw - self.raw_mean) / self.weight;
        (self.at, self.outlier) = (now, far);
    }

    /// Part of the evidence that time has left.
    fn fade(&self, now: Tick) -> f64 {
        (-now.since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }
}

/// Bins per octave of the factor.
const STEPS: f64 = 16.0;
/// Bins from 1/256 to 256.
const BINS: usize = 16 * STEPS as usize + 1;

/// Speed factors of a pool's replicas, for their median.
#[derive(Debug, Clone)]
pub struct PoolSpeeds {
    bins: Vec<u32>,
    known: u32,
    median: f64,
}

impl Default for PoolSpeeds {
    fn default() -> Self {
        Self { bins: vec![0; BINS], known: 0, median: 1.0 }
    }
}

/// Bin of a factor in [`PoolSpeeds`].
pub type SpeedBin = u16;

impl PoolSpeeds {
    pub fn bin(factor: f64) -> SpeedBin {
        let at = (factor.log2() + 8.0) * STEPS;
        at.round().clamp(0.0, (BINS - 1) as f64) as SpeedBin
    }

    /// Moves a replica from one bin to another; `None` = no bin.
    pub fn move_replica(&mut self, from: Option<SpeedBin>, to: Option<SpeedBin>) {
        if let Some(bin) = from {
            self.bins[usize::from(bin)] -= 1;
            self.known -= 1;
        }
        if let Some(bin) = to {
            self.bins[usize::from(bin)] += 1;
            self.known += 1;
        }
        self.median = self.find_median();
    }

    /// Median factor, the lower one of two; 1 while none is known.
    pub const fn median(&self) -> f64 {
        self.median
    }

    fn find_median(&self) -> f64 {
        let mut left = self.known.div_ceil(2);
        let at = self.bins.iter().position(|count| {
            left = left.saturating_sub(*count);
            left == 0
        });
        match at.filter(|_| self.known > 0) {
            Some(bin) => ((bin as f64) / STEPS - 8.0).exp2(),
            None => 1.0,
        }
    }

    /// Factor that a replica's predictions are multiplied by: its own factor and the pool's median,
    /// weighted by the evidence.
    pub fn applied(&self, speed: &SpeedFactor, now: Tick) -> f64 {
        let (median, weight) = (self.median, speed.weight * speed.fade(now));
        let factor = (speed.factor() * weight + median * POOL_WEIGHT) / (weight + POOL_WEIGHT);
        if DEAD_BAND.contains(&(factor / median)) { median } else { factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1_000)
    }

    const fn predicted(raw: u64, cold: u64) -> PredictedTtft {
        PredictedTtft { raw: raw * MS, cold: cold * MS }
    }

    #[test]
    fn a_slow_replica_is_found_within_fifty_requests() {
        let mut speed = SpeedFactor::default();
        for _ in 0..50 {
            speed.learn(90 * MS, predicted(30, 30), at(1));
        }
        assert!((2.8..3.01).contains(&speed.factor()), "{}", speed.factor());
        for _ in 0..200 {
            speed.learn(30 * MS, predicted(30, 30), at(1));
        }
        assert!(speed.factor() < 1.1, "{}", speed.factor());
    }

    #[test]
    fn what_an_empty_cache_explains_is_no_slowness() {
        let mut speed = SpeedFactor::default();
        for _ in 0..50 {
            speed.learn(200 * MS, predicted(20, 100), at(1));
        }
        assert!((1.9..2.01).contains(&speed.factor()), "{}", speed.factor());
        for _ in 0..50 {
            speed.learn(40 * MS, predicted(20, 100), at(1));
        }
        assert!((1.9..2.01).contains(&speed.factor()), "{}", speed.factor());
    }

    #[test]
    fn one_outlier_moves_little_and_two_in_a_row_count() {
        let mut speed = SpeedFactor::default();
        for _ in 0..5 {
            speed.learn(30 * MS, predicted(30, 30), at(1));
        }
        speed.learn(3_000 * MS, predicted(30, 30), at(1));
        assert!(speed.factor() < 1.6, "{}", speed.factor());
        speed.learn(3_000 * MS, predicted(30, 30), at(1));
        assert!(speed.factor() > 10.0, "{}", speed.factor());
    }

    #[test]
    fn the_median_follows_its_members() {
        let mut speeds = PoolSpeeds::default();
        assert_eq!(speeds.median(), 1.0);
        for factor in [0.33, 3.0, 3.1, 9.0] {
            speeds.move_replica(None, Some(PoolSpeeds::bin(factor)));
        }
        assert!((2.8..3.2).contains(&speeds.median()), "{}", speeds.median());
        speeds.move_replica(Some(PoolSpeeds::bin(9.0)), None);
        speeds.move_replica(Some(PoolSpeeds::bin(3.1)), Some(PoolSpeeds::bin(0.3)));
        assert!((0.28..0.36).contains(&speeds.median()), "{}", speeds.median());
    }

    fn shown(observed: u64, times: u32) -> SpeedFactor {
        let mut speed = SpeedFactor::default();
        for _ in 0..times {
            speed.learn(observed * MS, predicted(100, 100), at(1));
        }
        speed
    }

    #[test]
    fn near_the_median_counts_as_the_median() {
        let mut speeds = PoolSpeeds::default();
        for observed in [100, 100, 130, 400] {
            speeds.move_replica(None, Some(PoolSpeeds::bin(shown(observed, 100).factor())));
        }
        let median = speeds.median();
        assert_eq!(speeds.applied(&shown(130, 100), at(1)), median);
        assert!(speeds.applied(&shown(400, 100), at(1)) > 3.5);
        assert_eq!(speeds.applied(&SpeedFactor::default(), at(1)), median);
    }

    #[test]
    fn a_newcomer_is_measured_by_its_pool_and_old_evidence_fades() {
        let mut speeds = PoolSpeeds::default();
        let known = shown(50, 100);
        speeds.move_replica(None, Some(PoolSpeeds::bin(known.factor())));
        let mut newcomer = SpeedFactor::default();
        newcomer.learn(30 * MS, predicted(4, 4), at(2));
        let median = speeds.median();
        assert_eq!(speeds.applied(&newcomer, at(2)), median, "one slow first token is no verdict");
        let slow = shown(300, 100);
        assert!(speeds.applied(&slow, at(1)) > median * 4.0);
        assert_eq!(speeds.applied(&slow, at(600)), median, "it is given another chance");
        assert!((2.9..3.1).contains(&slow.factor()), "and what it showed is not forgotten");
    }

    #[test]
    fn plain_answers_tell_only_where_no_stream_does() {
        let mut speed = shown(100, 50);
        speed.learn_whole(9.0, 100 * MS, at(20));
        assert!((0.9..1.1).contains(&speed.factor()), "{}", speed.factor());
        for second in 40..90 {
            speed.learn_whole(3.0, 100 * MS, at(second));
        }
        assert!((2.5..3.1).contains(&speed.factor()), "{}", speed.factor());
    }
}
