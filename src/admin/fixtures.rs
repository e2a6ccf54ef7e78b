//! Test fixtures of the admin side: settings, snapshots and states.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use crate::admin::state::AdminState;
use crate::config::keys::{KeyDigest, KeyRing};
use crate::config::load::fixtures::usual;
use crate::config::secret::Secret;
use crate::config::settings::identity::{Auth, Credentials, Grant, KeyEntry, Listeners};
use crate::config::settings::names::{ModelNames, Split, SplitTarget, TenantNames};
use crate::config::settings::{
    EdgeSettings, OtlpSettings, PoolSettings, ReplicaSettings, Settings, Startup, TelemetrySettings,
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

fn edge(policy: &Policy, usual: &EdgeSettings) -> EdgeSettings {
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
    let split = Split {
        targets: vec![SplitTarget { model: ModelId::new(0), weight: 3 }],
        fallbacks: vec![ModelId::new(0)],
    };
    let own =
        TenantNames { map: HashMap::from([("mine".to_owned(), "gpt-4o".to_owned())]), allow_fallback: true };
    EdgeSettings {
        auth: Auth::Known(Arc::new(Credentials { keys, ..Credentials::default() })),
        names: ModelNames {
            models: ["llama", "gpt-4o"].map(|name| (name.to_owned(), ModelId::new(0))).into(),
            splits: HashMap::from([("both".to_owned(), split)]),
            tenants: [(TenantId::new(1), own)].into(),
            ..ModelNames::default()
        },
        pools,
        replicas,
        continue_streams: true,
        ..usual.clone()
    }
}

pub(super) fn settings() -> Settings {
    let bounds = QueueBounds { requests: 500, ..QueueBounds::default() };
    let mut policy = Policy { bounds, ..fixtures::policy(2) };
    let replica = Replica { pool: PoolId::new(0), max_seqs: Some(1), kv_tokens: None };
    policy.replicas.insert("a100/http://10.0.0.1:8000", replica);
    let usual = usual();
    let otlp = OtlpSettings {
        endpoint: Some("http://user:password@collector:4317".into()),
        headers: [("x-key".to_owned(), Secret::new("of the collector"))].into(),
        ..OtlpSettings::default()
    };
    Settings {
        digest: "d1".into(),
        startup: Startup {
            listen: "0.0.0.0:8080".parse().unwrap(),
            admin: "127.0.0.1:9090".parse().unwrap(),
            telemetry: TelemetrySettings { otlp, ..usual.startup.telemetry },
            ..usual.startup
        },
        listeners: Listeners::default(),
        edge: Arc::new(edge(&policy, &usual.edge)),
        policy: Arc::new(policy),
        ..usual
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
        finder: None,
        usage: None,
        operator_tokens: Arc::default(),
        telemetry: telemetry.clone(),
    }
}
