//! Demand flow: the work per second that jobs of one class bring to one pool set.

use std::time::Duration;

use crate::core::model::time::Tick;
use crate::core::queue::estimate::RunningMean;

use super::spread::{PAST, SLOT, WorkSpread};

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
/// Those by which the last window must stand out of the minutes before it.
const CHANGE: f64 = 3.0;
/// 1 + c², with c the coefficient of variation of a job's work: 2 where that is
/// exponential.
const SIZES: f64 = 2.0;
/// Slots between two looks at what is under way, a minute: far enough for most of
/// it to be other jobs.
const APART: usize = 12;
/// Standard deviations of one value in the median of the difference of two, where
/// they are normal: 1.4826/√2.
const MEDIAN: f64 = 1.048;

/// Work that was asked for, served or not.
#[derive(Debug, Clone, Default)]
pub struct DemandFlow {
    offered: WorkSpread,
    /// The same, at the moment at which it came.
    came: WorkSpread,
    /// Work of a job.
    each: RunningMean,
    /// Seconds that a job is expected to last.
    lasts: RunningMean,
    /// When one was refused last since too much waited.
    refused: Option<Tick>,
}

impl DemandFlow {
    /// A job arrived.
    pub fn add(&mut self, now: Tick, work: f64, lasts: Duration) {
        self.offered.add(now, work, lasts);
        self.came.add(now, work, Duration::ZERO);
        self.each.add(work);
        self.lasts.add(lasts.as_secs_f64());
    }

    /// A job was refused since too much waited.
    pub const fn refuse(&mut self, now: Tick) {
        self.refused = Some(now);
    }

    /// Whether one was refused within the last `window`.
    #[must_use]
    pub fn refuses(&self, window: Duration, now: Tick) -> bool {
        self.refused.is_some_and(|at| now.since(at) < window)
    }

    /// Brings it up to `now`.
    pub fn advance(&mut self, now: Tick) {
        self.offered.advance(now);
        self.came.advance(now);
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
    /// `window` where that stands out of the noise against them. What came before
    /// demand was watched counts as nothing.
    #[must_use]
    pub fn sustained(&self, window: Duration) -> f64 {
        let count = slots(window);
        let (long, short) = (self.came.mean(0, TREND), self.came.mean(0, count));
        let chance = SIZES * long.max(self.each.value / (TREND as f64 * SLOT)) * self.each.value
            / (count as f64 * SLOT);
        let noise =
            || typical(PAST - 2 * count, |at| self.came.mean(at, count) - self.came.mean(at + count, count));
        let stands_out = |of: f64| (short - long).abs() > CHANGE * of;
        // The noise takes thousands of steps to find, and few windows ask for it.
        let changed = stands_out(chance.sqrt()) && stands_out(noise());
        if changed { short } else { self.offered.mean(0, TREND) }
    }

    /// The standard deviation of the work that is under way at once, where `rate`
    /// is its mean: what was seen of late, and no less than that of independent
    /// arrivals, √(rate·w·(1 + c²)/h) for jobs of work w that last h.
    #[must_use]
    pub fn deviation(&self, rate: f64) -> f64 {
        let lasts = self.lasts.value.max(SLOT);
        let chance = (rate * self.each.value * SIZES / lasts).sqrt();
        let seen = typical(PAST - APART, |at| {
            (self.offered.back(at + 1) - self.offered.back(at + 1 + APART)) / SLOT
        });
        chance.max(seen)
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

/// The standard deviation that differences of two like values let one expect,
/// from their median: a level that changed once or a short burst hardly move it.
fn typical(count: usize, difference: impl Fn(usize) -> f64) -> f64 {
    let mut all = [0.0; PAST];
    let all = &mut all[..count.min(PAST)];
    all.iter_mut().enumerate().for_each(|(at, one)| *one = difference(at).abs());
    let (_, median, _) = all.select_nth_unstable_by(count / 2, f64::total_cmp);
    *median * MEDIAN
}

fn slots_of(time: Duration) -> usize {
    (time.as_secs_f64() / SLOT) as usize
}

fn slots(window: Duration) -> usize {
    slots_of(window).clamp(SLOW, PAST / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// `rate(second)` jobs in each second of the time given, of 2 units each.
    fn flow(seconds: u64, rate: impl Fn(u64) -> u64) -> DemandFlow {
        let mut flow = DemandFlow::default();
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
        assert!((flow.sustained(secs(180)) - 200.0 * 40.0 / 180.0).abs() < 0.5);
        assert_eq!(flow.each(), 2.0);
    }

    #[test]
    fn a_rise_is_followed_and_noise_is_not() {
        let steady = flow(700, |second| 10 + second % 3);
        assert_eq!(steady.rise(secs(180), secs(200), DAY), 0.0);
        assert!((steady.sustained(secs(60)) - 22.0).abs() < 0.1);
        let ramp = flow(700, |second| 100 + second / 12);
        let (slow, rise) = (ramp.slow(secs(180)), ramp.rise(secs(180), secs(180), DAY));
        // It grows by a twelfth of a job a second, of 2 units: 270 s ahead of the
        // window's middle.
        assert!((rise - 2.0 * 270.0 / 12.0).abs() < 3.0, "{rise}");
        assert!(rise <= slow / 4.0);
        assert_eq!(ramp.rise(secs(180), secs(180), secs(500)), 0.0, "there is no window before");
    }

    #[test]
    fn what_always_comes_in_bursts_is_no_change_and_a_step_is_one() {
        for end in (600..700).step_by(7) {
            let bursty = flow(end, |second| if second % 90 < 45 { 20 } else { 0 });
            let sustained = bursty.sustained(secs(60));
            assert!((sustained - 20.0).abs() < 4.0, "{end}: {sustained}");
            let deviation = bursty.deviation(sustained);
            assert!((10.0..45.0).contains(&deviation), "{end}: {deviation}");
        }
        let step = flow(660, |second| if second < 600 { 5 } else { 20 });
        assert_eq!(step.sustained(secs(60)), 40.0);
        let even = step.deviation(10.0);
        assert!((even - (10.0f64 * 2.0 * 2.0 / 5.0).sqrt()).abs() < 1e-9, "one step is no noise: {even}");
    }
}
