//! Work spread: the work of each job, spread over the time that the job is expected to take. A
//! long job therefore weighs on the minutes in which it will run, not on the moment of its
//! arrival.

use std::time::Duration;

use crate::model::time::Tick;

/// Length of a slot in seconds.
pub const SLOT: f64 = 5.0;
/// Slots of the past that are kept: somewhat more than ten minutes.
pub const PAST: usize = 128;
/// Most slots ahead over which work is spread: five minutes.
const AHEAD: usize = 60;
/// Slots of the ring of changes: `AHEAD`, and some for the end of the longest work.
const RING: usize = AHEAD + 4;

/// Number of the slot that contains an instant.
pub const fn slot(now: Tick) -> u64 {
    now.as_nanos() / (SLOT as u64 * 1_000_000_000)
}

/// Work by slots. Adding takes constant time, however long the work lasts.
#[derive(Debug, Clone, Default)]
pub struct WorkSpread {
    slot: u64,
    /// Work of the slot under way so far.
    level: f64,
    /// Work of the past slots.
    past: Vec<f64>,
    /// Change of `level` at the begin of each slot.
    changes: Vec<f64>,
}

impl WorkSpread {
    /// Adds work that begins now and takes this long.
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

    /// Work per second in the last `count` slots that ended `skip` slots before the one under way.
    /// Up to date after [`Self::advance`].
    pub fn mean(&self, skip: usize, count: usize) -> f64 {
        let count = count.min(PAST.saturating_sub(skip)).max(1);
        let sum: f64 = (1..=count).map(|back| self.slot_work(skip + back)).sum();
        sum / (count as f64 * SLOT)
    }

    /// Work of the slot `back` slots before the one under way.
    pub fn slot_work(&self, back: usize) -> f64 {
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
        assert_eq!((spread.slot_work(1), spread.slot_work(2), spread.slot_work(3)), (10.0, 10.0, 10.0));
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
        assert!(spread.slot_work(1).abs() < 1e-9);
    }
}
