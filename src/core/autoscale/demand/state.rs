//! Saved demand: the measurements that are kept over a restart, by name.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::event::PoolStartTime;
use crate::model::policy::Policy;

use super::Demand;
use super::profile::SavedProfile;
use super::residency::ReplicaSeconds;
use crate::autoscale::demand::profiles::ProfileSubject;

/// Version of [`DemandState`] that this program writes and reads.
pub const VERSION: u32 = 1;

/// Measured demand, to save and to restore.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandState {
    /// See [`VERSION`]; other versions are not restored.
    pub version: u32,
    /// Measurements of each pool's replicas.
    pub pools: Vec<PoolDemandState>,
    /// Demand profiles.
    pub rows: Vec<SavedDemandRow>,
}

/// Measurements of a pool's replicas.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolDemandState {
    pub name: String,
    /// Replica seconds for a unit of work; absent before it was measured.
    pub cost: Option<f64>,
    /// Recent mean time of a start, in seconds; absent before the first.
    pub start: Option<f64>,
    /// Prefill rate of a replica, in prompt tokens per second, see
    /// [`crate::replica::speed::prefill_rate`]; absent before it was measured.
    #[serde(default)]
    pub read_per_second: Option<u64>,
    /// Median ITL in seconds; absent before it was measured.
    #[serde(default)]
    pub gap: Option<f64>,
    /// Replicas in service.
    #[serde(default)]
    pub ready: u32,
    /// Median sequence limit of a replica; absent without replicas.
    #[serde(default)]
    pub max_seqs: Option<u32>,
    /// Smallest KV cache of a replica, in tokens; absent where none is known.
    #[serde(default)]
    pub kv_tokens: Option<u64>,
    /// Waiting jobs that may go to the pool.
    #[serde(default)]
    pub waiting: u64,
    /// Replica seconds in service, and with a job.
    #[serde(default)]
    pub residency: ReplicaSeconds,
}

impl DemandState {
    /// Start times of the pools that the policy has.
    pub fn starts(&self, policy: &Policy) -> Vec<PoolStartTime> {
        let start = |kept: &PoolDemandState| {
            let took = Duration::try_from_secs_f64(kept.start?).ok()?;
            Some(PoolStartTime { pool: policy.pools.id(&kept.name)?, took })
        };
        self.pools.iter().filter_map(start).collect()
    }
}

/// Kind of a profile's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileKind {
    Model,
    Pool,
    Class,
    Tenant,
}

/// Demand profile of one subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedDemandRow {
    pub kind: ProfileKind,
    pub name: String,
    /// Measurements.
    pub seen: SavedProfile,
}

/// Kind, name and subject of each row that the policy has.
fn rows(policy: &Policy) -> impl Iterator<Item = (ProfileKind, &str, ProfileSubject)> {
    let models =
        policy.models.iter().map(|(id, name, _)| (ProfileKind::Model, name, ProfileSubject::Model(id)));
    let pools = policy.pools.iter().map(|(id, name, _)| (ProfileKind::Pool, name, ProfileSubject::Pool(id)));
    let classes =
        policy.classes.iter().map(|(id, name, _)| (ProfileKind::Class, name, ProfileSubject::Class(id)));
    let tenants =
        policy.tenants.iter().map(|(id, name, _)| (ProfileKind::Tenant, name, ProfileSubject::Tenant(id)));
    models.chain(pools).chain(classes).chain(tenants)
}

impl Demand {
    /// Measurements worth keeping. The caller adds the start times and what the replicas have
    /// shown.
    pub fn save(&self, policy: &Policy) -> DemandState {
        let pool = |(id, name, _): (_, &str, _)| PoolDemandState {
            name: name.to_owned(),
            cost: self.pool(id).and_then(|pool| pool.cost()),
            residency: self.residency.get(id.index()).map(|sampler| sampler.seen.whole()).unwrap_or_default(),
            ..PoolDemandState::default()
        };
        let row = |(kind, name, of): (ProfileKind, &str, ProfileSubject)| {
            let seen = self.profiles.row(of)?.seen.clone();
            (seen != SavedProfile::default()).then(|| SavedDemandRow { kind, name: name.to_owned(), seen })
        };
        DemandState {
            version: VERSION,
            pools: policy.pools.iter().map(pool).collect(),
            rows: rows(policy).filter_map(row).collect(),
        }
    }

    /// Restores saved measurements of the rows that the policy has. Returns false, and restores
    /// nothing, when the version differs.
    pub fn restore(&mut self, policy: &Policy, state: &DemandState) -> bool {
        if state.version != VERSION {
            return false;
        }
        for kept in &state.pools {
            let own = policy.pools.id(&kept.name).and_then(|id| self.pools.get_mut(id.index()));
            let cost = kept.cost.filter(|cost| cost.is_finite() && *cost > 0.0);
            own.into_iter().for_each(|own| own.restore(cost));
            let sampler = policy.pools.id(&kept.name).and_then(|id| self.residency.get_mut(id.index()));
            sampler.into_iter().for_each(|sampler| sampler.seen = kept.residency);
        }
        for (kind, name, of) in rows(policy) {
            let kept = state.rows.iter().find(|row| row.kind == kind && row.name == name);
            if let (Some(kept), Some(own)) = (kept, self.profiles.row_mut(of)) {
                own.seen = kept.seen.clone();
            }
        }
        true
    }
}
