//! Clock of an open loop: send times that do not wait for answers.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Send times that the loop may fall behind before the clock waits for it.
/// The times handed out stay the intended ones, so lateness still counts.
const AHEAD: usize = 65_536;

/// Hands out send times at `rate` a second from `start` until `end`, each as
/// it comes due.
///
/// # Errors
/// When the rate is not a positive number or no thread can be started.
pub fn ticks(rate: f64, start: Instant, end: Instant) -> Result<mpsc::Receiver<Instant>> {
    ensure!(rate.is_finite() && rate > 0.0, "--rate must be a number above 0");
    due(schedule(rate, start).take_while(move |&at| at < end), |&at| at)
}

/// Hands out `items`, each when its time has come; they must be in the order
/// of their times.
///
/// A thread of its own sleeps with about 0.1 ms of error; the runtime's timer
/// has steps of 1 ms, which would show in every latency.
///
/// # Errors
/// When no thread can be started.
pub fn due<T: Send + 'static>(
    items: impl Iterator<Item = T> + Send + 'static,
    time: impl Fn(&T) -> Instant + Send + 'static,
) -> Result<mpsc::Receiver<T>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let clock = move || {
        for item in items {
            while sleep_a_little(time(&item)) {
                if sender.is_closed() {
                    return;
                }
            }
            if sender.blocking_send(item).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("clock".to_owned()).spawn(clock).context("cannot start the clock thread")?;
    Ok(receiver)
}

/// Sleeps until `at`, but not for long, so that a clock that nobody needs any
/// more ends; false when the time has come.
fn sleep_a_little(at: Instant) -> bool {
    const MOST: Duration = Duration::from_millis(200);
    let left = at.saturating_duration_since(Instant::now());
    thread::sleep(left.min(MOST));
    left > MOST
}

/// Evenly spaced times; each is computed from the start, so no error adds up.
fn schedule(rate: f64, start: Instant) -> impl Iterator<Item = Instant> {
    (0u64..).map_while(move |n| {
        let offset = Duration::try_from_secs_f64(n as f64 / rate).ok()?;
        start.checked_add(offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacing_does_not_drift() {
        let start = Instant::now();
        let at = schedule(3.0, start).nth(3_000_000).expect("a time");
        let error = at.duration_since(start).abs_diff(Duration::from_secs(1_000_000));
        assert!(error < Duration::from_micros(1), "{error:?}");
    }

    #[test]
    fn bad_rates_are_refused() {
        let now = Instant::now();
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(ticks(rate, now, now).is_err(), "{rate}");
        }
        assert_eq!(schedule(1e-300, now).count(), 1);
    }

    #[tokio::test]
    async fn times_come_due_in_order_and_stop() {
        let start = Instant::now();
        let mut receiver = ticks(1_000.0, start, start + Duration::from_millis(20)).expect("clock");
        let mut count = 0;
        while let Some(at) = receiver.recv().await {
            assert!(Instant::now() >= at);
            count += 1;
        }
        assert_eq!(count, 20);
    }
}
