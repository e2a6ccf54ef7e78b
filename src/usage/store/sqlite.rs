//! SQLite store of usage rows, in one local file.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, ToSql, params_from_iter, types::ToSqlOutput};

use crate::usage::row::UsageRow;
use crate::usage::segment::Cursor;
use crate::usage::store::access::{Store, StoreAccess, StoreError, StoredLine};
use crate::usage::store::table::{
    COLUMNS, ColumnValue, VERSION, VERSION_TABLE, check_readable, migrations_after, values,
};

/// Longest wait for another connection that holds the file's lock.
const BUSY: Duration = Duration::from_secs(5);

/// Open database file.
pub(super) struct SqliteStore(Connection);

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error.to_string())
    }
}

impl ToSql for ColumnValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Text(text) => text.to_sql(),
            Self::Whole(number) => number.to_sql(),
            Self::Real(number) => number.to_sql(),
        }
    }
}

impl SqliteStore {
    pub(super) fn open(path: &Path, access: StoreAccess) -> Result<Self, StoreError> {
        let flags = match access {
            StoreAccess::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            StoreAccess::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let file = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX);
        let mut connection =
            file.map_err(|error| StoreError(format!("cannot open {}: {error}", path.display())))?;
        connection.busy_timeout(BUSY)?;
        if access == StoreAccess::Write {
            // With `normal`, a power cut may undo the last transactions. A transaction holds rows
            // and cursor together, so the sink copies the undone rows from the journal again.
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "normal")?;
            migrate(&mut connection)?;
        } else {
            check_readable(connection.query_row(VERSION, (), |row| row.get(0))?)?;
        }
        Ok(Self(connection))
    }
}

fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let all = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    all.execute_batch(VERSION_TABLE)?;
    let version: i64 = all.query_row(VERSION, (), |row| row.get(0))?;
    for (step, sql) in (version + 1..).zip(migrations_after(version)?) {
        all.execute_batch(sql)?;
        all.execute("INSERT INTO penstock_usage_schema VALUES (?1)", [step])?;
    }
    Ok(all.commit()?)
}

impl Store for SqliteStore {
    fn cursor(&mut self, journal: &str) -> Result<Cursor, StoreError> {
        let sql = "SELECT segment, byte_offset FROM penstock_usage_cursor WHERE journal = ?1";
        let found = self.0.query_row(sql, [journal], |row| {
            Ok(Cursor { segment: unsigned(row.get(0)?), offset: unsigned(row.get(1)?) })
        });
        Ok(found.optional()?.unwrap_or_default())
    }

    fn append(&mut self, journal: &str, rows: &[UsageRow], until: Cursor) -> Result<(), StoreError> {
        let all = self.0.transaction()?;
        {
            let places = vec!["?"; COLUMNS.len()].join(", ");
            let sql = format!("INSERT INTO penstock_usage ({}) VALUES ({places})", COLUMNS.join(", "));
            let mut insert = all.prepare(&sql)?;
            for row in rows {
                insert.execute(params_from_iter(values(journal, row)))?;
            }
        }
        let place = [until.segment, until.offset].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        all.execute(
            "INSERT INTO penstock_usage_cursor VALUES (?1, ?2, ?3)
             ON CONFLICT (journal) DO UPDATE SET segment = ?2, byte_offset = ?3",
            (journal, place[0], place[1]),
        )?;
        Ok(all.commit()?)
    }

    fn delete_before(&mut self, moment_ms: i64, most: u32) -> Result<u64, StoreError> {
        let sql = "DELETE FROM penstock_usage WHERE rowid IN
             (SELECT rowid FROM penstock_usage WHERE time_ms < ?1 ORDER BY time_ms LIMIT ?2)";
        Ok(self.0.execute(sql, (moment_ms, most))? as u64)
    }

    fn lines(&mut self, sql: &str, texts: usize, wholes: usize) -> Result<Vec<StoredLine>, StoreError> {
        let mut asked = self.0.prepare(sql)?;
        let lines = asked.query_map((), |row| {
            let names = (0..texts).map(|at| row.get(at)).collect::<Result<_, _>>()?;
            let numbers = (texts..texts + wholes).map(|at| row.get(at)).collect::<Result<_, _>>()?;
            Ok((names, numbers))
        })?;
        Ok(lines.collect::<Result<_, _>>()?)
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
