//! Usage: a journal of JSON lines with the usage and cost of each request, the databases that are
//! fed from the journal, and the bill that is read from either.
//!
//! A row goes into a bounded queue. A dedicated thread writes it from there into numbered segments
//! on the disk. The segments are also the queue of the database: a second thread copies rows from a
//! cursor on. The cursor is stored in the database and moves in the same transaction as the rows.
//! Between disk and database, no row is therefore lost or counted twice, whatever is killed.

pub mod bill;
mod error;
mod journal;
mod journal_queue;
pub mod past;
mod prior_usage;
pub mod row;
mod segment;
mod sink;
mod store;
mod writer;

pub use crate::usage::journal::Journal;
pub use crate::usage::prior_usage::{PriorUsage, PriorUsageRow};
pub use crate::usage::segment::each_row;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::error::UsageError;
use crate::config::settings::usage::UsageSettings;
use crate::telemetry::Telemetry;
use crate::usage::prior_usage::StoredRows;
use crate::usage::segment::{Cursor, JournalFolder};
use crate::usage::sink::{DatabaseSink, DatabaseSinkHandle, wait_for};
use crate::usage::writer::JournalEnds;

/// Usage journal of this gateway, with the thread that feeds the database.
#[derive(Debug)]
pub struct UsageJournal {
    settings: UsageSettings,
    journal: Journal,
    writing: JoinHandle<()>,
    id: String,
    ends: Arc<JournalEnds>,
    /// Position at which the rows of this process begin.
    begin: Cursor,
    telemetry: Telemetry,
    feeding: Option<DatabaseSinkHandle>,
}

impl UsageJournal {
    /// Opens the journal and starts the writer's thread.
    ///
    /// # Errors
    /// The folder cannot be used, or another process writes there.
    pub fn start(settings: &UsageSettings, telemetry: &Telemetry) -> Result<Self, UsageError> {
        let ends = Arc::new(JournalEnds::default());
        let (journal, writing) = Journal::start(settings, Arc::clone(&ends), telemetry)?;
        let (telemetry, settings) = (telemetry.clone(), settings.clone());
        let wrong = |problem| UsageError::Folder { folder: settings.folder.clone(), problem };
        let id = JournalFolder::new(&settings.folder).id().map_err(wrong)?;
        let begin = *ends.written.lock();
        Ok(Self { settings, journal, writing, id, ends, begin, telemetry, feeding: None })
    }

    /// Handle that records rows.
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Starts the thread that feeds the database, which may be unreachable. Before it feeds any
    /// row, the thread calls `tell` once with the usage since each of `moments` (milliseconds since
    /// 1970) up to this start. Without moments, `tell` is not called.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn follow(
        &mut self,
        moments: Vec<i64>,
        tell: impl FnOnce(Vec<PriorUsage>) + Send + 'static,
    ) -> Result<(), UsageError> {
        let (folder, id, begin) = (JournalFolder::new(&self.settings.folder), self.id.clone(), self.begin);
        let looked = folder.clone();
        let first = move |stored: Option<StoredRows<'_>>| {
            if !moments.is_empty() {
                tell(prior_usage::since(&moments, &looked, &id, stored, begin));
            }
        };
        let Some(database) = self.settings.database.clone() else {
            let thread = std::thread::Builder::new().name("usage-before".into());
            thread.spawn(move || first(None)).map_err(UsageError::Thread)?;
            return Ok(());
        };
        let (ends, telemetry) = (Arc::clone(&self.ends), self.telemetry.clone());
        let (id, retention) = (self.id.clone(), self.settings.retention);
        let sink = DatabaseSink { database, retention, folder, id, ends, telemetry };
        self.feeding = Some(sink.start(first).map_err(UsageError::Thread)?);
        Ok(())
    }

    /// Writes the waiting rows to the journal and copies them to the database. Blocks: each step
    /// waits up to `limit`.
    pub fn stop(self, limit: Duration) {
        self.journal.close(limit);
        wait_for(&self.writing, limit);
        if let Some(feeding) = self.feeding {
            feeding.stop(limit);
        }
    }
}

#[cfg(test)]
mod tests;
