//! The time to the first token that a replica's ledger lets one expect.
//!
//! The shape of the prediction is the step of an engine with continuous
//! batching: a fixed part, a part per token of the step, a part per token of
//! KV cache that its streams read, and attention over the prompt. The numbers
//! are those of one engine (an 8B model on an H100, fitted to the published
//! step times of microsoft/vidur); what is different about a replica is one
//! factor on top, which [`crate::core::replica::speed`] learns. Times are nanoseconds.

use crate::core::replica::ledger::Ledger;

/// Scheduling, sampling and the weights' floor of a step that computes next to
/// nothing.
const IDLE_STEP: u64 = 8_000_000;
/// The part of a step with a prompt in it that does not depend on its length.
const FIXED: u64 = 3_500_000;
/// Per token of a step.
const PER_TOKEN: u64 = 21_500;
/// Per thousand KV tokens that streams read in a step.
const PER_KILO_KV: u64 = 65_000;
/// Prompt tokens squared which cost as much as one token more: attention.
const ATTENTION_SPAN: u64 = 28_000;

/// What a prompt costs to read, in tokens of a short prompt: attention makes
/// long ones dearer. `cached` leading tokens are not computed again, but the
/// rest attends to them.
#[must_use]
pub fn weight(prompt: u64, cached: u64) -> u64 {
    let square = |tokens: u64| tokens.saturating_mul(tokens) / ATTENTION_SPAN;
    let cached = cached.min(prompt.saturating_sub(1));
    (prompt - cached).saturating_add(square(prompt)).saturating_sub(square(cached)).max(1)
}

/// A replica's answer to "how long until the first token", for a prompt of any
/// weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TtftModel {
    /// Whatever the prompt's weight.
    pub wait: u64,
    /// For each token of its weight.
    pub per_token: u64,
    /// What the sequences there add to each step, and so to each token of output.
    pub writing: u64,
}

impl TtftModel {
    /// Time to the first token of a prompt of this weight.
    #[must_use]
    pub const fn ttft(&self, weight: u64) -> u64 {
        self.wait.saturating_add(self.per_token.saturating_mul(weight))
    }

    /// What it costs to serve a request there, to compare: the time to its first
    /// token, the time that reading its prompt takes from those that come after it,
    /// and how much longer its `output` tokens take for what runs there.
    #[must_use]
    pub const fn cost(&self, weight: u64, output: u64) -> u64 {
        let reading = self.ttft(weight).saturating_add(self.per_token.saturating_mul(weight));
        reading.saturating_add(self.writing.saturating_mul(output))
    }

    /// The same at a replica that takes `factor` times as long.
    #[must_use]
    pub fn slowed(self, factor: f64) -> Self {
        let times = |nanos: u64| (nanos as f64 * factor) as u64;
        Self { wait: times(self.wait), per_token: times(self.per_token).max(1), writing: times(self.writing) }
    }
}

/// A step in which the streams of the ledger get one token each.
#[must_use]
pub const fn decode_step(ledger: &Ledger) -> u64 {
    IDLE_STEP.saturating_add(reads(ledger))
}

/// What the ledger's streams add to a step.
const fn reads(ledger: &Ledger) -> u64 {
    let tokens = PER_TOKEN.saturating_mul(ledger.seqs as u64);
    tokens.saturating_add(PER_KILO_KV.saturating_mul(ledger.kv / 1000))
}

/// The outlook at a replica of speed 1: the rest of the step under way (half of
/// one on average), the prompts before this one, and its own step.
#[must_use]
pub const fn outlook(ledger: &Ledger) -> TtftModel {
    let rest = if ledger.jobs == 0 { 0 } else { decode_step(ledger) / 2 };
    let before = PER_TOKEN.saturating_mul(ledger.prefill);
    let wait = FIXED.saturating_add(reads(ledger)).saturating_add(rest).saturating_add(before);
    TtftModel { wait, per_token: PER_TOKEN, writing: reads(ledger) }
}

/// Nanoseconds that one more sequence like those of the ledger adds to a step.
#[must_use]
pub fn step_per_seq(ledger: &Ledger) -> f64 {
    reads(ledger) as f64 / f64::from(ledger.seqs.max(1))
}

/// Nanoseconds in which a replica of speed 1 reads prompts of this weight.
#[must_use]
pub const fn time_of(weight: u64) -> u64 {
    PER_TOKEN.saturating_mul(weight)
}

/// Prompt weight that a replica of speed 1 reads in so many nanoseconds.
#[must_use]
pub const fn weight_in(nanos: u64) -> u64 {
    nanos / PER_TOKEN
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_idle_replica_takes_the_time_of_its_prompt() {
        let idle = outlook(&Ledger::default());
        // 3.5 + 0.0215 * (1024 + 37) ms, as measured tables have it: 26 ms.
        assert_eq!(idle.ttft(weight(1024, 0)) / 100_000, 263);
        assert_eq!(idle.slowed(3.0).ttft(weight(1024, 0)) / 1_000_000, 78);
    }

    #[test]
    fn what_is_cached_costs_only_attention() {
        assert_eq!(weight(1000, 0), 1035);
        assert!((100..120).contains(&weight(1000, 900)));
        assert_eq!(weight(1000, 5000), 1 + 35 - 35, "one token is always computed");
        assert_eq!(weight(0, 0), 1);
    }

    proptest! {
        #[test]
        fn more_work_never_looks_shorter(
            jobs in 0u32..9, seqs in 0u32..300, prefill in 0u64..1 << 40, kv in 0u64..1 << 40, prompt in 0u64..1 << 40
        ) {
            let ledger = Ledger { jobs, seqs, prefill, kv, ..Ledger::default() };
            let more = Ledger { jobs: jobs + 1, seqs: seqs + 1, prefill: prefill + 9, kv: kv + 9, ..ledger };
            let weight = weight(prompt, 0);
            prop_assert!(outlook(&more).ttft(weight) >= outlook(&ledger).ttft(weight));
            prop_assert!(outlook(&ledger).ttft(weight + 1) >= outlook(&ledger).ttft(weight));
        }
    }
}
