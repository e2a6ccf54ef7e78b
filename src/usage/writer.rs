//! Journal writer: writes rows into segments, and keeps the segments within their bound.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::settings::usage::UsageSettings;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{UsageJournalBack, UsageJournalLost, UsageRowsDropped};
use crate::telemetry::metrics::UsageMeters;
use crate::usage::journal::{JournalQueue, WriterNote, drain};
use crate::usage::row::UsageRow;
use crate::usage::segment::{Cursor, JournalFolder};

/// Rows that are written at once, at most.
const BATCH: usize = 512;
/// How long a disk that takes nothing is left alone.
const RETRY: Duration = Duration::from_millis(250);
/// How long rows may be in the system's memory only.
const SYNC_AFTER: Duration = Duration::from_secs(1);

/// How far the journal is written, and how far a database has read it.
#[derive(Debug, Default)]
pub(super) struct JournalEnds {
    /// The end of the last whole line.
    pub(super) written: Mutex<Cursor>,
    /// Where the database goes on; absent where there is none.
    pub(super) read: Mutex<Option<Cursor>>,
}

/// The segment that is written.
struct Current {
    file: File,
    number: u64,
    /// Bytes of whole lines.
    len: u64,
    /// The time of its first row.
    began_ms: i64,
}

impl Current {
    /// Whether somebody deleted the file under it.
    fn is_gone(&self) -> bool {
        self.file.metadata().map_or(true, |about| about.nlink() == 0)
    }
}

/// The thread that writes.
pub(super) struct JournalWriter {
    folder: JournalFolder,
    /// The journal's name.
    id: String,
    /// Held for as long as the process writes here.
    _lock: File,
    segment_bytes: u64,
    segment_ms: i64,
    keep_bytes: u64,
    pub(super) shared: Arc<JournalQueue>,
    ends: Arc<JournalEnds>,
    meters: UsageMeters,
    telemetry: Telemetry,
    current: Option<Current>,
    /// The number of the next segment.
    next: u64,
    /// Lines that are not written yet, how many, and the time of the last.
    pending: Vec<u8>,
    pending_rows: u64,
    pending_ms: i64,
    /// When the disk last confirmed what it has, by the rows' own time.
    synced_ms: i64,
    dirty: bool,
    failing: bool,
}

impl JournalWriter {
    /// Takes the folder over from the process before.
    pub(super) fn open(
        folder: JournalFolder,
        settings: &UsageSettings,
        ends: Arc<JournalEnds>,
        telemetry: &Telemetry,
    ) -> io::Result<Self> {
        folder.make()?;
        let lock = folder.lock()?;
        let id = folder.id()?;
        let last = folder.segments()?.last().copied();
        if let Some(last) = last {
            folder.mend(last)?;
        }
        let next = last.map_or(1, |last| last.number + 1);
        *ends.written.lock() = Cursor { segment: next, offset: 0 };
        Ok(Self {
            folder,
            id,
            _lock: lock,
            segment_bytes: settings.segment_bytes,
            segment_ms: i64::try_from(settings.segment_age.as_millis()).unwrap_or(i64::MAX),
            keep_bytes: settings.keep_bytes,
            shared: Arc::default(),
            ends,
            meters: telemetry.usage_meters(),
            telemetry: telemetry.clone(),
            current: None,
            next,
            pending: Vec::new(),
            pending_rows: 0,
            pending_ms: 0,
            synced_ms: 0,
            dirty: false,
            failing: false,
        })
    }

    pub(super) fn run(mut self, notes: &Receiver<WriterNote>) {
        loop {
            let first = match notes.recv_timeout(SYNC_AFTER) {
                Ok(note) => note,
                Err(RecvTimeoutError::Timeout) if !self.shared.closing.load(Ordering::Relaxed) => {
                    self.sync();
                    continue;
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.sync();
                    return;
                }
            };
            let flushes = drain(notes, first, BATCH, |row| self.take(row));
            if !self.write_until_done() {
                self.give_up(notes);
                return;
            }
            if !flushes.is_empty() {
                self.sync();
            }
            for done in flushes {
                let _gone = done.try_send(());
            }
            self.shared.caught_up(&self.telemetry);
            if self.shared.closing.load(Ordering::Relaxed) {
                self.sync();
                self.give_up(notes);
                return;
            }
        }
    }

