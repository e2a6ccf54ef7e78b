//! Status screen of a gateway, and the lists of its parts.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{plain, rows, span, table, time};
use super::views::{self, oldest};

/// Most replicas on the screen. When there are more, the screen shows those that need attention.
const MAX_REPLICAS: usize = 24;

/// Status screen from `GET /admin/v1/status`.
pub(super) fn screen(status: &Value) -> String {
    let config = &status["config"];
    let ready = match status["not_ready_reason"].as_str() {
        Some(reason) => format!("not ready: {reason}"),
        None => "ready".to_owned(),
    };
    let mut text = format!(
        "penstock {}, {ready}, up {}, {} requests wait or run, configuration {} loaded {} ago\n",
        plain(&status["version"]),
        time(&status["uptime_seconds"]),
        status["jobs"],
        config["generation"],
        time(&config["loaded_seconds_ago"]),
    );
    if config["last_reload"]["successful"] == false {
        text +=
            "the last reload failed: `penstock check` says why; the configuration before it is in force\n";
    }
    if status["broken_invariants"] != 0 {
        let _infallible =
            writeln!(text, "{} broken invariants: please report this", status["broken_invariants"]);
    }
    text += &cluster(&status["cluster"]);
    text += &unattainable_objectives(&status["unkept_promises"]);
    let overrides = overrides(&status["overrides"]);
    let parts = [
        pools(&status["pools"]),
        shown_replicas(&status["replicas"]),
        classes(&status["classes"]),
        views::TENANTS.table(&status["tenants"]),
        if overrides.is_empty() { "no overrides are in force\n".to_owned() } else { overrides },
    ];
    for part in parts {
        let _infallible = write!(text, "\n{part}");
    }
    text
}

/// One line about the other gateways.
fn cluster(cluster: &Value) -> String {
    let gateways = cluster["gateways"].as_array().map_or(0, Vec::len);
    match (cluster["up"].as_bool(), cluster["problem"].as_str()) {
        (None, _) => String::new(),
        (Some(true), _) => {
            format!("limits are shared by {gateways} gateway{}\n", if gateways == 1 { "" } else { "s" })
                + &members(cluster)
        }
        (Some(false), problem) => {
            let left = &cluster["leases_end_in_seconds"];
            let leases = match left.as_f64() {
                Some(0.0) => "their leases have ended: what has a limit is refused".to_owned(),
                _ => format!("limits go on with their last leases for {}", time(left)),
            };
            format!(
                "the store of the cluster is away for {}: {}; {leases}\n",
                time(&cluster["heard_seconds_ago"]),
                problem.unwrap_or("it has not answered yet"),
            )
        }
    }
}

/// Table of the gateways, if there are others.
fn members(cluster: &Value) -> String {
    let rows = rows(&cluster["members"], |row| {
        let is_own = if row["id"] == cluster["id"] { " (this one)" } else { "" };
        vec![
            format!("{}{is_own}", plain(&row["id"])),
            plain(&row["name"]),
            plain(&row["version"]),
            format!("{} ago", time(&row["heard_seconds_ago"])),
            plain(&row["waiting"]),
            plain(&row["jobs"]),
        ]
    });
    if rows.len() < 2 {
        return String::new();
    }
    format!("\n{}", table(&["GATEWAY", "NAME", "VERSION", "HEARD", "WAITING", "JOBS"], &rows))
}

/// One line for each objective that no pool has reached.
fn unattainable_objectives(list: &Value) -> String {
    let line = |row: &Value| {
        format!(
            "class {}: {} {} is promised for {}, and no pool has kept it; the best of {} is {} at {}\n",
            plain(&row["class"]),
            plain(&row["objective"]),
            time(&row["promised_seconds"]),
            plain(&row["model"]),
            plain(&row["samples"]),
            time(&row["best_seconds"]),
            plain(&row["pool"]),
        )
    };
    list.as_array().into_iter().flatten().map(line).collect()
}

