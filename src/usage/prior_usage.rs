//! Usage before the start: read back from journal and database, so that a restart does not reset
//! quotas.

use std::collections::BTreeMap;

use crate::usage::bill::{BillQuery, BillSums, Dimension, SUMS};
use crate::usage::row::{RowKind, UsageRow};
use crate::usage::segment::{Cursor, JournalFolder, each_between};
use crate::usage::store::Store;

/// Usage of one tenant, key and model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorUsageRow {
    pub tenant: String,
    /// Id of the key; empty for requests without a key.
    pub key: String,
    pub model: String,
    /// Amounts of the requests that reached a replica.
    pub sums: BillSums,
}

/// Usage since a moment and before the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PriorUsage {
    /// Usage by tenant, key and model.
    pub used: Vec<PriorUsageRow>,
    /// Whether only the journal was read, because the database is away or not configured. The
    /// journal may no longer hold all rows.
    pub partial: bool,
}

/// The database, with the position in the journal up to which it has all rows.
pub(super) struct StoredRows<'a> {
    pub(super) store: &'a mut dyn Store,
    pub(super) cursor: Cursor,
}

/// Sums the usage of this gateway since each of the moments (milliseconds since 1970). Rows come
/// from the database up to its cursor, and from the journal between that cursor and `end`.
pub(super) fn since(
    moments: &[i64],
    folder: &JournalFolder,
    journal: &str,
    mut stored: Option<StoredRows<'_>>,
    end: Cursor,
) -> Vec<PriorUsage> {
    let mut found = Vec::new();
    for since_ms in moments {
        let mut sums: BTreeMap<[String; 3], BillSums> = BTreeMap::new();
        let from = match &mut stored {
            Some(StoredRows { store, cursor }) => {
                add_stored(*store, journal, *since_ms, &mut sums).then_some(*cursor)
            }
            None => None,
        };
        let counts =
            |row: &UsageRow| row.time_ms >= *since_ms && row.kind != RowKind::Idle && !row.pool.is_empty();
        // A segment that cannot be read adds nothing.
        let _unreadable = each_between(folder, from.unwrap_or_default(), end, |row| {
            if counts(row) {
                let key = [&row.tenant, &row.key, &row.model].map(|name| name.to_string());
                sums.entry(key).or_default().add(&BillSums::of(row));
            }
        });
        let used =
            sums.into_iter().map(|([tenant, key, model], sums)| PriorUsageRow { tenant, key, model, sums });
        found.push(PriorUsage { used: used.collect(), partial: from.is_none() });
    }
    found
}

/// Adds the sums of the database. Returns whether the database answered.
fn add_stored(
    store: &mut dyn Store,
    journal: &str,
    since_ms: i64,
    sums: &mut BTreeMap<[String; 3], BillSums>,
) -> bool {
    let by = vec![Dimension::Tenant, Dimension::Key, Dimension::Model];
    let query = BillQuery { by, since_ms: Some(since_ms), ..BillQuery::default() };
    // The journal's id has hexadecimal digits only, so it needs no escapes.
    let ours = format!("journal = '{journal}' AND kind <> 'idle' AND pool <> ''");
    let Ok(lines) = store.lines(&query.sql(&ours), 4, SUMS.len()) else { return false };
    for (key, columns) in lines {
        if let [tenant, key, model, _kind] = &key[..] {
            let key = [tenant, key, model].map(String::clone);
            sums.entry(key).or_default().add(&BillSums::from_columns(&columns));
        }
    }
    true
}
