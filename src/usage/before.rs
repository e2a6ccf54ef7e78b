//! Use before the start, read back so that a restart gives nobody a new quota.

use std::collections::BTreeMap;

use crate::usage::bill::{BillQuery, BillSums, Dimension, SUMS};
use crate::usage::row::{RowKind, UsageRow};
use crate::usage::segment::{Cursor, JournalFolder, each_between};
use crate::usage::store::Store;

/// What one tenant used with one key, of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedBefore {
    /// Who.
    pub tenant: String,
    /// The key's id; empty where there was none.
    pub key: String,
    /// The model.
    pub model: String,
    /// What. Only requests that came to a replica count.
    pub sums: BillSums,
}

/// What was used since a moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Before {
    /// By tenant, key and model.
    pub used: Vec<UsedBefore>,
    /// What is known is only what the journal still holds: the database is away.
    pub partial: bool,
}

/// Adds up what this journal's gateway used since each of the moments: what the
/// database has, and what the journal holds from there to `end`.
pub(super) fn since(
    moments: &[i64],
    folder: &JournalFolder,
    journal: &str,
    mut stored: Option<(&mut dyn Store, Cursor)>,
    end: Cursor,
) -> Vec<Before> {
    let mut found = Vec::new();
    for since_ms in moments {
        let mut sums: BTreeMap<[String; 3], BillSums> = BTreeMap::new();
        let from = match &mut stored {
            Some((store, cursor)) => add_stored(*store, journal, *since_ms, &mut sums).then_some(*cursor),
            None => None,
        };
        let counts =
            |row: &UsageRow| row.time_ms >= *since_ms && row.kind != RowKind::Idle && !row.pool.is_empty();
        // A segment that cannot be read holds nothing that could be added.
        let _unreadable = each_between(folder, from.unwrap_or_default(), end, |row| {
            if counts(row) {
                let key = [&row.tenant, &row.key, &row.model].map(|name| name.to_string());
                sums.entry(key).or_default().add(&BillSums::of(row));
            }
        });
        let used =
            sums.into_iter().map(|([tenant, key, model], sums)| UsedBefore { tenant, key, model, sums });
        found.push(Before { used: used.collect(), partial: from.is_none() });
    }
    found
}

/// Whether the database has told what it has.
fn add_stored(
    store: &mut dyn Store,
    journal: &str,
    since_ms: i64,
    sums: &mut BTreeMap<[String; 3], BillSums>,
) -> bool {
    let by = vec![Dimension::Tenant, Dimension::Key, Dimension::Model];
    let query = BillQuery { by, since_ms: Some(since_ms), ..BillQuery::default() };
    // The name is made of hexadecimal digits.
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
