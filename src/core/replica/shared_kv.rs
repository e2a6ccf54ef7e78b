//! Shared KV: the part of its running prompts' KV cache that a replica's jobs share.
//!
//! The ledger counts each prompt whole. An engine with a prefix cache keeps the common parts of
//! prompts once, and some engines keep less than one token's worth per token. The engine's own
//! gauge shows both. Every running job holds at least its prompt in the cache, so whatever the
//! gauge shows below the sum of the prompts is shared.

use crate::model::event::ReplicaReport;

/// Weight of a report that shows a higher shared part. A lower one counts at once.
const RISE: f64 = 0.5;
/// Largest shared part that counts.
const MOST: f64 = 0.95;

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
    #[must_use]
    pub fn saved(&self, prompts: u64) -> u64 {
        (prompts as f64 * self.0) as u64
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
}
