//! Journal writer: writes rows into segments, and deletes the oldest segments beyond `keep_bytes`.

use std::collections::VecDeque;
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
use crate::usage::journal_queue::{JournalQueue, WriterMessage, drain};
use crate::usage::row::UsageRow;
use crate::usage::segment::{Batch, Cursor, JournalFolder};

/// Most rows in one write.
const BATCH: usize = 512;
/// Pause after a write that took all rows there were, so that rows gather: 50 wake-ups a second at
/// most.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before a failed write is retried.
const RETRY: Duration = Duration::from_millis(250);
/// Longest time that rows stay unsynced in the operating system's memory.
const SYNC_AFTER: Duration = Duration::from_secs(1);

/// Most written rows that are kept for the database: what it takes over in a turn of 250 ms under load.
const MAX_RECENT: usize = 4096;

/// Rows that were written last, so that the database need not read them from the journal again.
#[derive(Debug, Default)]
pub(super) struct RecentRows {
    /// In the order of the journal, each with its place.
    batches: VecDeque<(Cursor, Batch)>,
    rows: usize,
}

impl RecentRows {
    /// Keeps rows that were written from a place on. The oldest ones make room.
    pub(super) fn push(&mut self, from: Cursor, batch: Batch) {
        self.rows += batch.rows.len();
        self.batches.push_back((from, batch));
        while self.rows > MAX_RECENT
            && let Some((_, oldest)) = self.batches.pop_front()
        {
            self.rows -= oldest.rows.len();
        }
    }

    /// Takes the rows that follow a place, if they are kept. Those before it are dropped.
    pub(super) fn take_after(&mut self, cursor: Cursor) -> Option<Batch> {
        let mut taken = Batch { until: cursor, ..Batch::default() };
        while let Some((from, _)) = self.batches.front()
            && *from <= taken.until
            && let Some((from, batch)) = self.batches.pop_front()
        {
            self.rows -= batch.rows.len();
            if from == taken.until {
                taken.rows.extend(batch.rows);
                taken.until = batch.until;
            }
        }
        (taken.until > cursor).then_some(taken)
    }
}

/// Ends of the journal: how far it is written, and how far the database has read it.
#[derive(Debug, Default)]
pub(super) struct JournalEnds {
    /// End of the last whole line.
    pub(super) written: Mutex<Cursor>,
    /// Position of the database; absent without a database or before the first connection.
    pub(super) read: Mutex<Option<Cursor>>,
    /// Rows for the database; none without one.
    pub(super) recent: Mutex<RecentRows>,
}

/// Open segment that the writer appends to.
struct Current {
    file: File,
    number: u64,
    /// Length of the whole lines, in bytes.
    len: u64,
    /// Time of the first row, in milliseconds since 1970.
    began_ms: i64,
}

impl Current {
    /// Whether the file was deleted while it is open.
    fn is_gone(&self) -> bool {
        self.file.metadata().map_or(true, |about| about.nlink() == 0)
    }
}

/// Bounds of the journal's files.
struct JournalBounds {
    /// Longest segment, in bytes.
    segment_bytes: u64,
    /// Longest time from a segment's first row to its last, in milliseconds.
    segment_ms: i64,
    /// Most bytes of all segments.
    keep_bytes: u64,
}

/// Lines that are not written yet.
#[derive(Default)]
struct PendingLines {
    text: Vec<u8>,
    rows: u64,
    /// The same rows, where a database wants them.
    kept: Vec<UsageRow>,
    /// Time of the last row, in milliseconds since 1970.
    last_ms: i64,
}

/// State of the thread that writes the journal.
pub(super) struct JournalWriter {
    folder: JournalFolder,
    id: String,
    /// Lock on the folder, held while the process writes there.
    _lock: File,
    bounds: JournalBounds,
    pub(super) shared: Arc<JournalQueue>,
    ends: Arc<JournalEnds>,
    meters: UsageMeters,
    telemetry: Telemetry,
    current: Option<Current>,
    /// Number of the next segment.
    next: u64,
    pending: PendingLines,
    /// Time of the last sync, by the time of the rows, in milliseconds since 1970.
    synced_ms: i64,
    dirty: bool,
    failing: bool,
}

