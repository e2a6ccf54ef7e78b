//! Pool best: the best TTFT and ITL that a pool has shown, which is what its hardware can do
//! when nothing is in its way. An objective beyond the best cannot be kept, whatever the order
//! of work.
//!
//! The ITL is the mean of a whole stretch of gaps at one replica, because a burst after a pause
//! looks faster than the engine is. Samples count for one to two hours, so that a new model or
//! machine is measured afresh.

use std::time::Duration;

use crate::autoscale::demand::histogram::CoarseHistogram;
use crate::model::event::ItlSample;
use crate::model::time::Tick;
use crate::replica::speed::prefill_rate::{PrefillBurst, PrefillRate};

/// Gaps of one stretch.
const STRETCH: u64 = 64;
/// Length of the two windows; samples older than the last window are forgotten.
const WINDOW: Duration = Duration::from_secs(3600);

/// Best values that a pool has shown, with the number of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolBest {
    /// Shortest TTFT of a stream, from its dispatch; absent before the first.
    pub first_token: Option<Duration>,
    /// Number of first tokens that `first_token` is the best of.
    pub first_tokens: u64,
    /// Shortest mean ITL; absent before a whole stretch.
    pub gap: Option<Duration>,
    /// Number of gaps that `gap` is the best of.
    pub gaps: u64,
    /// Highest prefill rate of a first token, in prompt tokens per second, without cached tokens.
    pub prefill_tokens_per_second: u64,
}

impl PoolBest {
    fn merged(self, other: Self) -> Self {
        let shorter = |a: Option<Duration>, b: Option<Duration>| a.into_iter().chain(b).min();
        Self {
            first_token: shorter(self.first_token, other.first_token),
            first_tokens: self.first_tokens.saturating_add(other.first_tokens),
            gap: shorter(self.gap, other.gap),
            gaps: self.gaps.saturating_add(other.gaps),
            prefill_tokens_per_second: self.prefill_tokens_per_second.max(other.prefill_tokens_per_second),
        }
    }
}

/// Usual values of a pool while it works, for plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolTypical {
    /// Prefill rate of a replica, in prompt tokens per second; absent before the first.
    pub prefill_tokens_per_second: Option<u64>,
    /// Median of the mean ITLs; absent before a whole stretch.
    pub gap: Option<Duration>,
}

/// Tracks the best and the usual values of a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolBestTracker {
    now: PoolBest,
    before: PoolBest,
    since: Tick,
    prefill_rate: PrefillRate,
    /// Gaps between tokens, in microseconds.
    gaps: CoarseHistogram,
}

/// Part of the usual values' evidence that is left after each [`WINDOW`].
const KEPT: f64 = 0.5;

impl PoolBestTracker {
    /// Adds a first token that came `took` after its dispatch. `uncached` = prompt tokens that had
    /// to be prefilled.
    pub fn first_token(&mut self, took: Duration, uncached: u64, now: Tick) {
        let rate = uncached as f64 / took.as_secs_f64().max(1e-6);
        let prefill_tokens_per_second = rate as u64;
        self.add(
            PoolBest {
                first_token: Some(took),
                first_tokens: 1,
                prefill_tokens_per_second,
                ..PoolBest::default()
            },
            now,
        );
    }

    /// Adds a stretch of prefill without a pause at one replica.
    pub fn prefill_burst(&mut self, burst: PrefillBurst) {
        self.prefill_rate.add(burst);
    }

    /// Adds a whole stretch of gaps at one replica.
    pub fn stretch(&mut self, stretch: &ItlSample, now: Tick) {
        let mean = u32::try_from(stretch.gaps).ok().and_then(|gaps| stretch.total.checked_div(gaps));
        mean.into_iter().for_each(|mean| self.gaps.add(mean.as_nanos() as f64 / 1e3, stretch.gaps as f64));
        self.add(PoolBest { gap: mean, gaps: stretch.gaps, ..PoolBest::default() }, now);
    }

