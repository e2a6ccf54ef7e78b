//! Work of a job, in tokens of a short prompt.
//!
//! The parts are those of [`crate::replica::speed::ttft_model`]: the cost of prefill, and
//! the cost of an output token in a decode step that many streams share and that reads their KV
//! caches. The replica time of a unit of work is measured
//! ([`crate::autoscale::demand::utilization`]), so only the proportions matter.

use crate::replica::speed::ttft_model;

/// Cost of one output token, in prompt tokens: its own place in the step, and its part of the
/// step's fixed time, shared with some sixty others.
const OUTPUT_COST: f64 = 7.0;
/// Cost of one output token for each thousand tokens of context, in prompt tokens.
const CONTEXT_COST: f64 = 3.0;

/// Work of a job with this many prompt and output tokens.
pub fn work(prompt: u64, output: u64) -> f64 {
    let context = (prompt as f64 + output as f64 / 2.0) / 1000.0;
    ttft_model::weight(prompt, 0) as f64 + output as f64 * (OUTPUT_COST + CONTEXT_COST * context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_costs_more_than_reading() {
        assert_eq!(work(0, 0), 1.0);
        assert!(work(1000, 100) > work(1000, 0) + 700.0);
        assert!(work(8000, 100) > work(1000, 100) + 7000.0);
    }
}
