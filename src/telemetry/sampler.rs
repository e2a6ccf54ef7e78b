//! Log sampler: bounds the lines whose number clients decide.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lines that are written in each second.
const LINES: u64 = 10;

/// Lets so many lines of each second pass, and counts the rest.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    /// The second (upper half) and the lines of it that passed.
    passed: AtomicU64,
    /// Lines that did not, since one did.
    kept_back: AtomicU64,
}

impl Sampler {
    /// Whether a line may be written in this second of any clock; then with the
    /// number of those before it that were not.
    pub(super) fn pass(&self, second: u64) -> Option<u64> {
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
