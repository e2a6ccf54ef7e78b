//! Folder of a record: one numbered file after the other, the oldest deleted when all together are too
//! large. Each start of a gateway is a run of its own, with a name that sorts by its time.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::record::error::RecordError;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordFile {
    /// Milliseconds since 1970 at the start of the run.
    pub(super) run: u64,
    /// Number of the file in its run, from 1.
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// All files of the folder, the oldest first.
pub(super) fn files(folder: &Path) -> Result<Vec<RecordFile>, RecordError> {
    let failed = |problem: io::Error| RecordError::new(folder, &problem);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some((run, number)) = name.to_str().and_then(parsed) else { continue };
        // A running gateway may just have deleted the file.
        let Ok(about) = entry.metadata() else { continue };
        found.push(RecordFile { run, number, path: entry.path(), bytes: about.len() });
    }
    found.sort_unstable();
    Ok(found)
}

fn parsed(name: &str) -> Option<(u64, u64)> {
    let (run, number) = name.strip_prefix("record-")?.strip_suffix(".jsonl")?.split_once('-')?;
    Some((run.parse().ok()?, number.parse().ok()?))
}

/// Creates the folder if it is missing, but not its parent, and locks it against other processes for as
/// long as the returned file is open.
pub(super) fn open(folder: &Path) -> io::Result<File> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let path = folder.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::ResourceBusy, "another gateway records there")
        }
        fs::TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

pub(super) fn create(folder: &Path, run: u64, number: u64) -> io::Result<(File, PathBuf)> {
    let path = folder.join(format!("record-{run:013}-{number:06}.jsonl"));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((file, path))
}

/// Deletes the oldest files until all together have at most `bytes`. The newest file stays.
pub(super) fn keep(folder: &Path, bytes: u64) -> Result<(), RecordError> {
    let files = files(folder)?;
    let mut all: u64 = files.iter().map(|file| file.bytes).sum();
    let Some((_, older)) = files.split_last() else { return Ok(()) };
    for file in older {
        if all <= bytes {
            break;
        }
        fs::remove_file(&file.path).map_err(|problem| RecordError::new(folder, &problem))?;
        all -= file.bytes;
    }
    Ok(())
}
