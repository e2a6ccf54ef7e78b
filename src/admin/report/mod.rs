//! Bodies of the admin API. Field names are stable; times are in seconds.

pub(super) mod bounds;
pub(super) mod csv;
pub(super) mod limits;
pub(super) mod overview;
pub(super) mod shares;
pub(super) mod sources;

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

pub(super) use crate::admin::report::bounds::BoundsRow;
use crate::admin::report::limits::LimitRow;
use crate::admin::report::overview::{ClassQueueRow, OverrideRow, PoolOverviewRow, UnattainableRow};
use crate::admin::state::AdminState;
use crate::cluster::{ClusterMember, ClusterStatus};
use crate::config::settings::Settings;
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::limits::LimitStatus;
use crate::core::model::ids::TenantId;
use crate::core::model::policy::{Policy, Tenant};
use crate::core::model::snapshot::{ReplicaSnapshot, Snapshot};
use crate::core::replica::bottleneck::{Bottleneck, BottleneckSlots, SlotCounts};
use crate::fleet::discovery::SourceStatus;
use crate::telemetry::metrics::EngineView;
use crate::telemetry::{ConfigStatus, wall};

/// `GET /admin/v1/status`.
#[derive(Debug, Serialize)]
pub(super) struct StatusReport {
    version: &'static str,
    uptime_seconds: f64,
    ready: bool,
    not_ready_reason: Option<&'static str>,
    jobs: u64,
    broken_invariants: u64,
    config: ConfigRow,
    /// What is shared with other gateways; absent without `cluster`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterRow>,
    pools: Vec<PoolOverviewRow>,
    replicas: Vec<ReplicaRow>,
    classes: Vec<ClassQueueRow>,
    tenants: Vec<TenantReportRow>,
    overrides: Vec<OverrideRow>,
    unkept_promises: Vec<UnattainableRow>,
}

#[derive(Debug, Serialize)]
struct ClusterRow {
    /// Id of this gateway among the others.
    id: String,
    /// Its name: machine and port.
    name: String,
    /// Whether the store answers.
    up: bool,
    problem: Option<String>,
    /// Time since the last answer.
    heard_seconds_ago: f64,
    /// Time until leases end unless the store answers; 0 = they have ended, and what has a limit is
    /// refused.
    leases_end_in_seconds: f64,
    /// Ids of all gateways, as of the last answer.
    gateways: Vec<String>,
    /// What they tell of themselves.
    members: Vec<MemberRow>,
}

/// A gateway of the cluster; `null` = it runs a version that does not say it.
#[derive(Debug, Serialize)]
struct MemberRow {
    id: String,
    name: Option<String>,
    version: Option<String>,
    heard_seconds_ago: f64,
    waiting: Option<u64>,
    /// Requests that wait or run there.
    jobs: Option<u64>,
}

impl MemberRow {
    fn new(member: &ClusterMember) -> Self {
        let told = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Self {
            id: member.id.clone(),
            name: told(&member.name),
            version: told(&member.program),
            heard_seconds_ago: member.heard.elapsed().as_secs_f64(),
            waiting: member.waiting,
            jobs: member.unfinished,
        }
    }
}

