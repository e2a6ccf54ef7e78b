//! Writer of a record: a thread that takes the scheduler's steps from a bounded log and appends them to
//! files. Requests never wait for the disk. Steps for which there is no room are lost, counted, and
//! noted in the record.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::config::settings::Settings;
use crate::core::model::event::Event;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::clock::GatewayClock;
use crate::dispatcher::event_log::{EventLog, LoggedStep};
use crate::protocol::ids::random;
use crate::record::error::RecordError;
use crate::record::folder;
use crate::record::line::{FileHead, HashKey, RecordLine, VERSION};
use crate::record::{MIN_BYTES, RecordOptions};
use crate::telemetry::event::{RecordBack, RecordLost, RecordStarted};
use crate::telemetry::metrics::RecordMeters;
use crate::telemetry::{Telemetry, wall};

/// Most steps that wait for the disk: about 8 MB.
const MAX_WAITING: usize = 16_384;
/// Longest time for which a step waits for the disk.
const PERIOD: Duration = Duration::from_millis(100);
/// Files of a full record. The oldest goes when another begins.
const FILES: u64 = 8;
/// Part of a file that is written at once.
const BLOCKS: u64 = 4;
/// Most bytes that are written at once.
const MAX_BLOCK: u64 = 1 << 20;
/// Pause after a failed write.
const REST: Duration = Duration::from_secs(1);

/// A running writer. Dropping it leaves the thread running; [`Recorder::stop`] ends the record.
#[derive(Debug)]
pub struct Recorder {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Recorder {
    /// Records every step of the dispatcher from now on. Call it before the dispatcher has got any
    /// event, so that the record can be replayed exactly.
    ///
    /// # Errors
    /// The folder cannot be used, or another gateway records there.
    pub fn start(
        options: &RecordOptions,
        dispatcher: &Dispatcher,
        settings: &Arc<ArcSwap<Settings>>,
        telemetry: &Telemetry,
    ) -> Result<Self, RecordError> {
        let failed = |problem: io::Error| RecordError::new(&options.folder, &problem);
        let lock = folder::open(&options.folder).map_err(failed)?;
        let newest = folder::files(&options.folder)?.last().map_or(0, |file| file.run);
        let log = Arc::new(EventLog::bounded(MAX_WAITING));
        let mut writer = RecordWriter {
            options: RecordOptions { bytes: options.bytes.max(MIN_BYTES), ..options.clone() },
            run: newest.max(unix_millis().saturating_sub(1)) + 1,
            number: 0,
            file: None,
            block: Vec::new(),
            lost: 0,
            failing: false,
            key: HashKey::new(random::bytes()),
            policy: Arc::clone(&settings.load().policy),
            digest: settings.load().digest.clone(),
            sources: WriterSources {
                log: Arc::clone(&log),
                settings: Arc::clone(settings),
                clock: dispatcher.clock(),
                meters: telemetry.record_meters(),
                telemetry: telemetry.clone(),
            },
            _lock: lock,
        };
        writer.next_file(dispatcher.clock().now()).map_err(failed)?;
        dispatcher.log_events(&log);
        let stopping = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&stopping);
        let thread = std::thread::Builder::new().name("record".into());
        let thread = thread.spawn(move || writer.run(&ending)).map_err(failed)?;
        log.wake_when_half_full(thread.thread().clone());
        RecordStarted { folder: &options.folder, bytes: options.bytes }.emit(telemetry);
        Ok(Self { stopping, thread })
    }

    /// Writes what waits, and ends the record. Blocks until then, at most for about `limit`.
    pub fn stop(self, limit: Duration) {
        const LOOK: Duration = Duration::from_millis(5);
        self.stopping.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let mut waited = Duration::ZERO;
        while !self.thread.is_finished() && waited < limit {
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
    }
}

fn unix_millis() -> u64 {
    (wall::unix_seconds(wall::now()) * 1e3) as u64
}

/// What the writer reads and reports to.
#[derive(Debug)]
struct WriterSources {
    log: Arc<EventLog>,
    settings: Arc<ArcSwap<Settings>>,
    clock: GatewayClock,
    meters: RecordMeters,
    telemetry: Telemetry,
}

/// The file that is written.
#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Length of the file, and of its head.
    bytes: u64,
    head: u64,
}

#[derive(Debug)]
struct RecordWriter {
    options: RecordOptions,
    run: u64,
    /// Number of the last file.
    number: u64,
    /// The last file with its length; absent after a failed write.
    file: Option<OpenFile>,
    /// Lines that are not written yet.
    block: Vec<u8>,
    lost: u64,
    failing: bool,
    key: HashKey,
    /// Policy after the last step.
    policy: Arc<Policy>,
    digest: String,
    sources: WriterSources,
    /// Lock of the folder.
    _lock: File,
}

