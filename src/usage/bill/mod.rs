//! The bill: rows summed by what one asks for.
//!
//! Idle time stands in lines of its own, so that all lines together are what the
//! replicas cost. A request's part of a replica's busy time is
//!
//! ```text
//! steps:   ∫ its weight / all weights there dt      (core/cost/meter)
//! tokens:  busy time × its tokens / all tokens      for each pool and day (UTC)
//! ```
//!
//! where tokens are prompt and answer, cached ones included. Steps are what the
//! hardware spent; plain tokens are what other bills go by.

pub mod ask;
mod share;
pub mod text;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::config::settings::usage::UsageDatabase;
use crate::usage::row::{RowKind, UsageRow};
use crate::usage::segment::each_row;
use crate::usage::store::{Store, StoreAccess, StoreError, StoredLine as Answer, open};

const DAY_MS: i64 = 86_400_000;
/// Lines of the longest bill.
pub const MAX_LINES: usize = 100_000;

/// What lines are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// Who it was for.
    Tenant,
    /// Which model served it.
    Model,
    /// Where.
    Pool,
    /// The day on which it ended, UTC.
    Day,
    /// With which key.
    Key,
    /// Under which promise.
    Class,
}

/// How busy time is shared among requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TimeShare {
    /// By their tokens in each step of the engine.
    #[default]
    Steps,
    /// By their tokens of the day.
    Tokens,
}

/// What is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BillQuery {
    /// In the order of the columns.
    pub by: Vec<Dimension>,
    /// Rows from this moment on, in milliseconds since 1970; absent = all.
    pub since_ms: Option<i64>,
    /// Rows before this one; absent = all.
    pub until_ms: Option<i64>,
    /// How busy time is shared.
    pub share: TimeShare,
}

/// Where the rows are.
#[derive(Debug, Clone)]
pub enum RowSource {
    /// In a database.
    Database(UsageDatabase),
    /// In the journal in a folder.
    Journal(std::path::PathBuf),
}

/// Why there is no bill.
#[derive(Debug, thiserror::Error)]
pub enum BillError {
    /// The database does not answer.
    #[error("the database: {0}")]
    Database(#[from] StoreError),
    /// The journal cannot be read.
    #[error("the journal: {0}")]
    Journal(#[from] io::Error),
    /// There are too many lines.
    #[error("more than {MAX_LINES} lines: ask for fewer dimensions, or a shorter time")]
    TooLong,
}

/// Amounts of some rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BillSums {
    /// Requests that ended.
    pub requests: u64,
    /// Stays at replicas before the last one of a request.
    pub tries: u64,
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Of these, from a cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Tokens that nobody had anything of.
    pub wasted_tokens: u64,
    /// Time in queues, in microseconds.
    pub queue_us: u64,
    /// Replicas' time, in nanoseconds.
    pub gpu_ns: u128,
    /// What that costs, in billionths of the currency.
    pub money_nano: u128,
}

/// The columns of [`BillSums`] in SQL; time in whole seconds and the rest, since years
/// of many replicas are more nanoseconds than a number holds.
pub(super) const SUMS: [&str; 11] = [
    "CASE WHEN kind = 'request' THEN 1 ELSE 0 END",
    "CASE WHEN kind = 'try' THEN 1 ELSE 0 END",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "wasted_tokens",
    "queue_us",
    "gpu_ns / 1000000000",
    "gpu_ns % 1000000000",
    "money_nano / 1000000000",
    "money_nano % 1000000000",
];

const NANO: u128 = 1_000_000_000;

impl BillSums {
    pub(super) fn of(row: &UsageRow) -> Self {
        Self {
            requests: u64::from(row.kind == RowKind::Request),
            tries: u64::from(row.kind == RowKind::Try),
            input_tokens: row.input_tokens,
            cached_tokens: row.cached_tokens,
            output_tokens: row.output_tokens,
            wasted_tokens: row.wasted_tokens,
            queue_us: row.queue_us,
            gpu_ns: row.gpu_ns.into(),
            money_nano: row.money_nano.into(),
        }
    }

    /// From the columns of [`SUMS`].
    pub(super) fn from_columns(columns: &[i64]) -> Self {
        let at = |at: usize| columns.get(at).and_then(|number| u64::try_from(*number).ok()).unwrap_or(0);
        Self {
            requests: at(0),
            tries: at(1),
            input_tokens: at(2),
            cached_tokens: at(3),
            output_tokens: at(4),
            wasted_tokens: at(5),
            queue_us: at(6),
            gpu_ns: u128::from(at(7)) * NANO + u128::from(at(8)),
            money_nano: u128::from(at(9)) * NANO + u128::from(at(10)),
        }
    }

    /// Adds others.
    pub fn add(&mut self, more: &Self) {
        self.requests += more.requests;
        self.tries += more.tries;
        self.input_tokens += more.input_tokens;
        self.cached_tokens += more.cached_tokens;
        self.output_tokens += more.output_tokens;
        self.wasted_tokens += more.wasted_tokens;
        self.queue_us += more.queue_us;
        self.gpu_ns += more.gpu_ns;
        self.money_nano += more.money_nano;
    }
}

/// One line of the bill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BillLine {
    /// A value for each dimension; empty where there is none.
    pub key: Vec<String>,
    /// Whether it is idle time, which is nobody's.
    pub unallocated: bool,
    /// What it comes to.
    pub sums: BillSums,
}

/// The bill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bill {
    /// What its lines are told apart by.
    pub by: Vec<Dimension>,
    /// What is used first, by its key, then what is unallocated.
    pub lines: Vec<BillLine>,
    /// All lines together.
    pub total: BillSums,
}

impl Dimension {
    /// Each of them.
    pub const ALL: [Self; 6] = [Self::Tenant, Self::Model, Self::Pool, Self::Day, Self::Key, Self::Class];

    /// Its name in queries and columns.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Model => "model",
            Self::Pool => "pool",
            Self::Day => "day",
            Self::Key => "key",
            Self::Class => "class",
        }
    }

    const fn sql(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Model => "model",
            Self::Pool => "pool",
            Self::Day => "CAST(time_ms / 86400000 AS TEXT)",
            Self::Key => "key_id",
            Self::Class => "class",
        }
    }

    fn of(self, row: &UsageRow) -> String {
        match self {
            Self::Tenant => row.tenant.to_string(),
            Self::Model => row.model.to_string(),
            Self::Pool => row.pool.to_string(),
            Self::Day => (row.time_ms / DAY_MS).to_string(),
            Self::Key => row.key.to_string(),
            Self::Class => row.class.to_string(),
        }
    }
}

/// Rows of one kind that a bill tells apart no further: its dimensions, and the
/// pool and day where time is shared by tokens.
type Cells = BTreeMap<(Vec<String>, RowKind), BillSums>;

impl BillQuery {
    /// What cells are told apart by.
    fn grain(&self) -> Vec<Dimension> {
        let more = [Dimension::Pool, Dimension::Day];
        let more = if self.share == TimeShare::Tokens { &more[..] } else { &[] };
        self.by.iter().chain(more).copied().collect()
    }

    fn takes(&self, time_ms: i64) -> bool {
        self.since_ms.is_none_or(|since| since <= time_ms)
            && self.until_ms.is_none_or(|until| time_ms < until)
    }

    /// The question, of rows for which `condition` holds.
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

/// Makes a bill. Blocks; a large database takes seconds.
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
