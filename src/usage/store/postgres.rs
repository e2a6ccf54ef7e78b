//! PostgreSQL store of usage rows. The client blocks, so use it only on threads that may block.

use std::error::Error as _;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use postgres::{Client, Config, IsolationLevel};
use tokio::runtime::Builder;

use crate::config::settings::usage::PostgresSettings as Settings;
use crate::usage::row::UsageRow;
use crate::usage::segment::Cursor;
use crate::usage::store::access::{Store, StoreAccess, StoreError, StoredLine};
use crate::usage::store::secure::PostgresTls;
use crate::usage::store::table::{
    COLUMNS, ColumnValue, VERSION, VERSION_TABLE, check_readable, migrations_after, values,
};

const CONNECT: Duration = Duration::from_secs(5);
/// TCP user timeout: longest time that sent data may stay unacknowledged.
const SILENCE: Duration = Duration::from_secs(30);
/// Key of the advisory lock that keeps two gateways from migrating at once. Any constant would do.
const MIGRATION_LOCK: i64 = 0x70_656e_7374_6f63;

/// Open connection.
pub(super) struct PostgresStore(Client);

impl From<postgres::Error> for StoreError {
    /// Takes the server's error message, or else the chain of connection errors.
    fn from(error: postgres::Error) -> Self {
        if let Some(said) = error.as_db_error() {
            return Self(format!("{} ({})", said.message(), said.code().code()));
        }
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let _infallible = write!(text, ": {error}");
            cause = error.source();
        }
        Self(text)
    }
}

impl PostgresStore {
    pub(super) fn open(settings: &Settings, access: StoreAccess) -> Result<Self, StoreError> {
        let mut config = config(settings)?;
        config.application_name("penstock").connect_timeout(CONNECT).tcp_user_timeout(SILENCE);
        let mut client = connect(&config, PostgresTls::new(settings.ca.as_deref())?)?;
        client.batch_execute("SET statement_timeout = '60s'")?;
        if access == StoreAccess::Write {
            migrate(&mut client)?;
        } else {
            let version: i32 = client.query_one(VERSION, &[])?.get(0);
            check_readable(version.into())?;
        }
        Ok(Self(client))
    }
}

/// Connects. The library makes a runtime for the connection and panics where it cannot, for lack of
/// file descriptors. Another thread may take the last one after the first look.
fn connect(config: &Config, tls: PostgresTls) -> Result<Client, StoreError> {
    let lacking = |error: std::io::Error| StoreError(format!("no connection can be opened: {error}"));
    Builder::new_current_thread().enable_all().build().map_err(lacking)?;
    let connected = catch_unwind(AssertUnwindSafe(|| config.connect(tls)));
    Ok(connected.map_err(|_panic| StoreError("no connection can be opened".into()))??)
}

/// Parses the database's address. The address file is read again each time, so that a rotated
/// password takes effect.
fn config(settings: &Settings) -> Result<Config, StoreError> {
    let again = settings.url_file.as_ref().and_then(|path| fs::read_to_string(path).ok());
    let url = again.as_deref().map_or(settings.url.expose(), str::trim);
    // The parse error is left out: it may contain the password.
    url.parse()
        .map_err(|_| StoreError("its address is none: postgres://user:password@host:5432/database".into()))
}

fn migrate(client: &mut Client) -> Result<(), StoreError> {
    let mut all = client.transaction()?;
    all.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK])?;
    all.batch_execute(VERSION_TABLE)?;
    let version: i32 = all.query_one(VERSION, &[])?.get(0);
    for (step, sql) in (version + 1..).zip(migrations_after(version.into())?) {
        all.batch_execute(sql)?;
        all.execute("INSERT INTO penstock_usage_schema VALUES ($1)", &[&step])?;
    }
    Ok(all.commit()?)
}

impl Store for PostgresStore {
    fn cursor(&mut self, journal: &str) -> Result<Cursor, StoreError> {
        let sql = "SELECT segment, byte_offset FROM penstock_usage_cursor WHERE journal = $1";
        let found = self.0.query_opt(sql, &[&journal])?;
        let number = |row: &postgres::Row, at| u64::try_from(row.get::<_, i64>(at)).unwrap_or(0);
        Ok(found
            .map_or_else(Cursor::default, |row| Cursor { segment: number(&row, 0), offset: number(&row, 1) }))
    }

    fn append(&mut self, journal: &str, rows: &[UsageRow], until: Cursor) -> Result<(), StoreError> {
        let mut text = String::new();
        rows.iter().for_each(|row| copy_line(&values(journal, row), &mut text));
        let mut all = self.0.transaction()?;
        let mut copy = all.copy_in(&format!("COPY penstock_usage ({}) FROM STDIN", COLUMNS.join(", ")))?;
        copy.write_all(text.as_bytes()).map_err(|error| StoreError(error.to_string()))?;
        copy.finish()?;
        let place = [until.segment, until.offset].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        all.execute(
            "INSERT INTO penstock_usage_cursor VALUES ($1, $2, $3)
             ON CONFLICT (journal) DO UPDATE SET segment = $2, byte_offset = $3",
            &[&journal, &place[0], &place[1]],
        )?;
        Ok(all.commit()?)
    }

    fn delete_before(&mut self, moment_ms: i64, most: u32) -> Result<u64, StoreError> {
        // Rows that another gateway deletes just now are left to it.
        let sql = "DELETE FROM penstock_usage WHERE ctid = ANY (ARRAY
             (SELECT ctid FROM penstock_usage WHERE time_ms < $1 ORDER BY time_ms LIMIT $2
              FOR UPDATE SKIP LOCKED))";
        Ok(self.0.execute(sql, &[&moment_ms, &i64::from(most)])?)
    }

    fn lines(&mut self, sql: &str, texts: usize, wholes: usize) -> Result<Vec<StoredLine>, StoreError> {
        let transaction =
            self.0.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        let mut asked = transaction.start()?;
        let lines = asked.query(sql, &[])?.into_iter().map(|row| -> Result<StoredLine, postgres::Error> {
            let names = (0..texts).map(|at| row.try_get(at)).collect::<Result<_, _>>()?;
            let numbers = (texts..texts + wholes).map(|at| row.try_get(at)).collect::<Result<_, _>>()?;
            Ok((names, numbers))
        });
        Ok(lines.collect::<Result<_, _>>()?)
    }
}

/// Appends a line of COPY's text format: tabs between the values, backslashes before characters
/// that would end a value. NUL is dropped: PostgreSQL texts cannot hold it.
fn copy_line(values: &[ColumnValue<'_>], text: &mut String) {
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            text.push('\t');
        }
        match value {
            ColumnValue::Whole(number) => {
                let _infallible = write!(text, "{number}");
            }
            ColumnValue::Real(number) => {
                let _infallible = write!(text, "{number}");
            }
            ColumnValue::Text(value) => value.chars().for_each(|char| match char {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\0' => {}
                other => text.push(other),
            }),
        }
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_leave_their_column() {
        let mut text = String::new();
        copy_line(
            &[ColumnValue::Text("a\tb\\N\nc\0"), ColumnValue::Whole(-1), ColumnValue::Real(0.5)],
            &mut text,
        );
        assert_eq!(text, "a\\tb\\\\N\\nc\t-1\t0.5\n");
    }
}
