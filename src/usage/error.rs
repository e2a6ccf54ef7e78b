//! Usage errors.

use std::io;
use std::path::PathBuf;

/// Error of starting the usage journal.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The folder cannot be used, or another process writes there.
    #[error("cannot write to the folder {} (usage.folder): {problem}", folder.display())]
    Folder {
        folder: PathBuf,
        /// What is wrong.
        problem: io::Error,
    },
    /// The system cannot start a thread.
    #[error("no thread for the usage journal: {0}")]
    Thread(#[source] io::Error),
}
