//! Bill output: as a table, as CSV and as JSON.

use std::fmt::Write as _;

use jiff::ToSpan as _;
use jiff::civil::date;
use serde_json::{Map, Value, json};

use crate::usage::bill::lines::{Bill, Dimension};
use crate::usage::bill::sums::{BillSums, NANO};

/// Label of idle time.
const UNALLOCATED: &str = "unallocated";
/// Label of an empty value in a table.
const NONE: &str = "-";
const HOUR_NS: u128 = 3_600 * NANO;

/// Names and values of the amount columns in CSV and JSON: whole numbers and exact decimals.
type AmountColumns = [(&'static str, String); 9];

fn amounts(sums: &BillSums) -> AmountColumns {
    [
        ("requests", sums.requests.to_string()),
        ("tries", sums.tries.to_string()),
        ("input_tokens", sums.input_tokens.to_string()),
        ("cached_tokens", sums.cached_tokens.to_string()),
        ("output_tokens", sums.output_tokens.to_string()),
        ("wasted_tokens", sums.wasted_tokens.to_string()),
        ("queue_seconds", decimal(u128::from(sums.queue_us) * 1_000)),
        ("gpu_seconds", decimal(sums.gpu_ns)),
        ("cost", decimal(sums.money_nano)),
    ]
}

/// Formats billionths as a decimal with nine places.
fn decimal(nano: u128) -> String {
    format!("{}.{:09}", nano / NANO, nano % NANO)
}

/// Formats `amount / unit` with four places, rounded.
fn rounded(amount: u128, unit: u128) -> String {
    let parts = (amount * 10_000 + unit / 2) / unit;
    format!("{}.{:04}", parts / 10_000, parts % 10_000)
}

/// Converts a number of days since 1970 to a date.
pub(super) fn day(number: &str) -> String {
    let day = number.parse::<i32>().ok().and_then(|days| date(1970, 1, 1).checked_add(days.days()).ok());
    day.map_or_else(|| number.to_owned(), |day| day.to_string())
}

/// Labels of a line in a table, before its amounts.
fn labels(bill: &Bill, key: &[String], unallocated: bool) -> Vec<String> {
    if bill.by.is_empty() {
        return vec![if unallocated { UNALLOCATED } else { "used" }.to_owned()];
    }
    let of_nobody = |dimension: &Dimension| !matches!(dimension, Dimension::Pool | Dimension::Day);
    let label = |(dimension, value): (&Dimension, &String)| match value.as_str() {
        "" if unallocated && of_nobody(dimension) => UNALLOCATED.to_owned(),
        "" => NONE.to_owned(),
        value => value.to_owned(),
    };
    let mut labels: Vec<String> = bill.by.iter().zip(key).map(label).collect();
    if unallocated
        && !bill.by.iter().any(of_nobody)
        && let Some(last) = labels.last_mut()
    {
        *last = format!("{last} ({UNALLOCATED})");
    }
    labels
}

/// Formats a bill for people: aligned columns and a total.
pub fn table(bill: &Bill) -> String {
    let mut rows: Vec<Vec<String>> = Vec::with_capacity(bill.lines.len() + 2);
    let head = ["REQUESTS", "INPUT", "CACHED", "OUTPUT", "WASTED", "GPU HOURS", "COST"];
    let mut keys: Vec<String> = bill.by.iter().map(|dimension| dimension.name().to_uppercase()).collect();
    if keys.is_empty() {
        keys.push(String::new());
    }
    rows.push(keys.into_iter().chain(head.map(str::to_owned)).collect());
    let shown = |sums: &BillSums| {
        [
            sums.requests.to_string(),
            sums.input_tokens.to_string(),
            sums.cached_tokens.to_string(),
            sums.output_tokens.to_string(),
            sums.wasted_tokens.to_string(),
            rounded(sums.gpu_ns, HOUR_NS),
            rounded(sums.money_nano, NANO),
        ]
    };
    for line in &bill.lines {
        rows.push(labels(bill, &line.key, line.unallocated).into_iter().chain(shown(&line.sums)).collect());
    }
    let total = std::iter::once("total".to_owned()).chain(std::iter::repeat(String::new()));
    rows.push(total.take(bill.by.len().max(1)).chain(shown(&bill.total)).collect());
    align(&rows, bill.by.len().max(1))
}

/// Aligns columns to their widest entry. The first `left` columns are aligned left, the others
/// right.
fn align(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _infallible =
                if at < left { write!(line, "{cell:<width$}  ") } else { write!(line, "{cell:>width$}  ") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats a bill for spreadsheets (RFC 4180). There is no total: a spreadsheet would sum it again.
pub fn csv(bill: &Bill) -> String {
    let amount_names = amounts(&BillSums::default()).map(|(name, _)| name);
    let keys = bill.by.iter().map(|dimension| dimension.name());
    let mut text = keys.chain(["kind"]).chain(amount_names).collect::<Vec<_>>().join(",") + "\r\n";
    for line in &bill.lines {
        let kind = if line.unallocated { UNALLOCATED } else { "used" };
        let numbers = amounts(&line.sums).map(|(_, number)| number);
        let fields = line.key.iter().map(|value| quoted(value)).chain([kind.to_owned()]).chain(numbers);
        text += &(fields.collect::<Vec<_>>().join(",") + "\r\n");
    }
    text
}

/// A cell of a CSV file (RFC 4180).
pub fn quoted(text: &str) -> String {
    // A spreadsheet would run a text that begins like a formula.
    let formula = text.starts_with(['=', '+', '-', '@']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    let plain = !text.contains(['"', ',', '\r', '\n']);
    if plain { text } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

/// Formats a bill for programs. Times and costs are exact decimals, written as strings because the
/// numbers of a JSON reader may not be exact.
pub fn json(bill: &Bill) -> Value {
    let lines = bill.lines.iter().map(|line| {
        let mut row = Map::new();
        for (dimension, value) in bill.by.iter().zip(&line.key) {
            let value = if value.is_empty() { Value::Null } else { json!(value) };
            row.insert(dimension.name().to_owned(), value);
        }
        row.insert("unallocated".to_owned(), line.unallocated.into());
        row.extend(numbers(&line.sums));
        Value::Object(row)
    });
    let by: Vec<&str> = bill.by.iter().map(|dimension| dimension.name()).collect();
    json!({ "by": by, "lines": lines.collect::<Vec<_>>(), "total": Value::Object(numbers(&bill.total)) })
}

fn numbers(sums: &BillSums) -> Map<String, Value> {
    let exact = |name: &str, text: String| match text.parse::<u64>() {
        Ok(number) => (name.to_owned(), json!(number)),
        Err(_) => (name.to_owned(), json!(text)),
    };
    amounts(sums).into_iter().map(|(name, text)| exact(name, text)).collect()
}
