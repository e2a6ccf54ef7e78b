//! Log sampler: bounds the log lines whose number is up to unauthenticated clients.

use std::sync::atomic::{AtomicU64, Ordering};

/// Most lines that pass in one second.
const LINES: u64 = 10;

/// Sampler: passes the first 10 lines of each second and counts the others.
#[derive(Debug, Default)]
pub(in crate::telemetry) struct Sampler {
    /// The latest second (upper 32 bits) and the lines that passed in that second (lower 32 bits).
    passed: AtomicU64,
    /// Lines suppressed since the last line that passed.
    kept_back: AtomicU64,
}

impl Sampler {
    /// Returns `Some` when a line may be written in this second, with the number of lines
    /// suppressed since the last line that passed. `second` may come from any clock; when it goes
    /// back, the line counts for the latest second.
    pub(in crate::telemetry) fn pass(&self, second: u64) -> Option<u64> {
        let second = second << 32;
        let step = |state: u64| match state.max(second) {
            state if state & u64::from(u32::MAX) < LINES => Some(state + 1),
            _ => None,
        };
        if self.passed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).is_err() {
            self.kept_back.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.kept_back.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_pass_and_the_rest_is_counted() {
        let sampler = Sampler::default();
        let passed = |second: u64, lines: usize| -> Vec<u64> {
            (0..lines).filter_map(|_| sampler.pass(second)).collect()
        };
        assert_eq!(passed(0, 3), [0; 3]);
        assert_eq!(passed(0, 100), [0; 7]);
        assert_eq!(passed(1, 2), [93, 0]);
        assert_eq!(passed(0, 3), [0; 3], "a clock that goes back counts for the latest second");
        assert_eq!(passed(9, 11), [0; 10]);
        assert_eq!(passed(10, 1), [1]);
    }
}
