//! Progress of the request bodies that one connection sends. At a full port, the connection with the
//! slowest ones ends for a newcomer.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time for which a body may arrive at any rate.
const GRACE: Duration = Duration::from_secs(1);

/// The request bodies of one connection that are arriving now.
#[derive(Debug, Default)]
pub struct BodyProgress {
    bodies: Mutex<Bodies>,
    given_up: CancellationToken,
}

#[derive(Debug, Default)]
struct Bodies {
    /// Number of bodies that are arriving.
    arriving: usize,
    /// Arrival of the first of them; absent while there are none.
    since: Option<Instant>,
    /// Bytes received since then.
    bytes: u64,
    is_given_up: bool,
    /// Whether a body became whole although it was to be given up.
    has_survivor: bool,
}

impl BodyProgress {
    /// Counts a body as arriving from `now` until the result is dropped.
    pub fn begin(&self, now: Instant) -> ArrivingBody<'_> {
        let mut bodies = self.bodies.lock();
        bodies.arriving += 1;
        bodies.since.get_or_insert(now);
        ArrivingBody { progress: self, is_whole: false }
    }

    /// The mean rate of the bodies in bytes per second, if all `requests` of the connection have had
    /// their grace and are still arriving.
    pub(in crate::proxy) fn rate(&self, requests: usize) -> Option<u64> {
        let bodies = self.bodies.lock();
        let elapsed = bodies.since?.elapsed();
        (bodies.arriving >= requests && elapsed >= GRACE)
            .then(|| (bodies.bytes as f64 / elapsed.as_secs_f64()) as u64)
    }

    /// Ends the reading of the bodies, if all `requests` of the connection are still arriving.
    pub(in crate::proxy) fn give_up(&self, requests: usize) {
        let mut bodies = self.bodies.lock();
        bodies.is_given_up = bodies.arriving >= requests;
        if bodies.is_given_up {
            self.given_up.cancel();
        }
    }

    /// Whether the bodies were given up, and none of them became whole before its reading ended.
    pub(in crate::proxy) fn are_lost(&self) -> bool {
        let bodies = self.bodies.lock();
        bodies.is_given_up && !bodies.has_survivor
    }
}

/// A request body that is arriving.
#[derive(Debug)]
pub struct ArrivingBody<'a> {
    progress: &'a BodyProgress,
    is_whole: bool,
}

impl ArrivingBody<'_> {
    /// Counts bytes that have arrived.
    pub fn received(&self, bytes: u64) {
        let mut bodies = self.progress.bodies.lock();
        bodies.bytes = bodies.bytes.saturating_add(bytes);
    }

    /// Notes that the body is whole, and counts it no longer.
    pub fn complete(mut self) {
        self.is_whole = true;
    }

    /// Waits until the connection's place is needed for a newcomer.
    pub async fn given_up(&self) {
        self.progress.given_up.cancelled().await;
    }
}

impl Drop for ArrivingBody<'_> {
    fn drop(&mut self) {
        let mut bodies = self.progress.bodies.lock();
        bodies.has_survivor |= bodies.is_given_up && self.is_whole;
        bodies.arriving -= 1;
        if bodies.arriving == 0 {
            (bodies.since, bodies.bytes) = (None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_that_of_all_bodies_after_their_grace() {
        let progress = BodyProgress::default();
        assert_eq!(progress.rate(1), None);
        let first = progress.begin(Instant::now());
        first.received(3_000);
        assert_eq!(progress.rate(1), None, "too early to judge");
        advance(2 * GRACE).await;
        assert_eq!((progress.rate(1), progress.rate(2)), (Some(1_500), None));
        let second = progress.begin(Instant::now());
        second.received(1_000);
        assert_eq!(progress.rate(2), Some(2_000));
        drop((first, second));
        assert_eq!(progress.rate(0), None);
        let _next = progress.begin(Instant::now());
        assert_eq!(progress.rate(1), None, "its grace begins anew");
    }

    #[tokio::test]
    async fn a_whole_body_is_never_lost() {
        let progress = BodyProgress::default();
        let (first, second) = (progress.begin(Instant::now()), progress.begin(Instant::now()));
        progress.give_up(3);
        assert!(!progress.are_lost(), "one request is being answered");
        progress.give_up(2);
        first.given_up().await;
        drop(first);
        assert!(progress.are_lost());
        second.complete();
        assert!(!progress.are_lost(), "it came in time");
    }
}
