//! Trace reader: comma-separated tables with a header line, and Mooncake JSON
//! lines, both plain or gzip.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;

use super::table::{self, ColumnNames};
pub(super) use crate::trace::lines::{NumberedLines, checked_tokens, field_error, push};
pub(super) use crate::trace::lines::{TraceError, TraceErrorKind};
use crate::trace::traffic::{TraceCall, TrafficTrace};

/// Tokens per hash of a Mooncake trace.
const MOONCAKE_BLOCK: u32 = 512;
/// Longest time in a trace, seconds: ten years.
const MAX_SECONDS: f64 = 10.0 * 365.0 * 86_400.0;

impl TrafficTrace {
    /// Reads a file. The name tells the format: `.csv` or `.jsonl`, each also
    /// with `.gz` after it. Calls are sorted by time, and the first is at 0.
    ///
    /// # Errors
    ///
    /// With the file, the line and the column of the mistake.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        Self::read_with(path, &ColumnNames::default())
    }

    /// Reads a file whose table has columns of these names.
    ///
    /// # Errors
    ///
    /// With the file, the line and the column of the mistake.
    pub fn read_with(path: &Path, names: &ColumnNames) -> Result<Self, TraceError> {
        let failed = |line, kind| TraceError { path: path.to_owned(), line, kind };
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let (stem, packed) = name.strip_suffix(".gz").map_or((&*name, false), |stem| (stem, true));
        let csv = stem.ends_with(".csv");
        if !csv && !stem.ends_with(".jsonl") {
            return Err(failed(None, TraceErrorKind::Format));
        }
        let file = File::open(path).map_err(|error| failed(None, error.into()))?;
        let plain = BufReader::new(file);
        let mut lines =
            NumberedLines { line: 0, buffer: String::new(), source: plain_or_packed(plain, packed) };
        let read = if csv { table::calls(&mut lines, names) } else { mooncake_calls(&mut lines) };
        let mut trace = read.map_err(|kind| failed(Some(lines.line), kind))?;
        if trace.calls.is_empty() {
            return Err(failed(None, TraceErrorKind::Empty));
        }
        trace.sort_and_rebase();
        match trace.span().as_secs_f64() {
            span if span > MAX_SECONDS => Err(failed(None, TraceErrorKind::SpanTooLong)),
            _ => Ok(trace),
        }
    }
}

fn plain_or_packed(plain: BufReader<File>, packed: bool) -> Box<dyn BufRead> {
    if packed { Box::new(BufReader::new(MultiGzDecoder::new(plain))) } else { Box::new(plain) }
}

/// One line of a Mooncake trace.
#[derive(Debug, Deserialize)]
struct MooncakeLine {
    /// Time in milliseconds.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

fn mooncake_calls(lines: &mut NumberedLines) -> Result<TrafficTrace, TraceErrorKind> {
    let mut trace = TrafficTrace { prefix_block: MOONCAKE_BLOCK, ..TrafficTrace::default() };
    while let Some(line) = lines.next()? {
        let read: MooncakeLine = serde_json::from_str(line)?;
        let count = |column, count: u64| {
            let text = || field_error(column, "must be a number of tokens, at least 1", &count.to_string());
            checked_tokens(count).ok_or_else(text)
        };
        let prompt = count("input_length", read.input_length)?;
        let span = 0.0..=MAX_SECONDS * 1e3;
        if !span.contains(&read.timestamp) {
            let found = read.timestamp.to_string();
            return Err(field_error("timestamp", "must be milliseconds, at least 0", &found));
        }
        let whole = (prompt / MOONCAKE_BLOCK) as usize;
        let call = TraceCall {
            at: Duration::from_secs_f64(read.timestamp / 1e3),
            prompt,
            output: count("output_length", read.output_length)?,
            prefix: chain(read.hash_ids.get(..whole).unwrap_or(&read.hash_ids)),
            ..TraceCall::default()
        };
        push(&mut trace, call)?;
    }
    Ok(trace)
}

/// Cumulative hashes from the ids of single blocks.
fn chain(ids: &[u64]) -> Arc<[u64]> {
    let link = |state: &mut u64, id: &u64| {
        *state = mix(*state ^ mix(id.wrapping_add(1)));
        Some(*state)
    };
    ids.iter().scan(0, link).collect()
}

/// SplitMix64's mixer.
pub(super) fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