impl JournalWriter {
    /// Opens the folder: locks it, cuts off a partial last line, and begins after the last segment.
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
            folder.truncate_partial_line(last)?;
        }
        let next = last.map_or(1, |last| last.number + 1);
        *ends.written.lock() = Cursor { segment: next, offset: 0 };
        Ok(Self {
            folder,
            id,
            _lock: lock,
            bounds: JournalBounds {
                segment_bytes: settings.segment_bytes,
                segment_ms: i64::try_from(settings.segment_age.as_millis()).unwrap_or(i64::MAX),
                keep_bytes: settings.keep_bytes,
            },
            shared: Arc::default(),
            ends,
            meters: telemetry.usage_meters(),
            telemetry: telemetry.clone(),
            current: None,
            next,
            pending: PendingLines::default(),
            synced_ms: 0,
            dirty: false,
            failing: false,
        })
    }

    pub(super) fn run(mut self, notes: &Receiver<WriterMessage>) {
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
            let is_last = self.pending.rows < BATCH as u64;
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
            if is_last {
                std::thread::sleep(GATHER);
            }
        }
    }

    fn take(&mut self, row: UsageRow) {
        let start = self.pending.text.len();
        if serde_json::to_writer(&mut self.pending.text, &row).is_err() {
            // Cannot happen: a row has no maps and no numbers that JSON lacks.
            self.pending.text.truncate(start);
            return;
        }
        self.pending.text.push(b'\n');
        self.pending.rows += 1;
        self.pending.last_ms = row.time_ms;
        if self.ends.read.lock().is_some() {
            self.pending.kept.push(row);
        }
    }

    /// Retries until the pending lines are written. Returns false when the journal closes first.
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

    /// Counts and reports the rows that will not be written any more.
    fn give_up(&self, notes: &Receiver<WriterMessage>) {
        let queued = notes.try_iter().filter(|note| matches!(note, WriterMessage::Row(_))).count();
        let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
        self.meters.dropped_queue.increment(self.pending.rows + queued as u64);
        let rows = self.pending.rows + queued as u64 + dropped;
        if rows > 0 {
            UsageRowsDropped { rows, reason: "shutdown" }.emit(&self.telemetry);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.pending.text.is_empty() {
            return Ok(());
        }
        let mut current = match self.current.take() {
            Some(current) if self.may_go_on(&current) => current,
            before => self.begin(before)?,
        };
        if let Err(error) = current.file.write_all(&self.pending.text) {
            // A partial line would break the next line. If the partial line cannot be cut off, the
            // next write begins a new segment.
            if current.file.set_len(current.len).is_ok() {
                self.current = Some(current);
            }
            return Err(error);
        }
        let from = Cursor { segment: current.number, offset: current.len };
        current.len += self.pending.text.len() as u64;
        let until = Cursor { offset: current.len, ..from };
        let rows = std::mem::take(&mut self.pending.kept);
        if rows.len() as u64 == self.pending.rows {
            self.ends.recent.lock().push(from, Batch { rows, until, broken: 0 });
        }
        *self.ends.written.lock() = until;
        self.current = Some(current);
        self.dirty = true;
        self.meters.written.increment(self.pending.rows);
        self.pending.text.clear();
        self.pending.rows = 0;
        // A clock that was set back counts as well: else nothing would be synced until it catches up.
        if (self.pending.last_ms - self.synced_ms).abs() >= SYNC_AFTER.as_millis() as i64 {
            self.sync();
        }
        Ok(())
    }

    fn may_go_on(&self, current: &Current) -> bool {
        let fits = current.len + self.pending.text.len() as u64 <= self.bounds.segment_bytes;
        let young = (self.pending.last_ms - current.began_ms).abs() < self.bounds.segment_ms;
        (fits || current.len == 0) && young && !current.is_gone()
    }

    /// Begins the next segment, and deletes old segments.
    fn begin(&mut self, before: Option<Current>) -> io::Result<Current> {
        if let Some(before) = before {
            // A failing disk shows again at the next segment.
            let _synced = before.file.sync_data();
        }
        self.folder.make()?;
        self.folder.keep_id(&self.id)?;
        self.trim()?;
        let number = self.next;
        let path = self.folder.file(number);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        self.next += 1;
        Ok(Current { file, number, len: 0, began_ms: self.pending.last_ms })
    }

    /// Deletes the oldest segments until a new one fits within `keep_bytes`.
    fn trim(&self) -> io::Result<()> {
        let segments = self.folder.segments()?;
        let mut total: u64 = segments.iter().map(|segment| segment.len).sum();
        for segment in segments {
            if total + self.bounds.segment_bytes <= self.bounds.keep_bytes {
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

    /// Syncs the written lines to the disk. An error is ignored: a failing disk shows again at the
    /// next write.
    fn sync(&mut self) {
        self.synced_ms = self.pending.last_ms;
        if std::mem::take(&mut self.dirty)
            && let Some(current) = &self.current
        {
            let _failed = current.file.sync_data();
        }
    }
}
