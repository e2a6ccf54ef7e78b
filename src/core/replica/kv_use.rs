//! KV use: how much less of the KV cache a replica's jobs hold than the ledger books.
//!
//! # Shared prompts
//!
//! The ledger counts each prompt whole. An engine with a prefix cache keeps the common parts of
//! prompts once, and some engines keep less than one token's worth per token. The engine's own
//! gauge shows both. Every running job holds at least its prompt in the cache, so whatever the
//! gauge shows below the sum of the prompts is shared.
//!
//! # Output in progress
//!
//! The ledger counts all expected output of a job from its start. The engine's cache fills token by
//! token. At a random moment an answer of length `L` has made half of it, and long answers are met
//! more often than short ones: the mean of what running answers hold is `E[L²] / 2E[L]`, by the
//! theory of renewal processes. Here `L` is in units of the expected length, so that a wrong
//! expectation counts, too. Answers of one length hold half of what is booked; lengths whose
//! standard deviation equals their mean hold all of it.

use crate::model::event::ReplicaReport;

/// Weight of a report that shows a higher shared part. A lower one counts at once.
const RISE: f64 = 0.5;
/// Largest shared part that counts.
const MOST: f64 = 0.95;

/// Finished answers before which all expected output counts as held.
const LEAST_SAMPLES: u32 = 20;
/// Finished answers over which the moments of the lengths are averaged, at most.
const MOST_SAMPLES: u32 = 200;
/// Longest answer that counts, as a multiple of its expected length.
const MOST_LENGTH: f64 = 16.0;
/// Room for chance, in expected lengths over the square root of the number of jobs. The progress
/// of answers of one length has a standard deviation of 0.29 lengths.
const MARGIN: f64 = 0.4;

/// Part of the running prompts that takes no KV cache of its own, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SharedKv(f64);

impl SharedKv {
    /// Learns from a report of a replica with `kv` KV tokens. `prompts` are the tokens of the
    /// running prompts that are prefilled.
    pub fn learn(&mut self, report: &ReplicaReport, kv: u64, prompts: u64) {
        let Some(usage) = report.kv_usage.filter(|_| kv < u64::MAX && prompts > 0) else { return };
        let seen = (1.0 - usage * kv as f64 / prompts as f64).clamp(0.0, MOST);
        self.0 = if seen < self.0 { seen } else { self.0 + (seen - self.0) * RISE };
    }

    /// KV tokens that prompts of this many tokens save by sharing.
    pub fn saved(&self, prompts: u64) -> u64 {
        (prompts as f64 * self.0) as u64
    }
}

/// Part of their expected output that the running answers of a pool's replicas hold.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OutputProgress {
    samples: u32,
    /// Means of the length and of its square, in expected lengths.
    length: f64,
    square: f64,
}

impl OutputProgress {
    /// Learns from a finished answer of `output` tokens, when `expected` tokens were expected of it
    /// at its end.
    pub fn learn(&mut self, output: u64, expected: u64) {
        let length = (output as f64 / expected.max(1) as f64).min(MOST_LENGTH);
        self.samples = (self.samples + 1).min(MOST_SAMPLES);
        let newest = 1.0 / f64::from(self.samples);
        self.length += (length - self.length) * newest;
        self.square += (length * length - self.square) * newest;
    }

    /// Part of the expected output of so many jobs that counts as held, from one half to 1.
    pub fn part(&self, jobs: u32) -> f64 {
        if self.samples < LEAST_SAMPLES || self.length <= 0.0 {
            return 1.0;
        }
        let mean = (self.square / (2.0 * self.length)).max(0.5);
        (mean + MARGIN / f64::from(jobs.max(1)).sqrt()).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(kv_usage: f64) -> ReplicaReport {
        ReplicaReport { kv_usage: Some(kv_usage), ..ReplicaReport::default() }
    }

    #[test]
    fn what_the_gauge_says_below_the_prompts_is_shared() {
        let mut shared = SharedKv::default();
        for _ in 0..30 {
            shared.learn(&report(0.1), 100_000, 40_000);
        }
        assert!((29_900..=30_000).contains(&shared.saved(40_000)), "{}", shared.saved(40_000));
        shared.learn(&report(0.5), 100_000, 40_000);
        assert_eq!(shared.saved(40_000), 0, "more than the prompts: nothing is shared any more");
    }

    #[test]
    fn without_a_gauge_or_a_size_nothing_is_shared() {
        let mut shared = SharedKv::default();
        shared.learn(&ReplicaReport::default(), 100_000, 40_000);
        shared.learn(&report(0.1), u64::MAX, 40_000);
        shared.learn(&report(0.1), 100_000, 0);
        assert_eq!(shared, SharedKv::default());
    }

    fn learned(lengths: &[u64]) -> OutputProgress {
        let mut progress = OutputProgress::default();
        lengths.iter().cycle().take(1_000).for_each(|length| progress.learn(*length, 100));
        progress
    }

    #[test]
    fn answers_of_one_length_hold_half_and_some_room_for_chance() {
        assert!((learned(&[100]).part(100) - 0.54).abs() < 1e-9);
        assert!((learned(&[100]).part(4) - 0.7).abs() < 1e-9);
        assert_eq!(learned(&[100]).part(1), 0.9);
    }

    #[test]
    fn lengths_that_differ_hold_more() {
        // 60 and 140: 0.58 of the mean. 10 and 190: 0.905.
        assert!((learned(&[60, 140]).part(400) - 0.6).abs() < 0.01);
        assert!((learned(&[10, 190]).part(400) - 0.925).abs() < 0.01);
        assert_eq!(learned(&[1, 10, 10, 400]).part(400), 1.0);
    }

    #[test]
    fn what_is_longer_than_expected_holds_more_and_what_is_shorter_no_less_than_half() {
        assert!((learned(&[150]).part(400) - 0.77).abs() < 0.01);
        assert!((learned(&[10]).part(400) - 0.52).abs() < 0.01);
    }

    #[test]
    fn few_answers_tell_nothing() {
        let mut progress = OutputProgress::default();
        (1..LEAST_SAMPLES).for_each(|_| progress.learn(100, 100));
        assert_eq!(progress.part(100), 1.0);
        progress.learn(100, 100);
        assert!(progress.part(100) < 0.6);
    }
}
