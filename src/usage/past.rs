//! Past traffic: reads the requests of a journal or database one by one.

use std::ops::Range;
use std::sync::Arc;

use crate::usage::bill::{BillError, RowSource};
use crate::usage::row::{RowKind, UsageRow};
use crate::usage::segment::each_row;
use crate::usage::store::{Store, StoreAccess, open};

/// Rows of one database query.
const PAGE: usize = 50_000;

/// Past request that reached a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastRequest {
    /// End of the request, in milliseconds since 1970.
    pub ended_ms: i64,
    pub tenant: Arc<str>,
    /// Latency class that the request was served in.
    pub class: Arc<str>,
    /// Prompt tokens; 0 = unknown.
    pub input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Time in the queue, in microseconds.
    pub queue_us: u64,
}

/// Calls `take` with the requests that ended in `span_ms` (milliseconds since 1970), of one model
/// or of all, at most `most` of them. Requests that never reached a replica are left out: their
/// sizes are unknown. Blocks.
///
/// # Errors
/// The source does not answer.
pub fn each_request(
    source: &RowSource,
    span_ms: &Range<i64>,
    model: Option<&str>,
    most: usize,
    mut take: impl FnMut(PastRequest),
) -> Result<(), BillError> {
    match source {
        RowSource::Journal(folder) => {
            let mut count = 0;
            each_row(folder, |row| {
                let wanted = row.kind == RowKind::Request
                    && !row.pool.is_empty()
                    && span_ms.contains(&row.time_ms)
                    && model.is_none_or(|model| model == &*row.model);
                if wanted && count < most {
                    count += 1;
                    take(of_row(row));
                }
            })?;
            Ok(())
        }
        RowSource::Database(database) => {
            from_store(&mut *open(database, StoreAccess::Read)?, span_ms, model, most, take)
        }
    }
}

fn of_row(row: &UsageRow) -> PastRequest {
    PastRequest {
        ended_ms: row.time_ms,
        tenant: Arc::clone(&row.tenant),
        class: Arc::clone(&row.class),
        input_tokens: row.input_tokens,
        output_tokens: row.output_tokens,
        queue_us: row.queue_us,
    }
}

/// Reads the requests page by page, in order of time.
fn from_store(
    store: &mut dyn Store,
    span_ms: &Range<i64>,
    model: Option<&str>,
    most: usize,
    mut take: impl FnMut(PastRequest),
) -> Result<(), BillError> {
    let model = model.map_or(String::new(), |model| format!(" AND model = '{}'", model.replace('\'', "''")));
    let Range { start, end } = span_ms;
    let mut read = 0;
    while read < most {
        let page = PAGE.min(most - read);
        let sql = format!(
            "SELECT tenant, class, time_ms, input_tokens, output_tokens, queue_us FROM penstock_usage \
             WHERE kind = 'request' AND pool <> '' AND time_ms >= {start} AND time_ms < {end}{model} \
             ORDER BY time_ms, journal, request_id LIMIT {page} OFFSET {read}"
        );
        let lines = store.lines(&sql, 2, 4)?;
        let count = lines.len();
        for (names, numbers) in lines {
            let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
            let unsigned = |place: usize| u64::try_from(number(place)).unwrap_or(0);
            let name = |place: usize| names.get(place).map_or_else(|| "".into(), |name| name.as_str().into());
            take(PastRequest {
                ended_ms: number(0),
                tenant: name(0),
                class: name(1),
                input_tokens: unsigned(1),
                output_tokens: unsigned(2),
                queue_us: unsigned(3),
            });
        }
        read += count;
        if count < page {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::config::settings::usage::UsageDatabase;
    use crate::usage::row::tests::row;
    use crate::usage::segment::Cursor;

    #[test]
    fn journal_and_database_tell_the_same_requests() {
        let folder = tempfile::tempdir().unwrap();
        let idle = UsageRow { kind: RowKind::Idle, ..row(12, "") };
        let refused = UsageRow { pool: "".into(), ..row(13, "red") };
        let other = UsageRow { model: "o'ther".into(), ..row(14, "blue") };
        let rows = [row(5, "red"), row(11, "blue"), idle, refused, other, row(20, "red")];
        let mut file = std::fs::File::create(folder.path().join("usage-00000001.jsonl")).unwrap();
        for row in &rows {
            writeln!(file, "{}", serde_json::to_string(row).unwrap()).unwrap();
        }
        let database = UsageDatabase::Sqlite(folder.path().join("usage.sqlite"));
        let mut store = open(&database, StoreAccess::Write).unwrap();
        store.append("j", &rows, Cursor { segment: 1, offset: 9 }).unwrap();
        drop(store);
        for source in [RowSource::Journal(folder.path().to_owned()), RowSource::Database(database)] {
            let read = |span: Range<i64>, model, most| {
                let mut ended = Vec::new();
                each_request(&source, &span, model, most, |past| ended.push(past.ended_ms)).unwrap();
                ended
            };
            assert_eq!(read(0..100, None, 9), [5, 11, 14, 20], "{source:?}");
            assert_eq!(read(11..20, None, 9), [11, 14]);
            assert_eq!(read(0..100, Some("o'ther"), 9), [14]);
            assert_eq!(read(0..100, None, 2), [5, 11]);
        }
    }
}
