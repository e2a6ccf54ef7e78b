//! Time limits of one connection: its waits, and the rate at which its client takes the bytes that
//! wait for it. A timer is armed only while the connection waits for something, and is moved only
//! when it fires. A read therefore costs no timer call.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::settings::ListenerLimits;

/// Interval at which the connection checks whether a client with unread input has left.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnWait {
    /// The first byte of a request.
    Idle,
    /// The rest of a head.
    Head,
    /// The next bytes of a body.
    Body,
    /// The next check of whether the client has left.
    Watch,
}

/// Time limits of a connection's waits. The clock measures one wait at a time.
#[derive(Debug)]
pub(super) struct ConnClock {
    idle: Duration,
    head: Duration,
    body: Duration,
    waiting: Option<TimedWait>,
    alarm: Alarm,
}

#[derive(Debug, Clone, Copy)]
struct TimedWait {
    wait: ConnWait,
    deadline: Instant,
}

impl ConnClock {
    pub(super) fn new(limits: &ListenerLimits) -> Self {
        Self {
            idle: limits.idle_timeout,
            head: limits.head_timeout,
            body: limits.body_timeout,
            waiting: None,
            alarm: Alarm::default(),
        }
    }

    /// Ends the wait, if there is one.
    pub(super) fn clear(&mut self) {
        self.waiting = None;
    }

    /// Ready when `wait` has exceeded its limit. The wait starts with the first call after
    /// [`Self::clear`] or after a call for another wait.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>, wait: ConnWait) -> Poll<()> {
        let deadline = match self.waiting {
            Some(now) if now.wait == wait => now.deadline,
            _ => Instant::now() + self.limit(wait),
        };
        self.waiting = Some(TimedWait { wait, deadline });
        self.alarm.poll_expired(cx, deadline)
    }

    fn limit(&self, wait: ConnWait) -> Duration {
        match wait {
            ConnWait::Idle => self.idle,
            ConnWait::Head => self.head,
            ConnWait::Body => self.body,
            ConnWait::Watch => WATCH_INTERVAL,
        }
    }
}

/// A timer that is created on first use.
#[derive(Debug, Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready when `deadline` has passed.
    fn poll_expired(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() == deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// Measures how fast a client takes the bytes that wait for it. The client may fall behind by
/// `limit`. Time counts only while bytes wait, and each byte taken gives back `1 / rate` seconds. A
/// client below the rate is therefore late at some point, and a client that takes no byte is late
/// after `limit`.
#[derive(Debug)]
pub(super) struct SendProgress {
    limit: Duration,
    /// Least rate in bytes per second. 0 = any byte taken restores the whole limit.
    rate: u64,
    /// Time left of the limit.
    left: Duration,
    /// Start of the current wait. `None` while no bytes wait.
    waiting: Option<Instant>,
    alarm: Alarm,
}

impl SendProgress {
    pub(super) fn new(limits: &ListenerLimits) -> Self {
        let (limit, rate) = (limits.send_timeout, limits.min_send_rate);
        Self { limit, rate, left: limit, waiting: None, alarm: Alarm::default() }
    }

    /// Progress of another stream under the same limits, with its whole limit left.
    pub(super) fn fresh(&self) -> Self {
        Self { limit: self.limit, rate: self.rate, left: self.limit, waiting: None, alarm: Alarm::default() }
    }

    /// Restores the whole limit, because the next answer begins.
    pub(super) fn begins(&mut self) {
        self.waiting = None;
        self.left = self.limit;
    }

    /// Stops the time, because no bytes wait now.
    pub(super) fn pause(&mut self) {
        if let Some(since) = self.waiting.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }

    /// Credits `bytes` bytes that the client took.
    pub(super) fn took(&mut self, bytes: u64) {
        self.pause();
        // A client that was too late stays too late.
        if self.left == self.limit || self.left.is_zero() || bytes == 0 {
            return;
        }
        self.left = match self.rate {
            0 => self.limit,
            rate => {
                let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
                let earned = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                self.left.saturating_add(earned).min(self.limit)
            }
        };
    }

    /// Ready when the client is too late with the bytes that wait.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let deadline = *self.waiting.get_or_insert(now) + self.left;
        if now >= deadline { Poll::Ready(()) } else { self.alarm.poll_expired(cx, deadline) }
    }
}

/// Delivery of an HTTP/2 answer, as its body sees it. Body and stream run in one task, so relaxed
/// loads and stores suffice.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    begun: AtomicBool,
    taken: AtomicU64,
    waits: AtomicBool,
}

impl Delivery {
    /// Notes that hyper has passed the head on and asks for the body, or that there is no body.
    pub(super) fn begins(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Whether the answer has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Notes that a piece was passed to hyper and waits for its flow-control window.
    pub(super) fn offers(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Notes that the last piece, of `bytes` bytes, was sent.
    pub(super) fn sent(&self, bytes: usize) {
        self.waits.store(false, Ordering::Relaxed);
        let taken = self.taken.load(Ordering::Relaxed) + bytes as u64;
        self.taken.store(taken, Ordering::Relaxed);
    }

    /// Bytes of the answer that were sent.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether a piece waits for its flow-control window.
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn progress(rate: u64) -> SendProgress {
        SendProgress { limit: 60 * SECOND, rate, left: 60 * SECOND, waiting: None, alarm: Alarm::default() }
    }

    /// The seconds until a client is cut off that takes `bytes` every `every`
    /// seconds, within an hour.
    async fn lasts(mut progress: SendProgress, bytes: u64, every: u64) -> Option<u64> {
        let mut cx = Context::from_waker(Waker::noop());
        for second in 0..3_600 {
            if progress.poll_overdue(&mut cx).is_ready() {
                return Some(second);
            }
            sleep(SECOND).await;
            if (second + 1) % every == 0 {
                progress.took(bytes);
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_below_the_rate_is_late_in_the_end() {
        assert_eq!(lasts(progress(1024), 0, 1).await, Some(60));
        let half = lasts(progress(1024), 512, 1).await;
        assert!(half.is_some_and(|seconds| (119..=120).contains(&seconds)), "{half:?}");
        assert_eq!(lasts(progress(1024), 1, 59).await, Some(61));
        assert_eq!(lasts(progress(1024), 1024, 1).await, None);
        assert_eq!(lasts(progress(1024), 16 * 1024, 16).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_any_progress_will_do() {
        assert_eq!(lasts(progress(0), 1, 59).await, None);
        assert_eq!(lasts(progress(0), 1, 61).await, Some(60));
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_bytes_does_not_count() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut progress = progress(1024);
        assert!(progress.poll_overdue(&mut cx).is_pending());
        sleep(50 * SECOND).await;
        progress.pause();
        sleep(1000 * SECOND).await;
        assert!(progress.poll_overdue(&mut cx).is_pending());
        sleep(9 * SECOND).await;
        assert!(progress.poll_overdue(&mut cx).is_pending(), "a second is left");
        sleep(2 * SECOND).await;
        assert!(progress.poll_overdue(&mut cx).is_ready());
        progress.begins();
        assert!(progress.poll_overdue(&mut cx).is_pending(), "the next answer has its own time");
    }
}
