//! Queue bounds: which job may wait, and the Retry-After of one that may not.

use std::time::Duration;

use crate::core::model::event::{QueueBound, RejectReason};
use crate::core::model::ids::{JobId, TenantId};
use crate::core::model::policy::{Policy, QueueBounds};
use crate::core::model::time::Tick;
use crate::core::queue::{Queue, QueuedLoad};

/// The shortest time a client is told to stay away.
pub const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest time a client is told to stay away.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The first bound that the load passes.
#[must_use]
pub fn passed(load: &QueuedLoad, bounds: &QueueBounds) -> Option<QueueBound> {
    if load.requests > bounds.requests {
        return Some(QueueBound::Requests);
    }
    if load.bytes > u128::from(bounds.bytes) {
        return Some(QueueBound::Bytes);
    }
    (load.tokens > u128::from(bounds.tokens)).then_some(QueueBound::Tokens)
}

/// Why the tenant's newest job, already counted in the queue, may not stay
/// there. Bounds are about what waits: a job that was dispatched at once never
/// gets here.
#[must_use]
pub fn refusal(policy: &Policy, queue: &Queue, tenant: TenantId) -> Option<RejectReason> {
    let own = policy.tenants.get(tenant).and_then(|row| passed(&queue.tenant(tenant), &row.bounds));
    own.map(RejectReason::TenantQueueFull)
        .or_else(|| passed(&queue.total(), &policy.bounds).map(RejectReason::QueueFull))
}

/// Whether one more small request may wait. When nothing waits it need not: it
/// may go straight to a replica.
#[must_use]
pub fn has_space(total: &QueuedLoad, bounds: &QueueBounds) -> bool {
    let next = QueuedLoad { requests: total.requests + 1, bytes: total.bytes + 1, tokens: total.tokens + 1 };
    total.requests == 0 || passed(&next, bounds).is_none()
}

/// The time in which the measured drain rate empties what waits, between
/// [`MIN_RETRY_AFTER`] and [`MAX_RETRY_AFTER`].
#[must_use]
pub fn retry_after(waiting: u64, per_second: Option<f64>) -> Duration {
    let seconds = waiting.max(1) as f64 / per_second.unwrap_or(0.0);
    if seconds.is_finite() && seconds < MAX_RETRY_AFTER.as_secs_f64() {
        return Duration::from_secs_f64(seconds).max(MIN_RETRY_AFTER);
    }
    MAX_RETRY_AFTER
}

/// When to come back to a tenant that is paused: a little after its pause, or
/// in [`MAX_RETRY_AFTER`] when nobody knows its end.
#[must_use]
pub fn after_pause(until: Tick, now: Tick, job: JobId) -> Duration {
    if until == Tick::NEVER { MAX_RETRY_AFTER } else { until.since(now) + spread(MIN_RETRY_AFTER, job) }
}

/// When to come back to a pool that is expected to have started in `left`: a
/// little later, and not all at once. A start that takes longer than expected
/// may take long.
#[must_use]
pub fn after_start(left: Duration, job: JobId) -> Duration {
    let wait = if left.is_zero() { MAX_RETRY_AFTER / 2 } else { left };
    wait.mul_f64(1.0 + SPREAD * place(job)).max(MIN_RETRY_AFTER)
}

/// How much faster than measured a queue may drain before a job that waits in
/// it is called hopeless.
const MARGIN: f64 = 1.25;

/// Whether a job surely cannot start within `left`, with so many before it in a
/// queue from which so many jobs go per second.
#[must_use]
pub fn is_hopeless(before: u64, per_second: Option<f64>, left: Duration) -> bool {
    per_second.is_some_and(|rate| before as f64 > rate * MARGIN * left.as_secs_f64())
}

/// The part of the time that is left by which an expected start has to come: what was
/// measured is never exact, and who is let in should not be refused later.
const SURE: f64 = 0.9;

/// Whether a job whose start is expected after `wait` is to be told that it will not
/// start within `left`.
#[must_use]
pub fn is_beyond(wait: Duration, left: Duration) -> bool {
    wait.as_secs_f64() > left.as_secs_f64() * SURE
}

/// The largest part by which [`spread`] moves a wait.
const SPREAD: f64 = 0.25;

/// The wait, longer by up to a quarter, and near [`MAX_RETRY_AFTER`] shorter
/// instead. SDKs keep to the time they are told, so jobs that were refused
/// together would come back together.
#[must_use]
pub fn spread(wait: Duration, job: JobId) -> Duration {
    let place = place(job);
    let longer = wait.mul_f64(1.0 + SPREAD * place);
    if longer <= MAX_RETRY_AFTER { longer } else { MAX_RETRY_AFTER.mul_f64(1.0 - SPREAD * place) }
}

/// A job's own number from 0 to 1. The golden ratio puts those of jobs in a row
/// far apart.
fn place(job: JobId) -> f64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    (job.index() as u64).wrapping_mul(GOLDEN) as f64 / 2f64.powi(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::queue::estimate::DrainRate;

    #[test]
    fn hopeless_is_what_even_a_faster_queue_does_not_reach() {
        let left = Duration::from_secs(10);
        assert!(!is_hopeless(1_000_000, None, left), "nothing is known");
        assert!(!is_hopeless(125, Some(10.0), left));
        assert!(is_hopeless(126, Some(10.0), left));
        assert!(!is_hopeless(0, Some(0.0), Duration::ZERO));
        assert!(is_hopeless(1, Some(0.0), left));
    }

    #[test]
    fn each_bound_is_named() {
        let bounds = QueueBounds { requests: 2, bytes: 10, tokens: 10 };
        let load = |requests, bytes, tokens| QueuedLoad { requests, bytes, tokens };
        assert_eq!(passed(&load(2, 10, 10), &bounds), None);
        assert_eq!(passed(&load(3, 10, 10), &bounds), Some(QueueBound::Requests));
        assert_eq!(passed(&load(2, 11, 10), &bounds), Some(QueueBound::Bytes));
        assert_eq!(passed(&load(2, 10, 11), &bounds), Some(QueueBound::Tokens));
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
            drain.note(Tick::from_millis(step * 100));
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
            let widest = waits.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(waits[0] >= wait.min(MAX_RETRY_AFTER.mul_f64(1.0 - SPREAD)), "{waits:?}");
            assert!(waits[99] <= MAX_RETRY_AFTER && waits[99] - waits[0] >= wait.mul_f64(0.19), "{waits:?}");
            assert!(widest <= wait.mul_f64(0.05), "{widest:?} of {wait:?}");
        }
    }
}