impl RecordWriter {
    fn run(mut self, stopping: &AtomicBool) {
        let mut steps = Vec::new();
        loop {
            let last = stopping.load(Ordering::Relaxed);
            let lost = self.sources.log.take(&mut steps);
            let taken = steps.len() as u64;
            let written = self.write(&mut steps, lost);
            if let Err(error) = &written {
                self.failed(error, taken);
            } else if std::mem::take(&mut self.failing) {
                RecordBack { folder: &self.options.folder }.emit(&self.sources.telemetry);
            }
            steps.clear();
            if last {
                return;
            }
            std::thread::park_timeout(if written.is_ok() { PERIOD } else { REST });
        }
    }

    /// Appends the steps, and the number of steps that were lost after them.
    fn write(&mut self, steps: &mut Vec<LoggedStep>, lost: u64) -> io::Result<()> {
        self.count_lost(lost);
        if self.file.is_none() {
            self.next_file(self.sources.clock.now())?;
        }
        let mut written = 0;
        for mut step in steps.drain(..) {
            self.key.hide(&mut step.event);
            let at = step.at;
            let new_policy = match &step.event {
                Event::PolicyChanged(policy) => Some(Arc::clone(policy)),
                _ => None,
            };
            append(&mut self.block, &RecordLine::Step(step));
            written += 1;
            if let Some(policy) = new_policy {
                self.policy = policy;
                self.note_config();
            }
            if self.block.len() as u64 >= self.block_bytes() {
                self.flush(at)?;
            }
        }
        if lost > 0 {
            append(&mut self.block, &RecordLine::Lost(self.lost));
        }
        self.flush(self.sources.clock.now())?;
        self.sources.meters.written.increment(written);
        Ok(())
    }

    /// Notes the digest of the configuration file when the file has changed.
    fn note_config(&mut self) {
        let digest = self.sources.settings.load().digest.clone();
        if digest != self.digest {
            append(&mut self.block, &RecordLine::Config(digest.clone()));
            self.digest = digest;
        }
    }

    fn block_bytes(&self) -> u64 {
        (self.options.bytes / FILES / BLOCKS).min(MAX_BLOCK)
    }

    /// Writes the block, and begins another file when this one has no room for another block.
    fn flush(&mut self, now: Tick) -> io::Result<()> {
        let block_bytes = self.block_bytes();
        let Some(OpenFile { file, bytes, head }) = &mut self.file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let done = file.write_all(&self.block);
        *bytes += self.block.len() as u64;
        // A head that fills a file makes room for no step.
        let is_full = *bytes > *head && *bytes + block_bytes >= self.options.bytes / FILES;
        self.block.clear();
        done?;
        if is_full { self.next_file(now) } else { Ok(()) }
    }

    /// Begins the next file, after it has made room for one.
    fn next_file(&mut self, now: Tick) -> io::Result<()> {
        self.file = None;
        let room = self.options.bytes - self.options.bytes / FILES;
        folder::keep(&self.options.folder, room).map_err(io::Error::other)?;
        let (mut file, path) = folder::create(&self.options.folder, self.run, self.number + 1)?;
        let head = FileHead {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            lost: self.lost,
            at: (now, unix_millis() / 1000),
            config: self.digest.clone(),
            policy: Policy::clone(&self.policy),
        };
        let mut line = Vec::new();
        append(&mut line, &RecordLine::Head(head));
        if let Err(error) = file.write_all(&line) {
            let _still_there = std::fs::remove_file(path);
            return Err(error);
        }
        self.number += 1;
        self.file = Some(OpenFile { file, bytes: line.len() as u64, head: line.len() as u64 });
        Ok(())
    }

    fn failed(&mut self, error: &io::Error, unwritten: u64) {
        // What of the steps is in the file is not known: the file ends here, and the next one's head
        // counts all of them as lost.
        self.file = None;
        self.block.clear();
        self.count_lost(unwritten);
        if !std::mem::replace(&mut self.failing, true) {
            RecordLost { folder: &self.options.folder, error }.emit(&self.sources.telemetry);
        }
    }

    fn count_lost(&mut self, steps: u64) {
        self.lost += steps;
        self.sources.meters.lost.increment(steps);
    }
}

fn append(block: &mut Vec<u8>, line: &RecordLine) {
    let before = block.len();
    match serde_json::to_writer(&mut *block, line) {
        Ok(()) => block.push(b'\n'),
        // No line has a map with keys that are no strings, the only thing that JSON cannot write.
        Err(_) => block.truncate(before),
    }
}
