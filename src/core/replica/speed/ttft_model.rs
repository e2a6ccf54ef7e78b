//! TTFT model: predicts the time to first token from a replica's ledger.
//!
//! The prediction has the shape of a step of an engine with continuous batching: a fixed part,
//! a part per token of the step, a part per token of KV cache that its streams read, and
//! attention over the prompt. The numbers are those of one engine: an 8B model on an H100,
//! fitted to the published step times of microsoft/vidur. Other replicas differ by one factor,
//! which [`crate::replica::speed`] learns. Times are nanoseconds.

/// Nanoseconds of a step that computes next to nothing: scheduling, sampling, and the floor that
/// the model's weights set.
pub(super) const IDLE_STEP: u64 = 8_000_000;
/// Nanoseconds of a step with a prompt in it that do not depend on the prompt's length.
pub(super) const FIXED: u64 = 3_500_000;
/// Per token of a step.
pub(super) const PER_TOKEN: u64 = 21_500;
/// Nanoseconds per thousand KV tokens that streams read in a step.
pub(super) const PER_KILO_KV: u64 = 65_000;
/// Squared prompt tokens per additional token of weight, for attention.
const ATTENTION_SPAN: u64 = 28_000;

/// Weight of a prompt: its prefill cost, in tokens of a short prompt. Attention makes long prompts
/// dearer. The first `cached` tokens are not computed again, but the other tokens attend to them.
pub fn weight(prompt: u64, cached: u64) -> u64 {
    let square = |tokens: u64| tokens.saturating_mul(tokens) / ATTENTION_SPAN;
    let cached = cached.min(prompt.saturating_sub(1));
    (prompt - cached).saturating_add(square(prompt)).saturating_sub(square(cached)).max(1)
}

/// TTFT model of a replica: its TTFT as a linear function of the prompt's weight. Times are
/// nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TtftModel {
    /// TTFT part that does not depend on the prompt's weight.
    pub wait: u64,
    /// TTFT per token of the prompt's weight.
    pub per_token: u64,
    /// Time that the sequences there add to each step, and so to each output token.
    pub per_step: u64,
}

impl TtftModel {
    /// TTFT of a prompt of this weight.
    pub const fn ttft(&self, weight: u64) -> u64 {
        self.wait.saturating_add(self.per_token.saturating_mul(weight))
    }

    /// Cost of a request there, for comparison: its TTFT, the prefill time that it takes from later
    /// requests, and the additional time of its `output` tokens for the sequences that run there.
    pub const fn cost(&self, weight: u64, output: u64) -> u64 {
        let reading = self.ttft(weight).saturating_add(self.per_token.saturating_mul(weight));
        reading.saturating_add(self.per_step.saturating_mul(output))
    }

    /// The same model, in which all waits up to `tolerance` nanoseconds are equal.
    pub const fn tolerant(self, tolerance: u64) -> Self {
        let wait = if self.wait > tolerance { self.wait } else { tolerance };
        Self { wait, ..self }
    }

    /// The model of a replica that takes `factor` times as long.
    pub fn slowed(self, factor: f64) -> Self {
        let times = |nanos: u64| (nanos as f64 * factor) as u64;
        Self {
            wait: times(self.wait),
            per_token: times(self.per_token).max(1),
            per_step: times(self.per_step),
        }
    }
}

/// Nanoseconds in which a replica of speed factor 1 prefills prompts of this weight.
pub const fn prefill_time(weight: u64) -> u64 {
    PER_TOKEN.saturating_mul(weight)
}

/// Prompt weight that a replica of speed factor 1 prefills in this many nanoseconds.
pub const fn weight_in(nanos: u64) -> u64 {
    nanos / PER_TOKEN
}
