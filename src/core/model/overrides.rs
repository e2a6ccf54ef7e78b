//! Overrides: operators' changes to the policy, each for a time.
//!
//! The target identifies an override: a later override of the same target replaces it. Overrides
//! outlive reloads, since ids outlive reloads. An override of a name that a reload removed applies
//! again when the name comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::ids::{PoolId, ReplicaId, TenantId};
use crate::model::policy::Policy;
use crate::model::policy::wire::exact;
use crate::model::time::Tick;

/// The least and the largest factor of a boost.
pub const BOOSTS: (f64, f64) = (0.01, 100.0);

/// How a pool or a replica is closed to new work. Running streams go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Closed {
    /// The replica finishes all jobs that it has.
    Cordoned,
    /// Jobs whose answer has not begun go to other replicas.
    Drained,
    /// As `Drained`, since the machine will be taken away.
    SpotNotice,
}

impl Closed {
    /// A short stable name for logs, metrics and the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cordoned => "cordon",
            Self::Drained => "drain",
            Self::SpotNotice => "spot_notice",
        }
    }
}

/// Target of an override: what the override changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverrideTarget {
    /// Whether the pool gets work.
    Pool(PoolId),
    /// Whether the replica gets work.
    Replica(ReplicaId),
    /// Whether the tenant's jobs are dispatched.
    Pause(TenantId),
    /// The tenant's weight.
    Boost(TenantId),
}

impl OverrideTarget {
    /// The name of the pool, replica or tenant.
    pub fn name(self, policy: &Policy) -> &str {
        match self {
            Self::Pool(pool) => policy.pools.name(pool),
            Self::Replica(replica) => policy.replicas.name(replica),
            Self::Pause(tenant) | Self::Boost(tenant) => policy.tenants.name(tenant),
        }
    }
}

/// Effect of an override.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverrideChange {
    /// No replica of the pool gets work.
    ClosePool(PoolId, Closed),
    /// The replica gets no work.
    CloseReplica(ReplicaId, Closed),
    /// None of the tenant's jobs is dispatched.
    Pause(TenantId),
    /// The tenant's weight is multiplied by the factor, within [`BOOSTS`].
    Boost(TenantId, #[serde(with = "exact")] f64),
}

impl OverrideChange {
    /// All values of [`Self::name`].
    pub const NAMES: [&str; 5] = ["cordon", "drain", "spot_notice", "pause", "boost"];

    /// The target that the effect applies to.
    pub const fn target(&self) -> OverrideTarget {
        match *self {
            Self::ClosePool(pool, _) => OverrideTarget::Pool(pool),
            Self::CloseReplica(replica, _) => OverrideTarget::Replica(replica),
            Self::Pause(tenant) => OverrideTarget::Pause(tenant),
            Self::Boost(tenant, _) => OverrideTarget::Boost(tenant),
        }
    }

    /// How the override closes a pool or replica; `None` when it closes nothing.
    pub const fn closed(&self) -> Option<Closed> {
        match *self {
            Self::ClosePool(_, closed) | Self::CloseReplica(_, closed) => Some(closed),
            Self::Pause(_) | Self::Boost(..) => None,
        }
    }

    /// A short stable name for logs, metrics and the admin API.
    pub const fn name(&self) -> &'static str {
        match *self {
            Self::ClosePool(_, closed) | Self::CloseReplica(_, closed) => closed.name(),
            Self::Pause(_) => "pause",
            Self::Boost(..) => "boost",
        }
    }
}

/// Override: an operator's change that replaces part of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Override {
    pub change: OverrideChange,
    /// When the override ends by itself; [`Tick::NEVER`] = not at all.
    pub until: Tick,
    /// The operator's reason. The caller bounds its length. A record does not hold the reason.
    #[serde(skip)]
    pub reason: Arc<str>,
}

/// All overrides in force.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    rows: BTreeMap<OverrideTarget, StartedOverride>,
    ends: BTreeSet<(Tick, OverrideTarget)>,
}

#[derive(Debug, Clone)]
struct StartedOverride {
    since: Tick,
    row: Override,
}

impl Overrides {
    /// Puts an override in force, and replaces one of the same target.
    pub fn set(&mut self, wanted: Override, now: Tick) {
        let target = wanted.change.target();
        self.end(target);
        self.ends.insert((wanted.until, target));
        self.rows.insert(target, StartedOverride { since: now, row: wanted });
    }

    /// Ends the override of a target; returns whether there was one.
    pub fn end(&mut self, target: OverrideTarget) -> bool {
        let Some(ended) = self.rows.remove(&target) else { return false };
        self.ends.remove(&(ended.row.until, target))
    }

    /// The target of an override whose time is over, the earliest first.
    pub fn due(&self, now: Tick) -> Option<OverrideTarget> {
        self.ends
            .first()
            .filter(|(until, _)| *until <= now && *until != Tick::NEVER)
            .map(|(_, target)| *target)
    }

    /// When the next override ends by itself.
    pub fn next_end(&self) -> Option<Tick> {
        self.ends.first().map(|(until, _)| *until).filter(|until| *until != Tick::NEVER)
    }

    /// How a replica is closed, by itself or with its pool; the stricter of the two.
    pub fn closed(&self, pool: PoolId, replica: ReplicaId) -> Option<Closed> {
        let targets = [OverrideTarget::Pool(pool), OverrideTarget::Replica(replica)];
        targets.iter().filter_map(|target| self.rows.get(target)?.row.change.closed()).max()
    }

    /// When the tenant's pause ends; `None` when the tenant is not paused.
    pub fn paused_until(&self, tenant: TenantId) -> Option<Tick> {
        self.rows.get(&OverrideTarget::Pause(tenant)).map(|pause| pause.row.until)
    }

    /// Factor of the tenant's weight.
    pub fn boost(&self, tenant: TenantId) -> f64 {
        match self.rows.get(&OverrideTarget::Boost(tenant)).map(|boost| boost.row.change) {
            Some(OverrideChange::Boost(_, factor)) if !factor.is_nan() => factor.clamp(BOOSTS.0, BOOSTS.1),
            _ => 1.0,
        }
    }

    /// One row for each override, in the order of their targets.
    pub fn active(&self, now: Tick) -> impl Iterator<Item = ActiveOverride> {
        self.rows.values().map(move |StartedOverride { since, row }| ActiveOverride {
            change: row.change,
            reason: Arc::clone(&row.reason),
            age: now.since(*since),
            left: (row.until != Tick::NEVER).then(|| row.until.since(now)),
        })
    }
}

/// Override in force.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveOverride {
    pub change: OverrideChange,
    /// The operator's reason.
    pub reason: Arc<str>,
    /// Time that the override has been in force.
    pub age: Duration,
    /// Time until the override ends by itself; `None` = not at all.
    pub left: Option<Duration>,
}
