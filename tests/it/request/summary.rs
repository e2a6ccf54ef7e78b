//! Request summary: the log line, the usage row, the trail, the metrics and the answer of real
//! requests agree in every field of the log's reference.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock::core::model::snapshot::{ReplicaStatus, Snapshot};
use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::{SimOptions, SimServer};
use penstock::telemetry::metrics::Scrape;
use penstock::telemetry::request_history::RequestTrail;
use penstock::usage::each_row;
use penstock::usage::row::{RowKind, UsageRow};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::access::guardrails::Service;
use crate::support::client::{Answer, Call};
use crate::support::gateway::{
    MODEL, Rig, RigOptions, TENANT, chat, head, key_of, pool_lines, soon, tenant_lines, until,
};

const CHAT: &str = "/v1/chat/completions";
/// 3.6 an hour: a millionth of the currency each millisecond.
const POOL: &str = "engine: vllm\nmodels: [sim]\nmax_seqs: 8\nprice: 3.6";

/// Fields of the log line of a stream that succeeded at its first attempt.
const FIELDS: [&str; 44] = [
    "api",
    "attempts",
    "behind",
    "cached_tokens",
    "candidates",
    "choice",
    "class",
    "client_address",
    "connect_ms",
    "cost",
    "expected_cached_tokens",
    "expected_ms",
    "finish_reason",
    "gap_max_ms",
    "gap_mean_ms",
    "gateway_id",
    "gpu_ms",
    "input_tokens",
    "key_id",
    "level",
    "message",
    "model",
    "operation",
    "outcome",
    "output_tokens",
    "outstanding_tokens",
    "pool",
    "prompt_source",
    "prompt_tokens",
    "queue_ms",
    "replica",
    "replica_limit",
    "replica_running",
    "request_id",
    "requested_model",
    "status",
    "stream",
    "target",
    "tenant",
    "timestamp",
    "total_ms",
    "ttft_ms",
    "turn",
    "usage",
];

/// Fields of the lines of requests to which more happened.
const MORE_FIELDS: [&str; 16] = [
    "adapter",
    "answer_guardrail",
    "answer_guardrail_ms",
    "answer_guardrail_reason",
    "continued",
    "demoted_to",
    "fallback_from",
    "fallback_reason",
    "guardrail",
    "guardrail_ms",
    "guardrail_reason",
    "reason",
    "recall_reason",
    "recalls",
    "replaced_by",
    "replaces",
];

/// Documented fields that no request here has: the field, why.
const UNSEEN: [(&str, &str); 1] =
    [("trace_id", "a trace needs a collector; tests of `telemetry::trace` compare the id")];

#[tokio::test]
async fn every_consumer_tells_the_same_of_a_request() {
    let folder = tempfile::tempdir().unwrap();
    let more = format!("usage: {{folder: \"{}\", database: none}}\n", folder.path().display());
    let engines = vec![SimOptions::default()];
    let rig = Rig::start(RigOptions { engines, pool: Some(POOL), more, ..RigOptions::default() }).await;
    let mut body = chat(20, true);
    body["stream_options"] = json!({"include_usage": true});
    let call = Call::post(CHAT, &body).key(rig.key(TENANT)).header("x-request-id", "summary-1");
    let answer = call.send(rig.address()).await.ok();
    let line = rig.line_of("summary-1").await;

    let fields: BTreeSet<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, BTreeSet::from(FIELDS), "{line}");
    agrees_with_the_answer(&line, &answer.events());
    agrees_with_the_trail(&line, &rig);
    agrees_with_the_metrics(&line, &rig);
    until("nothing is left", || rig.is_empty()).await;
    rig.gateway.drain().await;
    agrees_with_the_row(&line, folder.path());
}

