//! Retry-After of refused jobs: the time in which the queue drains, spread over the clients.

use std::time::Duration;

use crate::model::ids::JobId;
use crate::model::time::Tick;

/// The shortest Retry-After.
pub const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest Retry-After.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The time in which the measured drain rate empties the queue, between [`MIN_RETRY_AFTER`] and
/// [`MAX_RETRY_AFTER`].
pub fn retry_after(waiting: u64, per_second: Option<f64>) -> Duration {
    let seconds = waiting.max(1) as f64 / per_second.unwrap_or(0.0);
    if seconds.is_finite() && seconds < MAX_RETRY_AFTER.as_secs_f64() {
        return Duration::from_secs_f64(seconds).max(MIN_RETRY_AFTER);
    }
    MAX_RETRY_AFTER
}

/// Retry-After for a tenant that is paused: a little after the end of the pause, or
/// [`MAX_RETRY_AFTER`] when the pause has no end.
pub fn retry_after_pause(until: Tick, now: Tick, job: JobId) -> Duration {
    if until == Tick::NEVER { MAX_RETRY_AFTER } else { until.since(now) + spread(MIN_RETRY_AFTER, job) }
}

/// Retry-After for a pool that is expected to have started in `left`: a little later, and spread so
/// that clients do not return all at once. A start that is overdue may take long: then half of
/// [`MAX_RETRY_AFTER`].
pub fn retry_after_start(left: Duration, job: JobId) -> Duration {
    let wait = if left.is_zero() { MAX_RETRY_AFTER / 2 } else { left };
    wait.mul_f64(1.0 + SPREAD * spread_position(job)).max(MIN_RETRY_AFTER)
}

/// The largest part by which [`spread`] moves a wait.
const SPREAD: f64 = 0.25;

/// The wait, longer by up to a quarter, and near [`MAX_RETRY_AFTER`] shorter instead. SDKs keep to
/// the Retry-After, so that jobs refused together would come back together.
pub fn spread(wait: Duration, job: JobId) -> Duration {
    let place = spread_position(job);
    let longer = wait.mul_f64(1.0 + SPREAD * place);
    if longer <= MAX_RETRY_AFTER { longer } else { MAX_RETRY_AFTER.mul_f64(1.0 - SPREAD * place) }
}

/// A job's own number from 0 to 1. The golden ratio puts the numbers of consecutive jobs far apart.
fn spread_position(job: JobId) -> f64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    (job.index() as u64).wrapping_mul(GOLDEN) as f64 / 2f64.powi(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::drain::DrainRate;

    #[test]
    fn retry_after_follows_the_drain_rate_within_bounds() {
        let mut drain = DrainRate::default();
        assert_eq!(retry_after(5, drain.per_second(Tick::ZERO)), MAX_RETRY_AFTER);
        for step in 0..100 {
            drain.add_dispatch(Tick::from_millis(step * 100));
        }
        let rate = drain.per_second(Tick::from_millis(9_900));
        assert_eq!(retry_after(1, rate), MIN_RETRY_AFTER);
        let hundred = retry_after(100, rate).as_secs_f64();
        assert!((8.0..11.0).contains(&hundred), "{hundred}");
        assert_eq!(retry_after(1_000_000, rate), MAX_RETRY_AFTER);
    }

    #[test]
    fn waits_are_spread_within_bounds() {
        for wait in [MIN_RETRY_AFTER, Duration::from_secs(10), Duration::from_secs(50), MAX_RETRY_AFTER] {
            let mut waits: Vec<_> = (0..100).map(|job| spread(wait, JobId::new(job))).collect();
            waits.sort();
            let widest_gap = waits.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(waits[0] >= wait.min(MAX_RETRY_AFTER.mul_f64(1.0 - SPREAD)), "{waits:?}");
            assert!(waits[99] <= MAX_RETRY_AFTER && waits[99] - waits[0] >= wait.mul_f64(0.19), "{waits:?}");
            assert!(widest_gap <= wait.mul_f64(0.05), "{widest_gap:?} of {wait:?}");
        }
    }
}
