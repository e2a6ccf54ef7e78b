//! Views: the columns of each list, for tables on paper and on the screen of `top`.

use std::cmp::Ordering;

use serde_json::Value;

use super::text::{plain, rows, span, table, tenant_name, time};

/// One column of a list.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) head: &'static str,
    /// Path of the value that the column is sorted by; a dot leads into an object.
    sort: &'static str,
    pub(super) cell: fn(&Value) -> String,
}

/// A list of the admin API as a table.
#[derive(Debug)]
pub(super) struct View {
    /// Name of the list, as its path and in its answer.
    pub(super) name: &'static str,
    pub(super) columns: &'static [Column],
}

/// The views of `top`, in their order.
pub(super) const ALL: [&View; 5] = [&QUEUES, &POOLS, &REPLICAS, &TENANTS, &REQUESTS];

pub(super) const QUEUES: View = View {
    name: "queues",
    columns: &[
        column("TENANT", "tenant", |row| plain(&row["tenant"])),
        column("CLASS", "class", |row| plain(&row["class"])),
        column("MODEL", "model", |row| plain(&row["model"])),
        column("WAITING", "waiting", |row| plain(&row["waiting"])),
        column("OLDEST", "oldest_seconds", oldest),
        column("TOKENS", "tokens", |row| plain(&row["tokens"])),
        column("BYTES", "bytes", |row| plain(&row["bytes"])),
    ],
};

pub(super) const POOLS: View = View {
    name: "pools",
    columns: &[
        column("POOL", "pool", |row| plain(&row["pool"])),
        column("STATE", "state", |row| plain(&row[if row["closed"] == "none" { "state" } else { "closed" }])),
        column("IN SERVICE", "in_service", |row| format!("{}/{}", row["in_service"], row["replicas"])),
        column("RUNNING", "running", |row| format!("{}/{}", row["running"], row["limit"])),
        column("WAITING", "waiting", |row| plain(&row["waiting"])),
        column("NEEDED", "desired", desired),
        column("MODELS", "models", |row| plain(&row["models"])),
        column("SOURCE", "source.kind", |row| source(&row["source"])),
    ],
};

pub(super) const REPLICAS: View = View {
    name: "replicas",
    columns: &[
        column("REPLICA", "replica", |row| plain(&row["replica"])),
        column("STATE", "state", |row| plain(&row["state"])),
        column("RUNNING", "running", |row| format!("{}/{}", row["running"], row["limit"])),
        column("READING", "prefill_tokens", |row| plain(&row["prefill_tokens"])),
        column("KV TOKENS", "kv_tokens", |row| plain(&row["kv_tokens"])),
        column("SPEED", "speed", |row| {
            row["speed"].as_f64().map_or("-".to_owned(), |speed| format!("{speed:.2}"))
        }),
        column("TTFT OF 1000", "expected_ttft_seconds", |row| time(&row["expected_ttft_seconds"])),
        column("ROOM", "held_back_by", |row| room(&row["held_back_by"])),
        column("LESS URGENT", "guests_held_back_by", |row| room(&row["guests_held_back_by"])),
    ],
};

pub(super) const TENANTS: View = View {
    name: "tenants",
    columns: &[
        column("TENANT", "tenant", |row| tenant_name(&row["tenant"], &row["parent"])),
        column("WEIGHT", "weight", |row| plain(&row["weight"])),
        column("WAITING", "waiting", |row| plain(&row["waiting"])),
        column("OLDEST", "oldest_seconds", oldest),
        column("OVERRIDES", "overrides", overrides_of),
    ],
};

pub(super) const REQUESTS: View = View {
    name: "requests",
    columns: &[
        column("REQUEST", "request_id", |row| plain(&row["request_id"])),
        column("STATE", "state", |row| plain(&row["state"])),
        column("TENANT", "tenant", |row| plain(&row["tenant"])),
        column("CLASS", "class", |row| plain(&row["class"])),
        column("SINCE", "state_seconds", |row| time(&row["state_seconds"])),
        column("STARTS IN", "waits.starts_in_seconds", |row| time(&row["waits"]["starts_in_seconds"])),
        column("TOKENS", "output_tokens", |row| plain(&row["output_tokens"])),
        column("WHY", "waits.obstacle", why),
        column("MODEL", "model", |row| plain(&row["model"])),
    ],
};

const fn column(head: &'static str, sort: &'static str, cell: fn(&Value) -> String) -> Column {
    Column { head, sort, cell }
}

