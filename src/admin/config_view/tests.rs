//! Tests of the sections that show themselves.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Value, json};

use super::effective;
use crate::admin::fixtures::settings;
use crate::config::settings::cluster::{
    ClusterSettings, ServerAddress, StoreCredentials, StoreServers, ValkeySettings,
};
use crate::config::settings::guardrails::GuardrailSettings;
use crate::config::settings::identity::AuditFile;
use crate::config::settings::usage::{PostgresSettings, UsageDatabase, UsageSettings};
use crate::config::settings::{
    EdgeSettings, HeaderNames, PoolLabels, PoolSettings, Secret, SessionField, SessionKey, Settings,
};
use crate::core::model::ids::PoolId;
use crate::core::model::policy::{Policy, StickySessions};

const SECRET: &str = "not-to-be-seen";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// Whether a time is in the form that serde gives it: its field then lacks `shown::seconds`.
fn has_nanos(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key("nanos") || map.values().any(has_nanos),
        Value::Array(list) => list.iter().any(has_nanos),
        _ => false,
    }
}

/// Holds the keys of `expected` against what is shown, whose times are in seconds. A new key needs no
/// line here.
fn assert_shown(shown: &Value, expected: &Value) {
    assert!(!has_nanos(shown), "{shown}");
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(shown.get(key), Some(value), "{key}");
    }
}

/// The fixtures' settings with `change` made to what the edges need.
fn with_edge(change: impl FnOnce(&mut EdgeSettings)) -> Settings {
    let mut settings = settings();
    change(Arc::make_mut(&mut settings.edge));
    settings
}

#[test]
fn limits_of_the_client_listener() {
    let mut settings = settings();
    settings.startup.drain_grace = Duration::from_millis(2500);
    settings.startup.audit = Some(AuditFile { path: "/var/log/audit".into(), max_bytes: 1, keep: 2 });
    let shown = effective(&settings);
    let startup = &shown["startup"];
    let listener = json!({
        "max_connections": 10_000, "max_address_connections": 5_000, "head_timeout": 10.0, "body_timeout": 30.0,
        "send_timeout": 60.0, "min_send_rate": 1024, "idle_timeout": 75.0, "max_head_bytes": 65_536,
        "handshake_timeout": 10.0, "max_address_handshakes": 128,
    });
    assert_shown(&startup["listener"], &listener);
    assert_eq!((&startup["listen"], &startup["admin"]), (&json!("0.0.0.0:8080"), &json!("127.0.0.1:9090")));
    assert_eq!((&startup["drain_grace"], &startup["audit"]), (&json!(2.5), &json!("/var/log/audit")));
    assert_eq!(startup["usage"], Value::Null);
    let telemetry = json!({
        "log_format": "json", "log_level": "info", "log_client_address": "truncated", "refusals_per_second": 10,
        "otlp_endpoint": "http://collector:4317", "otlp_headers": ["x-key"], "trace_sample": null,
    });
    assert_shown(&startup["telemetry"], &telemetry);
}

#[test]
fn the_journal_and_its_database() {
    let shown = |database, retention| {
        let usage = UsageSettings {
            folder: "/var/lib/penstock".into(),
            database,
            segment_bytes: 1,
            segment_age: seconds(60),
            keep_bytes: 2,
            retention,
            queue: 16,
        };
        let mut settings = settings();
        settings.startup.usage = Some(usage);
        effective(&settings)["startup"]["usage"].clone()
    };
    let expected = json!({
        "folder": "/var/lib/penstock", "database": "none", "segment_bytes": 1, "segment_age": 60.0, "keep_bytes": 2,
        "retention": null, "queue": 16,
    });
    assert_shown(&shown(None, None), &expected);
    let postgres = PostgresSettings { url: Secret::new(SECRET), url_file: None, ca: None };
    let shown = shown(Some(UsageDatabase::Postgres(postgres)), Some(seconds(90)));
    assert_eq!((&shown["database"], &shown["retention"]), (&json!("postgres"), &json!(90.0)));
    assert!(!shown.to_string().contains(SECRET), "{shown}");
}

