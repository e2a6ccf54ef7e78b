//! Text of `penstock explain`: the reasons for a request's replica.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{plain, rows, table, tenant_name, time};

/// `GET /admin/v1/requests/{id}` as text for people.
pub(super) fn render(request: &Value) -> String {
    let mut text = format!("request {}: {}", plain(&request["request_id"]), plain(&request["state"]));
    let end = &request["end"];
    if !end.is_null() {
        let reason = end["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let _infallible = write!(
            text,
            ", {}{reason}, status {}, after {}",
            plain(&end["outcome"]),
            end["status"],
            time(&end["total"])
        );
    }
    if let Some(gateway) = request["gateway"].as_str() {
        let _infallible = write!(text, "\n  at gateway {gateway}");
    }
    let kind = if request["stream"] == true { "a stream" } else { "a plain answer" };
    let _infallible = writeln!(
        text,
        "\n  came {} ago from tenant {}, for class {} and model {}: {kind}, about {} prompt tokens",
        time(&request["age"]),
        tenant_name(&request["tenant"], &request["tenant_parent"]),
        plain(&request["asked_class"]),
        plain(&request["model"]),
        request["prompt_tokens"],
    );
    for check in request["guardrails"].as_array().into_iter().flatten() {
        text += &one_check(check);
    }
    let others: Vec<&str> =
        request["same_request_id"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !others.is_empty() {
        let _infallible = writeln!(text, "  others with this id: {}", others.join(", "));
    }
    let tries = request["tries"].as_array();
    for attempt in tries.into_iter().flatten() {
        text += &one_try(attempt);
    }
    if request["forgotten_tries"] != 0 {
        let _infallible =
            writeln!(text, "\n{} tries in the middle are not remembered", request["forgotten_tries"]);
    }
    if !request["waiting"].is_null() {
        text += &waiting(&request["waiting"]);
    } else if tries.is_none_or(Vec::is_empty) {
        text += "\nit was never sent to a replica\n";
    }
    text
}

fn one_check(check: &Value) -> String {
    let reason = check["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let then = if check["passed"] == true { "passed" } else { "refused" };
    let (stage, outcome) = (plain(&check["stage"]), plain(&check["outcome"]));
    format!("  guardrails: {stage} {outcome}{reason} after {}, {then}\n", time(&check["took"]))
}

fn one_try(attempt: &Value) -> String {
    let why = &attempt["why"];
    let mut text = format!(
        "\ntry {} to {}, sent after {}\n  rule       {}\n",
        why["attempt"],
        plain(&attempt["replica"]),
        time(&attempt["sent_after"]),
        turn_text(why),
    );
    text += &pool_text(why);
    let _infallible = writeln!(
        text,
        "  replica    soonest first token of {} with room: expected in {}, {} of the prompt's tokens in its cache",
        why["candidates"],
        time(&why["expected_ttft"]),
        why["cached_tokens"],
    );
    if let Some(adapter) = why["adapter"].as_str() {
        let _infallible = writeln!(text, "  adapter    {adapter}");
    }
    let _infallible = writeln!(
        text,
        "  ledger     {} of {} sequences there, {} tokens outstanding",
        why["running"], why["limit"], why["outstanding_tokens"],
    );
    text += &scores_text(why);
    let _infallible = writeln!(
        text,
        "  queue      waited {} in all; {} others kept waiting",
        time(&why["queued"]),
        why["left_waiting"],
    );
    if let Some(class) = why["demoted_from"].as_str() {
        let _infallible =
            writeln!(text, "  class      served as {}: too late for {class}", plain(&why["class"]));
    }
    if !attempt["first_token_after"].is_null() {
        let _infallible =
            writeln!(text, "  came       first token after {}", time(&attempt["first_token_after"]));
    }
    let back = &attempt["back"];
    if !back.is_null() {
        let _infallible =
            writeln!(text, "  came back  after {}: {}", time(&back["after"]), plain(&back["why"]));
    }
    text
}

/// The score of the replica and those of others; nothing where no other replica was rated.
fn scores_text(why: &Value) -> String {
    let others: Vec<&Value> = why["others"].as_array().into_iter().flatten().collect();
    if others.is_empty() {
        return String::new();
    }
    let mut text = format!("  score      {}; the least goes first\n", time(&why["score"]));
    for other in others {
        let cached = match other["cached_tokens"].as_u64() {
            None | Some(0) => String::new(),
            Some(tokens) => format!(", {tokens} tokens in its cache"),
        };
        let _infallible = writeln!(
            text,
            "  not        {}: score {}, first token in {}{cached}: {}",
            plain(&other["replica"]),
            time(&other["score"]),
            time(&other["expected_ttft"]),
            why_not_words(other),
        );
    }
    text
}

fn why_not_words(other: &Value) -> &str {
    match other["why_not"].as_str().unwrap_or_default() {
        "no_room" => "it had no room",
        "failed_it_before" => "it had failed the request",
        "other_suspect_there" => "another request ran there whose engine had failed",
        "reserved" => "its room was kept for another request",
        "higher_score" => "higher",
        "other_pool_first" => "another pool went first",
        "as_good" => "as good, and busier or chosen more recently",
        "other_was_held" => "the other's room was kept for the request",
        other => other,
    }
}

fn turn_text(why: &Value) -> String {
    format!("{}: {}", plain(&why["turn"]), turn_words(why))
}

/// The reason why the request went before others.
pub(super) fn turn_words(why: &Value) -> &str {
    match why["turn"].as_str().unwrap_or_default() {
        "alone" => "nobody else waited for these replicas",
        "fair" => "its class was first, and its tenant had had least for its weight",
        "guaranteed_share" => "its class was owed its minimum share",
        "own_quota" => "its tenant had less than its quota guarantees",
        "requeued" => "it was back from a replica, at its old age",
        other => other,
    }
}

/// The reason for the pool.
pub(super) fn pool_words(why: &Value) -> Option<&'static str> {
    Some(match why["choice"].as_str().unwrap_or_default() {
        "session" => "its session was there before",
        "prefix" => "the start of its prompt is in the replica's cache",
        "wanted" => "of those that keep the objective, the one wanted most",
        "spilled" => "those wanted more could not take it in time",
        "kept" => "another one is wanted more, but not by enough to change",
        "fastest" => "none keeps the objective, and this one is soonest",
        "waited" => "none keeps the objective, and it waited for this one",
        "held" => "a replica was kept free for it, which others had passed",
        _ => return None,
    })
}

/// The reason for the pool, and the pool that was preferred.
fn pool_text(why: &Value) -> String {
    let Some(words) = pool_words(why) else { return String::new() };
    let over = &why["passed_over"];
    let over = match over["why"].as_str() {
        Some("busy") => format!("; {} is cheaper or preferred, but was busy", plain(&over["pool"])),
        Some(_) => {
            format!("; {} is cheaper or preferred, but would have been too late", plain(&over["pool"]))
        }
        None => String::new(),
    };
    format!("  pool       {}: {words}{over}\n", plain(&why["choice"]))
}

/// What a request waits for.
pub(super) fn obstacle_text(waiting: &Value) -> &'static str {
    match waiting["obstacle"].as_str().unwrap_or_default() {
        "tenant_paused" => "an operator has paused its tenant; `penstock tenants resume` ends that",
        "quota_reached" => "its tenant holds all that its quota allows",
        "no_replica_in_service" => {
            "no replica that serves its model is in service; see `penstock replicas list`"
        }
        "due_at_other_gateways" => "the free places are due to tenants that wait at other gateways",
        "no_room" => "no replica that serves its model has room",
        "pool_is_starting" => "the pools that serve its model have to start first",
        "waits_for_wanted_pools" => {
            "by its rules it waits for the pools that it wants most, which are busy; others have room"
        }
        "waits_for_sooner_replica" => "a replica that is busy now will be sooner than one that is free",
        _ => "there is room, and others go first",
    }
}

