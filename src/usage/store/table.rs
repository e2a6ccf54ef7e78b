//! Usage table: its columns, and the steps from one version to the next.

use crate::usage::row::UsageRow;
use crate::usage::store::access::StoreError;

/// Migrations of the tables, one for each version. A released migration never changes; a change of
/// the tables is a further migration.
const MIGRATIONS: [&str; 2] = [
    "
    CREATE TABLE penstock_usage (
        journal TEXT NOT NULL,
        time_ms BIGINT NOT NULL,
        kind TEXT NOT NULL,
        request_id TEXT NOT NULL,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        class TEXT NOT NULL,
        model TEXT NOT NULL,
        pool TEXT NOT NULL,
        replica TEXT NOT NULL,
        api TEXT NOT NULL,
        status INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        usage TEXT NOT NULL,
        input_tokens BIGINT NOT NULL,
        cached_tokens BIGINT NOT NULL,
        output_tokens BIGINT NOT NULL,
        wasted_tokens BIGINT NOT NULL,
        wasted_by TEXT NOT NULL,
        queue_us BIGINT NOT NULL,
        gpu_ns BIGINT NOT NULL,
        price_per_hour DOUBLE PRECISION NOT NULL,
        money_nano BIGINT NOT NULL,
        attempts BIGINT NOT NULL
    );
    CREATE INDEX penstock_usage_time ON penstock_usage (time_ms);
    CREATE TABLE penstock_usage_cursor (
        journal TEXT PRIMARY KEY,
        segment BIGINT NOT NULL,
        byte_offset BIGINT NOT NULL
    );
",
    "
    ALTER TABLE penstock_usage ADD COLUMN requests BIGINT NOT NULL DEFAULT 1;
    ALTER TABLE penstock_usage ADD COLUMN gateway_id TEXT NOT NULL DEFAULT '';
",
];

pub(super) const VERSION_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS penstock_usage_schema (version INTEGER NOT NULL)";

pub(super) const VERSION: &str = "SELECT COALESCE(MAX(version), 0) FROM penstock_usage_schema";

pub(super) const COLUMNS: [&str; 26] = [
    "journal",
    "time_ms",
    "kind",
    "request_id",
    "tenant",
    "key_id",
    "class",
    "model",
    "pool",
    "replica",
    "api",
    "status",
    "outcome",
    "usage",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "wasted_tokens",
    "wasted_by",
    "queue_us",
    "gpu_ns",
    "price_per_hour",
    "money_nano",
    "attempts",
    "requests",
    "gateway_id",
];

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ColumnValue<'a> {
    Text(&'a str),
    Whole(i64),
    Real(f64),
}

/// A row in the order of [`COLUMNS`].
pub(super) fn values<'a>(journal: &'a str, row: &'a UsageRow) -> [ColumnValue<'a>; COLUMNS.len()] {
    let whole = |number: u64| ColumnValue::Whole(i64::try_from(number).unwrap_or(i64::MAX));
    [
        ColumnValue::Text(journal),
        ColumnValue::Whole(row.time_ms),
        ColumnValue::Text(row.kind.name()),
        ColumnValue::Text(&row.request_id),
        ColumnValue::Text(&row.tenant),
        ColumnValue::Text(&row.key),
        ColumnValue::Text(&row.class),
        ColumnValue::Text(&row.model),
        ColumnValue::Text(&row.pool),
        ColumnValue::Text(&row.replica),
        ColumnValue::Text(row.api),
        whole(row.status.into()),
        ColumnValue::Text(row.outcome),
        ColumnValue::Text(row.usage),
        whole(row.input_tokens),
        whole(row.cached_tokens),
        whole(row.output_tokens),
        whole(row.wasted_tokens),
        ColumnValue::Text(row.wasted_by),
        whole(row.queue_us),
        whole(row.gpu_ns),
        ColumnValue::Real(row.price_per_hour),
        whole(row.money_nano),
        whole(row.attempts.into()),
        whole(row.requests),
        ColumnValue::Text(&row.gateway_id),
    ]
}

/// Returns the migrations that tables of a version still need.
pub(super) fn migrations_after(version: i64) -> Result<&'static [&'static str], StoreError> {
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    MIGRATIONS.get(done..).ok_or_else(|| {
        let known = MIGRATIONS.len();
        StoreError(format!(
            "its tables have version {version}, and this program knows versions up to {known}: use a newer one"
        ))
    })
}

/// Checks that tables of a version have all columns that are read.
pub(super) fn check_readable(version: i64) -> Result<(), StoreError> {
    if migrations_after(version)?.is_empty() {
        return Ok(());
    }
    Err(StoreError(format!(
        "its tables have version {version}, of an earlier program: a gateway of this version brings them up to date \
         when it starts"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::row::tests::row;

    #[test]
    fn every_column_has_its_value() {
        let row = row(5, "red");
        let values = values("j", &row);
        let value = |name: &str| values[COLUMNS.iter().position(|column| *column == name).unwrap()];
        let json = serde_json::to_value(&row).unwrap();
        for (name, expected) in json.as_object().unwrap() {
            let column = if name == "key" { "key_id" } else { name };
            let found: serde_json::Value = match value(column) {
                ColumnValue::Text(text) => text.into(),
                ColumnValue::Whole(number) => number.into(),
                ColumnValue::Real(number) => number.into(),
            };
            assert_eq!(*expected, found, "{name}");
        }
        let all = MIGRATIONS.concat();
        let is_made = |column: &&str| -> bool {
            [format!("        {column} "), format!("ADD COLUMN {column} ")]
                .iter()
                .any(|text| all.contains(text))
        };
        assert!(COLUMNS.iter().all(is_made));
    }

    #[test]
    fn tables_of_a_newer_program_are_left_alone() {
        assert_eq!(migrations_after(0).unwrap().len(), MIGRATIONS.len());
        assert_eq!(migrations_after(MIGRATIONS.len() as i64).unwrap().len(), 0);
        assert!(migrations_after(99).unwrap_err().to_string().contains("version 99"));
        assert!(check_readable(1).unwrap_err().to_string().contains("version 1, of an earlier program"));
        assert!(check_readable(MIGRATIONS.len() as i64).is_ok());
    }
}
