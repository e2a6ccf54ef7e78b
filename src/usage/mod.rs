//! Usage: a journal of JSON lines with what each request used and cost, the databases that are fed
//! from it, and the bill that is read from either.
//!
//! A row goes into a bounded queue and from there, on a thread of its own, into
//! numbered segments on the disk. The segments are the queue of the database: it
//! is read from a cursor that stands in the database itself and moves in the
//! same transaction as its rows, so nothing is lost and nothing counted twice,
//! whatever is killed.

mod before;
pub mod bill;
mod journal;
pub mod past;
pub mod row;
mod segment;
mod sink;
mod store;
mod writer;

pub use crate::usage::before::{Before, UsedBefore};
pub use crate::usage::journal::Journal;
pub use crate::usage::segment::each_row;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::settings::usage::UsageSettings;
use crate::telemetry::Telemetry;
use crate::usage::segment::{Cursor, JournalFolder};
use crate::usage::sink::{DatabaseSink, Feeding, wait_for};
use crate::usage::store::Store;
use crate::usage::writer::JournalEnds;

/// Why nothing is written down.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The folder cannot be used.
    #[error("cannot write to the folder {} (usage.folder): {problem}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        problem: io::Error,
    },
    /// The system has no thread left.
    #[error("no thread for the usage journal: {0}")]
    Thread(#[source] io::Error),
}

/// The journal of this gateway, and what reads it.
#[derive(Debug)]
pub struct UsageJournal {
    settings: UsageSettings,
    journal: Journal,
    writing: JoinHandle<()>,
    /// The journal's name.
    id: String,
    ends: Arc<JournalEnds>,
    /// Where what this process writes begins.
    begin: Cursor,
    telemetry: Telemetry,
    feeding: Option<Feeding>,
}

impl UsageJournal {
    /// Starts to write.
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

    /// Where rows go.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Starts to feed the database, which may be away. Before that `tell` hears
    /// what was used since each of the moments (milliseconds since 1970) and
    /// before this start.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn follow(
        &mut self,
        moments: Vec<i64>,
        tell: impl FnOnce(Vec<Before>) + Send + 'static,
    ) -> Result<(), UsageError> {
        let (folder, id, begin) = (JournalFolder::new(&self.settings.folder), self.id.clone(), self.begin);
        let looked = folder.clone();
        let first = move |stored: Option<(&mut dyn Store, Cursor)>| {
            if !moments.is_empty() {
                tell(before::since(&moments, &looked, &id, stored, begin));
            }
        };
        let Some(database) = self.settings.database.clone() else {
            let thread = std::thread::Builder::new().name("usage-before".into());
            thread.spawn(move || first(None)).map_err(UsageError::Thread)?;
            return Ok(());
        };
        let (ends, telemetry) = (Arc::clone(&self.ends), self.telemetry.clone());
        let sink = DatabaseSink { database, folder, id: self.id.clone(), ends, telemetry };
        self.feeding = Some(sink.start(first).map_err(UsageError::Thread)?);
        Ok(())
    }

    /// Writes what is waiting, and lets the database have it, each for at most
    /// `limit`. Blocks.
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
