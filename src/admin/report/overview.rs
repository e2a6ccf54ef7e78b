//! Overview rows of pools, classes and tenants, with the overrides of operators.

use std::time::Duration;

use serde::Serialize;

use crate::admin::report::sources::{self, SourceStatusRow};
use crate::cluster::{SharedOverrides, target_name};
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::ids::{ClassId, PoolId, TenantId};
use crate::core::model::overrides::{OverrideChange, OverrideTarget};
use crate::core::model::policy::{Class, Policy};
use crate::core::model::snapshot::{ActiveOverride, QueueSnapshot, ReplicaSnapshot, ReplicaStatus, Snapshot};
use crate::core::placement::unattainable::{UnattainableObjective, unattainable};
use crate::core::replica::speed::pool_best::PoolBest;
use crate::fleet::discovery::SourceStatus;

/// Text for a target without an override.
pub(in crate::admin) const NO_OVERRIDE: &str = "none";

/// One row of `GET /admin/v1/overrides`.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct OverrideRow {
    kind: &'static str,
    of: &'static str,
    name: String,
    by: Option<f64>,
    reason: String,
    age_seconds: f64,
    ends_in_seconds: Option<f64>,
    /// Who set it at which gateway; absent without `cluster`.
    #[serde(skip_serializing_if = "Option::is_none")]
    set_at: Option<OverrideOrigin>,
}

/// Where an override was set.
#[derive(Debug, Serialize)]
struct OverrideOrigin {
    who: String,
    gateway: String,
    gateway_name: String,
}

impl OverrideRow {
    fn new(view: &ActiveOverride, policy: &Policy, shared: Option<&SharedOverrides>) -> Self {
        let target = view.change.target();
        let last = shared.and_then(|shared| shared.last_shared(&target_name(target, policy)));
        let by = match view.change {
            OverrideChange::Boost(_, factor) => Some(factor),
            OverrideChange::ClosePool(..) | OverrideChange::CloseReplica(..) | OverrideChange::Pause(_) => {
                None
            }
        };
        Self {
            kind: view.change.name(),
            of: match target {
                OverrideTarget::Pool(_) => "pool",
                OverrideTarget::Replica(_) => "replica",
                OverrideTarget::Pause(_) | OverrideTarget::Boost(_) => "tenant",
            },
            name: target.name(policy).to_owned(),
            by,
            reason: view.reason.to_string(),
            age_seconds: last.map_or(view.age, |(_, age)| age).as_secs_f64(),
            ends_in_seconds: view.left.map(|left| left.as_secs_f64()),
            set_at: last.map(|(last, _)| OverrideOrigin {
                who: last.who.clone(),
                gateway: last.gateway.clone(),
                gateway_name: last.gateway_name.clone(),
            }),
        }
    }
}

/// Rows of all overrides. `shared` are those that all gateways have.
pub(in crate::admin) fn overrides(
    snapshot: &Snapshot,
    policy: &Policy,
    shared: Option<&SharedOverrides>,
) -> Vec<OverrideRow> {
    snapshot.overrides.iter().map(|view| OverrideRow::new(view, policy, shared)).collect()
}

/// One row of `GET /admin/v1/pools`.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct PoolOverviewRow {
    pool: String,
    /// `none`, or the override that closes the pool.
    closed: String,
    state: &'static str,
    waiting: u64,
    cold_start_seconds: Option<f64>,
    wake_seconds: Option<f64>,
    asleep: usize,
    best: BestRow,
    models: Vec<String>,
    replicas: usize,
    in_service: usize,
    running: u64,
    limit: u64,
    /// Desired replicas in all, as scalers are told, and the reason; `null` = not known.
    desired: Option<u32>,
    desired_reason: Option<&'static str>,
    /// Replica source beside the file's list.
    source: Option<SourceStatusRow>,
}

