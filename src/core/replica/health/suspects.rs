//! Suspects: requests that engines were silent about, one after another.
//!
//! A request that two replicas did not answer in time is more likely to be slow
//! than both replicas are to be frozen. Its client often sends it again, and
//! then it must not put other replicas under suspicion either. So its
//! fingerprint is kept for a while, in bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

use crate::core::model::time::Tick;

/// How long a request stays a suspect.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Suspects that are kept at most; the oldest is forgotten first.
const BOUND: usize = 256;

/// Fingerprints of suspects, the oldest first.
#[derive(Debug, Clone, Default)]
pub struct SuspectJobs(VecDeque<(u64, Tick)>);

impl SuspectJobs {
    /// Keeps a fingerprint in mind.
    pub fn note(&mut self, fingerprint: u64, now: Tick) {
        self.forget(fingerprint);
        if self.0.len() == BOUND {
            self.0.pop_front();
        }
        self.0.push_back((fingerprint, now + KEPT_FOR));
    }

    /// Whether a request of this fingerprint is a suspect.
    pub fn contains(&mut self, fingerprint: u64, now: Tick) -> bool {
        while self.0.front().is_some_and(|(_, until)| *until <= now) {
            self.0.pop_front();
        }
        self.0.iter().any(|(known, _)| *known == fingerprint)
    }

    /// The request was served without delay: it is no suspect.
    pub fn forget(&mut self, fingerprint: u64) {
        self.0.retain(|(known, _)| *known != fingerprint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_are_few_and_forgotten_in_time() {
        let mut suspects = SuspectJobs::default();
        for fingerprint in 0..300 {
            suspects.note(fingerprint, Tick::from_millis(fingerprint));
        }
        assert_eq!(suspects.0.len(), BOUND);
        let now = Tick::from_millis(1_000);
        assert!(!suspects.contains(43, now) && suspects.contains(44, now));
        suspects.note(44, now);
        suspects.forget(299);
        assert_eq!((suspects.0.len(), suspects.contains(299, now)), (BOUND - 1, false));
        let later = Tick::from_millis(299) + KEPT_FOR;
        assert!(!suspects.contains(298, later) && suspects.contains(44, later));
        assert!(!suspects.contains(44, later + KEPT_FOR));
        assert!(suspects.0.is_empty());
    }
}
