//! Work over time: each job's is spread over the time that it is expected to
//! take, so that a long job weighs on the minutes that it will run, not on the
//! moment at which it came.

use std::time::Duration;

use crate::core::model::time::Tick;

/// Length of a slot in seconds.
pub const SLOT: f64 = 5.0;
/// Slots that are remembered, somewhat more than ten minutes.
pub const PAST: usize = 128;
/// Slots ahead over which work is spread at most, five minutes.
const AHEAD: usize = 60;
/// One more, for the end of what lasts longest.
const RING: usize = AHEAD + 4;

/// The number of the slot that an instant is in.
#[must_use]
pub const fn slot(now: Tick) -> u64 {
    now.as_nanos() / (SLOT as u64 * 1_000_000_000)
}

/// Work by slots. Adding takes constant time, however long the work lasts.
#[derive(Debug, Clone, Default)]
pub struct WorkSpread {
    slot: u64,
    /// What the slot under way holds so far.
    level: f64,
    /// What those before it held.
    past: Vec<f64>,
    /// By how much the level changes when a slot begins.
    changes: Vec<f64>,
}

impl WorkSpread {
    /// So much work begins that will take so long.
    pub fn add(&mut self, now: Tick, work: f64, lasts: Duration) {
        if self.past.is_empty() {
            (self.past, self.changes) = (vec![0.0; PAST], vec![0.0; RING]);
            self.slot = slot(now);
        }
        self.advance(now);
        let slots = ((lasts.as_secs_f64() / SLOT).ceil() as usize).clamp(1, AHEAD);
        let each = work / slots as f64;
        self.level += each;
        self.changes[(self.slot as usize + slots) % RING] -= each;
    }

    /// Ends the slots that are over.
    pub fn advance(&mut self, now: Tick) {
        let target = slot(now);
        if self.past.is_empty() || target <= self.slot {
            return;
        }
        if target - self.slot > (PAST + RING) as u64 {
            self.past.fill(0.0);
            self.changes.fill(0.0);
            (self.slot, self.level) = (target, 0.0);
        }
        while self.slot < target {
            self.past[self.slot as usize % PAST] = self.level.max(0.0);
            self.slot += 1;
            self.level += std::mem::take(&mut self.changes[self.slot as usize % RING]);
        }
    }

    /// Work per second in the last `count` slots that ended `skip` slots before
    /// the one under way; up to date after [`Self::advance`].
    #[must_use]
    pub fn mean(&self, skip: usize, count: usize) -> f64 {
        let count = count.min(PAST.saturating_sub(skip)).max(1);
        let sum: f64 = (1..=count).map(|back| self.back(skip + back)).sum();
        sum / (count as f64 * SLOT)
    }

    /// What the slot so many before the one under way held.
    #[must_use]
    pub fn back(&self, back: usize) -> f64 {
        let at = self.slot.checked_sub(back as u64).filter(|_| back <= PAST && !self.past.is_empty());
        at.map_or(0.0, |at| self.past[at as usize % PAST])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    #[test]
    fn work_weighs_on_the_time_that_it_takes() {
        let mut spread = WorkSpread::default();
        spread.add(at(1), 60.0, Duration::from_secs(30));
        spread.advance(at(15));
        assert_eq!((spread.back(1), spread.back(2), spread.back(3)), (10.0, 10.0, 10.0));
        spread.advance(at(60));
        assert_eq!(spread.mean(0, 12), 1.0, "60 in a minute");
        assert_eq!(spread.mean(6, 6), 2.0, "all of it in the first half");
        spread.advance(at(5_000));
        assert_eq!(spread.mean(0, PAST), 0.0);
    }

    #[test]
    fn the_longest_is_spread_over_five_minutes() {
        let mut spread = WorkSpread::default();
        spread.add(at(0), 600.0, Duration::from_secs(86_400));
        spread.advance(at(305));
        assert!((spread.mean(1, 60) - 2.0).abs() < 1e-9);
        assert!(spread.back(1).abs() < 1e-9);
    }
}
