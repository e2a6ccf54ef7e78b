//! Prefill load: the prompts that a replica is computing.

use std::time::Duration;

use crate::model::time::Tick;

/// Time over which the weight of prompts is averaged.
const MEMORY: Duration = Duration::from_secs(3);

/// Work of a replica when a job came there, to compare with the work at the job's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefillMark {
    /// Weight of all prompts ever sent there, including the job's own.
    pub(in crate::replica::fleet) weights: u64,
    /// Nanoseconds of a step in which each sequence gets a token, at speed factor 1.
    pub(in crate::replica::fleet) step: u64,
}

/// Rate of the prompt weight that comes to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::replica::fleet) struct PrefillLoad {
    weights: u64,
    at: Tick,
    /// Weight in a nanosecond.
    pub(in crate::replica::fleet) rate: f64,
}

impl PrefillLoad {
    /// Updates the rate from the total weight that has come there.
    pub(in crate::replica::fleet) fn note(&mut self, weights: u64, now: Tick) {
        let passed = now.since(self.at).as_nanos() as f64;
        if passed > 0.0 {
            let part = (passed / MEMORY.as_nanos() as f64).min(1.0);
            let rate = weights.wrapping_sub(self.weights) as f64 / passed;
            self.rate += (rate - self.rate) * part;
            (self.weights, self.at) = (weights, now);
        }
    }
}
