//! Request summary: the log line, the usage row, the trail, the metrics and the answer of one
//! real request agree in every field.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use penstock::core::model::snapshot::Snapshot;
use penstock::sim::server::SimOptions;
use penstock::telemetry::metrics::Scrape;
use penstock::telemetry::request_history::RequestTrail;
use penstock::usage::each_row;
use penstock::usage::row::{RowKind, UsageRow};
use serde_json::{Value, json};

use crate::support::client::Call;
use crate::support::gateway::{MODEL, Rig, RigOptions, TENANT, chat, key_of, until};

const CHAT: &str = "/v1/chat/completions";
/// 3.6 an hour: a millionth of the currency each millisecond.
const POOL: &str = "engine: vllm\nmodels: [sim]\nmax_seqs: 8\nprice: 3.6";

/// Fields of the log line of a stream that succeeded at its first attempt.
const FIELDS: [&str; 45] = [
    "adapter",
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
    let known: BTreeSet<&str> = FIELDS.into_iter().filter(|field| *field != "adapter").collect();
    assert_eq!(fields, known, "{line}");
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
