//! Test fixtures of the admin side: settings, snapshots and states.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use crate::admin::state::AdminState;
use crate::config::keys::{KeyDigest, KeyRing};
use crate::config::secret::Secret;
use crate::config::settings::identity::{Auth, Credentials, Grant, KeyEntry, Listeners};
use crate::config::settings::names::{ModelNames, Split, TenantNames};
use crate::config::settings::scale::ScaleSettings;
use crate::config::settings::{
    EdgeSettings, ListenerLimits, LogFormat, OtlpSettings, PoolSettings, ReplicaSettings, RequestLimits,
    Settings, Startup, TelemetrySettings, UpstreamLimits,
};
use crate::config::watch::{ReloadHandle, ReloadOutcome, ReloadReport};
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::policy::{Policy, QueueBounds, Replica};
use crate::core::model::snapshot::{
    PoolSnapshot, PoolStatus, QueueSnapshot, ReplicaSnapshot, ReplicaStatus, Snapshot,
};
use crate::core::replica::bottleneck::{Bottleneck, SlotCounts};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::clock::GatewayClock;
use crate::engines::EngineKind;
use crate::fleet::discovery::DiscoverySources;
use crate::scaler::SignalCache;
use crate::telemetry::{Telemetry, fixtures};

pub(super) const KEY_DIGEST: [u8; 32] = *b"digest-of-a-key-digest-of-a-key!";

fn request_limits() -> RequestLimits {
    RequestLimits {
        max_body_bytes: 1,
        max_total_body_bytes: 2,
        tenant_body_permille: 500,
        min_body_rate: 4,
        max_answer_bytes: 3,
        max_total_answer_bytes: 4,
        stream_buffer_bytes: 5,
        class_header: "x-class".into(),
        keepalive: std::time::Duration::from_secs(10),
        media: Default::default(),
    }
}

fn edge(policy: &Policy) -> EdgeSettings {
    let seconds = Duration::from_secs;
    let mut pools = IdTable::default();
    let pool = pools.insert(
        "a100",
        PoolSettings {
            engine: EngineKind::Vllm,
            model_names: [(ModelId::new(0), "meta/llama".to_owned())].into(),
            adapters: std::collections::BTreeSet::new(),
            api_key: Some(Secret::new("engine-secret")),
            tls: None,
            scrape_interval: seconds(1),
            site: Default::default(),
            discover: None,
        },
    );
    let mut replicas = IdTable::default();
    let url = "http://user:password@10.0.0.1:8000".parse().unwrap();
    let name = policy.replicas.name(ReplicaId::new(0));
    replicas.insert(name, ReplicaSettings { pool, url, metrics_url: None, zone: None });
    let grant = Grant { class: Some(ClassId::new(0)), ..Grant::whole(TenantId::new(0)) };
    let key =
        KeyEntry { digest: KeyDigest::Blake3(KEY_DIGEST), grant, expires: None, origin: Default::default() };
    let keys = KeyRing::from_iter([("pk_1".to_owned(), key)]);
    let split = Split { targets: vec![(ModelId::new(0), 3)], fallbacks: vec![ModelId::new(0)] };
    let own =
        TenantNames { map: HashMap::from([("mine".to_owned(), "gpt-4o".to_owned())]), allow_fallback: true };
    EdgeSettings {
        models: Default::default(),
        guardrails: None,
        auth: Auth::Known(Arc::new(Credentials { keys, ..Credentials::default() })),
        names: ModelNames {
            models: ["llama", "gpt-4o"].map(|name| (name.to_owned(), ModelId::new(0))).into(),
            splits: HashMap::from([("both".to_owned(), split)]),
            tenants: [(TenantId::new(1), own)].into(),
            ..ModelNames::default()
        },
        pools,
        replicas,
        requests: request_limits(),
        upstream: UpstreamLimits {
            request_headers: Default::default(),
            answer_headers: Default::default(),
            connect_timeout: seconds(1),
            first_token_timeout: seconds(60),
            answer_timeout: seconds(120),
            stream_idle_timeout: seconds(30),
            keep_alive: seconds(4),
        },
        continue_streams: true,
        session: None,
        isolated_tenants: Default::default(),
        early_heads: Default::default(),
        shadows: None,
    }
}