impl Column {
    /// Order of two rows; those without a value come last.
    pub(super) fn compare(&self, one: &Value, other: &Value, largest_first: bool) -> Ordering {
        let value = |row: &Value| self.sort.split('.').fold(row.clone(), |value, key| value[key].clone());
        let (one, other) = (value(one), value(other));
        let order = match (&one, &other) {
            (Value::Null, Value::Null) => Ordering::Equal,
            (Value::Null, _) => return Ordering::Greater,
            (_, Value::Null) => return Ordering::Less,
            _ => match (one.as_f64(), other.as_f64()) {
                (Some(one), Some(other)) => one.total_cmp(&other),
                _ => plain(&one).cmp(&plain(&other)),
            },
        };
        if largest_first { order.reverse() } else { order }
    }
}

impl View {
    pub(super) fn table(&self, list: &Value) -> String {
        let heads: Vec<&str> = self.columns.iter().map(|column| column.head).collect();
        table(&heads, &rows(list, |row| self.cells(row)))
    }

    pub(super) fn cells(&self, row: &Value) -> Vec<String> {
        self.columns.iter().map(|column| (column.cell)(row)).collect()
    }
}

/// What a request waits for, where it runs, or how it ended.
fn why(row: &Value) -> String {
    match row["state"].as_str() {
        Some("waiting") => plain(&row["waits"]["obstacle"]).replace('_', " "),
        Some("finished") => match row["end"]["reason"].as_str() {
            Some(reason) => format!("{}: {reason}", plain(&row["end"]["outcome"])),
            None => plain(&row["end"]["outcome"]),
        },
        _ => plain(&row["replica"]),
    }
}

/// Desired replicas, and the reason.
fn desired(row: &Value) -> String {
    match row["desired"].as_u64() {
        Some(desired) => format!("{desired} ({})", plain(&row["desired_reason"])),
        None => "?".to_owned(),
    }
}

/// Source of a pool's replicas, and the age of its last answer.
fn source(source: &Value) -> String {
    let Some(kind) = source["kind"].as_str() else { return "file".to_owned() };
    let trouble = if source["problem"].is_null() { "" } else { ", lost" };
    match source["age_seconds"].as_f64() {
        Some(age) => format!("{kind}, {} ago{trouble}", span(age)),
        None => format!("{kind}, no answer yet{trouble}"),
    }
}

/// What keeps a replica from taking more; `yes` when nothing does.
fn room(held_back_by: &Value) -> String {
    held_back_by.as_str().unwrap_or("yes").to_owned()
}

fn overrides_of(row: &Value) -> String {
    let set = row["overrides"].as_array().into_iter().flatten().map(|set| match set["by"].as_f64() {
        Some(factor) => format!("boost x{factor}"),
        None => plain(&set["kind"]),
    });
    let set: Vec<String> = set.collect();
    if set.is_empty() { "-".to_owned() } else { set.join(", ") }
}

pub(super) fn oldest(row: &Value) -> String {
    if row["waiting"] == 0 { "-".to_owned() } else { time(&row["oldest_seconds"]) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_sorted_by_value_and_missing_ones_come_last() {
        let starts = &REQUESTS.columns[5];
        let mut rows: Vec<Value> = [Some(9.0), None, Some(10.5)]
            .map(|seconds: Option<f64>| json!({ "waits": { "starts_in_seconds": seconds } }))
            .to_vec();
        let shown = |rows: &[Value]| rows.iter().map(starts.cell).collect::<Vec<_>>();
        rows.sort_by(|one, other| starts.compare(one, other, false));
        assert_eq!(shown(&rows), ["9.0 s", "10.5 s", "-"]);
        rows.sort_by(|one, other| starts.compare(one, other, true));
        assert_eq!(shown(&rows), ["10.5 s", "9.0 s", "-"]);
    }

    #[test]
    fn a_request_says_why_it_is_where_it_is() {
        for (row, text) in [
            (json!({ "state": "waiting", "waits": { "obstacle": "no_room" } }), "no room"),
            (json!({ "state": "waiting", "waits": null }), "-"),
            (json!({ "state": "running", "replica": "p/http://a:1" }), "p/http://a:1"),
            (json!({ "state": "finished", "end": { "outcome": "success", "reason": null } }), "success"),
            (
                json!({ "state": "finished", "end": { "outcome": "rejected", "reason": "queue_full" } }),
                "rejected: queue_full",
            ),
        ] {
            assert_eq!(why(&row), text);
        }
    }
}