impl ClusterRow {
    fn new(status: &ClusterStatus) -> Self {
        Self {
            id: status.id.clone(),
            name: status.name.clone(),
            up: status.problem.is_none() && !status.gateways.is_empty(),
            problem: status.problem.clone(),
            heard_seconds_ago: status.heard.elapsed().as_secs_f64(),
            leases_end_in_seconds: status.leases_end.saturating_duration_since(Instant::now()).as_secs_f64(),
            gateways: status.gateways.iter().map(|member| member.id.clone()).collect(),
            members: status.gateways.iter().map(MemberRow::new).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct ConfigRow {
    generation: u64,
    digest: String,
    loaded_at_unix: Option<f64>,
    loaded_seconds_ago: Option<f64>,
    last_reload: LastReload,
}

#[derive(Debug, Serialize)]
struct LastReload {
    successful: bool,
    at_unix: Option<f64>,
    problems: Vec<String>,
    /// What the last applied file changed.
    changed: Vec<String>,
    /// Keys that take effect only at the next start.
    restart_needed: Vec<String>,
}

/// Facts about the parts of the process at one moment.
#[derive(Debug)]
pub(super) struct ProcessFacts {
    snapshot: Snapshot,
    engines: Vec<EngineView>,
    sources: Vec<SourceStatus>,
    needs: Vec<ReplicaDemand>,
    limits: Vec<LimitStatus>,
    cluster: Option<ClusterStatus>,
}

impl ProcessFacts {
    /// Collects the facts.
    pub(super) fn collect(state: &AdminState) -> Self {
        Self {
            snapshot: state.snapshot(),
            engines: state.engine_views(),
            sources: state.sources.statuses(),
            needs: state.demands(),
            limits: state.dispatcher.limits(),
            cluster: state.cluster.as_ref().map(|status| status.lock().clone()),
        }
    }
}

impl StatusReport {
    /// The report of this moment.
    pub(super) fn of(state: &AdminState, uptime: Duration) -> Self {
        let config = state.telemetry.config_status();
        let (ready, facts) = (state.readiness(), ProcessFacts::collect(state));
        Self::new(uptime, ready, &facts, &state.settings(), &config)
    }

    fn new(
        uptime: Duration,
        ready: Result<(), &'static str>,
        known: &ProcessFacts,
        settings: &Settings,
        config: &ConfigStatus,
    ) -> Self {
        let policy = &settings.policy;
        let ProcessFacts { snapshot, engines, sources, needs, limits, cluster } = known;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: uptime.as_secs_f64(),
            ready: ready.is_ok(),
            not_ready_reason: ready.err(),
            jobs: snapshot.jobs,
            broken_invariants: snapshot.broken_invariants,
            config: ConfigRow {
                generation: config.generation,
                digest: config.digest.clone(),
                loaded_at_unix: config.loaded_at.map(wall::unix_seconds),
                loaded_seconds_ago: config.loaded_at.map(wall::seconds_since),
                last_reload: LastReload {
                    successful: config.problems.is_empty(),
                    at_unix: config.tried_at.map(wall::unix_seconds),
                    problems: config.problems.clone(),
                    changed: config.changed.clone(),
                    restart_needed: config.restart_needed.clone(),
                },
            },
            cluster: cluster.as_ref().map(ClusterRow::new),
            pools: overview::pools(snapshot, sources, needs, policy),
            replicas: replicas(snapshot, engines, policy),
            classes: overview::classes(snapshot, policy),
            tenants: tenants(snapshot, limits, settings),
            overrides: overview::overrides(snapshot, policy, cluster.as_ref().map(|known| &known.overrides)),
            unkept_promises: overview::unattainable_objectives(snapshot, policy),
        }
    }
}

/// One row of `GET /admin/v1/queues`.
#[derive(Debug, Serialize)]
pub(super) struct QueueReportRow {
    tenant: String,
    class: String,
    model: String,
    waiting: u64,
    bytes: u64,
    tokens: u64,
    oldest_seconds: f64,
}

pub(super) fn queues(snapshot: &Snapshot, policy: &Policy) -> Vec<QueueReportRow> {
    let row = |view: &crate::core::model::snapshot::QueueSnapshot| QueueReportRow {
        tenant: policy.tenants.name(view.tenant).to_owned(),
        class: policy.classes.name(view.class).to_owned(),
        model: policy.models.name(view.model).to_owned(),
        waiting: view.waiting,
        bytes: view.bytes,
        tokens: view.tokens,
        oldest_seconds: view.oldest.as_secs_f64(),
    };
    snapshot.queues.iter().map(row).collect()
}

/// One row of `GET /admin/v1/replicas`.
#[derive(Debug, Serialize)]
pub(super) struct ReplicaRow {
    replica: String,
    pool: Option<String>,
    state: &'static str,
    running: u32,
    limit: u32,
    prefill_tokens: u64,
    kv_tokens: u64,
    /// Speed against a usual H100, 1 = as fast; `null` until the replica has answered. The
    /// reciprocal of `speed_factor`.
    speed: Option<f64>,
    speed_factor: f64,
    expected_ttft_seconds: f64,
    held_back_by: Option<&'static str>,
    guests_held_back_by: Option<&'static str>,
    slots: SlotsRow,
    engine: Option<EngineRow>,
}

/// Slots of a replica by use; they add up to all slots that it has.
#[derive(Debug, Serialize)]
struct SlotsRow {
    running: u32,
    free: u32,
    above_limit: u32,
    withheld: u32,
    out_of_service: u32,
}

impl SlotsRow {
    fn new(slots: SlotCounts) -> Self {
        let count = |held: Option<BottleneckSlots>| held.map_or(0, |held| held.slots);
        Self {
            running: slots.running,
            free: slots.free,
            above_limit: count(slots.above_limit),
            withheld: count(slots.withheld),
            out_of_service: slots.out_of_service,
        }
    }
}

/// Gauges of the engine; `null` = the engine does not report the value.
#[derive(Debug, Serialize)]
struct EngineRow {
    running: Option<u64>,
    waiting: Option<u64>,
    kv_usage: Option<f64>,
    slots: Option<u32>,
    kv_tokens: Option<u64>,
    max_model_len: Option<u32>,
    age_seconds: Option<f64>,
    problem: Option<String>,
}

/// Ledger of each replica, beside the gauges of its engine.
pub(super) fn replicas(snapshot: &Snapshot, engines: &[EngineView], policy: &Policy) -> Vec<ReplicaRow> {
    let engines: HashMap<_, _> = engines.iter().map(|view| (view.replica, view)).collect();
    let row = |view: &ReplicaSnapshot| ReplicaRow {
        replica: policy.replicas.name(view.replica).to_owned(),
        pool: policy.replicas.get(view.replica).map(|row| policy.pools.name(row.pool).to_owned()),
        state: view.state.name(),
        running: view.running,
        limit: view.limit,
        prefill_tokens: view.prefill_tokens,
        kv_tokens: view.kv_tokens,
        speed: (view.speed_known && view.speed_factor > 0.0).then(|| 1.0 / view.speed_factor),
        speed_factor: view.speed_factor,
        expected_ttft_seconds: view.expected.as_secs_f64(),
        held_back_by: view.bottleneck.map(Bottleneck::name),
        guests_held_back_by: view.background_bottleneck.map(Bottleneck::name),
        slots: SlotsRow::new(view.slots),
        engine: engines.get(&view.replica).map(|engine| EngineRow::new(engine)),
    };
    snapshot.replicas.iter().map(row).collect()
}

impl EngineRow {
    fn new(view: &EngineView) -> Self {
        let report = view.report.unwrap_or_default();
        Self {
            running: report.running,
            waiting: report.waiting,
            kv_usage: report.kv_usage,
            slots: report.slots,
            kv_tokens: report.kv_tokens,
            max_model_len: report.max_model_len,
            age_seconds: view.age.map(|age| age.as_secs_f64()),
            problem: view.problem.clone(),
        }
    }
}

/// One row of `GET /admin/v1/tenants`.
#[derive(Debug, Serialize)]
pub(super) struct TenantReportRow {
    tenant: String,
    weight: f64,
    /// The tenant that it belongs to.
    parent: Option<String>,
    default_class: String,
    classes: Vec<String>,
    models: Option<Vec<String>>,
    bounds: BoundsRow,
    limits: Vec<LimitRow>,
    #[serde(flatten)]
    overview: overview::TenantOverview,
}

/// Tenants and their rights, without anything about their keys.
pub(super) fn tenants(
    snapshot: &Snapshot,
    limits: &[LimitStatus],
    settings: &Settings,
) -> Vec<TenantReportRow> {
    let policy = &settings.policy;
    let row = |id: TenantId, name: &str, tenant: &Tenant| TenantReportRow {
        tenant: name.to_owned(),
        weight: tenant.weight,
        parent: tenant.parent.map(|parent| policy.tenants.name(parent).to_owned()),
        default_class: policy.classes.name(tenant.default_class).to_owned(),
        classes: tenant.classes.iter().map(|id| policy.classes.name(*id).to_owned()).collect(),
        models: tenant
            .models
            .as_ref()
            .map(|models| models.iter().map(|id| policy.models.name(*id).to_owned()).collect()),
        bounds: BoundsRow::new(tenant.bounds),
        limits: limits::limits(id, limits, settings),
        overview: overview::tenant_overview(id, snapshot, policy),
    };
    policy.tenants.iter().map(|(id, name, tenant)| row(id, name, tenant)).collect()
}
