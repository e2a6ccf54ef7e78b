//! Text of `penstock why`: one paragraph about one request.

use serde_json::Value;

use super::explain::{number_before, obstacle_text, pool_words, turn_words};
use super::text::{plain, tenant_name, time};

/// `GET /admin/v1/requests/{id}` as one paragraph.
pub(super) fn paragraph(request: &Value) -> String {
    let gateway =
        request["gateway"].as_str().map(|gateway| format!(" to gateway {gateway}")).unwrap_or_default();
    let mut sentences = vec![format!(
        "Request {} of tenant {} (class {}, model {}) came{gateway} {} ago.",
        plain(&request["request_id"]),
        tenant_name(&request["tenant"], &request["tenant_parent"]),
        plain(&request["asked_class"]),
        plain(&request["model"]),
        time(&request["age"]),
    )];
    let tries: Vec<&Value> = request["tries"].as_array().into_iter().flatten().collect();
    let failed = tries.iter().filter(|attempt| !attempt["back"].is_null()).count();
    if let Some(back) = tries.iter().rev().find(|attempt| !attempt["back"].is_null()) {
        let times = if failed == 1 { "once".to_owned() } else { format!("{failed} times") };
        sentences.push(format!(
            "It came back {times}, the last time from {} after {}: {}.",
            plain(&back["replica"]),
            time(&back["back"]["after"]),
            plain(&back["back"]["why"]).replace('_', " "),
        ));
    }
    if !request["waiting"].is_null() {
        sentences.extend(waits(&request["waiting"]));
    } else if let Some(last) = tries.last() {
        sentences.push(went(last));
    } else if request["end"].is_null() {
        sentences.push("It is not in the queue yet: the gateway checks or counts its prompt.".to_owned());
    }
    sentences.extend(ended(&request["end"]));
    sentences.join(" ") + "\n"
}

fn waits(waiting: &Value) -> [String; 2] {
    let starts = match waiting["starts_in"].as_f64() {
        Some(_) => format!("It is expected to start in about {}", time(&waiting["starts_in"])),
        None => "When it will start is not known".to_owned(),
    };
    [
        format!("It waits, for {} so far: {}.", time(&waiting["queued"]), obstacle_text(waiting)),
        format!(
            "{starts}, and it may wait {} more; {} go before it in its queue, and {} wait for the same pools.",
            time(&waiting["may_wait_on"]),
            number_before(waiting),
            waiting["waiting_in_group"],
        ),
    ]
}

fn went(attempt: &Value) -> String {
    let why = &attempt["why"];
    let pool = pool_words(why).map(|words| format!(", and {words}")).unwrap_or_default();
    let first = match attempt["first_token_after"].as_f64() {
        Some(_) => format!("; its first token came after {}", time(&attempt["first_token_after"])),
        None => String::new(),
    };
    format!(
        "It went to {} after {}, since {}{pool}; {} of {} sequences ran there, and a first token was expected in {}{first}.",
        plain(&attempt["replica"]),
        time(&attempt["sent_after"]),
        turn_words(why),
        why["running"],
        why["limit"],
        time(&why["expected_ttft"]),
    )
}

fn ended(end: &Value) -> Option<String> {
    let outcome = end["outcome"].as_str()?.replace('_', " ");
    let reason = end["reason"].as_str().map(|reason| format!(" ({})", reason.replace('_', " ")));
    let status = &end["status"];
    Some(format!(
        "It ended after {}: {outcome}{}, status {status}.",
        time(&end["total"]),
        reason.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_paragraph_says_where_it_went_or_why_it_waits() {
        let base = json!({
            "request_id": "r", "tenant": "t", "tenant_parent": null, "asked_class": "c", "model": "m", "age": 2.0,
            "tries": [], "waiting": null, "end": null,
        });
        let mut waits = base.clone();
        waits["waiting"] = json!({
            "obstacle": "no_room", "queued": 2.0, "may_wait_on": 58.0, "ahead_of_it": 3, "waiting_in_group": 9,
            "starts_in": 1.5,
        });
        assert_eq!(
            paragraph(&waits),
            "Request r of tenant t (class c, model m) came 2.0 s ago. It waits, for 2.0 s so far: no replica that serves \
             its model has room. It is expected to start in about 1.5 s, and it may wait 58.0 s more; 3 go before it in \
             its queue, and 9 wait for the same pools.\n"
        );
        let mut ran = base;
        let why = json!({ "turn": "alone", "choice": "wanted", "passed_over": null, "running": 1, "limit": 4, "expected_ttft": 0.1 });
        ran["tries"] = json!([
            { "replica": "p/a", "sent_after": 0.01, "why": why, "first_token_after": null, "back": { "after": 0.5, "why": "reset" } },
            { "replica": "p/b", "sent_after": 0.5, "why": why, "first_token_after": 0.9, "back": null },
        ]);
        ran["gateway"] = json!("two:8080");
        ran["end"] = json!({ "outcome": "client_gone", "reason": "superseded", "status": 499, "total": 1.5 });
        let text = paragraph(&ran);
        for part in [
            "model m) came to gateway two:8080 2.0 s ago.",
            "It came back once, the last time from p/a after 500 ms: reset.",
            "It went to p/b after 500 ms, since nobody else waited for these replicas, and of those that keep the objective",
            "its first token came after 900 ms.",
            "It ended after 1.5 s: client gone (superseded), status 499.",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(text.lines().count(), 1);
    }
}
