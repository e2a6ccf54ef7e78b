//! Bill: lines by dimension, with their sums.

use crate::usage::bill::sums::BillSums;
use crate::usage::row::UsageRow;

/// Dimension: a column by which usage is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    Tenant,
    /// Model that served the request.
    Model,
    /// Pool that served the request or was idle.
    Pool,
    /// Day (UTC) on which the request or the idle stretch ended.
    Day,
    /// Id of the API key.
    Key,
    /// Latency class.
    Class,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BillLine {
    /// Value of each dimension; empty text where a row has none.
    pub key: Vec<String>,
    /// Whether the line is idle time, which belongs to no tenant.
    pub unallocated: bool,
    pub sums: BillSums,
}

/// Bill: its lines and their total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bill {
    /// Dimensions of the lines.
    pub by: Vec<Dimension>,
    /// Lines in order: used lines by key, then unallocated lines by key.
    pub lines: Vec<BillLine>,
    /// Sums of all lines.
    pub total: BillSums,
}

impl Dimension {
    pub const ALL: [Self; 6] = [Self::Tenant, Self::Model, Self::Pool, Self::Day, Self::Key, Self::Class];

    /// Name of the dimension in queries and columns.
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

    pub(super) const fn sql(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Model => "model",
            Self::Pool => "pool",
            Self::Day => "CAST(time_ms / 86400000 AS TEXT)",
            Self::Key => "key_id",
            Self::Class => "class",
        }
    }

    pub(super) fn of(self, row: &UsageRow) -> String {
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

pub(super) const DAY_MS: i64 = 86_400_000;
