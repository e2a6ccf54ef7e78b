//! Rows of `GET /admin/v1/shares`: each tenant's queue, share and running sequences.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::admin::state::AdminState;
use crate::core::model::ids::{GroupIndex, TenantId};
use crate::core::model::overrides::{ActiveOverride, OverrideChange};
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::{Obstacle, QueueStatus};
use crate::core::queue::quota::QuotaState;

/// Most tenants that a row names as its competitors.
const MAX_NAMED: usize = 8;

/// One row of `GET /admin/v1/shares`.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct ShareRow {
    tenant: String,
    class: String,
    model: String,
    waiting: u64,
    oldest_seconds: f64,
    /// Predicted wait of a request that arrives now; `null` = no rate is known yet.
    predicted_wait_seconds: Option<f64>,
    running: u64,
    /// The tenant's part by weight among the tenants that want the same replicas.
    share: f64,
    /// The tenant's part of what runs there.
    used: f64,
    /// Sequences of the tenant beyond its quota's guarantee; `null` = it has no quota.
    borrowed: Option<u64>,
    guaranteed: Option<u64>,
    quota: Option<&'static str>,
    /// What the next waiting request waits for.
    blocked_by: Option<&'static str>,
    /// Other tenants that run or wait for the same replicas, those with most running first.
    contends_with: Vec<String>,
}

/// What one tenant has in one group of pools.
#[derive(Debug, Default, Clone, Copy)]
struct TenantUse {
    running: u64,
    waiting: u64,
}

/// Tenants with requests in one group of pools.
type GroupUse = BTreeMap<TenantId, TenantUse>;

/// The rows of this moment.
pub(in crate::admin) fn now(state: &AdminState) -> Vec<ShareRow> {
    let overrides = state.snapshot().overrides;
    shares(&state.dispatcher.queue_statuses(), &overrides, &state.settings().policy)
}

fn shares(statuses: &[QueueStatus], overrides: &[ActiveOverride], policy: &Policy) -> Vec<ShareRow> {
    let mut groups: BTreeMap<Option<GroupIndex>, GroupUse> = BTreeMap::new();
    for row in statuses {
        let held = groups.entry(row.group).or_default().entry(row.tenant).or_default();
        held.running += row.running;
        held.waiting += row.waiting;
    }
    let parts: BTreeMap<_, _> =
        groups.iter().map(|(group, held)| (*group, parts(held, overrides, policy))).collect();
    let row = |row: &QueueStatus| {
        let held = &groups[&row.group];
        let all: u64 = held.values().map(|held| held.running).sum();
        let own = held[&row.tenant].running;
        ShareRow {
            tenant: policy.tenants.name(row.tenant).to_owned(),
            class: policy.classes.name(row.class).to_owned(),
            model: policy.models.name(row.model).to_owned(),
            waiting: row.waiting,
            oldest_seconds: row.oldest.as_secs_f64(),
            predicted_wait_seconds: row.predicted_wait.map(|wait| wait.as_secs_f64()),
            running: row.running,
            share: parts[&row.group].get(&row.tenant).copied().unwrap_or_default(),
            used: if all == 0 { 0.0 } else { own as f64 / all as f64 },
            borrowed: row.quota.map(|quota| quota.held.saturating_sub(quota.guaranteed)),
            guaranteed: row.quota.map(|quota| quota.guaranteed),
            quota: row.quota.map(|quota| QuotaState::name(quota.state)),
            blocked_by: row.obstacle.map(Obstacle::name),
            contends_with: busiest_siblings(row.tenant, held, policy),
        }
    };
    statuses.iter().map(row).collect()
}

/// Other tenants of a group, those with most running first.
fn busiest_siblings(tenant: TenantId, held: &GroupUse, policy: &Policy) -> Vec<String> {
    let mut others: Vec<_> = held.iter().filter(|(id, _)| **id != tenant).collect();
    others.sort_by_key(|(id, held)| (std::cmp::Reverse((held.running, held.waiting)), **id));
    others.iter().take(MAX_NAMED).map(|(id, _)| policy.tenants.name(**id).to_owned()).collect()
}

/// The part of each tenant by weight. On each level of the tree of tenants, those who have requests
/// share what their parent gets.
fn parts(held: &GroupUse, overrides: &[ActiveOverride], policy: &Policy) -> BTreeMap<TenantId, f64> {
    let parent = |id: TenantId| policy.tenants.get(id).and_then(|row| row.parent);
    let line = |id: TenantId| std::iter::successors(Some(id), move |id| parent(*id));
    let boost = |id: TenantId| {
        overrides.iter().find_map(|active| match active.change {
            OverrideChange::Boost(tenant, factor) if tenant == id => Some(factor),
            _ => None,
        })
    };
    let weight =
        |id: TenantId| policy.tenants.get(id).map_or(0.0, |row| row.weight) * boost(id).unwrap_or(1.0);
    let active: BTreeSet<TenantId> = held.keys().flat_map(|id| line(*id)).collect();
    let mut sums: BTreeMap<Option<TenantId>, f64> = BTreeMap::new();
    for id in &active {
        *sums.entry(parent(*id)).or_default() += weight(*id);
    }
    let part = |id: TenantId| -> f64 {
        line(id).map(|id| weight(id) / sums[&parent(id)].max(f64::MIN_POSITIVE)).product()
    };
    held.keys().map(|id| (*id, part(*id))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::model::ids::{ClassId, ModelId};
    use crate::telemetry::fixtures;

    fn status(tenant: u32, running: u64, waiting: u64) -> QueueStatus {
        QueueStatus {
            tenant: TenantId::new(tenant),
            class: ClassId::new(0),
            model: ModelId::new(0),
            group: Some(GroupIndex::from(0)),
            waiting,
            running,
            oldest: Duration::from_secs(waiting),
            predicted_wait: None,
            quota: None,
            obstacle: (waiting > 0).then_some(Obstacle::NoRoom),
        }
    }

    #[test]
    fn tenants_with_requests_share_by_weight_and_use_what_runs() {
        let mut policy = fixtures::policy(3);
        let mut heavy = policy.tenants.get(TenantId::new(0)).unwrap().clone();
        heavy.weight *= 3.0;
        let name = policy.tenants.name(TenantId::new(0)).to_owned();
        policy.tenants.insert(&name, heavy);
        let rows = shares(&[status(0, 1, 0), status(1, 3, 2)], &[], &policy);
        let told: Vec<_> = rows.iter().map(|row| (row.share, row.used, row.blocked_by)).collect();
        assert_eq!(told, [(0.75, 0.25, None), (0.25, 0.75, Some("no_room"))]);
        assert_eq!(rows[0].contends_with, [policy.tenants.name(TenantId::new(1))]);
        let alone = shares(&[status(2, 0, 1)], &[], &policy);
        assert_eq!((alone[0].share, alone[0].used, alone[0].contends_with.len()), (1.0, 0.0, 0));
    }
}
