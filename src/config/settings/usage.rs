//! Settings of the usage journal and its database.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::config::secret::Secret;
use crate::config::settings::shown;

/// The usage journal and its database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UsageSettings {
    /// Where the journal's segments are.
    #[serde(serialize_with = "shown::path")]
    pub folder: PathBuf,
    /// What the journal is copied to; absent = nothing.
    #[serde(serialize_with = "database_name")]
    pub database: Option<UsageDatabase>,
    /// Bytes at which a new segment is begun.
    pub segment_bytes: u64,
    /// The age at which a new segment is begun.
    #[serde(serialize_with = "shown::seconds")]
    pub segment_age: Duration,
    /// Bytes of all segments; the oldest goes first.
    pub keep_bytes: u64,
    /// Age at which rows are deleted from the database; absent = never.
    #[serde(serialize_with = "shown::seconds")]
    pub retention: Option<Duration>,
    /// Rows that may wait for the disk.
    pub queue: usize,
}

fn database_name<S: Serializer>(database: &Option<UsageDatabase>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(database.as_ref().map_or("none", UsageDatabase::name))
}

/// A database of usage rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageDatabase {
    /// SQLite in this file.
    Sqlite(PathBuf),
    /// PostgreSQL.
    Postgres(PostgresSettings),
}

impl UsageDatabase {
    /// Short stable name for logs and metric labels.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }
}

/// Where PostgreSQL is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresSettings {
    /// Its address, with the password.
    pub url: Secret,
    /// The file that the address stands in, which may be another one by the
    /// next connection.
    pub url_file: Option<PathBuf>,
    /// The authorities (PEM) of its certificate; absent = those of the system.
    pub ca: Option<Arc<[u8]>>,
}
