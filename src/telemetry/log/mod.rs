//! Process log: one line per event on standard error, as JSON or as text for people.
//!
//! Lines go into a bounded buffer. A dedicated thread writes all buffered lines at once, so a line
//! costs the request no system call and, as a rule, no wake-up. When the reader of standard error
//! stalls, lines are dropped and counted; requests never wait.

pub(super) mod json_line;
pub(super) mod sampler;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::Dispatch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::settings::{LogFormat, TelemetrySettings};
use crate::telemetry::log::json_line::JsonLine;

/// Most bytes that wait for standard error; further lines are dropped.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;
/// Capacity that a buffer keeps after a write, in bytes; the rest is freed.
const KEPT_BYTES: usize = 64 * 1024;
/// Pause before a write that follows another one, so that lines gather: 20 wake-ups a second at most.
const GATHER: Duration = Duration::from_millis(50);
/// Longest wait for the remaining lines at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Lines dropped since the start. Standard error belongs to the process, so the count is static.
static DROPPED_LINES: AtomicU64 = AtomicU64::new(0);

/// Number of log lines lost since the start because standard error was too slow or failed.
pub fn dropped_lines() -> u64 {
    DROPPED_LINES.load(Ordering::Relaxed)
}

/// Error of setting up the log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error("telemetry.log_level: {0}; expected a filter such as `info` or `penstock=debug`")]
    Filter(String),
    /// The process already has a log.
    #[error("the log is set up already")]
    Twice,
    /// The writer's thread could not start.
    #[error("the log's thread could not start: {0}")]
    Thread(#[from] io::Error),
}

/// Starts the log of this process. Keep the guard: dropping it writes the lines that still wait.
/// `may_colour` = lines for people are in colour where standard error is a terminal.
///
/// # Errors
/// When the filter does not parse, the thread cannot start, or the process already has a log.
pub fn init(settings: &TelemetrySettings, may_colour: bool) -> Result<LogGuard, LogError> {
    let filter = filter(&settings.log_level)?;
    let lines = LogQueue::new(QUEUE_BYTES);
    let out = lines.clone();
    std::thread::Builder::new().name("log".into()).spawn(move || out.write_out(&mut io::stderr()))?;
    let ansi = may_colour && io::stderr().is_terminal();
    let dispatch = dispatch(settings.log_format, filter, lines.clone(), ansi);
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| LogError::Twice)?;
    Ok(LogGuard(lines))
}

/// Parses a log filter.
///
/// # Errors
/// When the filter does not parse.
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
        LogFormat::Json => Dispatch::new(builder.event_format(JsonLine).finish()),
    }
}

/// Queue of lines that wait for standard error. Clones share one queue.
#[derive(Clone)]
struct LogQueue(Arc<SharedQueue>);

struct SharedQueue {
    state: Mutex<QueueState>,
    /// Wakes the writer: a line came, or the log closes.
    work: Condvar,
    /// Notified when nothing is left to write.
    empty: Condvar,
    limit: usize,
}

#[derive(Default)]
struct QueueState {
    /// Whole lines.
    waiting: Vec<u8>,
    /// The writer sleeps until the next line.
    asleep: bool,
    /// The writer has taken lines that are not written yet.
    writing: bool,
    closing: bool,
}

impl LogQueue {
    fn new(limit: usize) -> Self {
        let (work, empty) = (Condvar::new(), Condvar::new());
        Self(Arc::new(SharedQueue { state: Mutex::default(), work, empty, limit }))
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        if state.waiting.len() + line.len() > self.0.limit {
            DROPPED_LINES.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.waiting.extend_from_slice(line);
        if std::mem::take(&mut state.asleep) {
            drop(state);
            self.0.work.notify_one();
        }
    }

    /// Writes lines as they come, until the log is closed.
    fn write_out(&self, to: &mut impl Write) {
        let mut batch = Vec::new();
        let mut out = LineOutput { to, torn: false };
        while self.take(&mut batch) {
            let lost = out.write(&batch);
            DROPPED_LINES.fetch_add(lost, Ordering::Relaxed);
            batch.clear();
            batch.shrink_to(KEPT_BYTES);
        }
    }

    /// Waits for lines and moves all of them into `batch`. Returns false once the log is closed and
    /// empty.
    fn take(&self, batch: &mut Vec<u8>) -> bool {
        let SharedQueue { state, work, empty, .. } = &*self.0;
        let mut state = state.lock();
        if std::mem::take(&mut state.writing) && !state.closing {
            work.wait_for(&mut state, GATHER);
        }
        while state.waiting.is_empty() {
            empty.notify_all();
            if state.closing {
                return false;
            }
            state.asleep = true;
            work.wait(&mut state);
        }
        state.writing = true;
        std::mem::swap(&mut state.waiting, batch);
        true
    }

    /// Closes the log: waits until all lines are written, for at most [`FLUSH_TIMEOUT`].
    fn close(&self) {
        let mut state = self.0.state.lock();
        state.closing = true;
        self.0.work.notify_one();
        let busy = |state: &mut QueueState| state.writing || !state.waiting.is_empty();
        self.0.empty.wait_while_for(&mut state, busy, FLUSH_TIMEOUT);
    }
}

/// Writer of whole lines to a place that may be full.
struct LineOutput<'a, W> {
    to: &'a mut W,
    /// The last line was cut short, and would swallow the next one.
    torn: bool,
}

