//! Journal queue: rows on their way from the requests to the writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use crate::telemetry::Telemetry;
use crate::telemetry::event::UsageRowsDropped;
use crate::usage::row::UsageRow;

/// Message to the writer's thread.
#[expect(clippy::large_enum_variant, reason = "nearly all are rows, and a box for each would cost more")]
pub(super) enum WriterMessage {
    Row(UsageRow),
    /// Answered once all earlier rows are written.
    Flush(SyncSender<()>),
}

/// State shared by the two ends of the queue.
#[derive(Debug, Default)]
pub(super) struct JournalQueue {
    /// Rows are being dropped, and the event was emitted.
    pub(super) dropping: AtomicBool,
    /// Rows dropped since the last report of dropped rows.
    pub(super) dropped: AtomicU64,
    /// The journal closes: no further row comes.
    pub(super) closing: AtomicBool,
}

impl JournalQueue {
    /// Reports the rows lost in an outage, now that the queue has room again.
    pub(super) fn caught_up(&self, telemetry: &Telemetry) {
        if self.dropping.swap(false, Ordering::Relaxed) {
            let rows = self.dropped.swap(0, Ordering::Relaxed);
            UsageRowsDropped { rows, reason: "queue" }.emit(telemetry);
        }
    }
}

/// Takes `first` and the messages queued after it, without waiting, up to `room` rows in all.
/// Returns the senders to notify once the rows are written.
pub(super) fn drain(
    notes: &Receiver<WriterMessage>,
    first: WriterMessage,
    room: usize,
    mut take: impl FnMut(UsageRow),
) -> Vec<SyncSender<()>> {
    let mut flushes = Vec::new();
    let mut next = Some(first);
    let mut taken = 0;
    while let Some(note) = next {
        match note {
            WriterMessage::Row(row) => {
                take(row);
                taken += 1;
            }
            WriterMessage::Flush(done) => flushes.push(done),
        }
        next = if taken < room { notes.try_recv().ok() } else { None };
    }
    flushes
}
