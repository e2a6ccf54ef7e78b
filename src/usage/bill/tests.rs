//! Tests of bills: one set of rows, under every kind of query, from every source.

use std::fs;
use std::path::Path;

use proptest::prelude::{prop, prop_assert_eq, proptest};

use crate::config::settings::usage::UsageDatabase;
use crate::usage::bill::lines::{Bill, Dimension};
use crate::usage::bill::sums::BillSums;
use crate::usage::bill::{BillQuery, RowSource, TimeShare, make, text};
use crate::usage::row::tests::row;
use crate::usage::row::{RowKind, UsageRow};
use crate::usage::segment::{Cursor, JournalFolder};
use crate::usage::store::{StoreAccess, open};

const DAY_MS: i64 = 86_400_000;

fn idle(time_ms: i64, pool: &str, gpu_ns: u64) -> UsageRow {
    UsageRow {
        kind: RowKind::Idle,
        request_id: String::new(),
        tenant: "".into(),
        key: "".into(),
        class: "".into(),
        model: "".into(),
        pool: pool.into(),
        replica: "".into(),
        input_tokens: 0,
        cached_tokens: 0,
        output_tokens: 0,
        queue_us: 0,
        gpu_ns,
        money_nano: gpu_ns / 1_000,
        ..row(time_ms, "")
    }
}

fn some_rows() -> Vec<UsageRow> {
    vec![
        row(DAY_MS + 1, "red"),
        UsageRow { output_tokens: 60, gpu_ns: 7, money_nano: 3, ..row(DAY_MS + 2, "blue") },
        UsageRow { kind: RowKind::Try, gpu_ns: 5, wasted_tokens: 9, ..row(DAY_MS + 3, "blue") },
        UsageRow { pool: "a10".into(), ..row(2 * DAY_MS, "blue") },
        idle(2 * DAY_MS + 5, "h100", 4_000_000_000),
        idle(2 * DAY_MS + 6, "a10", 1_000_000_000),
    ]
}

/// The rows in a journal and in a database.
fn sources(folder: &Path, rows: &[UsageRow]) -> [RowSource; 2] {
    let lines: String = rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect();
    fs::write(JournalFolder::new(folder).file(1), lines).unwrap();
    let database = UsageDatabase::Sqlite(folder.join("usage.db"));
    open(&database, StoreAccess::Write).unwrap().append("j", rows, Cursor::default()).unwrap();
    [RowSource::Journal(folder.to_owned()), RowSource::Database(database)]
}

fn lines(bill: &Bill) -> Vec<(String, bool, u64, u128)> {
    let line = |line: &crate::usage::bill::lines::BillLine| {
        (line.key.join(" "), line.unallocated, line.sums.requests, line.sums.gpu_ns)
    };
    bill.lines.iter().map(line).collect()
}

#[test]
fn a_bill_says_who_used_what_and_what_nobody_did() {
    let temp = tempfile::tempdir().unwrap();
    for source in sources(temp.path(), &some_rows()) {
        let bill = |by: &[Dimension], share| {
            make(&BillQuery { by: by.to_vec(), share, ..BillQuery::default() }, &source).unwrap()
        };
        let second = 1_000_000_000;
        let own = |key: &str, requests, gpu_ns| (key.to_owned(), false, requests, gpu_ns);
        let steps = bill(&[Dimension::Tenant], TimeShare::Steps);
        assert_eq!(
            lines(&steps),
            [
                own("blue", 2, 2 * second + 12),
                own("red", 1, 2 * second),
                (String::new(), true, 0, 5 * second)
            ]
        );
        let days = bill(&[Dimension::Day, Dimension::Pool], TimeShare::Steps);
        assert_eq!(lines(&days)[0], own("1970-01-02 h100", 2, 2 * second + 12));
        assert_eq!(lines(&days)[2], ("1970-01-03 a10".into(), true, 0, second));
        // On the first day blue had 280 of the pool's 400 tokens.
        let tokens = bill(&[Dimension::Tenant], TimeShare::Tokens);
        assert_eq!(lines(&tokens)[1], own("red", 1, 2 * second + 12 - (2 * second + 12) * 280 / 400));
        assert_eq!(tokens.total, steps.total);
        let all = bill(&[], TimeShare::Steps);
        assert_eq!((all.lines.len(), all.total), (2, steps.total));
    }
}

#[test]
fn only_rows_of_the_time_count() {
    let temp = tempfile::tempdir().unwrap();
    for source in sources(temp.path(), &some_rows()) {
        let query =
            BillQuery { since_ms: Some(DAY_MS + 2), until_ms: Some(2 * DAY_MS), ..BillQuery::default() };
        let bill = make(&query, &source).unwrap();
        assert_eq!((bill.total.requests, bill.total.tries, bill.total.gpu_ns), (1, 1, 12));
    }
}

