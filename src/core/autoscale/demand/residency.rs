//! Residency: the seconds that a pool's replicas are in service, and the seconds with a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::time::Tick;

/// Longest time between two samples that counts.
const LONGEST: Duration = Duration::from_secs(10);
/// Time constant of the sums, in seconds: two days.
const MEMORY: f64 = 172_800.0;

/// Replica seconds, fading with time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ReplicaSeconds {
    /// Seconds in service.
    pub loaded: f64,
    /// Seconds in service with a job.
    pub active: f64,
}

impl ReplicaSeconds {
    /// Rounds to whole seconds.
    pub fn whole(self) -> Self {
        Self { loaded: self.loaded.round(), active: self.active.round() }
    }

    /// Part of the time in service without any job; `None` before any service.
    pub fn idle(&self) -> Option<f64> {
        (self.loaded > 0.0).then(|| (1.0 - self.active / self.loaded).clamp(0.0, 1.0))
    }
}

/// Residency sampler: counts the replicas of a pool from time to time.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResidencySampler {
    pub seen: ReplicaSeconds,
    last: Option<Tick>,
}

impl ResidencySampler {
    /// Samples the replicas in service, and those with a job. A second sample at the same instant
    /// changes nothing.
    pub fn sample(&mut self, now: Tick, loaded: u32, active: u32) {
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
        let mut sampler = ResidencySampler::default();
        assert_eq!(sampler.seen.idle(), None);
        for second in 0..=600 {
            let at = Tick::from_millis(second * 1000);
            sampler.sample(at, 4, u32::from(second % 2 == 0));
            sampler.sample(at, 4, 4);
        }
        let idle = sampler.seen.idle().unwrap();
        assert!((idle - 0.875).abs() < 0.01, "half of the time one of four: {idle}");
        assert!((sampler.seen.loaded - 2400.0).abs() < 10.0);
        sampler.sample(Tick::from_millis(9_000_000), 1, 0);
        assert!(sampler.seen.loaded < 2420.0, "a gap in which nobody looked does not count");
    }
}
