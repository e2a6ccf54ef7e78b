//! Step time of a replica, by its ledger.

use crate::replica::ledger::Ledger;
use crate::replica::speed::ttft_model::{FIXED, IDLE_STEP, PER_KILO_KV, PER_TOKEN, TtftModel};

/// Time of a step in which each sequence of the ledger gets one token.
pub(crate) const fn decode_step(ledger: &Ledger) -> u64 {
    IDLE_STEP.saturating_add(step_load(ledger))
}

/// Time that the ledger's sequences add to a step.
pub(super) const fn step_load(ledger: &Ledger) -> u64 {
    let tokens = PER_TOKEN.saturating_mul(ledger.seqs as u64);
    tokens.saturating_add(PER_KILO_KV.saturating_mul(ledger.kv / 1000))
}

/// The ttft_model at a replica of speed 1: the rest of the step under way (half of
/// one on average), the prompts before this one, and its own step.
pub(crate) const fn ttft_model(ledger: &Ledger) -> TtftModel {
    let rest = if ledger.jobs == 0 { 0 } else { decode_step(ledger) / 2 };
    let before = PER_TOKEN.saturating_mul(ledger.prefill);
    let wait = FIXED.saturating_add(step_load(ledger)).saturating_add(rest).saturating_add(before);
    TtftModel { wait, per_token: PER_TOKEN, per_step: step_load(ledger) }
}

/// Nanoseconds that one more sequence like those of the ledger adds to a step.
pub(crate) fn step_per_seq(ledger: &Ledger) -> f64 {
    step_load(ledger) as f64 / f64::from(ledger.seqs.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replica::speed::ttft_model::weight;

    #[test]
    fn an_idle_replica_takes_the_time_of_its_prompt() {
        let idle = ttft_model(&Ledger::default());
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
            prop_assert!(ttft_model(&more).ttft(weight) >= ttft_model(&ledger).ttft(weight));
            prop_assert!(ttft_model(&ledger).ttft(weight + 1) >= ttft_model(&ledger).ttft(weight));
        }
    }
}