fn agrees_with_the_answer(line: &Value, events: &[Value]) {
    let usage = &events.iter().rev().find(|event| event["usage"].is_object()).unwrap()["usage"];
    assert_eq!(line["input_tokens"], usage["prompt_tokens"]);
    assert_eq!(line["output_tokens"], usage["completion_tokens"]);
    let finish = events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str());
    assert_eq!(line["finish_reason"].as_str(), finish);
    for (field, value) in [
        ("api", json!(CHAT)),
        ("operation", json!("chat")),
        ("stream", json!(true)),
        ("status", json!(200)),
        ("outcome", json!("success")),
        ("usage", json!("exact")),
        ("model", json!(MODEL)),
        ("requested_model", json!(MODEL)),
        ("tenant", json!(TENANT)),
        ("key_id", json!(key_of(TENANT).id)),
        ("class", json!("standard")),
        ("level", json!("INFO")),
        ("target", json!("penstock::request")),
    ] {
        assert_eq!(line[field], value, "{field}");
    }
    let time = |field: &str| line[field].as_f64().unwrap();
    assert!(time("queue_ms") + time("connect_ms") <= time("ttft_ms"), "{line}");
    assert!(time("ttft_ms") <= time("total_ms") && time("gap_mean_ms") <= time("gap_max_ms"), "{line}");
    assert!(time("gpu_ms") <= time("total_ms"), "{line}");
}

fn agrees_with_the_trail(line: &Value, rig: &Rig) {
    let trail = rig.telemetry.history().find("summary-1").unwrap().look(RequestTrail::clone);
    let policy = rig.telemetry.policy();
    let attempt = &trail.tries[0];
    let why = &attempt.grant.why;
    let millis = |time: std::time::Duration| time.as_nanos() as f64 / 1e6;
    for (field, value) in [
        ("api", json!(trail.api)),
        ("stream", json!(trail.stream)),
        ("prompt_tokens", json!(trail.prompt_tokens)),
        ("prompt_source", json!(trail.prompt_source.name())),
        ("pool", json!(policy.pools.name(attempt.grant.pool))),
        ("replica", json!(policy.replicas.name(attempt.grant.replica))),
        ("attempts", json!(trail.tries.len())),
        ("turn", json!(why.order.name())),
        ("choice", json!(why.placement.name())),
        ("behind", json!(why.behind)),
        ("candidates", json!(why.candidates)),
        ("outstanding_tokens", json!(why.outstanding_tokens)),
        ("expected_cached_tokens", json!(why.cached_tokens)),
        ("replica_running", json!(why.running)),
        ("replica_limit", json!(why.limit)),
    ] {
        assert_eq!(line[field], value, "{field}");
    }
    for (field, time) in [("queue_ms", why.queued), ("expected_ms", why.expected)] {
        assert!((line[field].as_f64().unwrap() - millis(time)).abs() < 0.001, "{field}: {line}");
    }
    let end = trail.end.unwrap();
    assert_eq!((end.outcome.name(), end.reason, end.status), ("success", None, 200));
    assert!((line["total_ms"].as_f64().unwrap() - millis(end.total)).abs() < 0.001, "{line}");
}

