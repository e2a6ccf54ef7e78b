//! Lines of a trace file, with the numbers that errors name.

use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use thiserror::Error;

use crate::trace::traffic::{TraceCall, TrafficTrace};

/// Most calls of a trace.
pub const MAX_CALLS: usize = 5_000_000;

/// Most prompt tokens and most output tokens of a call.
pub const MAX_PROMPT: u32 = 16_000_000;

/// Most bytes of one line.
pub(super) const MAX_LINE: u64 = 4 << 20;

/// Error of a trace, and its place.
#[derive(Debug, Error)]
#[error("{}{}: {kind}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct TraceError {
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: Option<u64>,
    pub kind: TraceErrorKind,
}

#[derive(Debug, Error)]
pub enum TraceErrorKind {
    /// The file cannot be opened or unpacked.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// The file name has no known extension.
    #[error("its name must end in .csv, .jsonl, .csv.gz or .jsonl.gz")]
    Format,
    /// The file has no line at all, or no call.
    #[error("there are no calls in it")]
    Empty,
    /// A required column is not in the header.
    #[error("the header has no column `{column}` (or {others}); it has: {found}")]
    MissingColumn {
        /// The column's name in Penstock's own traces.
        column: &'static str,
        /// Other names that would do.
        others: String,
        /// The header, cut short.
        found: String,
    },
    /// A column that was named by the caller is not in the header.
    #[error("the header has no column `{column}`; it has: {found}")]
    UnknownColumn {
        column: String,
        /// The header, cut short.
        found: String,
    },
    /// A field is missing or has a wrong value.
    #[error("column `{column}`: {what}, found `{found}`")]
    Field {
        column: String,
        /// The expected value.
        what: &'static str,
        /// The value, cut short.
        found: String,
    },
    /// A line is not the expected JSON object.
    #[error("not a call: {0}; needed are timestamp (ms), input_length, output_length, and hash_ids if known")]
    Json(#[from] serde_json::Error),
    /// One line is too long.
    #[error("the line is longer than {MAX_LINE} bytes")]
    LongLine,
    /// The time from the first call to the last is longer than any plan.
    #[error("its calls lie more than ten years apart: are the times all in one unit?")]
    SpanTooLong,
    /// The trace has too many calls.
    #[error("more than {MAX_CALLS} calls; cut it")]
    TooManyCalls,
}

/// Lines with their numbers, each at most [`MAX_LINE`] bytes long.
pub(super) struct NumberedLines {
    pub(super) line: u64,
    pub(super) buffer: String,
    pub(super) source: Box<dyn BufRead>,
}

impl NumberedLines {
    /// The next line that is not blank.
    pub(super) fn next(&mut self) -> Result<Option<&str>, TraceErrorKind> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = self.source.by_ref().take(MAX_LINE + 1).read_line(&mut self.buffer)?;
            if read as u64 > MAX_LINE {
                return Err(TraceErrorKind::LongLine);
            }
            if read == 0 {
                return Ok(None);
            }
            if !self.buffer.trim().is_empty() {
                break;
            }
        }
        Ok(Some(self.buffer.trim()))
    }
}

pub(super) fn push(trace: &mut TrafficTrace, call: TraceCall) -> Result<(), TraceErrorKind> {
    if trace.calls.len() >= MAX_CALLS {
        return Err(TraceErrorKind::TooManyCalls);
    }
    trace.calls.push(call);
    Ok(())
}

pub(super) fn checked_tokens(count: u64) -> Option<u32> {
    u32::try_from(count).ok().filter(|count| (1..=MAX_PROMPT).contains(count))
}

pub(super) fn field_error(column: &str, what: &'static str, found: &str) -> TraceErrorKind {
    TraceErrorKind::Field { column: column.to_owned(), what, found: found.chars().take(40).collect() }
}
