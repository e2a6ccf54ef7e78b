//! Work of a job, in tokens of a short prompt.
//!
//! The parts are those of [`crate::core::replica::speed::ttft_model`]: what a prompt costs to read,
//! and what an output token costs in a step that many streams share, which reads
//! their caches. What a replica makes of it is measured ([`crate::core::autoscale::demand::utilization`]), so
//! only the proportions matter.

use crate::core::replica::speed::ttft_model;

/// Prompt tokens that one output token costs as much as: its own place in the
/// step and its part of the step's fixed time, with some sixty others.
const WRITE: f64 = 7.0;
/// The same for each thousand tokens of context that it reads.
const READ: f64 = 3.0;

/// The work of a job with such a prompt and such an output.
#[must_use]
pub fn work(prompt: u64, output: u64) -> f64 {
    let context = (prompt as f64 + output as f64 / 2.0) / 1000.0;
    ttft_model::weight(prompt, 0) as f64 + output as f64 * (WRITE + READ * context)
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