fn agrees_with_the_metrics(line: &Value, rig: &Rig) {
    let text = rig.telemetry.render(&Scrape { snapshot: &Snapshot::default(), engines: &[], needs: &[] });
    let sum = |name: &str, labels: &[&str]| -> f64 {
        let samples = text.lines().filter(|sample| sample.starts_with(&format!("{name}{{")));
        let own = samples.filter(|sample| labels.iter().all(|label| sample.contains(label)));
        own.map(|sample| sample.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let tenant = format!("tenant=\"{TENANT}\"");
    assert_eq!(sum("penstock_requests_total", &[&tenant, "outcome=\"success\""]), 1.0, "{text}");
    for (kind, field) in [("input", "input_tokens"), ("output", "output_tokens")] {
        let label = format!("kind=\"{kind}\"");
        assert_eq!(Some(sum("penstock_tokens_total", &[&tenant, &label])), line[field].as_f64(), "{text}");
    }
}

fn agrees_with_the_row(line: &Value, folder: &std::path::Path) {
    let mut rows: Vec<UsageRow> = Vec::new();
    assert_eq!(each_row(folder, |row| rows.push(row.clone())).unwrap(), 0);
    let row = rows.iter().find(|row| row.kind == RowKind::Request).unwrap();
    for (field, value) in [
        ("request_id", json!(row.request_id)),
        ("tenant", json!(*row.tenant)),
        ("key_id", json!(*row.key)),
        ("class", json!(*row.class)),
        ("model", json!(*row.model)),
        ("pool", json!(*row.pool)),
        ("replica", json!(*row.replica)),
        ("operation", json!(row.api)),
        ("status", json!(row.status)),
        ("outcome", json!(row.outcome)),
        ("usage", json!(row.usage)),
        ("input_tokens", json!(row.input_tokens)),
        ("cached_tokens", json!(row.cached_tokens)),
        ("output_tokens", json!(row.output_tokens)),
        ("attempts", json!(row.attempts)),
    ] {
        assert_eq!(line[field], value, "{field}");
    }
    // The line is rounded to a microsecond, the row is cut to one.
    let close = |field: &str, value: f64| (line[field].as_f64().unwrap() - value).abs() < 0.0015;
    assert!(
        close("gpu_ms", row.gpu_ns as f64 / 1e6) && close("queue_ms", row.queue_us as f64 / 1e3),
        "{line}"
    );
    assert!(close("cost", row.money_nano as f64 / 1e9), "{line}");
    assert_eq!((row.wasted_by, row.wasted_tokens), ("", 0));
}

/// Fields of the line of a request by the reference.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../../docs/reference/log-fields.md");
    let (_, part) = page.split_once("\n## The line of a request\n").unwrap();
    let (part, _) = part.split_once("\n## ").unwrap();
    let names = part.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    names.chain(["timestamp", "level", "message", "target"]).map(str::to_owned).collect()
}

#[test]
fn the_reference_has_the_fields_that_are_compared() {
    let seen = FIELDS.into_iter().chain(MORE_FIELDS).chain(UNSEEN.map(|(field, _)| field));
    assert_eq!(seen.map(str::to_owned).collect::<BTreeSet<_>>(), documented());
}

/// The other model, at an engine of its own that takes one request at a time.
const OTHER: &str = "backup";

/// Two engines for the model, one for the other, guardrails, and a class that demotes.
async fn eventful(service: &Service) -> Rig {
    // A few milliseconds for each token, so that a stream is seen before it breaks.
    let engine = || SimOptions { loras: vec!["lora-0".to_owned()], speed: 0.1, ..SimOptions::default() };
    let mut engines = Vec::new();
    for options in
        [engine(), engine(), SimOptions { models: vec![OTHER.to_owned()], ..SimOptions::default() }]
    {
        engines.push(SimServer::start(options).await.unwrap());
    }
    let urls: Vec<String> = engines.iter().map(|engine| engine.url()).collect();
    let main = "engine: vllm\nmodels: [sim]\nadapters: {sql: lora-0}\nmax_seqs: 8";
    let text = head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, "allow_fallback: true")
        + "pools:\n"
        + &pool_lines("main", main, &urls[..2])
        + &pool_lines("second", "engine: vllm\nmodels: [backup]\nmax_seqs: 1", &urls[2..])
        + "models: {sim: {fallbacks: [backup]}}\n"
        + "health: {probe_min: 20ms, probe_max: 50ms, slow_start: 1ms}\n"
        + "classes: {prompt: {rank: 0, max_wait: 300ms, demote_to: later}, later: {rank: 1, max_wait: 30s}}\n"
        + &service.section(", answers: true");
    Rig::with_file(&text, engines, [TENANT]).await
}

/// Denies prompts with the word "flood", and answers to prompts with the word "leak".
fn verdict(question: &Value) -> (Duration, u16, String) {
    let text = question["request"].to_string();
    let verdict = match question["stage"].as_str() {
        Some("prompt") if text.contains("flood") => json!({"verdict": "deny", "reason": "topic.flood"}),
        Some("answer") if text.contains("leak") => json!({"verdict": "deny", "reason": "topic.leak"}),
        _ => json!({"verdict": "allow"}),
    };
    (Duration::ZERO, 200, verdict.to_string())
}

fn begin(rig: &Rig, id: &str, class: &str, body: &Value, retry: Option<&str>) -> JoinHandle<Answer> {
    let call = Call::post(CHAT, body).key(rig.key(TENANT)).header("x-request-id", id);
    let call = call.header("x-penstock-class", class);
    let call = retry.map_or(call.clone(), |count| call.header("x-stainless-retry-count", count));
    tokio::spawn(call.send(rig.address()))
}

async fn ask(rig: &Rig, id: &str, body: &Value) -> Value {
    soon(id, begin(rig, id, "later", body, None)).await.unwrap();
    rig.line_of(id).await
}

fn about(word: &str) -> Value {
    let mut body = chat(4, false);
    body["messages"][0]["content"] = word.into();
    body
}