/// How many requests go before it in its queue.
pub(super) fn number_before(waiting: &Value) -> String {
    waiting["ahead_of_it"].as_u64().map_or_else(|| "many".to_owned(), |number| number.to_string())
}

fn waiting(waiting: &Value) -> String {
    let starts = match waiting["starts_in"].as_f64() {
        Some(_) => format!(", and is expected to start in about {}", time(&waiting["starts_in"])),
        None => String::new(),
    };
    let words = obstacle_text(waiting);
    let mut text = format!(
        "\nhas waited {} and may wait {} more: {words}{starts}\n  {} before it in its queue, {} wait for the same pools\n\n",
        time(&waiting["queued"]),
        time(&waiting["may_wait_on"]),
        number_before(waiting),
        waiting["waiting_in_group"],
    );
    let list = rows(&waiting["replicas"], |row| {
        vec![
            plain(&row["replica"]),
            plain(&row["state"]),
            format!("{}/{}", row["running"], row["limit"]),
            if row["failed_it_before"] == true {
                "failed it"
            } else if row["fits"] == true {
                "yes"
            } else {
                row["held_back_by"].as_str().unwrap_or("no")
            }
            .to_owned(),
            time(&row["expected_ttft"]),
        ]
    });
    text += &table(&["REPLICA", "STATE", "RUNNING", "ROOM", "FIRST TOKEN"], &list);
    let more = waiting["replicas_in_all"].as_u64().unwrap_or(0).saturating_sub(list.len() as u64);
    if more > 0 {
        let _infallible = writeln!(text, "and {more} more");
    }
    text
}
