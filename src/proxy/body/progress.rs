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
    arriving: Mutex<Option<ArrivingBodies>>,
    given_up: CancellationToken,
}

#[derive(Debug, Clone, Copy)]
struct ArrivingBodies {
    count: usize,
    /// Arrival of the first of them.
    since: Instant,
    /// Bytes received since then.
    bytes: u64,
}

impl BodyProgress {
    /// Counts a body as arriving until the result is dropped.
    pub fn begin(&self) -> ArrivingBody<'_> {
        let mut arriving = self.arriving.lock();
        let none = ArrivingBodies { count: 0, since: Instant::now(), bytes: 0 };
        arriving.get_or_insert(none).count += 1;
        ArrivingBody(self)
    }

    /// The mean rate of the bodies in bytes per second, if `requests` of them, which are all requests of
    /// the connection, have had their grace and are still arriving.
    pub(in crate::proxy) fn rate(&self, requests: usize) -> Option<u64> {
        let arriving = (*self.arriving.lock())?;
        let elapsed = arriving.since.elapsed();
        (arriving.count >= requests && elapsed >= GRACE)
            .then(|| (arriving.bytes as f64 / elapsed.as_secs_f64()) as u64)
    }

    /// Ends the reading of the bodies.
    pub(in crate::proxy) fn give_up(&self) {
        self.given_up.cancel();
    }
}

/// A request body that is arriving.
#[derive(Debug)]
pub struct ArrivingBody<'a>(&'a BodyProgress);

impl ArrivingBody<'_> {
    /// Counts bytes that have arrived.
    pub fn received(&self, bytes: u64) {
        if let Some(arriving) = &mut *self.0.arriving.lock() {
            arriving.bytes = arriving.bytes.saturating_add(bytes);
        }
    }

    /// Waits until the connection's place is needed for a newcomer.
    pub async fn given_up(&self) {
        self.0.given_up.cancelled().await;
    }
}

impl Drop for ArrivingBody<'_> {
    fn drop(&mut self) {
        let mut arriving = self.0.arriving.lock();
        *arriving = arriving.map(|those| ArrivingBodies { count: those.count - 1, ..those });
        arriving.take_if(|those| those.count == 0);
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
        let first = progress.begin();
        first.received(3_000);
        assert_eq!(progress.rate(1), None, "too early to judge");
        advance(2 * GRACE).await;
        assert_eq!((progress.rate(1), progress.rate(2)), (Some(1_500), None));
        let second = progress.begin();
        second.received(1_000);
        assert_eq!(progress.rate(2), Some(2_000));
        drop((first, second));
        assert_eq!(progress.rate(0), None);
        let next = progress.begin();
        assert_eq!(progress.rate(1), None, "its grace begins anew");
        progress.give_up();
        next.given_up().await;
    }
}