/// No replica of the model can be reached. Returns the line of a request for it.
async fn fallen_back(rig: &Rig) -> Value {
    // Connections that are open already would live on: this is the first request.
    (0..2).for_each(|engine| _ = rig.engine(engine).add(FaultKind::Refuse).unwrap());
    let line = ask(rig, "fallback", &chat(4, false)).await;
    (0..2).for_each(|engine| rig.engine(engine).clear());
    let are_back = || rig.snapshot().replicas.iter().all(|replica| replica.state == ReplicaStatus::Serving);
    until("both engines are back", are_back).await;
    line
}

/// A drained replica gives its request back. Returns the request's line.
async fn recalled(rig: &Rig) -> Value {
    (0..2).for_each(|engine| _ = rig.engine(engine).add(FaultKind::Freeze).unwrap());
    let call = begin(rig, "recalled", "later", &chat(4, true), None);
    let running = || rig.snapshot().replicas.iter().position(|replica| replica.running == 1);
    until("it runs", || running().is_some()).await;
    let replica = running().unwrap();
    let policy = rig.telemetry.policy();
    let name = policy.replicas.iter().nth(replica).unwrap().1.to_owned();
    let verb = |verb: &str| {
        Call::post(&format!("/admin/v1/replicas/{verb}"), &json!({ "name": name }))
            .send(rig.gateway.admin_address())
    };
    verb("drain").await.ok();
    until("it has moved", || running().is_some_and(|now| now != replica)).await;
    (0..2).for_each(|engine| rig.engine(engine).clear());
    assert!(soon("the answer", call).await.unwrap().ok().is_done());
    verb("uncordon").await.ok();
    rig.line_of("recalled").await
}

/// A retry takes the place of its original. Returns the lines of both.
async fn replaced(rig: &Rig) -> [Value; 2] {
    (0..2).for_each(|engine| _ = rig.engine(engine).add(FaultKind::Freeze).unwrap());
    let body = about("once more");
    let original = begin(rig, "original", "later", &body, Some("0"));
    until("the original runs", || rig.snapshot().replicas.iter().any(|replica| replica.running == 1)).await;
    let retry = begin(rig, "retry", "later", &body, Some("1"));
    assert_eq!(soon("the original's end", original).await.unwrap().code(), "superseded");
    (0..2).for_each(|engine| rig.engine(engine).clear());
    soon("the retry's answer", retry).await.unwrap().ok();
    [rig.line_of("original").await, rig.line_of("retry").await]
}