/// Best latencies that the pool has shown lately, with the number of samples; `null` = no sample
/// yet.
#[derive(Debug, Serialize)]
struct BestRow {
    ttft_seconds: Option<f64>,
    first_tokens: u64,
    itl_seconds: Option<f64>,
    gaps: u64,
    read_tokens_per_second: Option<u64>,
}

impl BestRow {
    fn new(best: PoolBest) -> Self {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        Self {
            ttft_seconds: seconds(best.first_token),
            first_tokens: best.first_tokens,
            itl_seconds: seconds(best.gap),
            gaps: best.gaps,
            read_tokens_per_second: best.first_token.map(|_| best.prefill_tokens_per_second),
        }
    }
}

/// Objective that no pool allowed to serve has reached.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct UnattainableRow {
    class: String,
    model: String,
    objective: &'static str,
    promised_seconds: f64,
    pool: String,
    best_seconds: f64,
    samples: u64,
}

/// Objectives that no pool has reached.
pub(in crate::admin) fn unattainable_objectives(
    snapshot: &Snapshot,
    policy: &Policy,
) -> Vec<UnattainableRow> {
    let best = |pool| snapshot.pools.iter().find(|view| view.pool == pool).map(|view| view.best);
    let row = |row: UnattainableObjective| UnattainableRow {
        class: policy.classes.name(row.class).to_owned(),
        model: policy.models.name(row.model).to_owned(),
        objective: row.objective.name(),
        promised_seconds: row.target.as_secs_f64(),
        pool: policy.pools.name(row.pool).to_owned(),
        best_seconds: row.best.as_secs_f64(),
        samples: row.samples,
    };
    unattainable(policy, best).into_iter().map(row).collect()
}

/// Rows of all pools.
pub(in crate::admin) fn pools(
    snapshot: &Snapshot,
    sources: &[SourceStatus],
    needs: &[ReplicaDemand],
    policy: &Policy,
) -> Vec<PoolOverviewRow> {
    let row = |id: PoolId, name: &str| {
        let targets = [OverrideTarget::Pool(id)];
        let replicas = replicas_of(&targets, policy, snapshot);
        let view = snapshot.pools.iter().find(|view| view.pool == id);
        let models = policy.models.iter().filter(|(_, _, model)| model.pools.contains(&id));
        let need = needs.iter().find(|need| need.pool == id);
        let sum = |of: fn(&ReplicaSnapshot) -> u32| replicas.iter().map(|view| u64::from(of(view))).sum();
        PoolOverviewRow {
            pool: name.to_owned(),
            closed: overrides_text(&targets, snapshot),
            state: view.map_or("unknown", |view| view.state.name()),
            waiting: view.map_or(0, |view| view.waiting),
            cold_start_seconds: view.and_then(|view| Some(view.cold_start?.as_secs_f64())),
            wake_seconds: view.and_then(|view| Some(view.wake?.as_secs_f64())),
            asleep: replicas.iter().filter(|view| view.state == ReplicaStatus::Asleep).count(),
            best: BestRow::new(view.map(|view| view.best).unwrap_or_default()),
            models: models.map(|(_, name, _)| name.to_owned()).collect(),
            replicas: replicas.len(),
            in_service: count_in_service(id, policy, snapshot),
            running: sum(|view| view.running),
            limit: sum(|view| view.limit),
            desired: need.and_then(|need| need.desired),
            desired_reason: need.map(|need| need.reason),
            source: sources::source(id, sources),
        }
    };
    policy.pools.iter().map(|(id, name, _)| row(id, name)).collect()
}

/// Waiting requests of one class.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct ClassQueueRow {
    class: String,
    rank: u32,
    ttft_objective_seconds: f64,
    waiting: u64,
    oldest_seconds: f64,
}

