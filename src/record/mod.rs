//! Records: the scheduler's events and decisions on disk, and their replay.
//!
//! A record holds the events of the scheduler with their times and decisions, and the policy. It holds
//! no prompt, no answer, no key and no reason of an operator; hashes of prompts are keyed anew with a
//! key that nobody keeps. [`writer`] writes a record while a gateway runs, [`read`] reads one.
//! [`replay`] gives the events to a new scheduler, and the requests to a simulated fleet.

pub mod error;
mod folder;
mod line;
pub mod read;
pub mod replay;
#[cfg(test)]
mod tests;
pub mod writer;

use std::path::PathBuf;

/// Where a record is written, and how large it may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordOptions {
    pub folder: PathBuf,
    /// Bytes of all files together, at least [`MIN_BYTES`].
    pub bytes: u64,
}

/// Least size of a record: files are an eighth of it, and each holds the policy.
pub const MIN_BYTES: u64 = 1 << 20;
