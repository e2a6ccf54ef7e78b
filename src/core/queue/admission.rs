//! Queue bounds: the check whether a job may wait, and the Retry-After of a job that may not.

use std::time::Duration;

use crate::model::event::{QueueBound, RejectReason};
use crate::model::ids::{JobId, TenantId};
use crate::model::policy::{Policy, QueueBounds};
use crate::model::time::Tick;
use crate::queue::{Queue, QueuedLoad};

/// The shortest Retry-After.
pub const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest Retry-After.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The first bound that the load exceeds.
#[must_use]
pub fn exceeded_bound(load: &QueuedLoad, bounds: &QueueBounds) -> Option<QueueBound> {
    if load.requests > bounds.requests {
        return Some(QueueBound::Requests);
    }
    if load.bytes > u128::from(bounds.bytes) {
        return Some(QueueBound::Bytes);
    }
    (load.tokens > u128::from(bounds.tokens)).then_some(QueueBound::Tokens)
}

/// The bound that the tenant's newest job, already counted in the queue, exceeds. Bounds limit what
/// waits: a job that was dispatched at once is never checked.
#[must_use]
pub fn exceeded_queue_bound(policy: &Policy, queue: &Queue, tenant: TenantId) -> Option<RejectReason> {
    let own =
        policy.tenants.get(tenant).and_then(|row| exceeded_bound(&queue.tenant_load(tenant), &row.bounds));
    own.map(RejectReason::TenantQueueFull)
        .or_else(|| exceeded_bound(&queue.total(), &policy.bounds).map(RejectReason::QueueFull))
}

/// Whether one more small request may wait. An empty queue always has space, since the request may
/// be dispatched at once.
#[must_use]
pub fn has_space(total: &QueuedLoad, bounds: &QueueBounds) -> bool {
    let next = QueuedLoad { requests: total.requests + 1, bytes: total.bytes + 1, tokens: total.tokens + 1 };
    total.requests == 0 || exceeded_bound(&next, bounds).is_none()
}

/// The time in which the measured drain rate empties the queue, between [`MIN_RETRY_AFTER`] and
/// [`MAX_RETRY_AFTER`].
#[must_use]
pub fn retry_after(waiting: u64, per_second: Option<f64>) -> Duration {
    let seconds = waiting.max(1) as f64 / per_second.unwrap_or(0.0);
    if seconds.is_finite() && seconds < MAX_RETRY_AFTER.as_secs_f64() {
        return Duration::from_secs_f64(seconds).max(MIN_RETRY_AFTER);
    }
    MAX_RETRY_AFTER
}

/// Retry-After for a tenant that is paused: a little after the end of the pause, or
/// [`MAX_RETRY_AFTER`] when the pause has no end.
#[must_use]
pub fn retry_after_pause(until: Tick, now: Tick, job: JobId) -> Duration {
    if until == Tick::NEVER { MAX_RETRY_AFTER } else { until.since(now) + spread(MIN_RETRY_AFTER, job) }
}

/// Retry-After for a pool that is expected to have started in `left`: a little later, and spread so
/// that clients do not return all at once. A start that is overdue may take long: then half of
/// [`MAX_RETRY_AFTER`].
#[must_use]
pub fn retry_after_start(left: Duration, job: JobId) -> Duration {
    let wait = if left.is_zero() { MAX_RETRY_AFTER / 2 } else { left };
    wait.mul_f64(1.0 + SPREAD * spread_position(job)).max(MIN_RETRY_AFTER)
}

/// Factor by which a queue may drain faster than measured before a waiting job is hopeless.
const HOPELESS_MARGIN: f64 = 1.25;

/// Whether a job certainly cannot start within `left`, with `before` jobs before it in a queue that
/// drains at `per_second`.
#[must_use]
pub fn cannot_start_in_time(before: u64, per_second: Option<f64>, left: Duration) -> bool {
    per_second.is_some_and(|rate| before as f64 > rate * HOPELESS_MARGIN * left.as_secs_f64())
}

/// The part of the remaining time by which an expected start has to come. Measurements are never
/// exact, and a job that was admitted should not be refused later.
const START_MARGIN: f64 = 0.9;

/// Whether a job whose start is expected after `wait` is refused, since it will not start within
/// `left`.
#[must_use]
pub fn starts_too_late(wait: Duration, left: Duration) -> bool {
    wait.as_secs_f64() > left.as_secs_f64() * START_MARGIN
}

/// The largest part by which [`spread`] moves a wait.
const SPREAD: f64 = 0.25;

/// The wait, longer by up to a quarter, and near [`MAX_RETRY_AFTER`] shorter instead. SDKs keep to
/// the Retry-After, so that jobs refused together would come back together.
#[must_use]
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
    use crate::queue::estimate::DrainRate;

    #[test]
    fn hopeless_is_what_even_a_faster_queue_does_not_reach() {
        let left = Duration::from_secs(10);
        assert!(!cannot_start_in_time(1_000_000, None, left), "nothing is known");
        assert!(!cannot_start_in_time(125, Some(10.0), left));
        assert!(cannot_start_in_time(126, Some(10.0), left));
        assert!(!cannot_start_in_time(0, Some(0.0), Duration::ZERO));
        assert!(cannot_start_in_time(1, Some(0.0), left));
    }

    #[test]
    fn each_bound_is_named() {
        let bounds = QueueBounds { requests: 2, bytes: 10, tokens: 10 };
        let load = |requests, bytes, tokens| QueuedLoad { requests, bytes, tokens };
        assert_eq!(exceeded_bound(&load(2, 10, 10), &bounds), None);
        assert_eq!(exceeded_bound(&load(3, 10, 10), &bounds), Some(QueueBound::Requests));
        assert_eq!(exceeded_bound(&load(2, 11, 10), &bounds), Some(QueueBound::Bytes));
        assert_eq!(exceeded_bound(&load(2, 10, 11), &bounds), Some(QueueBound::Tokens));
    }

    #[test]
    fn an_empty_queue_always_lets_one_try() {
        let none = QueueBounds { requests: 0, bytes: 0, tokens: 0 };
        assert!(has_space(&QueuedLoad::default(), &none));
        assert!(!has_space(&QueuedLoad { requests: 1, bytes: 1, tokens: 1 }, &none));
    }

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
            let max_sequences = waits.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(waits[0] >= wait.min(MAX_RETRY_AFTER.mul_f64(1.0 - SPREAD)), "{waits:?}");
            assert!(waits[99] <= MAX_RETRY_AFTER && waits[99] - waits[0] >= wait.mul_f64(0.19), "{waits:?}");
            assert!(max_sequences <= wait.mul_f64(0.05), "{max_sequences:?} of {wait:?}");
        }
    }
}
