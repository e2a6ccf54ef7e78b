//! The way of a row to the disk. Whoever has one hands it over and never waits;
//! a thread of its own writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::settings::usage::UsageSettings;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{UsageDropping, UsageRowsDropped};
use crate::telemetry::metrics::UsageMeters;
use crate::usage::UsageError;
use crate::usage::row::UsageRow;
use crate::usage::segment::JournalFolder;
use crate::usage::writer::{JournalEnds, JournalWriter};

/// What the writer is told.
#[expect(clippy::large_enum_variant, reason = "nearly all are rows, and a box for each would cost more")]
pub(super) enum WriterNote {
    Row(UsageRow),
    /// Answered when all rows before it are written.
    Flush(SyncSender<()>),
}

/// What both ends of the queue know.
#[derive(Debug, Default)]
pub(super) struct JournalQueue {
    /// Rows are being dropped, and somebody said so.
    pub(super) dropping: AtomicBool,
    /// Rows dropped so far.
    pub(super) dropped: AtomicU64,
    /// Nobody has a row any more.
    pub(super) closing: AtomicBool,
}

/// The journal that a gateway writes. Clones write the same one.
#[derive(Debug, Clone)]
pub struct Journal(Arc<JournalParts>);

#[derive(Debug)]
struct JournalParts {
    notes: SyncSender<WriterNote>,
    shared: Arc<JournalQueue>,
    meters: UsageMeters,
    telemetry: Telemetry,
}

impl Drop for JournalParts {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
    }
}

impl Journal {
    /// Starts to write to the folder, which is made where it is missing, on the
    /// thread that is returned.
    ///
    /// # Errors
    /// The folder cannot be used, or another process writes there.
    pub(super) fn start(
        settings: &UsageSettings,
        ends: Arc<JournalEnds>,
        telemetry: &Telemetry,
    ) -> Result<(Self, JoinHandle<()>), UsageError> {
        let wrong = |problem| UsageError::Folder { folder: settings.folder.clone(), problem };
        let folder = JournalFolder::new(&settings.folder);
        let writer = JournalWriter::open(folder, settings, ends, telemetry).map_err(wrong)?;
        let shared = Arc::clone(&writer.shared);
        let (notes, taken) = sync_channel(settings.queue);
        let thread = std::thread::Builder::new().name("usage".into());
        let thread = thread.spawn(move || writer.run(&taken)).map_err(UsageError::Thread)?;
        let meters = telemetry.usage_meters();
        Ok((Self(Arc::new(JournalParts { notes, shared, meters, telemetry: telemetry.clone() })), thread))
    }

    /// Writes a row down. Never waits: while the disk does not keep up and the
    /// queue to it is full, rows are dropped and counted.
    pub fn record(&self, row: UsageRow) {
        if self.0.notes.try_send(WriterNote::Row(row)).is_ok() {
            return;
        }
        self.0.meters.dropped_queue.increment(1);
        self.0.shared.dropped.fetch_add(1, Ordering::Relaxed);
        if !self.0.shared.dropping.swap(true, Ordering::Relaxed) {
            UsageDropping.emit(&self.0.telemetry);
        }
    }

    /// Writes what is waiting, for at most `limit`; what the disk does not take is
    /// lost and told. Blocks.
    pub(super) fn close(&self, limit: Duration) {
        self.flush(limit);
        self.0.shared.closing.store(true, Ordering::Relaxed);
        // Wakes the writer, who ends.
        let (nobody, _waits) = sync_channel(1);
        let _full = self.0.notes.try_send(WriterNote::Flush(nobody));
    }

    /// Waits until every row so far is written, for at most `limit`; says
    /// whether they are. Blocks.
    pub fn flush(&self, limit: Duration) -> bool {
        let (done, written) = sync_channel(1);
        let mut note = WriterNote::Flush(done);
        let pause = Duration::from_millis(10);
        // Waits for a place without one of its own.
        for _ in 0..=limit.as_millis() / pause.as_millis() {
            match self.0.notes.try_send(note) {
                Ok(()) => return written.recv_timeout(limit).is_ok(),
                Err(TrySendError::Full(back)) => note = back,
                Err(TrySendError::Disconnected(_)) => return false,
            }
            std::thread::sleep(pause);
        }
        false
    }
}

impl JournalQueue {
    /// The queue has room again: tells how many rows an outage has cost.
    pub(super) fn caught_up(&self, telemetry: &Telemetry) {
        if self.dropping.swap(false, Ordering::Relaxed) {
            let rows = self.dropped.swap(0, Ordering::Relaxed);
            UsageRowsDropped { rows, reason: "queue" }.emit(telemetry);
        }
    }
}

/// Takes what is in the queue without waiting, at most `room` rows. Returns
/// those who wait for them to be written.
pub(super) fn drain(
    notes: &Receiver<WriterNote>,
    first: WriterNote,
    room: usize,
    mut take: impl FnMut(&UsageRow),
) -> Vec<SyncSender<()>> {
    let mut flushes = Vec::new();
    let mut next = Some(first);
    let mut taken = 0;
    while let Some(note) = next {
        match note {
            WriterNote::Row(row) => {
                take(&row);
                taken += 1;
            }
            WriterNote::Flush(done) => flushes.push(done),
        }
        next = if taken < room { notes.try_recv().ok() } else { None };
    }
    flushes
}
