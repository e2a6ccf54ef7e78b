//! What the jobs of one class and one line ask for.

use std::time::Duration;

use crate::core::estimate::Mean;
use crate::core::time::Tick;

use super::spread::{SLOT, Spread};

/// Slots of the fast window, ten seconds.
const FAST: usize = 2;
/// The shortest slow window, in slots.
const SLOW: usize = 12;
/// Slots of each of the two windows that show a trend, five minutes.
const TREND: usize = 60;
/// The most by which a rise is followed into the future, as a part of what is.
const MOST_AHEAD: f64 = 0.25;
/// Standard deviations by which a rise must stand out of the noise of
/// independent arrivals.
const DEVIATIONS: f64 = 4.0;
/// The same of a change.
const CHANGE: f64 = 3.0;
/// How much more work varies than the number of jobs, since they differ in size.
const SIZES: f64 = 2.0;

/// Work that was asked for, served or not.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    offered: Spread,
    /// Work of a job.
    each: Mean,
}

impl Flow {
    /// A job arrived.
    pub fn add(&mut self, now: Tick, work: f64, lasts: Duration) {
        self.offered.add(now, work, lasts);
        self.each.add(work);
    }

    /// Brings it up to `now`.
    pub fn advance(&mut self, now: Tick) {
        self.offered.advance(now);
    }

    /// Work of a job, as of late.
    #[must_use]
    pub const fn each(&self) -> f64 {
        self.each.value
    }

    /// Work per second in the last ten seconds.
    #[must_use]
    pub fn fast(&self) -> f64 {
        self.offered.mean(0, FAST)
    }

    /// Work per second as it goes on: the mean of five minutes, or of the last
    /// `window`, at least a minute, where that stands out of the noise against
    /// them; with the deviation of five seconds from that, unknown (0) where it
    /// stands out. What came before demand was watched counts as nothing.
    #[must_use]
    pub fn sustained(&self, window: Duration) -> (f64, f64) {
        let count = slots(window);
        let (long, short) = (self.offered.mean(0, TREND), self.slow(window));
        let jobs = |rate: f64| rate * count as f64 * SLOT / self.each.value.max(f64::MIN_POSITIVE);
        if (jobs(short) - jobs(long)).abs() > CHANGE * (SIZES * jobs(long) + 1.0).sqrt() {
            return (short, 0.0);
        }
        let off = |back| (self.offered.back(back) / SLOT - long).powi(2);
        let variance = (1..=TREND).map(off).sum::<f64>() / TREND as f64;
        (long, variance.sqrt())
    }

    fn slow(&self, window: Duration) -> f64 {
        self.offered.mean(0, slots(window))
    }

    /// By how much more than in the slow window is to be expected at the end of
    /// `ahead`, where what was asked for in the last minutes rises out of the noise
    /// against as many before them.
    #[must_use]
    pub fn rise(&self, window: Duration, ahead: Duration, watched: Duration) -> f64 {
        if slots_of(watched) < 2 * TREND || self.each.value <= 0.0 {
            return 0.0;
        }
        let (now, before) = (self.offered.mean(0, TREND), self.offered.mean(TREND, TREND));
        let seconds = TREND as f64 * SLOT;
        let jobs = |rate: f64| rate * seconds / self.each.value;
        if jobs(now) - jobs(before) < DEVIATIONS * (jobs(now) + jobs(before)).sqrt() {
            return 0.0;
        }
        // The mean of a window is what was half a window ago.
        let slope = (now - before) / seconds;
        let ahead = slots(window) as f64 * SLOT / 2.0 + ahead.as_secs_f64();
        (slope * ahead).min(self.slow(window) * MOST_AHEAD)
    }
}

fn slots_of(time: Duration) -> usize {
    (time.as_secs_f64() / SLOT) as usize
}

fn slots(window: Duration) -> usize {
    slots_of(window).clamp(SLOW, super::spread::PAST / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// `rate(second)` jobs in each second of the time given, of 2 units each.
    fn flow(seconds: u64, rate: impl Fn(u64) -> u64) -> Flow {
        let mut flow = Flow::default();
        for second in 0..seconds {
            let now = Tick::from_millis(second * 1000);
            (0..rate(second)).for_each(|_| flow.add(now, 2.0, secs(1)));
        }
        flow.advance(Tick::from_millis(seconds * 1000));
        flow
    }

    #[test]
    fn a_burst_counts_by_its_part_of_the_window() {
        let flow = flow(40, |_| 100);
        assert_eq!(flow.fast(), 200.0);
        let (sustained, deviation) = flow.sustained(secs(180));
        assert!((sustained - 200.0 * 40.0 / 180.0).abs() < 0.5 && deviation == 0.0);
        assert_eq!(flow.each(), 2.0);
    }

    #[test]
    fn a_rise_is_followed_and_noise_is_not() {
        let steady = flow(700, |second| 10 + second % 3);
        assert_eq!(steady.rise(secs(180), secs(200), DAY), 0.0);
        let (sustained, deviation) = steady.sustained(secs(60));
        assert!((sustained - 22.0).abs() < 0.1 && deviation < 1.0, "{sustained} {deviation}");
        let ramp = flow(700, |second| 100 + second / 12);
        let (slow, rise) = (ramp.slow(secs(180)), ramp.rise(secs(180), secs(180), DAY));
        // It grows by a twelfth of a job a second, of 2 units: 270 s ahead of the
        // window's middle.
        assert!((rise - 2.0 * 270.0 / 12.0).abs() < 3.0, "{rise}");
        assert!(rise <= slow / 4.0);
        assert_eq!(ramp.rise(secs(180), secs(180), secs(500)), 0.0, "there is no window before");
    }
}
