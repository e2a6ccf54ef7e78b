//! Load of a gateway: what it has at replicas, and what waits there.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::ids::{ClassId, PoolId, ReplicaId, TenantId};

/// How long some of a tenant's jobs have waited, without a break, before the tenant counts in the division. A
/// shorter queue is that of the next free place.
pub const MIN_BACKLOG: Duration = Duration::from_secs(1);

/// Most tenants of a class that count in the division; what further ones have at replicas counts for the class.
pub const MAX_TENANTS: usize = 128;

/// Sequences of a gateway at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaSequences {
    pub replica: ReplicaId,
    pub seqs: u32,
}

/// A class that is active in a pool group: it has jobs waiting or running, or had some within the last minute.
/// The pool stands for the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveClass {
    pub pool: PoolId,
    pub class: ClassId,
    /// Jobs at replicas whose tenants are not among the [`WaitingTenant`]s.
    pub running: u32,
    /// Sequences that less urgent classes are to leave free for its next jobs.
    pub headroom: u32,
}

/// A tenant some of whose jobs of a class have waited for [`MIN_BACKLOG`]. The pool stands for the pool group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingTenant {
    pub pool: PoolId,
    pub class: ClassId,
    pub tenant: TenantId,
    /// Jobs at replicas.
    pub running: u32,
    pub waiting: u32,
}

impl WaitingTenant {
    /// Places that the tenant would fill.
    pub(super) fn wants(&self) -> f64 {
        f64::from(self.running) + f64::from(self.waiting)
    }
}

/// What a gateway has at replicas, and what waits there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayLoad {
    /// The replicas at which it has sequences.
    pub replicas: Vec<ReplicaSequences>,
    pub classes: Vec<ActiveClass>,
    pub tenants: Vec<WaitingTenant>,
}

impl GatewayLoad {
    /// Jobs at replicas.
    pub(super) fn running(&self) -> u64 {
        let classes = self.classes.iter().map(|row| u64::from(row.running));
        classes.chain(self.tenants.iter().map(|row| u64::from(row.running))).sum()
    }
}
