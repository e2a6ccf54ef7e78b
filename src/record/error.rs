//! Error of a record.

use std::path::PathBuf;

/// Why a record cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the record in {}: {problem}", folder.display())]
pub struct RecordError {
    pub folder: PathBuf,
    pub problem: String,
}

impl RecordError {
    pub(super) fn new(folder: impl Into<PathBuf>, problem: &(impl ToString + ?Sized)) -> Self {
        Self { folder: folder.into(), problem: problem.to_string() }
    }
}
