//! Meter of a replica: divides the replica's time among the jobs that run there.
//!
//! An engine computes in steps. The sequences in a step share its time by the tokens that each has
//! in the step: one for a sequence in decode, many for a prompt in prefill. At each moment a job
//! therefore gets the part of the time that corresponds to its weight:
//!
//! ```text
//! time of a job = ∫ weight / (sum of the weights at the replica) dt
//! ```
//!
//! The meter keeps the integral as the virtual clock of processor sharing. One step of the clock is
//! one unit of weight, so that a job joins and leaves without a look at the others. The times of
//! all jobs add up, to the nanosecond, to the time in which the replica had any job. A remainder of
//! less than a nanosecond is billed with the next attempt that ends.
//!
//! A plain answer comes as a whole, so that its first token is not visible. Such a job has one
//! weight throughout: the mean of its tokens over its steps ([`plain_answer_weight`]).

use std::time::Duration;

use crate::model::time::Tick;

/// Parts of a nanosecond that the clock counts, per unit of weight.
const PARTS: u128 = 1 << 32;
/// The most prompt tokens that an engine prefills in one step.
const STEP: u64 = 2_048;

/// Weight of a job in prefill, of whose prompt `tokens` are not cached.
pub fn prefill_weight(tokens: u64) -> u64 {
    tokens.clamp(1, STEP)
}

/// Weight of a job whose first token is not visible: its tokens over the steps that they take.
/// `output` is the expected output in all its sequences.
pub fn plain_answer_weight(uncached: u64, output: u64, sequences: u32) -> u64 {
    let steps = uncached.div_ceil(STEP).saturating_add(output.div_ceil(decode_weight(sequences)));
    uncached.saturating_add(output).div_ceil(steps.max(1)).max(1)
}

/// Weight of a job that decodes `sequences` sequences.
pub fn decode_weight(sequences: u32) -> u64 {
    u64::from(sequences.max(1))
}

/// Meter of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaMeter {
    /// Virtual clock: time per unit of weight since the start, in parts of a nanosecond.
    clock: u128,
    weight: u64,
    busy: u64,
    /// The part of `busy` that was billed to jobs that have left, in nanoseconds. `carry` holds the
    /// parts of a nanosecond that are not billed yet.
    billed: u64,
    carry: u128,
    last: Tick,
}

/// An attempt in the meter of its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeteredAttempt {
    clock_at_start: u128,
    weight: u64,
    /// Time under earlier weights, in parts of a nanosecond.
    earlier: u128,
}

impl MeteredAttempt {
    pub const fn weight(&self) -> u64 {
        self.weight
    }
}

impl ReplicaMeter {
    /// Begins an attempt with the given weight.
    pub fn enter(&mut self, now: Tick, weight: u64) -> MeteredAttempt {
        self.advance(now);
        self.weight = self.weight.saturating_add(weight);
        MeteredAttempt { clock_at_start: self.clock, weight, earlier: 0 }
    }

    /// Changes the weight of a job.
    pub fn reweigh(&mut self, now: Tick, metered: &mut MeteredAttempt, weight: u64) {
        let had = self.close(now, metered);
        *metered = MeteredAttempt { earlier: had, ..self.enter(now, weight) };
    }

    /// Ends an attempt; returns the job's part of the time. The last job to leave gets what rounding
    /// has left.
    pub fn leave(&mut self, now: Tick, metered: &MeteredAttempt) -> Duration {
        let parts = self.close(now, metered) + self.carry;
        let mut nanos = u64::try_from(parts / PARTS).unwrap_or(u64::MAX);
        self.carry = parts % PARTS;
        if self.weight == 0 {
            nanos = self.busy.saturating_sub(self.billed);
            self.carry = 0;
        }
        self.billed = self.billed.saturating_add(nanos);
        Duration::from_nanos(nanos)
    }

    /// Sum of the weights of all jobs at the replica.
    pub const fn weight(&self) -> u64 {
        self.weight
    }

    /// Total time so far in which the replica had any job.
    pub fn busy(&self, now: Tick) -> Duration {
        let since = if self.weight > 0 { now.since(self.last) } else { Duration::ZERO };
        Duration::from_nanos(self.busy).saturating_add(since)
    }

    fn close(&mut self, now: Tick, metered: &MeteredAttempt) -> u128 {
        self.advance(now);
        self.weight = self.weight.saturating_sub(metered.weight);
        metered.earlier + (self.clock - metered.clock_at_start) * u128::from(metered.weight)
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
        let mut metered = meter.enter(at(100), prefill_weight(500));
        meter.reweigh(at(150), &mut metered, decode_weight(1));
        assert_eq!(meter.leave(at(1_100), &metered), Duration::from_millis(1_000));
        assert_eq!(meter.busy(at(9_000)), Duration::from_millis(1_000));
    }

    #[test]
    fn jobs_share_by_the_tokens_of_a_step() {
        let mut meter = ReplicaMeter::default();
        let writer = meter.enter(at(0), decode_weight(1));
        let reader = meter.enter(at(0), prefill_weight(99));
        assert_eq!(meter.leave(at(100), &reader), Duration::from_millis(99));
        let other = meter.enter(at(100), decode_weight(3));
        assert_eq!(meter.leave(at(200), &other), Duration::from_millis(75));
        assert_eq!(meter.leave(at(200), &writer), Duration::from_millis(26));
    }

    #[test]
    fn a_plain_answer_weighs_what_its_steps_hold_on_average() {
        assert_eq!(plain_answer_weight(1_000, 500, 1), 3, "1,500 tokens in 501 steps");
        assert_eq!(plain_answer_weight(1_000, 1_000, 4), 8, "2,000 tokens in 251 steps");
        assert_eq!(plain_answer_weight(8_192, 0, 1), prefill_weight(8_192), "embeddings only read");
        assert_eq!(plain_answer_weight(0, 0, 0), 1);
    }

    proptest! {
        /// The jobs' times never add up to more than the time in which there were any jobs, and to
        /// exactly that time when all jobs have left.
        #[test]
        fn nothing_is_lost_and_nothing_counted_twice(
            steps in prop::collection::vec((0_u64..5_000_000_000, 0_u64..5_000, 0_usize..12), 1..200),
        ) {
            let mut meter = ReplicaMeter::default();
            let mut now = Tick::ZERO;
            let mut attempts: Vec<MeteredAttempt> = Vec::new();
            let mut sum = Duration::ZERO;
            for (passed, tokens, which) in steps {
                now += Duration::from_nanos(passed);
                match which {
                    0..4 => attempts.push(meter.enter(now, prefill_weight(tokens))),
                    4..8 if which - 4 < attempts.len() => meter.reweigh(now, &mut attempts[which - 4], decode_weight(1)),
                    _ if !attempts.is_empty() => {
                        let metered = attempts.swap_remove(which % attempts.len());
                        sum += meter.leave(now, &metered);
                        prop_assert!(sum <= meter.busy(now), "{sum:?} of {:?}", meter.busy(now));
                    }
                    _ => {}
                }
            }
            now += Duration::from_nanos(7);
            let alone = |metered| {
                let mut copy = meter;
                copy.leave(now, metered)
            };
            let fair = attempts.iter().map(alone).sum::<Duration>() + sum;
            let dust = Duration::from_nanos(attempts.len() as u64 + 400);
            prop_assert!(fair <= meter.busy(now) + dust && meter.busy(now) <= fair + dust);
            sum += attempts.iter().map(|metered| meter.leave(now, metered)).sum::<Duration>();
            prop_assert_eq!(sum, meter.busy(now));
            prop_assert_eq!(meter.weight, 0);
        }
    }
}
