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
//! of all jobs together are the time in which the replica had any, to the
//! nanosecond: what one is too little to be told is told with the next.
//!
//! Where nobody sees a first token (a plain answer comes as a whole), a job has
//! the mean of its tokens over its steps as its weight all the time
//! ([`unseen`]).

use std::time::Duration;

use crate::core::model::time::Tick;

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

/// The weight of a job of which nobody sees when it begins to write: its tokens
/// over the steps that they take. `output` is what it is expected to write in
/// all its sequences.
#[must_use]
pub fn unseen(uncached: u64, output: u64, sequences: u32) -> u64 {
    let steps = uncached.div_ceil(STEP).saturating_add(output.div_ceil(writing(sequences)));
    uncached.saturating_add(output).div_ceil(steps.max(1)).max(1)
}

/// The weight of a job that writes so many sequences.
#[must_use]
pub fn writing(sequences: u32) -> u64 {
    u64::from(sequences.max(1))
}

/// One replica's meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaMeter {
    /// Time for each unit of weight since the start, in parts.
    clock: u128,
    weight: u64,
    busy: u64,
    /// Of it, what jobs that left were told, and the parts of a nanosecond that
    /// were not enough to be told.
    told: u64,
    carry: u128,
    last: Tick,
}

/// A job's stay at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeteredStay {
    mark: u128,
    weight: u64,
    /// What it came to under earlier weights, in parts.
    had: u128,
}

impl MeteredStay {
    /// The job's present weight.
    #[must_use]
    pub const fn weight(&self) -> u64 {
        self.weight
    }
}

impl ReplicaMeter {
    /// A job of this weight comes.
    pub fn enter(&mut self, now: Tick, weight: u64) -> MeteredStay {
        self.advance(now);
        self.weight = self.weight.saturating_add(weight);
        MeteredStay { mark: self.clock, weight, had: 0 }
    }

    /// A job's weight changes.
    pub fn reweigh(&mut self, now: Tick, stay: &mut MeteredStay, weight: u64) {
        let had = self.close(now, stay);
        *stay = MeteredStay { had, ..self.enter(now, weight) };
    }

    /// A job leaves; returns its part of the time. The last one takes what
    /// rounding has left.
    pub fn leave(&mut self, now: Tick, stay: &MeteredStay) -> Duration {
        let parts = self.close(now, stay) + self.carry;
        let mut nanos = u64::try_from(parts / PARTS).unwrap_or(u64::MAX);
        self.carry = parts % PARTS;
        if self.weight == 0 {
            nanos = self.busy.saturating_sub(self.told);
            self.carry = 0;
        }
        self.told = self.told.saturating_add(nanos);
        Duration::from_nanos(nanos)
    }

    /// The weights of all jobs that are there.
    #[must_use]
    pub const fn weight(&self) -> u64 {
        self.weight
    }

    /// The time so far in which any job was there.
    #[must_use]
    pub fn busy(&self, now: Tick) -> Duration {
        let since = if self.weight > 0 { now.since(self.last) } else { Duration::ZERO };
        Duration::from_nanos(self.busy).saturating_add(since)
    }

    fn close(&mut self, now: Tick, stay: &MeteredStay) -> u128 {
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
        let mut meter = ReplicaMeter::default();
        let mut stay = meter.enter(at(100), reading(500));
        meter.reweigh(at(150), &mut stay, writing(1));
        assert_eq!(meter.leave(at(1_100), &stay), Duration::from_millis(1_000));
        assert_eq!(meter.busy(at(9_000)), Duration::from_millis(1_000));
    }

    #[test]
    fn jobs_share_by_the_tokens_of_a_step() {
        let mut meter = ReplicaMeter::default();
        let writer = meter.enter(at(0), writing(1));
        let reader = meter.enter(at(0), reading(99));
        assert_eq!(meter.leave(at(100), &reader), Duration::from_millis(99));
        let other = meter.enter(at(100), writing(3));
        assert_eq!(meter.leave(at(200), &other), Duration::from_millis(75));
        assert_eq!(meter.leave(at(200), &writer), Duration::from_millis(26));
    }

    #[test]
    fn a_plain_answer_weighs_what_its_steps_hold_on_average() {
        assert_eq!(unseen(1_000, 500, 1), 3, "1,500 tokens in 501 steps");
        assert_eq!(unseen(1_000, 1_000, 4), 8, "2,000 tokens in 251 steps");
        assert_eq!(unseen(8_192, 0, 1), reading(8_192), "embeddings only read");
        assert_eq!(unseen(0, 0, 0), 1);
    }

    proptest! {
        /// The jobs' times are never more than the time in which there were any,
        /// and exactly that when all have left.
        #[test]
        fn nothing_is_lost_and_nothing_counted_twice(
            steps in prop::collection::vec((0_u64..5_000_000_000, 0_u64..5_000, 0_usize..12), 1..200),
        ) {
            let mut meter = ReplicaMeter::default();
            let mut now = Tick::ZERO;
            let mut stays: Vec<MeteredStay> = Vec::new();
            let mut sum = Duration::ZERO;
            for (passed, tokens, which) in steps {
                now += Duration::from_nanos(passed);
                match which {
                    0..4 => stays.push(meter.enter(now, reading(tokens))),
                    4..8 if which - 4 < stays.len() => meter.reweigh(now, &mut stays[which - 4], writing(1)),
                    _ if !stays.is_empty() => {
                        let stay = stays.swap_remove(which % stays.len());
                        sum += meter.leave(now, &stay);
                        prop_assert!(sum <= meter.busy(now), "{sum:?} of {:?}", meter.busy(now));
                    }
                    _ => {}
                }
            }
            now += Duration::from_nanos(7);
            let alone = |stay| {
                let mut copy = meter;
                copy.leave(now, stay)
            };
            let fair = stays.iter().map(alone).sum::<Duration>() + sum;
            let dust = Duration::from_nanos(stays.len() as u64 + 400);
            prop_assert!(fair <= meter.busy(now) + dust && meter.busy(now) <= fair + dust);
            sum += stays.iter().map(|stay| meter.leave(now, stay)).sum::<Duration>();
            prop_assert_eq!(sum, meter.busy(now));
            prop_assert_eq!(meter.weight, 0);
        }
    }
}
