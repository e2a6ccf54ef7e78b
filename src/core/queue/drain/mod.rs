//! Drain: how fast waiting jobs start, and what follows from that for those that wait.

pub mod retry_after;
pub mod tenants;

use std::time::Duration;

use crate::model::averages::{EventRate, RATE_MEMORY};
use crate::model::time::Tick;

/// Dispatches of waiting jobs before their rate is relied on.
pub const FEW_DRAINED: u32 = 5;

/// Drain rate: jobs per second that leave a queue for a replica while some jobs wait.
///
/// The clock of the rate has an exponential memory of 30 s and stops while nothing waits. The full
/// speed of the replicas is therefore not forgotten while there is little to do. Until one second
/// of waiting has been seen, the rate of all dispatches stands in for the rest of that second. The
/// drain rate is never less than the rate of all dispatches: a queue that stops behind one long job
/// is not stuck for ever.
#[derive(Debug, Clone, Copy)]
pub struct DrainRate {
    /// Time constant in seconds of the memory of times in which jobs waited.
    memory: f64,
    all: EventRate,
    drained: f64,
    /// Seconds of waiting within the memory.
    waited: f64,
    /// Dispatches of waiting jobs that did not come back, since the start.
    dispatches: u32,
    waiting: bool,
    last: Tick,
}

impl Default for DrainRate {
    fn default() -> Self {
        Self::with_memory(RATE_MEMORY)
    }
}

impl DrainRate {
    /// A rate whose memory of waiting times has the time constant `memory`, in seconds.
    pub const fn with_memory(memory: f64) -> Self {
        let all = EventRate::new();
        Self { memory, all, drained: 0.0, waited: 0.0, dispatches: 0, waiting: false, last: Tick::ZERO }
    }

    /// Notes whether any job waits from now on.
    pub fn set_waiting(&mut self, now: Tick, waiting: bool) {
        *self = Self { waiting, ..self.at(now) };
    }

    /// Counts one job that left the queue for a replica.
    pub fn add_dispatch(&mut self, now: Tick) {
        self.add(now, 1.0);
    }

    /// Takes back a dispatch whose replica failed the job: nothing was drained. Otherwise replicas
    /// that are down would look fast.
    pub fn undo_dispatch(&mut self, now: Tick) {
        self.add(now, -1.0);
    }

    /// Drain rate in jobs per second; `None` before the first dispatch.
    pub fn per_second(&self, now: Tick) -> Option<f64> {
        let here = self.at(now);
        let all = here.all.per_second(now)?;
        let drained = (here.drained + all * (1.0 - here.waited).max(0.0)) / here.waited.max(1.0);
        Some(drained.max(all))
    }

    /// Jobs per second while some waited, without any stand-in; `None` before [`FEW_DRAINED`]
    /// dispatches, and once all of them are forgotten.
    pub fn while_waiting(&self, now: Tick) -> Option<f64> {
        let here = self.at(now);
        let rate = here.drained / here.waited;
        (here.dispatches >= FEW_DRAINED && rate.is_finite()).then_some(rate)
    }

    /// Dispatches of waiting jobs that did not come back, since the start.
    pub const fn dispatches(&self) -> u32 {
        self.dispatches
    }

    /// The remembered time in which jobs waited.
    pub fn waited(&self, now: Tick) -> Duration {
        Duration::from_secs_f64(self.at(now).waited)
    }

    /// The same rate with its clock stopped.
    pub const fn stopped(self) -> Self {
        Self { waiting: false, ..self }
    }

    /// Only a dispatch of a waiting job drains the queue. A dispatch while nothing waits shows the
    /// demand on the replicas, not their capacity.
    fn add(&mut self, now: Tick, jobs: f64) {
        *self = self.at(now);
        self.all.add(now, jobs);
        if self.waiting {
            self.drained = (self.drained + jobs).max(0.0);
            self.dispatches = if jobs > 0.0 {
                self.dispatches.saturating_add(1)
            } else {
                self.dispatches.saturating_sub(1)
            };
        }
    }

    fn at(self, now: Tick) -> Self {
        let last = self.last.max(now);
        if !self.waiting {
            return Self { last, ..self };
        }
        let kept = (-now.since(self.last).as_secs_f64() / self.memory).exp();
        let waited = self.waited * kept + self.memory * (1.0 - kept);
        Self { drained: self.drained * kept, waited, last, ..self }
    }
}

/// Factor by which a queue may drain faster than measured before a waiting job is hopeless.
const HOPELESS_MARGIN: f64 = 1.25;

/// Whether `before` jobs of a queue that drains at `per_second` certainly take longer than `left`.
pub fn backlog_exceeds(before: u64, per_second: Option<f64>, left: Duration) -> bool {
    per_second.is_some_and(|rate| before as f64 > rate * HOPELESS_MARGIN * left.as_secs_f64())
}

/// The part of the remaining time by which an expected start has to come. Measurements are never
/// exact, and a job that was admitted should not be refused later.
const START_MARGIN: f64 = 0.9;