    /// Best values of the last one to two hours of work.
    pub fn best(&self) -> PoolBest {
        self.now.merged(self.before)
    }

    /// Usual values; the last hours weigh more than those before.
    pub fn typical(&self) -> PoolTypical {
        let gap = Some(self.gaps.quantile(0.5)).filter(|_| self.gaps.total() > 0.0);
        PoolTypical {
            prefill_tokens_per_second: self.prefill_rate.per_second(self.best().prefill_tokens_per_second),
            gap: gap.map(|micros| Duration::from_nanos((micros * 1e3) as u64)),
        }
    }

    fn add(&mut self, new: PoolBest, now: Tick) {
        if now.since(self.since) >= WINDOW {
            self.prefill_rate.fade(KEPT);
            self.gaps.fade(KEPT);
            (self.before, self.now, self.since) = (self.now, PoolBest::default(), now);
        }
        self.now = self.now.merged(new);
    }
}

/// Gaps at one replica, collected until they make a stretch.
#[derive(Debug, Clone, Copy, Default)]
pub struct GapStretch(ItlSample);

impl GapStretch {
    /// Adds gaps. Returns the stretch once it is whole.
    pub fn add(&mut self, sample: &ItlSample) -> Option<ItlSample> {
        self.0.gaps = self.0.gaps.saturating_add(sample.gaps);
        self.0.total = self.0.total.saturating_add(sample.total);
        (self.0.gaps >= STRETCH).then(|| std::mem::take(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_best_counts_with_its_evidence_and_is_forgotten() {
        let mut bests = PoolBestTracker::default();
        assert_eq!(bests.best(), PoolBest::default());
        for (took, uncached) in [(300, 3_000), (200, 100), (400, 8_000)] {
            bests.first_token(ms(took), uncached, Tick::from_millis(1));
        }
        let expected = PoolBest {
            first_token: Some(ms(200)),
            first_tokens: 3,
            prefill_tokens_per_second: 20_000,
            ..PoolBest::default()
        };
        assert_eq!(bests.best(), expected);
        let hours = |hours: u64| Tick::from_millis(hours * 3_600_000);
        bests.first_token(ms(500), 1, hours(1));
        assert_eq!(bests.best().first_token, Some(ms(200)));
        bests.first_token(ms(500), 1, hours(2));
        assert_eq!((bests.best().first_token, bests.best().first_tokens), (Some(ms(500)), 2));
    }

    #[test]
    fn what_is_usual_is_not_the_best() {
        let mut bests = PoolBestTracker::default();
        assert_eq!(bests.typical(), PoolTypical::default());
        for _ in 0..100 {
            bests.first_token(ms(100), 2_000, Tick::from_millis(1));
            bests.stretch(&ItlSample { gaps: 100, total: ms(1_600) }, Tick::from_millis(1));
        }
        bests.first_token(ms(10), 2_000, Tick::from_millis(1));
        bests.stretch(&ItlSample { gaps: 100, total: ms(800) }, Tick::from_millis(1));
        assert_eq!((bests.best().prefill_tokens_per_second, bests.best().gap), (200_000, Some(ms(8))));
        let usual = bests.typical();
        let gap = usual.gap.unwrap();
        assert!((ms(13)..ms(20)).contains(&gap), "{gap:?}");
    }

    #[test]
    fn a_burst_after_a_pause_is_not_taken_for_speed() {
        let (mut bests, mut stretch) = (PoolBestTracker::default(), GapStretch::default());
        for round in 0..100 {
            // A pause of a second and its burst, in two parts.
            for sample in
                [ItlSample { gaps: 1, total: ms(1_000) }, ItlSample { gaps: 19, total: Duration::ZERO }]
            {
                if let Some(whole) = stretch.add(&sample) {
                    bests.stretch(&whole, Tick::from_millis(round));
                }
            }
        }
        let best = bests.best();
        assert!(best.gap.is_some_and(|gap| gap >= ms(35)) && best.gaps > 1_900, "{best:?}");
    }
}
