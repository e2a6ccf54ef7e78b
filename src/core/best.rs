//! The best that a pool has shown: what its hardware can do when nothing is in
//! its way. An objective beyond it cannot be kept, whatever the order of work.
//!
//! Gaps between tokens are taken as means of whole stretches at one replica: a
//! burst after a pause looks faster than the engine is. What was shown counts
//! for one to two hours, so that a new model or machine is seen as it is.

use std::time::Duration;

use crate::core::event::Pace;
use crate::core::time::Tick;

/// Gaps of one stretch.
const STRETCH: u64 = 64;
/// After that, what was shown before the last such time is forgotten.
const WINDOW: Duration = Duration::from_secs(3600);

/// What a pool has shown; counted with the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Best {
    /// The shortest time from dispatch to the first token of a stream; absent
    /// before the first.
    pub first_token: Option<Duration>,
    /// How many first tokens that is the best of.
    pub first_tokens: u64,
    /// The shortest mean time between tokens; absent before a whole stretch.
    pub gap: Option<Duration>,
    /// How many gaps that is the best of.
    pub gaps: u64,
    /// The most prompt tokens a second that were read for a first token, those
    /// from a cache left out.
    pub read_per_second: u64,
}

impl Best {
    fn and(self, other: Self) -> Self {
        let shorter = |a: Option<Duration>, b: Option<Duration>| a.into_iter().chain(b).min();
        Self {
            first_token: shorter(self.first_token, other.first_token),
            first_tokens: self.first_tokens.saturating_add(other.first_tokens),
            gap: shorter(self.gap, other.gap),
            gaps: self.gaps.saturating_add(other.gaps),
            read_per_second: self.read_per_second.max(other.read_per_second),
        }
    }
}

/// Keeps the best of a pool.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bests {
    now: Best,
    before: Best,
    since: Tick,
}

impl Bests {
    /// The first token came so long after its dispatch, of a prompt of which so
    /// many tokens had to be read.
    pub fn first_token(&mut self, took: Duration, read: u64, now: Tick) {
        let rate = read as f64 / took.as_secs_f64().max(1e-6);
        let read_per_second = rate as u64;
        self.add(Best { first_token: Some(took), first_tokens: 1, read_per_second, ..Best::default() }, now);
    }

    /// A stretch of gaps between tokens at one replica ended.
    pub fn stretch(&mut self, stretch: &Pace, now: Tick) {
        let mean = u32::try_from(stretch.gaps).ok().and_then(|gaps| stretch.total.checked_div(gaps));
        self.add(Best { gap: mean, gaps: stretch.gaps, ..Best::default() }, now);
    }

    /// What it has shown in the last one to two hours of its work.
    #[must_use]
    pub fn all(&self) -> Best {
        self.now.and(self.before)
    }

    fn add(&mut self, new: Best, now: Tick) {
        if now.since(self.since) >= WINDOW {
            (self.before, self.now, self.since) = (self.now, Best::default(), now);
        }
        self.now = self.now.and(new);
    }
}

/// Gaps at one replica on the way to a stretch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stretch(Pace);

impl Stretch {
    /// Adds gaps; gives the stretch once it is whole.
    pub fn add(&mut self, pace: &Pace) -> Option<Pace> {
        self.0.gaps = self.0.gaps.saturating_add(pace.gaps);
        self.0.total = self.0.total.saturating_add(pace.total);
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
        let mut bests = Bests::default();
        assert_eq!(bests.all(), Best::default());
        for (took, read) in [(300, 3_000), (200, 100), (400, 8_000)] {
            bests.first_token(ms(took), read, Tick::from_millis(1));
        }
        let expected =
            Best { first_token: Some(ms(200)), first_tokens: 3, read_per_second: 20_000, ..Best::default() };
        assert_eq!(bests.all(), expected);
        let hours = |hours: u64| Tick::from_millis(hours * 3_600_000);
        bests.first_token(ms(500), 1, hours(1));
        assert_eq!(bests.all().first_token, Some(ms(200)));
        bests.first_token(ms(500), 1, hours(2));
        assert_eq!((bests.all().first_token, bests.all().first_tokens), (Some(ms(500)), 2));
    }

    #[test]
    fn a_burst_after_a_pause_is_not_taken_for_speed() {
        let (mut bests, mut stretch) = (Bests::default(), Stretch::default());
        for round in 0..100 {
            // A pause of a second and its burst, in two parts.
            for pace in [Pace { gaps: 1, total: ms(1_000) }, Pace { gaps: 19, total: Duration::ZERO }] {
                if let Some(whole) = stretch.add(&pace) {
                    bests.stretch(&whole, Tick::from_millis(round));
                }
            }
        }
        let best = bests.all();
        assert!(best.gap.is_some_and(|gap| gap >= ms(35)) && best.gaps > 1_900, "{best:?}");
    }
}
