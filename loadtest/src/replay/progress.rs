//! Progress of a replay: live counters, and the line on standard error that shows them.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::record::Outcome;

const WIDTH: usize = 24;
const TICK: Duration = Duration::from_millis(250);
/// Ticks between two lines where the line cannot be written over.
const TICKS_PER_LINE: u32 = 40;

/// Counters of one run.
#[derive(Debug, Default)]
pub(super) struct Progress {
    sent: AtomicU64,
    served: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    tokens: AtomicU64,
}

impl Progress {
    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn tokens(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Served => &self.served,
            Outcome::Refused(_) => &self.refused,
            Outcome::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn line(&self, label: &str, calls: u64, elapsed: Duration, tokens_per_second: f64) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (sent, served, refused, failed) =
            (of(&self.sent), of(&self.served), of(&self.refused), of(&self.failed));
        let ended = served + refused + failed;
        let full = (ended as f64 / calls.max(1) as f64 * WIDTH as f64) as usize;
        let bar: String = (0..WIDTH).map(|at| if at < full { '#' } else { '-' }).collect();
        format!(
            "{label} [{bar}] {:>4.0} s  open {:>5}  served {served:>6}  refused {refused:>5}  failed {failed:>4}  \
             {tokens_per_second:>6.0} tok/s",
            elapsed.as_secs_f64(),
            sent.saturating_sub(ended),
        )
    }
}

/// Shows the progress until it is dropped.
#[derive(Debug)]
pub(super) struct Bar {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Bar {
    /// Starts; without a thread to be had there is no line.
    pub(super) fn start(progress: Arc<Progress>, label: String, calls: u64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        let show = move || show(&progress, &label, calls, &watched);
        Bar { over, thread: thread::Builder::new().name("progress".to_owned()).spawn(show).ok() }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn show(progress: &Progress, label: &str, calls: u64, over: &AtomicBool) {
    let start = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let (mut ticks, mut last) = (0u32, (start, 0));
    let mut rate = 0.0;
    loop {
        let is_over = over.load(Ordering::Relaxed);
        let now = Instant::now();
        if ticks.is_multiple_of(4) {
            let tokens = progress.tokens.load(Ordering::Relaxed);
            let seconds = now.duration_since(last.0).as_secs_f64();
            rate = if seconds > 0.0 { (tokens - last.1) as f64 / seconds } else { 0.0 };
            last = (now, tokens);
        }
        let mut out = std::io::stderr().lock();
        let line = || progress.line(label, calls, now.duration_since(start), rate);
        // A reader of the line that is gone is no reason to stop measuring.
        let _ = match (terminal, is_over) {
            (true, false) => write!(out, "\r\x1b[K{}", line()).and_then(|()| out.flush()),
            (true, true) => writeln!(out, "\r\x1b[K{}", line()),
            (false, _) if is_over || (ticks > 0 && ticks.is_multiple_of(TICKS_PER_LINE)) => {
                writeln!(out, "{}", line())
            }
            (false, _) => Ok(()),
        };
        drop(out);
        if is_over {
            return;
        }
        ticks = ticks.wrapping_add(1);
        thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_what_is_open() {
        let progress = Progress::default();
        for _ in 0..4 {
            progress.sent();
        }
        progress.ended(&Outcome::Served);
        progress.ended(&Outcome::Refused("429".to_owned()));
        let line = progress.line("a", 4, Duration::from_secs(3), 12.0);
        assert!(line.contains("[############------------]"), "{line}");
        assert!(line.contains("open     2  served      1  refused     1  failed    0"), "{line}");
    }
}