    fn take(&mut self, row: &UsageRow) {
        let start = self.pending.len();
        if serde_json::to_writer(&mut self.pending, row).is_err() {
            // Not possible: a row has no maps and no numbers that JSON lacks.
            self.pending.truncate(start);
            return;
        }
        self.pending.push(b'\n');
        self.pending_rows += 1;
        self.pending_ms = row.time_ms;
    }

    /// Tries until the disk has taken it, or nobody is there any more.
    fn write_until_done(&mut self) -> bool {
        while let Err(error) = self.write() {
            if !self.failing {
                self.failing = true;
                let folder = self.folder.path();
                UsageJournalLost { folder, error: &error }.emit(&self.telemetry);
            }
            if self.shared.closing.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(RETRY);
        }
        if std::mem::take(&mut self.failing) {
            UsageJournalBack { folder: self.folder.path() }.emit(&self.telemetry);
        }
        true
    }

    /// Counts what nobody will write any more.
    fn give_up(&self, notes: &Receiver<WriterNote>) {
        let queued = notes.try_iter().filter(|note| matches!(note, WriterNote::Row(_))).count();
        let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
        self.meters.dropped_queue.increment(self.pending_rows + queued as u64);
        let rows = self.pending_rows + queued as u64 + dropped;
        if rows > 0 {
            UsageRowsDropped { rows, reason: "shutdown" }.emit(&self.telemetry);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut current = match self.current.take() {
            Some(current) if self.may_go_on(&current) => current,
            before => self.begin(before)?,
        };
        if let Err(error) = current.file.write_all(&self.pending) {
            // A part of a line would spoil the next one; where it cannot be cut
            // off, the next segment begins.
            if current.file.set_len(current.len).is_ok() {
                self.current = Some(current);
            }
            return Err(error);
        }
        current.len += self.pending.len() as u64;
        *self.ends.written.lock() = Cursor { segment: current.number, offset: current.len };
        self.current = Some(current);
        self.dirty = true;
        self.meters.written.increment(self.pending_rows);
        self.pending.clear();
        self.pending_rows = 0;
        if self.pending_ms - self.synced_ms >= SYNC_AFTER.as_millis() as i64 {
            self.sync();
        }
        Ok(())
    }

    fn may_go_on(&self, current: &Current) -> bool {
        let fits = current.len + self.pending.len() as u64 <= self.segment_bytes;
        let young = self.pending_ms - current.began_ms < self.segment_ms;
        (fits || current.len == 0) && young && !current.is_gone()
    }

    /// Begins the next segment, and deletes old ones.
    fn begin(&mut self, before: Option<Current>) -> io::Result<Current> {
        if let Some(before) = before {
            // What the disk says of it, the next one says too.
            let _synced = before.file.sync_data();
        }
        self.folder.make()?;
        self.folder.keep_id(&self.id)?;
        self.trim()?;
        let number = self.next;
        let path = self.folder.file(number);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        self.next += 1;
        Ok(Current { file, number, len: 0, began_ms: self.pending_ms })
    }

    /// Deletes the oldest segments until another one has room.
    fn trim(&self) -> io::Result<()> {
        let segments = self.folder.segments()?;
        let mut total: u64 = segments.iter().map(|segment| segment.len).sum();
        for segment in segments {
            if total + self.segment_bytes <= self.keep_bytes {
                break;
            }
            let unread = (*self.ends.read.lock()).map(|read| self.folder.lines_after(segment.number, read));
            fs::remove_file(self.folder.file(segment.number))?;
            total -= segment.len;
            if let Some(Ok(rows @ 1..)) = unread {
                self.meters.dropped_unread.increment(rows);
                UsageRowsDropped { rows, reason: "unread" }.emit(&self.telemetry);
            }
        }
        Ok(())
    }

    /// Has the disk confirm what it has. One that fails is found with the next
    /// row.
    fn sync(&mut self) {
        self.synced_ms = self.pending_ms;
        if std::mem::take(&mut self.dirty)
            && let Some(current) = &self.current
        {
            let _failed = current.file.sync_data();
        }
    }
}
