//! Bill: usage rows summed by the dimensions of a query.
//!
//! Idle replica time has lines of its own. The lines of a bill therefore sum to the full cost of
//! the replicas. A request's share of a replica's busy time is
//!
//! ```text
//! steps:   ∫ its weight / all weights there dt      (core/billing/meter)
//! tokens:  busy time × its tokens / all tokens      for each pool and day (UTC)
//! ```
//!
//! where tokens are prompt and answer, cached ones included. `steps` follows the time that the
//! hardware spent; `tokens` follows the unit of other providers' bills.

pub mod ask;
mod lines;
mod share;
mod sums;
pub mod text;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

pub use self::lines::{Bill, BillLine, Dimension};
pub use self::sums::BillSums;
use self::sums::Cells;
pub(super) use self::sums::SUMS;
use crate::config::settings::usage::UsageDatabase;
use crate::usage::row::RowKind;
use crate::usage::segment::each_row;
use crate::usage::store::{Store, StoreAccess, StoreError, StoredLine as Answer, open};

/// Most lines of a bill.
pub const MAX_LINES: usize = 100_000;

/// Method of dividing replicas' busy time among requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TimeShare {
    /// By the tokens of each request in each step of the engine.
    #[default]
    Steps,
    /// By the tokens of each request, for each pool and day.
    Tokens,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BillQuery {
    /// Dimensions, in the order of the columns.
    pub by: Vec<Dimension>,
    /// Start of the time span, inclusive, in milliseconds since 1970; absent = no bound.
    pub since_ms: Option<i64>,
    /// End of the time span, exclusive, in milliseconds since 1970; absent = no bound.
    pub until_ms: Option<i64>,
    pub share: TimeShare,
}

/// Source of usage rows.
#[derive(Debug, Clone)]
pub enum RowSource {
    Database(UsageDatabase),
    /// Journal in this folder.
    Journal(std::path::PathBuf),
}

/// Error of making a bill.
#[derive(Debug, thiserror::Error)]
pub enum BillError {
    /// The database does not answer.
    #[error("the database: {0}")]
    Database(#[from] StoreError),
    /// The journal cannot be read.
    #[error("the journal: {0}")]
    Journal(#[from] io::Error),
    /// The bill has more than [`MAX_LINES`] lines.
    #[error("more than {MAX_LINES} lines: ask for fewer dimensions, or a shorter time")]
    TooLong,
}

impl BillQuery {
    /// Dimensions of the cells: those of the query, then pool and day when time is shared by
    /// tokens.
    fn grain(&self) -> Vec<Dimension> {
        let more = [Dimension::Pool, Dimension::Day];
        let more = if self.share == TimeShare::Tokens { &more[..] } else { &[] };
        self.by.iter().chain(more).copied().collect()
    }

    fn takes(&self, time_ms: i64) -> bool {
        self.since_ms.is_none_or(|since| since <= time_ms)
            && self.until_ms.is_none_or(|until| time_ms < until)
    }

    /// SQL of the query, for rows that satisfy `condition`.
    pub(super) fn sql(&self, condition: &str) -> String {
        let keys: Vec<&str> = self.grain().into_iter().map(Dimension::sql).chain(["kind"]).collect();
        let sums: Vec<String> = SUMS.iter().map(|column| format!("CAST(SUM({column}) AS BIGINT)")).collect();
        let (since, until) = (self.since_ms.unwrap_or(i64::MIN), self.until_ms.unwrap_or(i64::MAX));
        format!(
            "SELECT {keys}, {} FROM penstock_usage WHERE time_ms >= {since} AND time_ms < {until} \
             AND {condition} GROUP BY {numbers} LIMIT {}",
            sums.join(", "),
            MAX_LINES + 1,
            keys = keys.join(", "),
            numbers = (1..=keys.len()).map(|at| at.to_string()).collect::<Vec<_>>().join(", "),
        )
    }
}

/// Makes a bill. Blocks: a large database takes seconds.
///
/// # Errors
/// The source does not answer, or the bill is too long.
pub fn make(query: &BillQuery, source: &RowSource) -> Result<Bill, BillError> {
    match source {
        RowSource::Database(database) => from_store(query, &mut *open(database, StoreAccess::Read)?),
        RowSource::Journal(folder) => from_journal(query, folder),
    }
}

pub(super) fn from_store(query: &BillQuery, store: &mut dyn Store) -> Result<Bill, BillError> {
    let keys = query.grain().len();
    let cells = store.lines(&query.sql("1 = 1"), keys + 1, SUMS.len())?.into_iter().map(cell);
    finish(query, cells.collect())
}

fn cell((mut key, columns): Answer) -> ((Vec<String>, RowKind), BillSums) {
    let kind = match key.pop().as_deref() {
        Some("idle") => RowKind::Idle,
        Some("try") => RowKind::Try,
        _ => RowKind::Request,
    };
    ((key, kind), BillSums::from_columns(&columns))
}

fn from_journal(query: &BillQuery, folder: &Path) -> Result<Bill, BillError> {
    let grain = query.grain();
    let mut cells = Cells::new();
    each_row(folder, |row| {
        if query.takes(row.time_ms) && cells.len() <= MAX_LINES {
            let key = grain.iter().map(|dimension| dimension.of(row)).collect();
            cells.entry((key, row.kind)).or_default().add(&BillSums::of(row));
        }
    })?;
    finish(query, cells)
}

fn finish(query: &BillQuery, mut cells: Cells) -> Result<Bill, BillError> {
    if cells.len() > MAX_LINES {
        return Err(BillError::TooLong);
    }
    if query.share == TimeShare::Tokens {
        share::by_tokens(&mut cells);
    }
    let mut lines: BTreeMap<(bool, Vec<String>), BillSums> = BTreeMap::new();
    let mut total = BillSums::default();
    for ((mut key, kind), sums) in cells {
        key.truncate(query.by.len());
        for (value, dimension) in key.iter_mut().zip(&query.by) {
            if *dimension == Dimension::Day {
                *value = text::day(value);
            }
        }
        total.add(&sums);
        lines.entry((kind == RowKind::Idle, key)).or_default().add(&sums);
    }
    let lines = lines.into_iter().map(|((unallocated, key), sums)| BillLine { key, unallocated, sums });
    Ok(Bill { by: query.by.clone(), lines: lines.collect(), total })
}

#[cfg(test)]
mod tests;
