//! Overrides: operators' changes to the policy, each for a time.
//!
//! An override is known by its target, which a later one of the same target
//! replaces. It outlives reloads, since ids outlive them; what it says of a
//! name that a reload removed counts again when the name comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::core::model::ids::{PoolId, ReplicaId, TenantId};
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::ActiveOverride;
use crate::core::model::time::Tick;

/// The least and the largest factor of a boost.
pub const BOOSTS: (f64, f64) = (0.01, 100.0);

/// How a pool or a replica is closed to new work. What streams there goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Closed {
    /// It finishes all that it has.
    Cordoned,
    /// What it has not begun to answer goes to others.
    Drained,
    /// The same, since its machine will be taken away.
    SpotNotice,
}

impl Closed {
    /// A short stable name for logs, metrics and the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cordoned => "cordon",
            Self::Drained => "drain",
            Self::SpotNotice => "spot_notice",
        }
    }
}

/// What an override changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverrideTarget {
    /// Whether a pool gets work.
    Pool(PoolId),
    /// Whether a replica gets work.
    Replica(ReplicaId),
    /// Whether a tenant's jobs go to replicas.
    Pause(TenantId),
    /// A tenant's weight.
    Boost(TenantId),
}

impl OverrideTarget {
    /// The name of the pool, replica or tenant.
    #[must_use]
    pub fn name(self, policy: &Policy) -> &str {
        match self {
            Self::Pool(pool) => policy.pools.name(pool),
            Self::Replica(replica) => policy.replicas.name(replica),
            Self::Pause(tenant) | Self::Boost(tenant) => policy.tenants.name(tenant),
        }
    }
}

/// What an override does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OverrideChange {
    /// No replica of the pool gets work.
    ClosePool(PoolId, Closed),
    /// The replica gets no work.
    CloseReplica(ReplicaId, Closed),
    /// None of the tenant's jobs goes to a replica.
    Pause(TenantId),
    /// The tenant's weight counts so many times, within [`BOOSTS`].
    Boost(TenantId, f64),
}

impl OverrideChange {
    /// All that [`Self::name`] can say.
    pub const NAMES: [&str; 5] = ["cordon", "drain", "spot_notice", "pause", "boost"];

    /// What it changes.
    #[must_use]
    pub const fn target(&self) -> OverrideTarget {
        match *self {
            Self::ClosePool(pool, _) => OverrideTarget::Pool(pool),
            Self::CloseReplica(replica, _) => OverrideTarget::Replica(replica),
            Self::Pause(tenant) => OverrideTarget::Pause(tenant),
            Self::Boost(tenant, _) => OverrideTarget::Boost(tenant),
        }
    }

    /// How it closes a pool or replica, if it does.
    #[must_use]
    pub const fn closed(&self) -> Option<Closed> {
        match *self {
            Self::ClosePool(_, closed) | Self::CloseReplica(_, closed) => Some(closed),
            Self::Pause(_) | Self::Boost(..) => None,
        }
    }

    /// A short stable name for logs, metrics and the admin API.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match *self {
            Self::ClosePool(_, closed) | Self::CloseReplica(_, closed) => closed.name(),
            Self::Pause(_) => "pause",
            Self::Boost(..) => "boost",
        }
    }
}

/// An operator's required that goes before the policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// What it does.
    pub change: OverrideChange,
    /// When it ends by itself; [`Tick::NEVER`] = not at all.
    pub until: Tick,
    /// The operator's words; the caller bounds their length.
    pub reason: Arc<str>,
}

/// All overrides in force.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    rows: BTreeMap<OverrideTarget, (Tick, Override)>,
    ends: BTreeSet<(Tick, OverrideTarget)>,
}

impl Overrides {
    /// Puts an override in force, in place of one of the same target.
    pub fn set(&mut self, wanted: Override, now: Tick) {
        let target = wanted.change.target();
        self.end(target);
        self.ends.insert((wanted.until, target));
        self.rows.insert(target, (now, wanted));
    }

    /// Ends the override of a target; says whether there was one.
    pub fn end(&mut self, target: OverrideTarget) -> bool {
        let Some((_, ended)) = self.rows.remove(&target) else { return false };
        self.ends.remove(&(ended.until, target))
    }

    /// The target of an override whose time is over.
    #[must_use]
    pub fn due(&self, now: Tick) -> Option<OverrideTarget> {
        self.ends
            .first()
            .filter(|(until, _)| *until <= now && *until != Tick::NEVER)
            .map(|(_, target)| *target)
    }

    /// When the next override ends by itself.
    #[must_use]
    pub fn next_end(&self) -> Option<Tick> {
        self.ends.first().map(|(until, _)| *until).filter(|until| *until != Tick::NEVER)
    }

    /// How a replica is closed, by itself or with its pool.
    #[must_use]
    pub fn closed(&self, pool: PoolId, replica: ReplicaId) -> Option<Closed> {
        let targets = [OverrideTarget::Pool(pool), OverrideTarget::Replica(replica)];
        targets.iter().filter_map(|target| self.rows.get(target)?.1.change.closed()).max()
    }

    /// When the tenant's pause ends; `None` when it is not paused.
    #[must_use]
    pub fn paused_until(&self, tenant: TenantId) -> Option<Tick> {
        self.rows.get(&OverrideTarget::Pause(tenant)).map(|(_, row)| row.until)
    }

    /// What the tenant's weight is multiplied by.
    #[must_use]
    pub fn boost(&self, tenant: TenantId) -> f64 {
        match self.rows.get(&OverrideTarget::Boost(tenant)).map(|(_, row)| row.change) {
            Some(OverrideChange::Boost(_, factor)) if !factor.is_nan() => factor.clamp(BOOSTS.0, BOOSTS.1),
            _ => 1.0,
        }
    }

    /// One row for each, in the order of their targets.
    pub fn views(&self, now: Tick) -> impl Iterator<Item = ActiveOverride> {
        self.rows.values().map(move |(since, row)| ActiveOverride {
            change: row.change,
            reason: Arc::clone(&row.reason),
            age: now.since(*since),
            left: (row.until != Tick::NEVER).then(|| row.until.since(now)),
        })
    }
}
