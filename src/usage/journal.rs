//! Journal handle: queues usage rows for the writer's thread. Recording a row never blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::settings::usage::UsageSettings;
use crate::telemetry::Telemetry;
use crate::telemetry::event::UsageDropping;
use crate::telemetry::metrics::UsageMeters;
use crate::usage::error::UsageError;
pub(super) use crate::usage::journal_queue::{JournalQueue, WriterMessage};
use crate::usage::row::UsageRow;
use crate::usage::segment::JournalFolder;
use crate::usage::writer::{JournalEnds, JournalWriter};

/// Handle of the gateway's journal. Clones write to the same journal.
#[derive(Debug, Clone)]
pub struct Journal(Arc<JournalParts>);

#[derive(Debug)]
struct JournalParts {
    notes: SyncSender<WriterMessage>,
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
    /// Starts the writer's thread and returns its handle. A missing folder is created.
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

    /// Queues a row for the writer. Never waits: when the queue is full because the disk does not
    /// keep up, the row is dropped and counted.
    pub fn record(&self, row: UsageRow) {
        if self.0.notes.try_send(WriterMessage::Row(row)).is_ok() {
            return;
        }
        self.0.meters.dropped_queue.increment(1);
        self.0.shared.dropped.fetch_add(1, Ordering::Relaxed);
        if !self.0.shared.dropping.swap(true, Ordering::Relaxed) {
            UsageDropping.emit(&self.0.telemetry);
        }
    }

    /// Writes the waiting rows, then ends the writer. Rows that the disk does not take in time are
    /// lost, and an event reports their number. Blocks like [`Self::flush`].
    pub(super) fn close(&self, limit: Duration) {
        self.flush(limit);
        self.0.shared.closing.store(true, Ordering::Relaxed);
        // Wakes the writer, which then ends.
        let (nobody, _waits) = sync_channel(1);
        let _full = self.0.notes.try_send(WriterMessage::Flush(nobody));
    }

    /// Waits until all rows recorded so far are written, and returns whether they are. Blocks: at
    /// most `limit` for a place in the queue, and at most `limit` again for the write.
    pub fn flush(&self, limit: Duration) -> bool {
        let (done, written) = sync_channel(1);
        let mut note = WriterMessage::Flush(done);
        let pause = Duration::from_millis(10);
        // Polls for a free place in the queue: the channel has no send with a timeout.
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
