//! Tests of the metrics that events feed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::model::event::{EngineFault, PreemptReason};
use crate::core::model::ids::{ReplicaId, TenantId};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::telemetry::event::{
    AuthFailed, ConnectionRefused, ModelMismatch, ProbeFailed, ReplicaEjected, ReplicaReadmitted,
    RequestPreempted, RequestRequeued, ScrapeFailed, StreamBroken,
};
use crate::telemetry::fixtures::{load, policy, render, samples, success, telemetry};
use crate::telemetry::metrics::catalogue;
use crate::telemetry::metrics::labels::MAX_OWNERS;
use crate::telemetry::summary::{
    CallerFacts, LastDispatch, ModelFacts, RequestIds, RequestOutcome, RequestSummary, TokenFacts,
};

const OWNER: &str = r#"tenant="team-0",class="interactive",model="llama",pool="a100""#;

fn of_tenant(tenant: TenantId) -> RequestSummary<'static> {
    RequestSummary { caller: CallerFacts { tenant: Some(tenant), ..success().caller }, ..success() }
}

fn used(usage: JobUsage) -> TokenFacts {
    TokenFacts { usage: Some(usage), ..success().tokens }
}

#[test]
fn a_finished_request_feeds_every_series_with_config_labels() {
    let telemetry = telemetry(1);
    success().emit(&telemetry);
    success().emit(&telemetry);
    let text = render(&telemetry);
    let samples = samples(&text);

    let own = |name: &str, more: &str| samples[&*format!("{name}{{{OWNER}{more}}}")];
    assert_eq!(own("penstock_requests_total", r#",outcome="success",reason="none""#), 2.0);
    // The buckets separate 140 ms from 125 and 150 ms, and 38 ms from 35 and 40 ms.
    assert_eq!(own("penstock_time_to_first_token_seconds_bucket", r#",le="0.125""#), 0.0);
    assert_eq!(own("penstock_time_to_first_token_seconds_bucket", r#",le="0.15""#), 2.0);
    assert_eq!(own("penstock_inter_token_seconds_bucket", r#",le="0.035""#), 0.0);
    assert_eq!(own("penstock_inter_token_seconds_bucket", r#",le="0.04""#), 2.0);
    assert_eq!(own("penstock_inter_token_max_seconds_sum", ""), 0.18);
    assert_eq!(own("penstock_queue_wait_seconds_count", ""), 2.0);
    assert_eq!(own("penstock_request_duration_seconds_bucket", r#",le="+Inf""#), 2.0);
    let tokens = |kind: &str| {
        samples[&*format!(
            r#"penstock_tokens_total{{tenant="team-0",model="llama",kind="{kind}",source="exact"}}"#
        )]
    };
    assert_eq!([tokens("input"), tokens("cached"), tokens("output")], [200.0, 120.0, 22.0]);

    let gen_ai = r#"gen_ai_operation_name="chat",gen_ai_provider_name="vllm",gen_ai_request_model="llama""#;
    // (540 - 140) ms over the 10 tokens after the first.
    let per_token = samples[&*format!("gen_ai_server_time_per_output_token_seconds_sum{{{gen_ai}}}")];
    assert!((per_token - 0.08).abs() < 1e-9);
    for (name, bucket) in [("request_duration", "81.92"), ("time_to_first_token", "7.5")] {
        let key = format!(r#"gen_ai_server_{name}_seconds_bucket{{{gen_ai},le="{bucket}"}}"#);
        assert_eq!(samples[&*key], 2.0);
    }
}

/// Panics unless each family is one of the catalogue, with its HELP text and kind, and each sample has
/// the labels of its row.
fn check_against_catalogue(text: &str) {
    let mut metric = catalogue::all().next().unwrap();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            metric = catalogue::all().find(|metric| metric.name == name).unwrap();
            assert_eq!(help, metric.help, "{name}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert_eq!(rest, format!("{} {}", metric.name, metric.kind.name()));
        } else {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let labels = series.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
            let keys = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
            assert!(metric.has_labels(keys.filter(|key| *key != "le")), "{line}");
        }
    }
}

#[test]
fn each_family_has_one_help_and_one_type_and_no_sample_twice() {
    let telemetry = telemetry(2);
    success().emit(&telemetry);
    of_tenant(TenantId::new(1)).emit(&telemetry);
    let text = render(&telemetry);
    check_against_catalogue(&text);

    let mut families = BTreeSet::new();
    let mut current = "";
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            current = rest.split_once(' ').unwrap().0;
            assert!(families.insert(current), "{current} twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(rest.starts_with(current), "{rest} outside of its family");
        } else {
            assert!(line.starts_with(current), "{line} outside of its family");
            assert!(seen.insert(line.rsplit_once(' ').unwrap().0), "{line} twice");
        }
    }
    assert!(families.len() > 25, "{families:?}");
}

#[test]
fn unknown_models_add_no_series_and_show_in_the_log_only() {
    let telemetry = telemetry(1);
    let unknown = |model: &str| {
        RequestSummary {
            models: ModelFacts { requested: Some(model), ..ModelFacts::default() },
            dispatch: LastDispatch { engine: success().dispatch.engine, ..LastDispatch::default() },
            tokens: TokenFacts::default(),
            status: 404,
            outcome: RequestOutcome::ClientError,
            reason: Some("model_not_found"),
            ..success()
        }
        .emit(&telemetry);
    };
    unknown("gpt-0");
    let before = samples(&render(&telemetry)).len();
    (1..10_000).for_each(|number| unknown(&format!("gpt-{number}")));

    let text = render(&telemetry);
    assert_eq!(samples(&text).len(), before);
    let line = r#"penstock_requests_total{tenant="team-0",class="interactive",model="other",pool="other",outcome="client_error",reason="model_not_found"}"#;
    assert_eq!(samples(&text)[line], 10_000.0);
    assert!(!text.contains("gpt-"));
    assert!(telemetry.captured_log().contains(r#""requested_model":"gpt-9999""#));
}

#[test]
fn tenants_beyond_the_bound_share_their_series() {
    let telemetry = telemetry(MAX_OWNERS + 50);
    for number in 0..MAX_OWNERS + 50 {
        of_tenant(number.into()).emit(&telemetry);
    }
    let text = render(&telemetry);
    let requests = samples(&text);
    let requests: Vec<_> =
        requests.iter().filter(|(key, _)| key.starts_with("penstock_requests_total")).collect();
    assert_eq!(requests.len(), MAX_OWNERS + 1);
    let shared = requests.iter().find(|(key, _)| key.contains(r#"tenant="other""#)).unwrap();
    assert_eq!(*shared.1, 50.0);
}

#[test]
fn an_id_that_gets_its_name_later_is_not_stuck_with_other() {
    let telemetry = telemetry(1);
    let late = of_tenant(TenantId::new(1));
    late.emit(&telemetry);
    load(&telemetry, policy(2), "d2");
    late.emit(&telemetry);
    let text = render(&telemetry);
    let count = |tenant: &str| {
        samples(&text)[&*format!(
            r#"penstock_requests_total{{tenant="{tenant}",class="interactive",model="llama",pool="a100",outcome="success",reason="none"}}"#
        )]
    };
    assert_eq!((count("other"), count("team-1")), (1.0, 1.0));
}

#[test]
fn unknown_usage_is_not_zero_and_partial_usage_is_told_apart() {
    let telemetry = telemetry(1);
    RequestSummary { tokens: used(JobUsage::Unknown), ..success() }.emit(&telemetry);
    let text = render(&telemetry);
    assert_eq!(samples(&text)[r#"penstock_usage_unknown_total{tenant="team-0",model="llama"}"#], 1.0);
    let exact = r#"penstock_tokens_total{tenant="team-0",model="llama",kind="output",source="exact"}"#;
    assert_eq!(samples(&text)[exact], 0.0);

    let tokens = TokenCounts { input: 5, cached: None, output: 2 };
    RequestSummary {
        tokens: used(JobUsage::Partial(tokens)),
        outcome: RequestOutcome::ClientGone,
        ..success()
    }
    .emit(&telemetry);
    let text = render(&telemetry);
    let key = r#"penstock_tokens_total{tenant="team-0",model="llama",kind="output",source="partial"}"#;
    assert_eq!(samples(&text)[key], 2.0);
    assert_eq!(samples(&text)[exact], 0.0);
    assert!(text.contains(r#"error_type="client_gone""#));
    check_against_catalogue(&text);
}

#[test]
fn every_other_event_is_counted_under_its_pool_or_reason() {
    let telemetry = telemetry(1);
    let (replica, fault, problem) = (ReplicaId::new(0), EngineFault::Refused, "refused");
    let ids = RequestIds { request: "r", ..RequestIds::default() };
    RequestSummary { outcome: RequestOutcome::Rejected, reason: Some("queue_full"), ..success() }
        .emit(&telemetry);
    RequestRequeued { ids, replica, fault, attempt: 1 }.emit(&telemetry);
    RequestPreempted { ids, replica, why: PreemptReason::Stalled, attempt: 1 }.emit(&telemetry);
    StreamBroken { ids, replica, fault: EngineFault::Reset, output_tokens: 7 }.emit(&telemetry);
    ReplicaEjected { replica, fault }.emit(&telemetry);
    ReplicaReadmitted { replica, after: Duration::from_secs(2) }.emit(&telemetry);
    ProbeFailed { replica, problem }.emit(&telemetry);
    ScrapeFailed { replica, problem, first: true }.emit(&telemetry);
    ModelMismatch { replica, expected: "llama", served: &["qwen".into()] }.emit(&telemetry);
    AuthFailed { reason: "unknown_key", key_id: None }.emit(&telemetry);
    ConnectionRefused { reason: "too_many" }.emit(&telemetry);
    ReplicaEjected { replica: ReplicaId::new(99), fault }.emit(&telemetry);
    telemetry.open_connections().increment(1.0);

    let text = render(&telemetry);
    check_against_catalogue(&text);
    let samples = samples(&text);
    for key in [
        r#"penstock_rejections_total{reason="queue_full"}"#,
        r#"penstock_requeues_total{pool="a100",fault="refused"}"#,
        r#"penstock_recalls_total{pool="a100",reason="stalled"}"#,
        r#"penstock_streams_broken_total{pool="a100",fault="reset"}"#,
        r#"penstock_ejections_total{pool="a100",fault="refused"}"#,
        r#"penstock_ejections_total{pool="other",fault="refused"}"#,
        r#"penstock_readmissions_total{pool="a100"}"#,
        r#"penstock_probes_failed_total{pool="a100"}"#,
        r#"penstock_scrapes_failed_total{pool="a100"}"#,
        r#"penstock_model_mismatches_total{pool="a100"}"#,
        r#"penstock_auth_failures_total{reason="unknown_key"}"#,
        r#"penstock_connections_refused_total{reason="too_many"}"#,
        "penstock_open_connections",
    ] {
        assert_eq!(samples.get(key), Some(&1.0), "{key}");
    }
    telemetry.open_connections().decrement(1.0);
    assert!(render(&telemetry).contains("penstock_open_connections 0\n"));
}
