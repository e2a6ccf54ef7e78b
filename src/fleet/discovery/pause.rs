//! Pause before a failed source is asked again.

use std::time::Duration;

use crate::protocol::ids::random;

/// Pauses between attempts: they double from the shortest to the longest.
#[derive(Debug)]
pub(super) struct RetryPauses {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl RetryPauses {
    pub(super) const fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, next: shortest }
    }

    /// The pause after one more failure: 0.75 to 1 times its length, at random, so that many
    /// gateways do not ask at the same moment.
    pub(super) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = whole.saturating_mul(2).min(self.longest);
        let [random] = random::buffered_bytes();
        whole.mul_f64(0.75 + f64::from(random) / 1024.0)
    }

    /// Starts again with the shortest pause, after an answer.
    pub(super) const fn reset(&mut self) {
        self.next = self.shortest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_within_their_bounds() {
        let seconds = Duration::from_secs;
        let mut pauses = RetryPauses::new(seconds(1), seconds(5));
        for whole in [1, 2, 4, 5, 5] {
            let pause = pauses.next();
            assert!(pause >= seconds(whole).mul_f64(0.75) && pause < seconds(whole), "{pause:?}");
        }
        pauses.reset();
        assert!(pauses.next() < seconds(1));
    }
}