#[test]
fn a_bill_is_a_table_csv_and_json() {
    let temp = tempfile::tempdir().unwrap();
    let [journal, _] = sources(temp.path(), &some_rows());
    let bill =
        |by: &[Dimension]| make(&BillQuery { by: by.to_vec(), ..BillQuery::default() }, &journal).unwrap();
    let table = |by| text::table(&bill(by));
    let is = |text: String, lines: &[&str]| assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    is(
        table(&[Dimension::Tenant, Dimension::Pool]),
        &[
            "TENANT       POOL  REQUESTS  INPUT  CACHED  OUTPUT  WASTED  GPU HOURS    COST",
            "blue         a10          1    100      60      20       0     0.0006  0.0020",
            "blue         h100         1    200     120      80       9     0.0000  0.0020",
            "red          h100         1    100      60      20       0     0.0006  0.0020",
            "unallocated  a10          0      0       0       0       0     0.0003  0.0010",
            "unallocated  h100         0      0       0       0       0     0.0011  0.0040",
            "total                     3    400     240     120       9     0.0025  0.0110",
        ],
    );
    is(
        table(&[Dimension::Day]),
        &[
            "DAY                       REQUESTS  INPUT  CACHED  OUTPUT  WASTED  GPU HOURS    COST",
            "1970-01-02                       2    300     180     100       9     0.0006  0.0040",
            "1970-01-03                       1    100      60      20       0     0.0006  0.0020",
            "1970-01-03 (unallocated)         0      0       0       0       0     0.0014  0.0050",
            "total                            3    400     240     120       9     0.0025  0.0110",
        ],
    );
    is(
        table(&[]),
        &[
            "             REQUESTS  INPUT  CACHED  OUTPUT  WASTED  GPU HOURS    COST",
            "used                3    400     240     120       9     0.0011  0.0060",
            "unallocated         0      0       0       0       0     0.0014  0.0050",
            "total               3    400     240     120       9     0.0025  0.0110",
        ],
    );
    is(
        text::csv(&bill(&[Dimension::Tenant])),
        &[
            "tenant,kind,requests,tries,input_tokens,cached_tokens,output_tokens,wasted_tokens,queue_seconds,gpu_seconds,cost",
            "blue,used,2,1,300,180,100,9,0.004500000,2.000000012,0.004000003",
            "red,used,1,0,100,60,20,0,0.001500000,2.000000000,0.002000000",
            ",unallocated,0,0,0,0,0,0,0.000000000,5.000000000,0.005000000",
        ],
    );
    let json = text::json(&bill(&[Dimension::Tenant]));
    assert_eq!(json["lines"][2]["unallocated"], true);
    assert_eq!(json["lines"][2]["tenant"], serde_json::Value::Null);
    assert_eq!(
        (&json["total"]["requests"], &json["total"]["gpu_seconds"]),
        (&3.into(), &"9.000000012".into())
    );
}

proptest! {
    /// The lines of a bill sum to its total under every dimension and both methods of sharing time.
    #[test]
    fn lines_add_up_to_the_total(
        rows in prop::collection::vec((0_i64..3, 0_u8..3, 0_u8..2, 0_u8..3, 0_u64..1_000_000_000, 0_u64..5_000), 0..40),
        by in prop::sample::subsequence(Dimension::ALL.to_vec(), 0..6),
    ) {
        let rows: Vec<UsageRow> = rows.into_iter().map(|(day, tenant, pool, kind, gpu_ns, tokens)| {
            let (time_ms, pool) = (day * DAY_MS, format!("p{pool}"));
            match kind {
                0 => idle(time_ms, &pool, gpu_ns),
                kind => UsageRow {
                    kind: if kind == 1 { RowKind::Try } else { RowKind::Request },
                    pool: pool.as_str().into(),
                    gpu_ns,
                    money_nano: gpu_ns / 7,
                    input_tokens: tokens,
                    output_tokens: tokens / 3,
                    ..row(time_ms, &format!("t{tenant}"))
                },
            }
        }).collect();
        let mut all = BillSums::default();
        rows.iter().for_each(|row| all.add(&BillSums::of(row)));
        let temp = tempfile::tempdir().unwrap();
        let mut bills = Vec::new();
        for source in sources(temp.path(), &rows) {
            for share in [TimeShare::Steps, TimeShare::Tokens] {
                let bill = make(&BillQuery { by: by.clone(), share, ..BillQuery::default() }, &source).unwrap();
                let mut sum = BillSums::default();
                bill.lines.iter().for_each(|line| sum.add(&line.sums));
                prop_assert_eq!(&sum, &all);
                prop_assert_eq!(&bill.total, &all);
                bills.push(bill);
            }
        }
        prop_assert_eq!(&bills[0], &bills[2]);
        prop_assert_eq!(&bills[1], &bills[3]);
    }
}