/// Rows of the classes, in the order of service.
pub(in crate::admin) fn classes(snapshot: &Snapshot, policy: &Policy) -> Vec<ClassQueueRow> {
    let mut rows: Vec<_> = policy.classes.iter().collect();
    rows.sort_by_key(|(id, _, row)| (row.rank, *id));
    let row = |(id, name, class): (ClassId, &str, &Class)| {
        let (waiting, oldest_seconds) = waiting_and_oldest(snapshot, |queue| queue.class == id);
        ClassQueueRow {
            class: name.to_owned(),
            rank: class.rank,
            ttft_objective_seconds: class.ttft_objective.as_secs_f64(),
            waiting,
            oldest_seconds,
        }
    };
    rows.into_iter().map(row).collect()
}

/// Waiting requests of a tenant, and the overrides for the tenant.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct TenantOverview {
    waiting: u64,
    oldest_seconds: f64,
    overrides: Vec<OverrideRow>,
}

pub(in crate::admin) fn tenant_overview(
    tenant: TenantId,
    snapshot: &Snapshot,
    policy: &Policy,
) -> TenantOverview {
    let (waiting, oldest_seconds) = waiting_and_oldest(snapshot, |queue| queue.tenant == tenant);
    let targets = [OverrideTarget::Pause(tenant), OverrideTarget::Boost(tenant)];
    let rows = overrides_of(&targets, snapshot).map(|view| OverrideRow::new(view, policy, None));
    TenantOverview { waiting, oldest_seconds, overrides: rows.collect() }
}

/// Overrides in force for the targets, as text: `drain`, `pause, boost x4`.
pub(in crate::admin) fn overrides_text(targets: &[OverrideTarget], snapshot: &Snapshot) -> String {
    let words = overrides_of(targets, snapshot).map(|view| match view.change {
        OverrideChange::Boost(_, factor) => format!("boost x{factor}"),
        other => other.name().to_owned(),
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { NO_OVERRIDE.to_owned() } else { words.join(", ") }
}

/// Replicas that the targets name, directly or by their pool.
pub(in crate::admin) fn replicas_of<'a>(
    targets: &[OverrideTarget],
    policy: &Policy,
    snapshot: &'a Snapshot,
) -> Vec<&'a ReplicaSnapshot> {
    let under = |view: &&ReplicaSnapshot| {
        targets.iter().any(|target| match *target {
            OverrideTarget::Replica(id) => view.replica == id,
            OverrideTarget::Pool(pool) => {
                policy.replicas.get(view.replica).is_some_and(|row| row.pool == pool)
            }
            OverrideTarget::Pause(_) | OverrideTarget::Boost(_) => false,
        })
    };
    snapshot.replicas.iter().filter(under).collect()
}

/// Number of the pool's replicas that get work.
pub(in crate::admin) fn count_in_service(pool: PoolId, policy: &Policy, snapshot: &Snapshot) -> usize {
    let up = |state| matches!(state, ReplicaStatus::Serving | ReplicaStatus::SlowStart | ReplicaStatus::Busy);
    replicas_of(&[OverrideTarget::Pool(pool)], policy, snapshot).iter().filter(|view| up(view.state)).count()
}

/// Names separated by commas, with `...` when some are left out.
pub(in crate::admin) fn join_names(names: &[&str], in_all: usize) -> String {
    let more = if in_all > names.len() { ", ..." } else { "" };
    format!("{}{more}", names.join(", "))
}

fn overrides_of<'a>(
    targets: &'a [OverrideTarget],
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = &'a ActiveOverride> {
    snapshot.overrides.iter().filter(|view| targets.contains(&view.change.target()))
}

fn waiting_and_oldest(snapshot: &Snapshot, ours: impl Fn(&QueueSnapshot) -> bool) -> (u64, f64) {
    let queues = snapshot.queues.iter().filter(|queue| ours(queue));
    queues.fold((0, 0.0_f64), |(waiting, oldest), queue| {
        (waiting + queue.waiting, oldest.max(queue.oldest.as_secs_f64()))
    })
}