#[test]
fn other_gateways_and_the_scale_signal() {
    let mut settings = settings();
    assert_eq!(effective(&settings)["cluster"], Value::Null);
    let credentials = |name: &str| StoreCredentials {
        username: Some(name.to_owned()),
        password: Some(Secret::new(SECRET)),
    };
    let mut valkey = ValkeySettings {
        servers: StoreServers::Server(ServerAddress { host: "valkey".into(), port: 6379 }),
        database: 2,
        is_tls: true,
        tls: None,
        credentials: credentials("gateway"),
        sentinel_credentials: credentials("watcher"),
    };
    let cluster = |valkey| ClusterSettings { valkey, prefix: "penstock".into(), outage: seconds(3600) };
    settings.cluster = Some(cluster(valkey.clone()));
    settings.scale.listen = Some("0.0.0.0:8082".parse().unwrap());
    settings.scale.max_streams = 9;
    settings.scale.stale_after = seconds(8);
    settings.scale.state_file = Some("/var/lib/demand".into());
    settings.scale.names = Some(["dns:keda".to_owned()].into());
    let shown = effective(&settings);
    let expected = json!({
        "valkey": {
            "server": "valkey:6379", "database": 2, "tls": true, "username": "gateway", "password": "set",
            "sentinel_credentials": { "username": "watcher", "password": "set" },
        },
        "prefix": "penstock", "outage": 3600.0,
    });
    assert_shown(&shown["cluster"], &expected);
    let expected = json!({
        "listen": "0.0.0.0:8082", "client_certs": ["dns:keda"], "stale_after": 8.0, "max_streams": 9,
        "state_file": "/var/lib/demand",
    });
    assert_shown(&shown["scale"], &expected);
    valkey.credentials.password = None;
    settings.cluster = Some(cluster(valkey));
    assert_eq!(effective(&settings)["cluster"]["valkey"]["password"], Value::Null);
}

#[test]
fn the_service_that_may_refuse_prompts() {
    let shown = |bearer: Option<&'static str>| {
        let settings = with_edge(|edge| {
            edge.guardrails = Some(Arc::new(GuardrailSettings {
                url: "https://guard.test/v1".parse().unwrap(),
                tls: None,
                bearer: bearer.map(HeaderValue::from_static),
                timeout: Duration::from_millis(1500),
                max_bytes: 3,
                max_calls: 4,
                rules: Default::default(),
            }));
        });
        effective(&settings)["guardrails"].clone()
    };
    let expected = json!({
        "url": "https://guard.test/v1", "api_key": "set", "timeout": 1.5, "max_body_bytes": 3, "max_calls": 4,
    });
    assert_shown(&shown(Some(SECRET)), &expected);
    assert_eq!(shown(None)["api_key"], Value::Null);
}

#[test]
fn limits_of_requests_and_of_connections_to_engines() {
    let settings = with_edge(|edge| {
        let names = HeaderNames { names: vec!["x-a".into()], prefixes: vec!["x-team-".into()] };
        edge.upstream.request_headers = names;
    });
    let shown = effective(&settings);
    let expected = json!({
        "max_body_bytes": 33_554_432, "max_total_body_bytes": 1_073_741_824, "tenant_body_share": 0.5,
        "min_body_rate": 1024, "max_answer_bytes": 67_108_864, "max_total_answer_bytes": 1_073_741_824,
        "stream_buffer_bytes": 8_388_608, "class_header": "x-penstock-class", "keepalive": 10.0,
        "media_schemes": ["https", "http", "data"], "media_domains": [],
    });
    assert_shown(&shown["requests"], &expected);
    let expected = json!({
        "connect_timeout": 2.0, "first_token_timeout": 600.0, "answer_timeout": 1800.0,
        "stream_idle_timeout": 120.0, "keep_alive": 4.0, "request_headers": ["x-a", "x-team-*"],
        "answer_headers": [],
    });
    assert_shown(&shown["upstream"], &expected);
}

#[test]
fn every_time_is_in_seconds() {
    assert!(has_nanos(&json!({ "a": [seconds(1)] })));
    let shown = effective(&settings());
    assert!(!has_nanos(&shown), "{shown}");
}

#[test]
fn sessions_and_labels_of_pools() {
    let mut settings = with_edge(|edge| {
        edge.session =
            Some(SessionKey { header: None, body: vec![SessionField::PromptCacheKey, SessionField::User] });
        let pool = edge.pools.get(PoolId::new(0)).unwrap().clone();
        let labels = [("team".to_owned(), "blue".to_owned())].into();
        let site = PoolLabels { region: Some("eu".into()), labels, ..PoolLabels::default() };
        edge.pools.insert("a100", PoolSettings { site, ..pool });
    });
    let sessions = Some(StickySessions { max_delay: Duration::from_millis(500), max_sessions: 7 });
    settings.policy = Arc::new(Policy { sessions, ..(*settings.policy).clone() });
    let shown = effective(&settings);
    let expected = json!({
        "header": null, "body": ["prompt_cache_key", "user"], "max_delay": 0.5, "max_sessions": 7,
    });
    assert_eq!(shown["sessions"], expected);
    let expected = json!({
        "accelerator": null, "mig_profile": null, "region": "eu", "zone": null, "labels": { "team": "blue" },
    });
    assert_eq!(shown["pools"]["a100"]["site"], expected);
    assert_eq!(shown["auth"]["failures"], json!({ "burst": 0, "per_minute": 0 }));
}