pub(super) fn settings() -> Settings {
    let bounds = QueueBounds { requests: 500, ..QueueBounds::default() };
    let mut policy = Policy { bounds, ..fixtures::policy(2) };
    let replica = Replica { pool: PoolId::new(0), max_seqs: Some(1), kv_tokens: None };
    policy.replicas.insert("a100/http://10.0.0.1:8000", replica);
    let seconds = Duration::from_secs;
    let scale = ScaleSettings {
        listen: None,
        max_streams: 9,
        names: None,
        state_file: None,
        peers: None,
        stale_after: seconds(8),
    };
    Settings {
        digest: "d1".into(),
        scale,
        cluster: None,
        startup: Startup {
            listen: "0.0.0.0:8080".parse().unwrap(),
            admin: "127.0.0.1:9090".parse().unwrap(),
            listener: ListenerLimits {
                max_connections: 9,
                proxies: Default::default(),
                max_address_connections: 5,
                head_timeout: seconds(1),
                body_timeout: seconds(2),
                send_timeout: seconds(7),
                min_send_rate: 8,
                idle_timeout: seconds(3),
                max_head_bytes: 4,
                handshake_timeout: seconds(5),
                max_address_handshakes: 3,
            },
            drain_grace: seconds(30),
            audit: None,
            usage: None,
            telemetry: TelemetrySettings {
                log_format: LogFormat::Json,
                log_level: "info".into(),
                client_address: Default::default(),
                refusals_per_second: 10,
                otlp: OtlpSettings {
                    endpoint: Some("http://user:password@collector:4317".into()),
                    headers: [("x-key".to_owned(), Secret::new("of the collector"))].into(),
                    ..OtlpSettings::default()
                },
            },
        },
        listeners: Listeners::default(),
        edge: Arc::new(edge(&policy)),
        policy: Arc::new(policy),
    }
}

pub(super) fn snapshot() -> Snapshot {
    Snapshot {
        queues: vec![QueueSnapshot {
            tenant: TenantId::new(1),
            class: ClassId::new(0),
            model: ModelId::new(0),
            waiting: 3,
            bytes: 900,
            tokens: 70,
            oldest: Duration::from_millis(2_500),
        }],
        pools: vec![PoolSnapshot {
            pool: PoolId::new(0),
            state: PoolStatus::Ready,
            waiting: 3,
            cold_start: Some(Duration::from_millis(41_500)),
            wake: Some(Duration::from_millis(3500)),
            best: Default::default(),
            times: Default::default(),
        }],
        replicas: vec![ReplicaSnapshot {
            replica: ReplicaId::new(0),
            state: ReplicaStatus::SlowStart,
            running: 2,
            limit: 4,
            prefill_tokens: 10,
            kv_tokens: 20,
            speed_factor: 1.5,
            speed_known: true,
            expected: Duration::from_millis(80),
            report_age: None,
            bottleneck: None,
            background_bottleneck: Some(Bottleneck::Prefill),
            slots: SlotCounts { running: 2, free: 2, ..SlotCounts::default() },
        }],
        overrides: Vec::new(),
        jobs: 5,
        broken_invariants: 0,
    }
}

pub(super) fn unchanged() -> ReloadReport {
    ReloadReport {
        outcome: ReloadOutcome::Unchanged,
        generation: 1,
        digest: "d1".into(),
        changed: Vec::new(),
        needs_restart: Vec::new(),
        problems: Vec::new(),
        asked_by: None,
    }
}

/// Admin state of an idle gateway under [`settings`].
pub(super) fn state(telemetry: &Telemetry, reload: ReloadHandle) -> AdminState {
    let settings = Arc::new(ArcSwap::from_pointee(settings()));
    let (actions, _) = mpsc::channel(1);
    let policy = Arc::clone(&settings.load().policy);
    AdminState {
        dispatcher: Dispatcher::new(policy, GatewayClock::start(), actions),
        reload,
        engines: Arc::default(),
        sources: DiscoverySources::start(Arc::clone(&settings), telemetry.clone()),
        signals: SignalCache::new(Arc::clone(&settings), telemetry.clone()),
        settings,
        cluster: None,
        usage: None,
        operator_tokens: Arc::default(),
        telemetry: telemetry.clone(),
    }
}
