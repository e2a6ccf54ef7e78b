//! Saved demand: the measurements that are kept over a restart, by name.

use serde::{Deserialize, Serialize};

use crate::core::model::policy::Policy;

use super::Demand;
use super::profile::SavedProfile;
use super::residency::ReplicaSeconds;
use crate::core::autoscale::demand::profiles::ProfileSubject;

/// The version of [`DemandState`] that this program writes and reads.
pub const VERSION: u32 = 1;

/// The demand that was seen, to save and to restore.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandState {
    /// See [`VERSION`]; another one is not restored.
    pub version: u32,
    /// What is known of each pool's replicas.
    pub pools: Vec<PoolDemandState>,
    /// The profiles.
    pub rows: Vec<SavedDemandRow>,
}

/// What is known of a pool's replicas.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolDemandState {
    /// The pool.
    pub name: String,
    /// Seconds of a replica for a unit of work; absent before it was measured.
    pub cost: Option<f64>,
    /// Seconds that its starts took as of late; absent before the first.
    pub start: Option<f64>,
    /// Prompt tokens a second that a replica reads, see [`crate::core::replica::speed::prefill_rate`]; absent
    /// before it was seen.
    #[serde(default)]
    pub read_per_second: Option<u64>,
    /// The median of the mean times between tokens, seconds; absent before it was seen.
    #[serde(default)]
    pub gap: Option<f64>,
    /// Replicas in service.
    #[serde(default)]
    pub ready: u32,
    /// Sequences that a replica takes, the middle of all; absent without replicas.
    #[serde(default)]
    pub max_seqs: Option<u32>,
    /// Tokens of KV cache, the fewest that a replica has; absent where none are known.
    #[serde(default)]
    pub kv_tokens: Option<u64>,
    /// Jobs that wait and may go there.
    #[serde(default)]
    pub waiting: u64,
    /// For how long its replicas were there, and worked.
    #[serde(default)]
    pub residency: ReplicaSeconds,
}

/// What a row is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileKind {
    /// A model.
    Model,
    /// A pool.
    Pool,
    /// A class.
    Class,
    /// A tenant.
    Tenant,
}

/// One profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedDemandRow {
    /// What it is of.
    pub kind: ProfileKind,
    /// Its name.
    pub name: String,
    /// What was seen.
    pub seen: SavedProfile,
}

/// Names and places of all rows that the policy has.
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
    /// What is worth keeping. How long starts take and what replicas have shown is
    /// for the caller to add.
    #[must_use]
    pub fn save(&self, policy: &Policy) -> DemandState {
        let pool = |(id, name, _): (_, &str, _)| PoolDemandState {
            name: name.to_owned(),
            cost: self.pool(id).and_then(|pool| pool.cost()),
            residency: self.stays.get(id.index()).map(|stays| stays.seen.whole()).unwrap_or_default(),
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

    /// Takes over what was kept, as far as the policy has it; false when it is of
    /// another version, and nothing was taken over.
    pub fn restore(&mut self, policy: &Policy, state: &DemandState) -> bool {
        if state.version != VERSION {
            return false;
        }
        for kept in &state.pools {
            let own = policy.pools.id(&kept.name).and_then(|id| self.pools.get_mut(id.index()));
            let cost = kept.cost.filter(|cost| cost.is_finite() && *cost > 0.0);
            own.into_iter().for_each(|own| own.restore(cost));
            let stays = policy.pools.id(&kept.name).and_then(|id| self.stays.get_mut(id.index()));
            stays.into_iter().for_each(|stays| stays.seen = kept.residency);
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
