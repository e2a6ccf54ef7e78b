//! Store: the calls of a usage database, whatever its kind.

use crate::usage::row::UsageRow;
use crate::usage::segment::Cursor;

/// Error text of a database, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub(in crate::usage) String);

/// Line of a query's answer: texts first, then whole numbers.
pub(in crate::usage) type StoredLine = (Vec<String>, Vec<i64>);

/// An open database.
pub(in crate::usage) trait Store: Send {
    /// Returns the cursor of a journal; the start of the journal when none is stored.
    fn cursor(&mut self, journal: &str) -> Result<Cursor, StoreError>;

    /// Adds rows and moves the cursor in one transaction.
    fn append(&mut self, journal: &str, rows: &[UsageRow], until: Cursor) -> Result<(), StoreError>;

    /// Deletes rows that ended before this moment (milliseconds since 1970), the oldest first and at
    /// most `most` of them. Returns how many it deleted.
    fn delete_before(&mut self, moment_ms: i64, most: u32) -> Result<u64, StoreError>;

    /// Runs a query whose lines have `texts` texts, then `wholes` whole numbers.
    fn lines(&mut self, sql: &str, texts: usize, wholes: usize) -> Result<Vec<StoredLine>, StoreError>;
}

/// Purpose for which a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::usage) enum StoreAccess {
    /// For adding rows. The tables are created or migrated.
    Write,
    /// For queries only.
    Read,
}
