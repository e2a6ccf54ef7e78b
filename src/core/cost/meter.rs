//! A replica's time, shared among the jobs that run there.
//!
//! An engine computes in steps, and the sequences in a step share its time by
//! the tokens that each has in it: one for each sequence that writes, many for
//! a prompt that is read. So at each moment a job gets its weight's part of
//! the time that passes,
//!
//! ```text
//! time of a job = ∫ weight / (sum of the weights at the replica) dt
//! ```
//!
//! kept as the virtual clock of processor sharing: a step of the clock is one
//! unit of weight, so that joining and leaving look at nobody else. The times
//! of all jobs together are the time in which the replica had any.

use std::time::Duration;

use crate::core::time::Tick;

/// Parts of a nanosecond that the clock counts, for each unit of weight.
const PARTS: u128 = 1 << 32;
/// Tokens of a prompt that an engine reads in one step, at most.
const STEP: u64 = 2_048;

/// The weight of a job that reads a prompt of which so many tokens are not
/// cached.
#[must_use]
pub fn reading(tokens: u64) -> u64 {
    tokens.clamp(1, STEP)
}

/// The weight of a job that writes so many sequences.
#[must_use]
pub fn writing(sequences: u32) -> u64 {
    u64::from(sequences.max(1))
}

/// One replica's meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meter {
    /// Time for each unit of weight since the start, in parts.
    clock: u128,
    weight: u64,
    busy: u64,
    last: Tick,
}

/// A job's stay at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stay {
    mark: u128,
    weight: u64,
    /// What it came to under earlier weights, in parts.
    had: u128,
}

impl Meter {
    /// A job of this weight comes.
    pub fn enter(&mut self, now: Tick, weight: u64) -> Stay {
        self.advance(now);
        self.weight = self.weight.saturating_add(weight);
        Stay { mark: self.clock, weight, had: 0 }
    }

    /// A job's weight changes.
    pub fn reweigh(&mut self, now: Tick, stay: &mut Stay, weight: u64) {
        let had = self.close(now, stay);
        *stay = Stay { had, ..self.enter(now, weight) };
    }

    /// A job leaves; returns its part of the time.
    pub fn leave(&mut self, now: Tick, stay: &Stay) -> Duration {
        let parts = self.close(now, stay);
        Duration::from_nanos(u64::try_from(parts / PARTS).unwrap_or(u64::MAX))
    }

    /// The time so far in which any job was there.
    #[must_use]
    pub fn busy(&self, now: Tick) -> Duration {
        let since = if self.weight > 0 { now.since(self.last) } else { Duration::ZERO };
        Duration::from_nanos(self.busy).saturating_add(since)
    }

    fn close(&mut self, now: Tick, stay: &Stay) -> u128 {
        self.advance(now);
        self.weight = self.weight.saturating_sub(stay.weight);
        stay.had + (self.clock - stay.mark) * u128::from(stay.weight)
    }

    fn advance(&mut self, now: Tick) {
        let passed = now.since(self.last).as_nanos();
        if self.weight > 0 {
            self.clock += passed * PARTS / u128::from(self.weight);
            self.busy = self.busy.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
        }
        self.last = self.last.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(millis: u64) -> Tick {
        Tick::from_millis(millis)
    }

    #[test]
    fn alone_a_job_has_all_of_the_time() {
        let mut meter = Meter::default();
        let mut stay = meter.enter(at(100), reading(500));
        meter.reweigh(at(150), &mut stay, writing(1));
        assert_eq!(meter.leave(at(1_100), &stay), Duration::from_millis(1_000));
        assert_eq!(meter.busy(at(9_000)), Duration::from_millis(1_000));
    }

    #[test]
    fn jobs_share_by_the_tokens_of_a_step() {
        let mut meter = Meter::default();
        let writer = meter.enter(at(0), writing(1));
        let reader = meter.enter(at(0), reading(99));
        assert_eq!(meter.leave(at(100), &reader), Duration::from_millis(99));
        let other = meter.enter(at(100), writing(3));
        assert_eq!(meter.leave(at(200), &other), Duration::from_millis(75));
        assert_eq!(meter.leave(at(200), &writer), Duration::from_millis(26));
    }

    proptest! {
        /// The jobs' times are the time in which there were any, to a
        /// nanosecond for each job.
        #[test]
        fn nothing_is_lost_and_nothing_counted_twice(
            steps in prop::collection::vec((0_u64..5_000_000_000, 0_u64..5_000, 0_usize..12), 1..200),
        ) {
            let mut meter = Meter::default();
            let mut now = Tick::ZERO;
            let mut stays: Vec<Stay> = Vec::new();
            let (mut sum, mut count) = (Duration::ZERO, 0);
            for (passed, tokens, which) in steps {
                now += Duration::from_nanos(passed);
                match which {
                    0..4 => stays.push(meter.enter(now, reading(tokens))),
                    4..8 if which - 4 < stays.len() => meter.reweigh(now, &mut stays[which - 4], writing(1)),
                    _ if !stays.is_empty() => {
                        let stay = stays.swap_remove(which % stays.len());
                        (sum, count) = (sum + meter.leave(now, &stay), count + 1);
                    }
                    _ => {}
                }
            }
            let left = std::mem::take(&mut stays);
            count += left.len() as u64;
            sum += left.iter().map(|stay| meter.leave(now, stay)).sum::<Duration>();
            let busy = meter.busy(now);
            prop_assert!(sum <= busy, "{sum:?} of {busy:?}");
            prop_assert!(busy - sum <= Duration::from_nanos(count + 400), "{sum:?} of {busy:?}");
            prop_assert_eq!(meter.weight, 0);
        }
    }
}
