//! Fixtures for the tests of telemetry: a small policy, a finished request, a reader of samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::core::model::event::{DispatchGrant, DispatchReason, OrderReason};
use crate::core::model::ids::{ClassId, JobId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::core::model::policy::{Class, Model, Policy, Pool, QueueBounds, Quota, Replica, Tenant};
use crate::core::model::snapshot::Snapshot;
use crate::core::placement::choose_tier::PlacementReason;
use crate::core::replica::scores::{ReplicaScores, Score};
use crate::telemetry::Telemetry;
use crate::telemetry::event::ConfigReloaded;
use crate::telemetry::metrics::{ModelPairs, Scrape};
use crate::telemetry::summary::{
    AttemptCounts, CallFacts, CallerFacts, LastDispatch, ModelFacts, RequestIds, RequestOutcome,
    RequestSummary, Timings, TokenFacts,
};

/// Tenants `team-0`, `team-1`, ... with one class, model, pool and replica.
pub(crate) fn policy(tenants: usize) -> Policy {
    let mut policy = Policy { generation: 1, ..Policy::default() };
    let millis = Duration::from_millis;
    let class = policy.classes.insert(
        "interactive",
        Class {
            usage_half_life: None,
            rank: 0,
            min_share: 0.1,
            max_wait: millis(1),
            ttft_objective: millis(150),
            itl_objective: millis(40),
            cold_start_tolerance: None,
            demote_to: None,
            scavenger: false,
            placement: Default::default(),
        },
    );
    for number in 0..tenants {
        let tenant = Tenant {
            weight: 1.0,
            parent: None,
            default_class: class,
            classes: [class].into(),
            models: None,
            bounds: QueueBounds::default(),
            quota: Quota::default(),
            placement: Default::default(),
        };
        policy.tenants.insert(&format!("team-{number}"), tenant);
    }
    let pool = policy.pools.id_or_new("a100");
    let model = policy.models.insert("llama", Model { pools: vec![pool], max_model_len: None });
    let replica = policy
        .replicas
        .insert("a100/http://10.0.0.1:8000", Replica { pool, max_seqs: None, kv_tokens: None });
    policy.pools.insert("a100", Pool { replicas: vec![replica], models: [model].into(), ..Pool::default() });
    policy
}

pub(crate) fn telemetry(tenants: usize) -> Telemetry {
    let telemetry = Telemetry::for_tests();
    load(&telemetry, policy(tenants), "d1");
    telemetry
}

pub(crate) fn load(telemetry: &Telemetry, policy: Policy, digest: &str) {
    let pairs = &ModelPairs::default();
    ConfigReloaded { policy: &Arc::new(policy), digest, restart_needed: &[], changed: &[], pairs }
        .emit(telemetry);
}

fn dispatch_reason() -> DispatchReason {
    DispatchReason {
        queued: Duration::from_millis(20),
        attempt: 1,
        behind: 3,
        candidates: 2,
        outstanding_tokens: 512,
        cached_tokens: 0,
        adapter: None,
        expected: Duration::from_millis(130),
        running: 4,
        limit: 16,
        order: OrderReason::Fair,
        placement: PlacementReason::Only,
        passed_over: None,
        scores: ReplicaScores::new(Score::from_nanos(150_000_000)),
        class: ClassId::new(0),
        demoted_from: None,
    }
}

pub(crate) fn success() -> RequestSummary<'static> {
    RequestSummary {
        ids: RequestIds { request: "req-1", ..RequestIds::default() },
        caller: CallerFacts {
            key_id: Some("pk_1"),
            address: None,
            tenant: Some(TenantId::new(0)),
            class: Some(ClassId::new(0)),
        },
        models: ModelFacts {
            served: Some(ModelId::new(0)),
            requested: Some("llama-alias"),
            ..ModelFacts::default()
        },
        dispatch: LastDispatch {
            grant: Some(DispatchGrant {
                job: JobId::new(1),
                pool: PoolId::new(0),
                replica: ReplicaId::new(0),
                why: dispatch_reason(),
            }),
            engine: Some("vllm"),
        },
        call: CallFacts { api: "openai", operation: "chat", stream: true },
        status: 200,
        outcome: RequestOutcome::Success,
        tokens: TokenFacts {
            usage: Some(JobUsage::Exact(TokenCounts { input: 100, cached: Some(60), output: 11 })),
            ..TokenFacts::default()
        },
        timings: Timings {
            queue: Some(Duration::from_millis(20)),
            connect: Some(Duration::from_micros(250)),
            first_token: Some(Duration::from_millis(140)),
            total: Duration::from_millis(540),
            gap_mean: Some(Duration::from_millis(38)),
            gap_max: Some(Duration::from_millis(90)),
        },
        attempts: AttemptCounts { made: 1, ..AttemptCounts::default() },
        finish_reason: Some("stop"),
        ..RequestSummary::default()
    }
}

pub(crate) fn render(telemetry: &Telemetry) -> String {
    telemetry.render(&Scrape { snapshot: &Snapshot::default(), engines: &[], needs: &[] })
}

/// Samples by name with labels, as written.
pub(crate) fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(key, value)| (key, value.parse().unwrap()))
        .collect()
}
