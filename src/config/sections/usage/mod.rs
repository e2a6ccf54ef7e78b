//! Section `usage`, as written: where it is written down what requests used and cost.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::sections::secret_ref::SecretRef;
use crate::config::syntax::units::{ByteSize, Span};

/// What requests used and cost: one JSON line each in a journal, and a database
/// that is fed from it. `penstock usage` makes the bill of either. No prompts, no
/// answers, no secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct UsageSection {
    /// Folder of the usage journal; a missing folder is made, inside an existing one. Absent = no
    /// usage is written down, and the limits of days and months begin anew with each start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Database into which the rows of the journal are copied.
    pub database: DatabaseSection,
    /// Address of PostgreSQL, required with `database: postgres`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresSection>,
    /// Size at which the journal begins a new file, from 64 KiB to 1 GiB.
    pub segment_size: ByteSize,
    /// Age at which the journal begins a new file although the file is smaller than `segment_size`,
    /// at least `1m`.
    pub segment_age: Span,
    /// Largest size of all files of the journal together, at least twice `segment_size`; beyond the
    /// size, the oldest file is deleted. While the database is away, the journal keeps the rows for
    /// the database up to this size.
    pub keep: ByteSize,
    /// Age at which rows are deleted from the database, at least `1d`. Absent = rows stay. The
    /// journal has a bound of its own (`keep`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Span>,
    /// Rows that may wait in memory for the disk. Further rows are dropped and counted in
    /// `penstock_usage_rows_dropped_total`.
    #[schemars(range(min = 16, max = 1_000_000))]
    pub queue: u32,
}

impl Default for UsageSection {
    fn default() -> Self {
        Self {
            folder: None,
            database: DatabaseSection::Sqlite,
            postgres: None,
            segment_size: ByteSize(16 << 20),
            segment_age: Span::secs(86_400),
            keep: ByteSize(1 << 30),
            retention: None,
            queue: 10_000,
        }
    }
}

/// What the journal is copied to, for questions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DatabaseSection {
    /// SQLite in the file `usage.db` of `usage.folder`.
    #[default]
    Sqlite,
    /// PostgreSQL; several gateways may share one.
    Postgres,
    /// No database: the journal alone.
    None,
}

/// Where PostgreSQL is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::reached)]
pub struct PostgresSection {
    /// Where the gateway reads the address of PostgreSQL from: a text such as
    /// `postgres://user:password@host:5432/database`. `?sslmode=require` refuses connections
    /// without TLS, `?sslmode=disable` asks for no TLS.
    pub url: SecretRef,
    /// Path of a PEM file with the authorities that may sign the certificate of PostgreSQL. Absent
    /// = the authorities of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}
