//! Suspects: requests at which one engine after another stalled.
//!
//! A request that two replicas did not answer in time is probably slow: two frozen replicas are
//! less likely. The client often sends such a request again, and the repeat must not put other
//! replicas under suspicion. The fingerprint of the request is therefore kept for a while, in
//! bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::time::Tick;

/// Time for which a request stays a suspect.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Most suspects that are kept; the oldest is forgotten first.
const BOUND: usize = 256;

/// Fingerprints of suspects, the oldest first.
#[derive(Debug, Clone, Default)]
pub struct SuspectJobs(VecDeque<Suspect>);

#[derive(Debug, Clone, Copy)]
struct Suspect {
    fingerprint: u64,
    until: Tick,
}

impl SuspectJobs {
    /// Adds a fingerprint.
    pub fn note(&mut self, fingerprint: u64, now: Tick) {
        self.forget(fingerprint);
        if self.0.len() == BOUND {
            self.0.pop_front();
        }
        self.0.push_back(Suspect { fingerprint, until: now + KEPT_FOR });
    }

    /// Whether a request with this fingerprint is a suspect.
    pub fn contains(&self, fingerprint: u64, now: Tick) -> bool {
        self.0.iter().any(|known| known.fingerprint == fingerprint && known.until > now)
    }

    /// Removes a fingerprint, because its request was served without delay.
    pub fn forget(&mut self, fingerprint: u64) {
        self.0.retain(|known| known.fingerprint != fingerprint);
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
    }
}
