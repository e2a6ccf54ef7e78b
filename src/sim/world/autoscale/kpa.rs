//! Knative's autoscaler: the mean concurrency of a stable and of a panic window
//! (`pkg/autoscaler/scaling/autoscaler.go`).

use std::collections::VecDeque;
use std::time::Duration;

use penstock_core::model::time::Tick;

/// Time between two samples of the concurrency.
pub const SAMPLE: Duration = Duration::from_secs(1);
/// Samples per decision.
const SAMPLES: u64 = 2;
/// Stable window, for usual decisions.
const STABLE: Duration = Duration::from_secs(60);
/// Panic window, which finds bursts.
const PANIC: Duration = Duration::from_secs(6);
/// Panic begins when the panic window needs this many times the ready replicas.
const THRESHOLD: f64 = 2.0;
/// Target utilization: the share of a replica's concurrency that is aimed at.
const TARGET: f64 = 0.7;
/// Most replicas of one decision, as a multiple of the ready replicas.
const FASTEST_UP: f64 = 1_000.0;
/// Fewest replicas of one decision: the ready replicas divided by this.
const FASTEST_DOWN: f64 = 2.0;
/// Time from the decision for zero replicas to zero replicas.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Kpa {
    target: f64,
    samples: VecDeque<ConcurrencySample>,
    taken: u64,
    /// Time at which the panic threshold was last passed.
    panicked: Option<Tick>,
    /// Most replicas that were wanted in this panic.
    most: u32,
    /// Time since which no replica is needed.
    idle: Option<Tick>,
}

#[derive(Debug, Clone, Copy)]
struct ConcurrencySample {
    at: Tick,
    /// Open requests, waiting ones included.
    concurrency: f64,
}

impl Kpa {
    /// An autoscaler for replicas that run `concurrency` requests each; more
    /// than 0.
    pub fn new(concurrency: f64) -> Self {
        let target = (concurrency * TARGET).max(f64::MIN_POSITIVE);
        Self { target, samples: VecDeque::new(), taken: 0, panicked: None, most: 0, idle: None }
    }

    /// Takes a sample of the open requests, waiting ones included. Every second
    /// call returns the desired replicas.
    pub fn sample(&mut self, now: Tick, concurrency: f64, ready: u32) -> Option<u32> {
        self.samples.push_back(ConcurrencySample { at: now, concurrency });
        while self.samples.front().is_some_and(|first| now.since(first.at) >= STABLE) {
            self.samples.pop_front();
        }
        self.taken += 1;
        self.taken.is_multiple_of(SAMPLES).then(|| self.decide(now, ready))
    }

    fn decide(&mut self, now: Tick, ready: u32) -> u32 {
        let there = f64::from(ready.max(1));
        let wanted = |window| (self.mean(now, window) / self.target).ceil();
        let (stable, panic) = (wanted(STABLE), wanted(PANIC));
        let (least, most) = ((there / FASTEST_DOWN).floor(), (FASTEST_UP * there).ceil());
        let paced = |count: f64| count.clamp(least, most) as u32;
        if panic / there >= THRESHOLD {
            self.panicked = Some(now);
        } else if self.panicked.is_some_and(|at| now.since(at) > STABLE) {
            (self.panicked, self.most) = (None, 0);
        }
        if self.panicked.is_some() {
            self.most = self.most.max(paced(stable)).max(paced(panic));
            return self.apply_grace(now, self.most);
        }
        self.apply_grace(now, paced(stable))
    }

    fn apply_grace(&mut self, now: Tick, count: u32) -> u32 {
        if count > 0 {
            self.idle = None;
            return count;
        }
        let since = *self.idle.get_or_insert(now);
        u32::from(now.since(since) < GRACE)
    }

    fn mean(&self, now: Tick, window: Duration) -> f64 {
        let recent = self.samples.iter().filter(|sample| now.since(sample.at) < window);
        let add = |(sum, count), sample: &ConcurrencySample| (sum + sample.concurrency, count + 1.0);
        let (sum, count) = recent.fold((0.0, 0.0), add);
        sum / f64::max(count, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decision at each second with these concurrencies, where every
    /// ordered replica is ready at once.
    fn decisions(kpa: &mut Kpa, from: u64, loads: &[f64], mut ready: u32) -> Vec<u32> {
        let mut decided = Vec::new();
        for (second, load) in loads.iter().enumerate() {
            let now = Tick::from_millis((from + second as u64) * 1_000);
            if let Some(count) = kpa.sample(now, *load, ready) {
                decided.push(count);
                ready = count;
            }
        }
        decided
    }

    #[test]
    fn a_steady_load_gets_its_number() {
        let mut kpa = Kpa::new(10.0);
        let decided = decisions(&mut kpa, 0, &[35.0; 60], 5);
        assert!(decided.iter().all(|count| *count == 5), "{decided:?}");
    }

    #[test]
    fn a_panic_goes_up_at_once_and_down_only_after_a_stable_window() {
        let mut kpa = Kpa::new(10.0);
        decisions(&mut kpa, 0, &[7.0; 60], 1);
        let up = decisions(&mut kpa, 60, &[70.0; 10], 1);
        assert_eq!(up.last(), Some(&10), "{up:?}");
        let held = decisions(&mut kpa, 70, &[7.0; 50], 10);
        assert!(held.iter().all(|count| *count == 10), "{held:?}");
        let after = decisions(&mut kpa, 120, &[7.0; 80], 10);
        assert_eq!(after.last(), Some(&1), "{after:?}");
        assert!(after.windows(2).all(|pair| pair[1] >= pair[0] / 2), "{after:?}");
    }

    #[test]
    fn nothing_for_a_window_and_a_grace_is_none() {
        let mut kpa = Kpa::new(10.0);
        decisions(&mut kpa, 0, &[7.0; 10], 1);
        let idle = decisions(&mut kpa, 10, &[0.0; 120], 1);
        let first = idle.iter().position(|count| *count == 0).unwrap();
        assert!((40..=48).contains(&first), "after {} s", 2 * first);
    }
}
