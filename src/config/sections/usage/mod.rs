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
    /// Folder of the journal; made where it is missing. Absent = nothing is
    /// written down, and the limits of days and months begin anew with each
    /// start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The database.
    pub database: DatabaseSection,
    /// Where PostgreSQL is, with `database: postgres`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresSection>,
    /// Bytes at which the journal begins a new file.
    pub segment_size: ByteSize,
    /// The age at which it does.
    pub segment_age: Span,
    /// Bytes of the journal in all; the oldest file goes first. So much can wait
    /// for a database that is away.
    pub keep: ByteSize,
    /// Age at which rows are deleted from the database; absent = they stay. The journal
    /// has `keep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Span>,
    /// Rows that may wait for the disk; what does not fit is dropped and counted.
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
    /// SQLite in the file `usage.db` of the folder.
    #[default]
    Sqlite,
    /// PostgreSQL; several gateways may share one.
    Postgres,
    /// None: the journal alone.
    None,
}

/// Where PostgreSQL is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::reached)]
pub struct PostgresSection {
    /// Where its address is read from: a text such as
    /// `postgres://user:password@host:5432/database`. `?sslmode=require` refuses
    /// connections without TLS, `?sslmode=disable` asks for none.
    pub url: SecretRef,
    /// Path of a PEM file with the authorities of its certificate; absent =
    /// those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}