/// A request waits for longer than its class allows. Returns its line.
async fn demoted(rig: &Rig) -> Value {
    let mut body = chat(4, true);
    body["model"] = OTHER.into();
    rig.engine(2).add(FaultKind::Freeze).unwrap();
    let occupant = begin(rig, "occupant", "later", &body, None);
    until("the only place is taken", || rig.engine(2).state().inside == 1).await;
    let call = begin(rig, "demoted", "prompt", &body, None);
    let waits_in_later = || {
        let policy = rig.telemetry.policy();
        let snapshot = rig.snapshot();
        snapshot.queues.iter().any(|queue| queue.waiting == 1 && policy.classes.name(queue.class) == "later")
    };
    until("it waits in the slower class", waits_in_later).await;
    rig.engine(2).clear();
    soon("the occupant's answer", occupant).await.unwrap().ok();
    soon("the answer", call).await.unwrap().ok();
    rig.line_of("demoted").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_to_a_request_is_in_its_line() {
    let service = Service::start(verdict).await;
    let rig = eventful(&service).await;
    let fallback = fallen_back(&rig).await;
    let [flood, leak] =
        [ask(&rig, "flood", &about("a flood")).await, ask(&rig, "leak", &about("a leak")).await];
    let mut body = chat(4, true);
    body["model"] = "sql".into();
    let adapter = ask(&rig, "adapter", &body).await;
    let recalled = recalled(&rig).await;
    let [original, retry] = replaced(&rig).await;
    let demoted = demoted(&rig).await;
    for engine in 0..2 {
        rig.engine(engine).add(Fault::from(FaultKind::Cut { after_tokens: 5 }).times(1)).unwrap();
    }
    let continued = ask(&rig, "continued", &chat(40, true)).await;

    let denied = |line: &Value, stage: &str| {
        let [outcome, reason] =
            [stage.to_owned(), format!("{stage}_reason")].map(|field| line[field].clone());
        (outcome, reason, line["reason"].clone(), line["outcome"].clone())
    };
    let expected =
        |reason: &str| (json!("denied"), json!(reason), json!("guardrail_denied"), json!("client_error"));
    assert_eq!(denied(&flood, "guardrail"), expected("topic.flood"), "{flood}");
    assert_eq!(denied(&leak, "answer_guardrail"), expected("topic.leak"), "{leak}");
    assert_eq!(leak["guardrail"], "allowed", "{leak}");
    for (line, fields) in [
        (&adapter, json!({"adapter": "room", "model": "sql", "outcome": "success"})),
        (&recalled, json!({"recalls": 1, "recall_reason": "drained", "attempts": 2, "outcome": "success"})),
        (&original, json!({"replaced_by": "retry", "reason": "superseded", "outcome": "client_gone"})),
        (&retry, json!({"replaces": "original", "attempts": 1, "outcome": "success"})),
        (&demoted, json!({"demoted_to": "later", "class": "prompt", "outcome": "success"})),
        (&continued, json!({"output_tokens": 40, "outcome": "success"})),
        (&fallback, json!({"fallback_from": MODEL, "fallback_reason": "no_replica", "model": OTHER})),
    ] {
        for (field, value) in fields.as_object().unwrap() {
            assert_eq!(&line[field], value, "{field}: {line}");
        }
    }
    let lines = [&flood, &leak, &adapter, &recalled, &original, &retry, &demoted, &continued, &fallback];
    let seen: BTreeSet<&str> =
        lines.iter().flat_map(|line| line.as_object().unwrap().keys().map(String::as_str)).collect();
    assert_eq!(&seen - &BTreeSet::from(FIELDS), BTreeSet::from(MORE_FIELDS));
    trails_agree(&rig, &lines);
    metrics_agree(&rig, &lines).await;
}

/// Compares what the trails know.
fn trails_agree(rig: &Rig, lines: &[&Value]) {
    let policy = rig.telemetry.policy();
    for line in lines {
        let trail = rig.telemetry.history().find(line["request_id"].as_str().unwrap()).unwrap();
        let trail = trail.look(RequestTrail::clone);
        let why = trail.tries.last().map(|attempt| &attempt.grant.why);
        let end = trail.end.unwrap();
        for (field, value) in [
            ("outcome", json!(end.outcome.name())),
            ("status", json!(end.status)),
            ("reason", json!(end.reason)),
            ("fallback_from", json!(trail.fallback.map(|_| policy.models.name(trail.model)))),
            ("fallback_reason", json!(trail.fallback.map(|fallback| fallback.why.name()))),
            ("adapter", json!(why.and_then(|why| why.adapter).map(|adapter| adapter.name()))),
            (
                "demoted_to",
                json!(why.and_then(|why| why.demoted_to()).map(|class| policy.classes.name(class))),
            ),
        ] {
            assert_eq!(line[field], value, "{field}: {line}");
        }
        for check in &trail.guardrails {
            let name = match check.stage.name() {
                "prompt" => "guardrail",
                _ => "answer_guardrail",
            };
            let took = line[format!("{name}_ms")].as_f64().unwrap();
            assert_eq!(line[name], check.outcome.name(), "{line}");
            assert_eq!(line[format!("{name}_reason")], json!(check.reason.as_deref()), "{line}");
            assert!((took - check.took.as_nanos() as f64 / 1e6).abs() < 0.001, "{line}");
        }
    }
}

/// Compares counters with the sums of the lines.
async fn metrics_agree(rig: &Rig, lines: &[&Value]) {
    let sum = |field: &str| lines.iter().filter_map(|line| line[field].as_f64()).sum::<f64>();
    let count = |field: &str| lines.iter().filter(|line| !line[field].is_null()).count() as f64;
    for (metric, value) in [
        ("penstock_recalls_total", sum("recalls")),
        ("penstock_continuations_total", sum("continued")),
        ("penstock_fallbacks_total", count("fallback_from")),
        // The occupant of the demotion has a check, too.
        ("penstock_guardrail_checks_total", count("guardrail") + count("answer_guardrail") + 1.0),
    ] {
        assert_eq!(rig.metric(metric).await, value, "{metric}");
    }
}
