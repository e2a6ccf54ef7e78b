//! The log: one line per event on standard error, as JSON or for people.
//!
//! Lines pass through a bounded queue to a thread of their own. A reader of
//! standard error that stalls therefore costs log lines, which are counted,
//! and never a request.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::Dispatch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::settings::{LogFormat, TelemetrySettings};

/// Lines that wait for standard error.
const QUEUE_LINES: usize = 8_192;
/// How long the end of the process waits for them.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Tries to get a place in a full queue at the end, and the pause between them.
const FLUSH_TRIES: u32 = 100;
const FLUSH_PAUSE: Duration = Duration::from_millis(10);

/// Standard error belongs to the process, so does this count.
static DROPPED_LINES: AtomicU64 = AtomicU64::new(0);

/// Lines lost since the start because standard error was too slow.
#[must_use]
pub fn dropped_lines() -> u64 {
    DROPPED_LINES.load(Ordering::Relaxed)
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error("telemetry.log_level: {0}; expected a filter such as `info` or `penstock=debug`")]
    Filter(String),
    /// The process has a log already.
    #[error("the log is set up already")]
    Twice,
    /// The writer's thread could not start.
    #[error("the log's thread could not start: {0}")]
    Thread(#[from] io::Error),
}

/// Starts the log of this process. Keep the guard: dropping it writes out what
/// still waits.
///
/// # Errors
/// When the filter does not parse, or the process has a log already.
pub fn init(settings: &TelemetrySettings) -> Result<LogGuard, LogError> {
    let filter = filter(&settings.log_level)?;
    let (lines, queue) = sync_channel(QUEUE_LINES);
    std::thread::Builder::new().name("log".into()).spawn(move || write_out(&queue, &mut io::stderr()))?;
    let ansi = io::stderr().is_terminal();
    let dispatch = dispatch(settings.log_format, filter, Lines(lines.clone()), ansi);
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| LogError::Twice)?;
    Ok(LogGuard(lines))
}

/// Checks a filter without using it.
///
/// # Errors
/// When it does not parse.
pub fn filter(text: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder().parse(text).map_err(|problem| LogError::Filter(format!("`{text}`: {problem}")))
}

fn dispatch<W>(format: LogFormat, filter: EnvFilter, writer: W, ansi: bool) -> Dispatch
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => Dispatch::new(builder.with_ansi(ansi).finish()),
        LogFormat::Json => Dispatch::new(
            builder.json().flatten_event(true).with_current_span(false).with_span_list(false).finish(),
        ),
    }
}

enum Entry {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

fn write_out(queue: &Receiver<Entry>, to: &mut impl Write) {
    while let Ok(entry) = queue.recv() {
        match entry {
            Entry::Line(line) => {
                if to.write_all(&line).is_err() {
                    DROPPED_LINES.fetch_add(1, Ordering::Relaxed);
                }
            }
            Entry::Flush(done) => {
                let _ = to.flush();
                let _ = done.try_send(());
            }
        }
    }
}

/// The log's owner.
#[must_use = "dropping the guard writes out what waits; keep it until the end of the process"]
pub struct LogGuard(SyncSender<Entry>);

impl Drop for LogGuard {
    fn drop(&mut self) {
        let (done, wait) = sync_channel(1);
        for _ in 0..FLUSH_TRIES {
            if self.0.try_send(Entry::Flush(done.clone())).is_ok() {
                let _ = wait.recv_timeout(FLUSH_TIMEOUT);
                return;
            }
            std::thread::sleep(FLUSH_PAUSE);
        }
    }
}

impl fmt::Debug for LogGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogGuard")
    }
}

/// Hands lines to the writer's thread. The subscriber writes each line whole.
struct Lines(SyncSender<Entry>);

impl<'w> MakeWriter<'w> for Lines {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send(Entry::Line(line.to_vec())).is_err() {
            DROPPED_LINES.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A log in memory, one JSON object a line, every level.
#[derive(Clone)]
pub(in crate::telemetry) struct Capture {
    lines: Arc<Mutex<Vec<u8>>>,
    dispatch: Dispatch,
}

impl Capture {
    pub(in crate::telemetry) fn dispatch(&self) -> &Dispatch {
        &self.dispatch
    }

    pub(in crate::telemetry) fn text(&self) -> String {
        String::from_utf8_lossy(&self.lines.lock()).into_owned()
    }
}

impl Default for Capture {
    fn default() -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Memory(Arc::clone(&lines));
        let dispatch = dispatch(LogFormat::Json, EnvFilter::new("trace"), writer, false);
        Self { lines, dispatch }
    }
}

struct Memory(Arc<Mutex<Vec<u8>>>);

impl<'w> MakeWriter<'w> for Memory {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

impl Write for &Memory {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_named_with_the_fix() {
        let problem = filter("penstock=loud").unwrap_err().to_string();
        assert!(problem.starts_with("telemetry.log_level: `penstock=loud`"), "{problem}");
        assert!(problem.ends_with("such as `info` or `penstock=debug`"), "{problem}");
        assert!(filter("info,hyper=warn").is_ok());
    }

    #[test]
    fn a_stalled_reader_costs_lines_and_never_the_writer() {
        let (lines, queue) = sync_channel(2);
        let lines = Lines(lines);
        let before = dropped_lines();
        for line in 0..5 {
            assert_eq!((&lines).write(format!("{line}\n").as_bytes()).unwrap(), 2);
        }
        assert_eq!(dropped_lines() - before, 3);

        drop(lines);
        let mut written = Vec::new();
        write_out(&queue, &mut written);
        assert_eq!(written, b"0\n1\n");
    }

    #[test]
    fn the_last_flush_waits_for_a_place_in_a_full_queue() {
        let (lines, queue) = sync_channel(1);
        (&Lines(lines.clone())).write_all(b"full\n").unwrap();
        let guard = std::thread::spawn(move || drop(LogGuard(lines)));
        let mut written = Vec::new();
        write_out(&queue, &mut written);
        guard.join().unwrap();
        assert_eq!(written, b"full\n");
    }

    #[test]
    fn dropping_the_guard_waits_for_the_lines() {
        let (lines, queue) = sync_channel(8);
        let memory = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&memory);
        let writer = std::thread::spawn(move || write_out(&queue, &mut &Memory(seen)));
        (&Lines(lines.clone())).write_all(b"last words\n").unwrap();
        drop(LogGuard(lines));
        assert_eq!(*memory.lock(), b"last words\n");
        writer.join().unwrap();
    }

    #[test]
    fn text_lines_cannot_be_forged_by_a_field() {
        let memory = Arc::new(Mutex::new(Vec::new()));
        let dispatch = dispatch(LogFormat::Text, EnvFilter::new("info"), Memory(Arc::clone(&memory)), false);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::info!(key_id = "x\nINFO forged \u{1b}[31m", "told");
        });
        let text = String::from_utf8(memory.lock().clone()).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