pub(super) fn pools(list: &Value) -> String {
    let mut text = views::POOLS.table(list);
    for row in list.as_array().into_iter().flatten() {
        if let Some(problem) = row["source"]["problem"].as_str() {
            let _infallible =
                writeln!(text, "{} cannot be asked for replicas: {problem}", plain(&row["pool"]));
        }
    }
    text
}

/// Limits of tenants, with the amount left of each.
pub(super) fn limits(list: &Value) -> String {
    let of_tenant = |row: &Value| {
        let tenant = plain(&row["tenant"]);
        rows(&row["limits"], |limit| {
            let of = limit["of"].as_str().map(|of| format!(" of {} {of}", plain(&limit["scope"])));
            let shadow = if limit["shadow"] == true { ", shadow" } else { "" };
            vec![
                tenant.clone(),
                format!(
                    "{} {}{}{shadow}",
                    plain(&limit["unit"]),
                    plain(&limit["period"]),
                    of.unwrap_or_default()
                ),
                format!("{} of {}", limit["left"], limit["amount"]),
                time(&limit["whole_in_seconds"]),
            ]
        })
    };
    let rows: Vec<_> = list.as_array().into_iter().flatten().flat_map(of_tenant).collect();
    if rows.is_empty() { String::new() } else { table(&["TENANT", "LIMIT", "LEFT", "WHOLE IN"], &rows) }
}

/// Tenants and their limits.
pub(super) fn tenants_in_full(list: &Value) -> String {
    let limits = limits(list);
    let gap = if limits.is_empty() { "" } else { "\n" };
    views::TENANTS.table(list) + gap + &limits
}

fn classes(list: &Value) -> String {
    let rows = rows(list, |row| {
        vec![plain(&row["class"]), plain(&row["waiting"]), oldest(row), time(&row["ttft_objective_seconds"])]
    });
    table(&["CLASS", "WAITING", "OLDEST", "TTFT OBJECTIVE"], &rows)
}

fn overrides(list: &Value) -> String {
    let mut rows = rows(list, |row| {
        let kind = match row["by"].as_f64() {
            Some(factor) => format!("boost x{factor}"),
            None => plain(&row["kind"]),
        };
        let ends = row["ends_in_seconds"].as_f64();
        vec![
            kind,
            format!("{} {}", plain(&row["of"]), plain(&row["name"])),
            ends.map_or_else(|| "never".to_owned(), |left| format!("in {}", span(left))),
            plain(&row["reason"]),
            plain(&row["set_at"]["gateway_name"]),
        ]
    });
    let mut head = vec!["OVERRIDE", "OF", "ENDS", "REASON", "SET AT"];
    // One gateway alone does not say where.
    if list.as_array().is_none_or(|list| list.iter().all(|row| row["set_at"].is_null())) {
        head.pop();
        rows.iter_mut().for_each(|row| row.truncate(head.len()));
    }
    if rows.is_empty() { String::new() } else { table(&head, &rows) }
}

