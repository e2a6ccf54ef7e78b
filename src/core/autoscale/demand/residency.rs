//! For how long replicas of a pool are there, and for how much of that they work.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::model::time::Tick;

/// The longest time between two looks that counts.
const LONGEST: Duration = Duration::from_secs(10);
/// Seconds after which what was seen counts a third, two days.
const MEMORY: f64 = 172_800.0;

/// Replica seconds, old ones less and less.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ReplicaSeconds {
    /// In service.
    pub loaded: f64,
    /// Of these, with a job.
    pub active: f64,
}

impl ReplicaSeconds {
    /// The same in whole seconds.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { loaded: self.loaded.round(), active: self.active.round() }
    }

    /// The part of the time in service without any job; `None` before any.
    #[must_use]
    pub fn idle(&self) -> Option<f64> {
        (self.loaded > 0.0).then(|| (1.0 - self.active / self.loaded).clamp(0.0, 1.0))
    }
}

/// Looks at them now and then.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResidencySampler {
    /// What was seen.
    pub seen: ReplicaSeconds,
    last: Option<Tick>,
}

impl ResidencySampler {
    /// So many replicas are in service now, and so many have a job. Looked at twice
    /// in the same instant, the second look changes nothing.
    pub fn look(&mut self, now: Tick, loaded: u32, active: u32) {
        let passed = self.last.map_or(Duration::ZERO, |last| now.since(last)).min(LONGEST).as_secs_f64();
        let kept = (-passed / MEMORY).exp();
        self.seen.loaded = self.seen.loaded * kept + f64::from(loaded) * passed;
        self.seen.active = self.seen.active * kept + f64::from(active.min(loaded)) * passed;
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_and_does_nothing_is_idle() {
        let mut stays = ResidencySampler::default();
        assert_eq!(stays.seen.idle(), None);
        for second in 0..=600 {
            let at = Tick::from_millis(second * 1000);
            stays.look(at, 4, u32::from(second % 2 == 0));
            stays.look(at, 4, 4);
        }
        let idle = stays.seen.idle().unwrap();
        assert!((idle - 0.875).abs() < 0.01, "half of the time one of four: {idle}");
        assert!((stays.seen.loaded - 2400.0).abs() < 10.0);
        stays.look(Tick::from_millis(9_000_000), 1, 0);
        assert!(stays.seen.loaded < 2420.0, "a gap in which nobody looked does not count");
    }
}
