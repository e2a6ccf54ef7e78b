//! Demand flow: the work per second that jobs of one class bring to one pool set.

use std::time::Duration;

use crate::model::averages::RunningMean;
use crate::model::time::Tick;

use super::spread::{PAST, SLOT, WorkSpread};

/// Slots of the fast window: ten seconds.
const FAST: usize = 2;
/// Slots of the shortest slow window: one minute.
const SLOW: usize = 12;
/// Slots of each of the two windows that show a trend: five minutes.
const TREND: usize = 60;
/// Largest rise that is extrapolated, as a part of the present demand.
const MOST_AHEAD: f64 = 0.25;
/// Standard deviations by which a rise must exceed the noise of independent arrivals.
const DEVIATIONS: f64 = 4.0;
/// Standard deviations by which the last window must differ from the minutes before it.
const CHANGE: f64 = 3.0;
/// 1 + c², with c the coefficient of variation of a job's work: 2 where the work is exponential.
const WORK_VARIANCE: f64 = 2.0;
/// Slots between two samples of concurrent work: one minute, so that most jobs of the two samples
/// differ.
const APART: usize = 12;
/// Converts the median of |x − y| to the standard deviation of one value, where x and y are normal:
/// 1.4826/√2.
const MEDIAN_TO_DEVIATION: f64 = 1.048;

/// Offered work of one class in one pool set, served or not.
#[derive(Debug, Clone, Default)]
pub struct DemandFlow {
    offered: WorkSpread,
    /// Offered work, each job counted at the moment of its arrival.
    arrived: WorkSpread,
    /// Mean work of a job.
    work_per_job: RunningMean,
    /// Mean expected duration of a job, in seconds.
    duration: RunningMean,
    /// When a job was last refused because too much work waited.
    refused: Option<Tick>,
}

impl DemandFlow {
    /// Counts a job that arrived with this work and expected duration.
    pub fn add(&mut self, now: Tick, work: f64, lasts: Duration) {
        self.offered.add(now, work, lasts);
        self.arrived.add(now, work, Duration::ZERO);
        self.work_per_job.add(work);
        self.duration.add(lasts.as_secs_f64());
    }

    /// Notes that a job was refused because too much work waited.
    pub const fn note_refusal(&mut self, now: Tick) {
        self.refused = Some(now);
    }

    /// Whether a job was refused within the last `window`.
    pub fn has_refused(&self, window: Duration, now: Tick) -> bool {
        self.refused.is_some_and(|at| now.since(at) < window)
    }

    /// Advances the slots to `now`.
    pub fn advance(&mut self, now: Tick) {
        self.offered.advance(now);
        self.arrived.advance(now);
    }

    /// Recent mean work of a job.
    pub const fn work_per_job(&self) -> f64 {
        self.work_per_job.value
    }

    /// Work per second in the last ten seconds.
    pub fn fast(&self) -> f64 {
        self.offered.mean(0, FAST)
    }

    /// Sustained work per second: the mean of five minutes, or the mean of the last `window` where
    /// that mean differs from the five minutes by more than noise. Time before demand was watched
    /// counts as zero demand.
    pub fn sustained(&self, window: Duration) -> f64 {
        let count = slots(window);
        let (long, short) = (self.arrived.mean(0, TREND), self.arrived.mean(0, count));
        let chance = WORK_VARIANCE
            * long.max(self.work_per_job.value / (TREND as f64 * SLOT))
            * self.work_per_job.value
            / (count as f64 * SLOT);
        let noise = || {
            deviation_from_median(PAST - 2 * count, |at| {
                self.arrived.mean(at, count) - self.arrived.mean(at + count, count)
            })
        };
        let stands_out = |of: f64| (short - long).abs() > CHANGE * of;
        // The noise takes thousands of steps to compute, and few windows need it.
        let changed = stands_out(chance.sqrt()) && stands_out(noise());
        if changed { short } else { self.offered.mean(0, TREND) }
    }

    /// Standard deviation of the concurrent work, where `rate` is its mean: the recent standard
    /// deviation, at least that of independent arrivals, √(rate·w·(1 + c²)/h) for jobs of work w
    /// that last h.
    pub fn deviation(&self, rate: f64) -> f64 {
        let lasts = self.duration.value.max(SLOT);
        let chance = (rate * self.work_per_job.value * WORK_VARIANCE / lasts).sqrt();
        let seen = deviation_from_median(PAST - APART, |at| {
            (self.offered.slot_work(at + 1) - self.offered.slot_work(at + 1 + APART)) / SLOT
        });
        chance.max(seen)
    }

    fn slow(&self, window: Duration) -> f64 {
        self.offered.mean(0, slots(window))
    }

    /// Expected rise of the work per second over the slow window, at the end of `ahead`. Zero
    /// unless the last five minutes exceed the five minutes before them by more than noise.
    pub fn rise(&self, window: Duration, ahead: Duration, watched: Duration) -> f64 {
        if slots_of(watched) < 2 * TREND || self.work_per_job.value <= 0.0 {
            return 0.0;
        }
        let (now, before) = (self.offered.mean(0, TREND), self.offered.mean(TREND, TREND));
        let seconds = TREND as f64 * SLOT;
        let jobs = |rate: f64| rate * seconds / self.work_per_job.value;
        if jobs(now) - jobs(before) < DEVIATIONS * (jobs(now) + jobs(before)).sqrt() {
            return 0.0;
        }
        // The mean of a window is the demand of half a window ago.
        let slope = (now - before) / seconds;
        let ahead = slots(window) as f64 * SLOT / 2.0 + ahead.as_secs_f64();
        (slope * ahead).min(self.slow(window) * MOST_AHEAD)
    }
}

/// Standard deviation of one value, from the median of the absolute differences of like values. One
/// change of level or a short burst hardly moves the median.
fn deviation_from_median(count: usize, difference: impl Fn(usize) -> f64) -> f64 {
    let mut all = [0.0; PAST];
    let all = &mut all[..count.min(PAST)];
    all.iter_mut().enumerate().for_each(|(at, one)| *one = difference(at).abs());
    let (_, median, _) = all.select_nth_unstable_by(count / 2, f64::total_cmp);
    *median * MEDIAN_TO_DEVIATION
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
        assert_eq!(flow.work_per_job(), 2.0);
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