impl<W: Write> LineOutput<'_, W> {
    /// Writes as many of the lines as there is room for. Returns the number of lines that are lost.
    fn write(&mut self, lines: &[u8]) -> u64 {
        if self.torn && self.to.write_all(b"\n").is_err() {
            return memchr::memchr_iter(b'\n', lines).count() as u64;
        }
        let (mut written, mut failed) = (0, false);
        while written < lines.len() && !failed {
            match self.to.write(&lines[written..]) {
                Ok(length) => {
                    written += length;
                    failed = length == 0;
                }
                Err(error) => failed = error.kind() != io::ErrorKind::Interrupted,
            }
        }
        // Standard error has no buffer of its own.
        let _nothing = self.to.flush();
        let (done, lost) = lines.split_at(written);
        self.torn = done.last().is_some_and(|last| *last != b'\n');
        memchr::memchr_iter(b'\n', lost).count() as u64
    }
}

/// Owner of the log; dropping it closes the log.
#[must_use = "dropping the guard writes out what waits; keep it until the end of the process"]
pub struct LogGuard(LogQueue);

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for LogGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogGuard")
    }
}

impl<'w> MakeWriter<'w> for LogQueue {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

/// The tracing subscriber calls `write` once with each whole line.
impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Log in memory for tests: every level, one JSON object a line.
#[derive(Clone)]
pub(in crate::telemetry) struct LogCapture {
    lines: Arc<Mutex<Vec<u8>>>,
    dispatch: Dispatch,
}

impl LogCapture {
    pub(in crate::telemetry) fn dispatch(&self) -> &Dispatch {
        &self.dispatch
    }

    pub(in crate::telemetry) fn text(&self) -> String {
        String::from_utf8_lossy(&self.lines.lock()).into_owned()
    }
}

impl Default for LogCapture {
    fn default() -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = CaptureBuffer(Arc::clone(&lines));
        let dispatch = dispatch(LogFormat::Json, EnvFilter::new("trace"), writer, false);
        Self { lines, dispatch }
    }
}

struct CaptureBuffer(Arc<Mutex<Vec<u8>>>);

impl<'w> MakeWriter<'w> for CaptureBuffer {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

impl Write for &CaptureBuffer {
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
        let lines = LogQueue::new(4);
        let before = dropped_lines();
        for line in 0..5 {
            assert_eq!((&lines).write(format!("{line}\n").as_bytes()).unwrap(), 2);
        }
        assert_eq!(dropped_lines() - before, 3);

        lines.0.state.lock().closing = true;
        let mut written = Vec::new();
        lines.write_out(&mut written);
        assert_eq!(written, b"0\n1\n");
    }

    /// A disk with so much room; more is refused.
    struct SmallDisk {
        text: Vec<u8>,
        room: usize,
    }

    impl Write for SmallDisk {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let length = line.len().min(self.room - self.text.len());
            if length == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.text.extend_from_slice(&line[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_the_lines_that_do_not_fit_and_no_later_one() {
        let mut disk = SmallDisk { text: Vec::new(), room: 6 };
        let mut out = LineOutput { to: &mut disk, torn: false };
        assert_eq!(out.write(b"one\ntwo\nthree\n"), 2);
        assert_eq!(out.write(b"four\n"), 1);
        out.to.room = 100;
        assert_eq!(out.write(b"five\n"), 0);
        assert_eq!(out.write(b"six\n"), 0);
        assert_eq!(String::from_utf8(disk.text).unwrap(), "one\ntw\nfive\nsix\n");
    }

    #[test]
    fn every_line_of_every_thread_is_written_once_and_whole() {
        let (lines, memory) = (LogQueue::new(QUEUE_BYTES), Arc::new(Mutex::new(Vec::new())));
        let (out, seen) = (lines.clone(), Arc::clone(&memory));
        let writer = std::thread::spawn(move || out.write_out(&mut &CaptureBuffer(seen)));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let lines = lines.clone();
                std::thread::spawn(move || {
                    for line in 0..500 {
                        (&lines).write_all(format!("{thread} {line}\n").as_bytes()).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(LogGuard(lines));
        writer.join().unwrap();

        let text = String::from_utf8(memory.lock().clone()).unwrap();
        let written: std::collections::BTreeSet<&str> = text.lines().collect();
        assert_eq!((text.lines().count(), written.len()), (2_000, 2_000));
    }

    #[test]
    fn dropping_the_guard_waits_for_the_lines() {
        let (lines, memory) = (LogQueue::new(QUEUE_BYTES), Arc::new(Mutex::new(Vec::new())));
        let (out, seen) = (lines.clone(), Arc::clone(&memory));
        let writer = std::thread::spawn(move || out.write_out(&mut &CaptureBuffer(seen)));
        (&lines).write_all(b"last words\n").unwrap();
        drop(LogGuard(lines));
        assert_eq!(*memory.lock(), b"last words\n");
        writer.join().unwrap();
    }

    #[test]
    fn text_lines_cannot_be_forged_by_a_field() {
        let memory = Arc::new(Mutex::new(Vec::new()));
        let dispatch =
            dispatch(LogFormat::Text, EnvFilter::new("info"), CaptureBuffer(Arc::clone(&memory)), false);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::info!(key_id = "x\nINFO forged \u{1b}[31m", "told");
        });
        let text = String::from_utf8(memory.lock().clone()).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
