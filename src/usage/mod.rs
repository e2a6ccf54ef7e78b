//! What requests used and cost, row by row: a journal of JSON lines, the
//! databases that are fed from it, and the bill that is read from either.
//!
//! A row goes into a bounded queue and from there, on a thread of its own, into
//! numbered segments on the disk. The segments are the queue of the database: it
//! is read from a cursor that stands in the database itself and moves in the
//! same transaction as its rows, so nothing is lost and nothing counted twice,
//! whatever is killed.

mod journal;
pub mod row;
mod segment;
mod writer;

pub use crate::usage::journal::Journal;
pub use crate::usage::segment::each_row;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::settings::usage::UsageSettings;
use crate::telemetry::Telemetry;
use crate::usage::writer::Ends;

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
pub struct Usage {
    journal: Journal,
}

impl Usage {
    /// Starts to write, and to feed the database.
    ///
    /// # Errors
    /// The folder cannot be used, or another process writes there. A database
    /// that is away is none: it is tried again.
    pub fn start(settings: &UsageSettings, telemetry: &Telemetry) -> Result<Self, UsageError> {
        let ends = Arc::new(Ends::default());
        let journal = Journal::start(settings, Arc::clone(&ends), telemetry)?;
        Ok(Self { journal })
    }

    /// Where rows go.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }
}

#[cfg(test)]
mod tests;