/// The replicas that do not serve, then the fullest ones.
fn shown_replicas(list: &Value) -> String {
    let mut all: Vec<Value> = list.as_array().cloned().unwrap_or_default();
    let more = all.len().saturating_sub(MAX_REPLICAS);
    if more > 0 {
        all.sort_by_key(|row| (row["state"] == "serving", std::cmp::Reverse(row["running"].as_u64())));
        all.truncate(MAX_REPLICAS);
    }
    let mut text = views::REPLICAS.table(&Value::Array(all));
    if more > 0 {
        let _infallible = writeln!(text, "and {more} more: `penstock replicas list` shows all");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn promises_that_nobody_keeps_are_said_with_their_numbers() {
        let row = json!({
            "class": "fast", "model": "m", "objective": "ttft", "promised_seconds": 0.1, "pool": "p",
            "best_seconds": 0.18, "samples": 1200,
        });
        assert_eq!(
            unattainable_objectives(&json!([row])),
            "class fast: ttft 100 ms is promised for m, and no pool has kept it; the best of 1200 is 180 ms at p\n"
        );
        assert_eq!(unattainable_objectives(&Value::Null), "");
    }

    #[test]
    fn sources_say_when_they_were_last_heard_and_what_is_wrong() {
        let row = |source: Value| json!({ "pool": "p", "state": "ready", "source": source });
        let lost = json!({ "kind": "dns", "endpoints": 2, "age_seconds": 12.0, "problem": "timed out" });
        let new = json!({ "kind": "kubernetes", "age_seconds": null, "problem": null });
        let text = pools(&json!([row(Value::Null), row(lost), row(new)]));
        let ends: Vec<&str> = text.lines().map(|line| line.rsplit("  ").next().unwrap()).collect();
        assert_eq!(ends[1..4], ["file", "dns, 12.0 s ago, lost", "kubernetes, no answer yet"], "{text}");
        assert_eq!(ends[4], "p cannot be asked for replicas: timed out");
    }

    #[test]
    fn limits_say_what_is_left_of_them() {
        let limit = json!({
            "scope": "model", "of": "m", "unit": "requests", "period": "per_minute", "amount": 60, "left": 12,
            "whole_in_seconds": 48.0, "shadow": true,
        });
        let text = limits(&json!([{ "tenant": "t", "limits": [limit] }]));
        let line = text.lines().nth(1).unwrap();
        assert_eq!(line, "t       requests per_minute of model m, shadow  12 of 60  48.0 s");
        assert_eq!(limits(&json!([{ "tenant": "t", "limits": [] }])), "");
    }

    #[test]
    fn gateways_of_a_cluster_are_listed_and_overrides_say_where_they_were_set() {
        let row = |id: &str, name: Value| {
            json!({
                "id": id, "name": name, "version": name.as_str().map(|_| "0.1.0"), "heard_seconds_ago": 0.2,
                "waiting": 3, "jobs": 12,
            })
        };
        let members = json!([row("a1", json!("one:8080")), row("b2", Value::Null)]);
        let told = cluster(&json!({ "id": "b2", "up": true, "gateways": ["a1", "b2"], "members": members }));
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[0], "limits are shared by 2 gateways");
        assert!(lines[2].starts_with("GATEWAY ") && lines[3].contains("one:8080  0.1.0"), "{told}");
        assert!(lines[4].starts_with("b2 (this one)  -"), "{told}");
        let alone =
            json!({ "id": "b2", "up": true, "gateways": ["b2"], "members": [row("b2", Value::Null)] });
        assert_eq!(cluster(&alone), "limits are shared by 1 gateway\n");
        let set = |at: Value| {
            let pause = json!({
                "kind": "pause", "by": null, "of": "tenant", "name": "t", "reason": "too much",
                "ends_in_seconds": 60.0, "set_at": at,
            });
            overrides(&json!([pause])).lines().next().unwrap().trim_end().to_owned()
        };
        assert_eq!(set(json!({ "gateway_name": "one:8080" })), "OVERRIDE  OF        ENDS   REASON    SET AT");
        assert!(set(Value::Null).ends_with("REASON"));
    }

    #[test]
    fn a_large_fleet_shows_what_needs_a_look() {
        let row = |number: u64| {
            let state = if number == 70 { "ejected" } else { "serving" };
            json!({ "replica": format!("p/r{number}"), "state": state, "running": number, "limit": 99 })
        };
        let list = Value::Array((0..100).map(row).collect());
        let text = shown_replicas(&list);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("p/r70 ") && lines[2].starts_with("p/r99 "), "{text}");
        assert_eq!(
            (lines.len(), *lines.last().unwrap()),
            (26, "and 76 more: `penstock replicas list` shows all")
        );
    }
}
