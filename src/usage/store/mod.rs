//! Usage databases: SQLite and PostgreSQL. Both have the same tables and answer the same queries.

mod access;
mod postgres;
mod secure;
mod sqlite;
mod table;

pub(super) use self::access::StoreError;
pub(super) use self::access::{Store, StoreAccess, StoredLine};
use crate::config::settings::usage::UsageDatabase;

/// Opens a database. May take some seconds.
pub(super) fn open(database: &UsageDatabase, access: StoreAccess) -> Result<Box<dyn Store>, StoreError> {
    Ok(match database {
        UsageDatabase::Sqlite(path) => Box::new(sqlite::SqliteStore::open(path, access)?),
        UsageDatabase::Postgres(settings) => Box::new(postgres::PostgresStore::open(settings, access)?),
    })
}