/// Whether a job whose start is expected after `wait` is refused, since that is too near to the end of
/// the time `left`.
pub fn wait_exceeds(wait: Duration, left: Duration) -> bool {
    wait.as_secs_f64() > left.as_secs_f64() * START_MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hopeless_is_what_even_a_faster_queue_does_not_reach() {
        let left = Duration::from_secs(10);
        assert!(!backlog_exceeds(1_000_000, None, left), "nothing is known");
        assert!(!backlog_exceeds(125, Some(10.0), left));
        assert!(backlog_exceeds(126, Some(10.0), left));
        assert!(!backlog_exceeds(0, Some(0.0), Duration::ZERO));
        assert!(backlog_exceeds(1, Some(0.0), left));
    }

    #[test]
    fn drain_rate_is_right_early_and_late_and_fades() {
        let mut rate = DrainRate::default();
        assert_eq!(rate.per_second(Tick::ZERO), None);
        for step in 0..1000u64 {
            rate.add_dispatch(Tick::from_millis(step * 100));
            if step == 50 || step == 999 {
                let found = rate.per_second(Tick::from_millis(step * 100)).unwrap_or(0.0);
                assert!((9.0..11.5).contains(&found), "{found} at step {step}");
            }
        }
        assert!(rate.per_second(Tick::from_millis(400_000)).unwrap_or(9.9) < 0.01);
    }

    /// Jobs wait all the time and one goes every 100 ms.
    fn ten_a_second(rate: &mut DrainRate, from: u64, count: u64) -> u64 {
        rate.set_waiting(Tick::from_millis(from), true);
        (1..=count).for_each(|step| rate.add_dispatch(Tick::from_millis(from + step * 100)));
        from + count * 100
    }

    fn found(rate: &DrainRate, millis: u64) -> f64 {
        rate.per_second(Tick::from_millis(millis)).unwrap_or(f64::NAN)
    }

    #[test]
    fn drain_rate_is_right_early_in_the_first_wait() {
        let mut rate = DrainRate::default();
        for millis in [700, 5_000, 60_000] {
            let end = ten_a_second(&mut rate, 0, millis / 100);
            assert!((9.0..11.5).contains(&found(&rate, end)), "{} at {end}", found(&rate, end));
            rate = DrainRate::default();
        }
    }

    #[test]
    fn drain_rate_is_right_after_idle_and_quiet_times() {
        let mut rate = DrainRate::default();
        let mut now = ten_a_second(&mut rate, 0, 300);
        for idle in [1_000, 20_000, 3_600_000] {
            rate.set_waiting(Tick::from_millis(now), false);
            assert!((9.5..10.5).contains(&found(&rate, now + idle)), "{}", found(&rate, now + idle));
            now = ten_a_second(&mut rate, now + idle, 2);
            assert!((9.5..10.5).contains(&found(&rate, now)), "{}", found(&rate, now));
        }
        rate.set_waiting(Tick::from_millis(now), false);
        (0..600).for_each(|second| rate.add_dispatch(Tick::from_millis(now + second * 1000)));
        let quiet = found(&rate, now + 600_000);
        assert!((9.5..10.5).contains(&quiet), "one a second was all that was asked for: {quiet}");
    }

    #[test]
    fn drain_rate_fades_while_somebody_waits_in_vain() {
        let mut rate = DrainRate::default();
        let now = ten_a_second(&mut rate, 0, 300);
        let half_in_vain = found(&rate, now + 30_000);
        assert!((2.6..2.8).contains(&half_in_vain), "10 / (e + 1): {half_in_vain}");
        assert!(found(&rate, now + 300_000) < 0.01);
    }

    #[test]
    fn drain_rate_takes_short_waits_for_what_they_are() {
        let mut rate = DrainRate::default();
        for second in 0..200 {
            rate.set_waiting(Tick::from_millis(second * 1000), true);
            rate.add_dispatch(Tick::from_millis(second * 1000 + 50));
            rate.set_waiting(Tick::from_millis(second * 1000 + 50), false);
        }
        let each_waits_50_ms = found(&rate, 200_000);
        assert!((19.0..21.0).contains(&each_waits_50_ms), "{each_waits_50_ms}");
    }

    #[test]
    fn the_rate_while_waiting_leaves_out_what_did_not_wait() {
        let mut rate = DrainRate::default();
        (0..100).for_each(|second| rate.add_dispatch(Tick::from_millis(second * 1000)));
        assert_eq!(rate.while_waiting(Tick::from_millis(100_000)), None, "nobody ever waited");
        let now = ten_a_second(&mut rate, 100_000, 4);
        assert_eq!(rate.while_waiting(Tick::from_millis(now)), None, "too few were seen");
        let now = ten_a_second(&mut rate, now, 1);
        let ten = rate.while_waiting(Tick::from_millis(now)).unwrap();
        assert!((9.9..10.2).contains(&ten), "{ten}");
        rate = rate.stopped();
        assert_eq!(rate.while_waiting(Tick::from_millis(now + 60_000)), Some(ten));
    }

    #[test]
    fn what_comes_back_was_not_drained() {
        let mut rate = DrainRate::default();
        for step in 0..1000u64 {
            rate.add_dispatch(Tick::from_millis(step * 10));
            rate.undo_dispatch(Tick::from_millis(step * 10 + 3));
        }
        assert!(rate.per_second(Tick::from_millis(10_000)).unwrap_or(9.9) < 0.01);
    }
}
