//! Tests of the sections that show themselves.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Value, json};

use super::effective;
use crate::admin::fixtures::settings;
use crate::config::settings::cluster::{ClusterSettings, ValkeySettings};
use crate::config::settings::guardrails::GuardrailSettings;
use crate::config::settings::identity::AuditFile;
use crate::config::settings::usage::{PostgresSettings, UsageDatabase, UsageSettings};
use crate::config::settings::{
    EdgeSettings, HeaderNames, ListenerLimits, MediaPolicy, PoolLabels, PoolSettings, RequestLimits, Secret,
    SessionField, SessionKey, Settings, UpstreamLimits,
};
use crate::core::model::ids::PoolId;
use crate::core::model::policy::{Policy, StickySessions};

const SECRET: &str = "not-to-be-seen";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
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
    settings.startup.listener = ListenerLimits {
        proxies: Default::default(),
        max_connections: 9,
        max_address_connections: 5,
        head_timeout: seconds(1),
        body_timeout: seconds(2),
        send_timeout: seconds(7),
        min_send_rate: 8,
        idle_timeout: seconds(3),
        max_head_bytes: 4,
        handshake_timeout: seconds(5),
        max_handshakes: 6,
    };
    settings.startup.audit = Some(AuditFile { path: "/var/log/audit".into(), max_bytes: 1, keep: 2 });
    let startup = &effective(&settings)["startup"];
    let listener = json!({
        "max_connections": 9, "max_address_connections": 5, "head_timeout": 1.0, "body_timeout": 2.0,
        "send_timeout": 7.0, "min_send_rate": 8, "idle_timeout": 3.0, "max_head_bytes": 4, "handshake_timeout": 5.0,
        "max_handshakes": 6,
    });
    assert_eq!(startup["listener"], listener);
    assert_eq!((&startup["listen"], &startup["admin"]), (&json!("0.0.0.0:8080"), &json!("127.0.0.1:9090")));
    assert_eq!((&startup["drain_grace"], &startup["audit"]), (&json!(2.5), &json!("/var/log/audit")));
    assert_eq!(startup["usage"], Value::Null);
    let telemetry = json!({
        "log_format": "json", "log_level": "info", "log_client_address": "truncated", "refusals_per_second": 10,
        "otlp_endpoint": "http://collector:4317", "otlp_headers": ["x-key"], "trace_sample": null,
    });
    assert_eq!(startup["telemetry"], telemetry);
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
    assert_eq!(shown(None, None), expected);
    let postgres = PostgresSettings { url: Secret::new(SECRET), url_file: None, ca: None };
    let shown = shown(Some(UsageDatabase::Postgres(postgres)), Some(seconds(90)));
    assert_eq!((&shown["database"], &shown["retention"]), (&json!("postgres"), &json!(90.0)));
    assert!(!shown.to_string().contains(SECRET), "{shown}");
}

#[test]
fn other_gateways_and_the_scale_signal() {
    let mut settings = settings();
    assert_eq!(effective(&settings)["cluster"], Value::Null);
    let mut valkey = ValkeySettings {
        host: "valkey".into(),
        port: 6379,
        database: 2,
        is_tls: true,
        tls: None,
        username: Some("gateway".into()),
        password: Some(Secret::new(SECRET)),
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
            "host": "valkey", "port": 6379, "database": 2, "tls": true, "username": "gateway", "password": "set",
        },
        "prefix": "penstock", "outage": 3600.0,
    });
    assert_eq!(shown["cluster"], expected);
    let expected = json!({
        "listen": "0.0.0.0:8082", "client_certs": ["dns:keda"], "stale_after": 8.0, "max_streams": 9,
        "state_file": "/var/lib/demand",
    });
    assert_eq!(shown["scale"], expected);
    valkey.password = None;
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
    assert_eq!(shown(Some(SECRET)), expected);
    assert_eq!(shown(None)["api_key"], Value::Null);
}

#[test]
fn limits_of_requests_and_of_connections_to_engines() {
    let settings = with_edge(|edge| {
        edge.requests = RequestLimits {
            max_body_bytes: 1,
            max_total_body_bytes: 2,
            tenant_body_permille: 500,
            min_body_rate: 4,
            max_answer_bytes: 3,
            max_total_answer_bytes: 4,
            stream_buffer_bytes: 5,
            class_header: "x-class".into(),
            keepalive: seconds(10),
            media: MediaPolicy { schemes: vec!["https".into()], domains: Vec::new() },
        };
        edge.upstream = UpstreamLimits {
            request_headers: HeaderNames { names: vec!["x-a".into()], prefixes: vec!["x-team-".into()] },
            answer_headers: HeaderNames::default(),
            connect_timeout: seconds(1),
            first_token_timeout: seconds(60),
            answer_timeout: seconds(120),
            stream_idle_timeout: seconds(30),
            keep_alive: seconds(4),
        };
    });
    let shown = effective(&settings);
    let expected = json!({
        "max_body_bytes": 1, "max_total_body_bytes": 2, "tenant_body_share": 0.5, "min_body_rate": 4,
        "max_answer_bytes": 3, "max_total_answer_bytes": 4, "stream_buffer_bytes": 5, "class_header": "x-class",
        "keepalive": 10.0, "media_schemes": ["https"], "media_domains": [],
    });
    assert_eq!(shown["requests"], expected);
    let expected = json!({
        "connect_timeout": 1.0, "first_token_timeout": 60.0, "answer_timeout": 120.0, "stream_idle_timeout": 30.0,
        "keep_alive": 4.0, "request_headers": ["x-a", "x-team-*"], "answer_headers": [],
    });
    assert_eq!(shown["upstream"], expected);
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
