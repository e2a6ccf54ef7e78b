//! Demand report: one gateway's part of the demand, by names, for its peers to add. Pools and
//! classes that a policy does not have are ignored: gateways may run under different files for a
//! while.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::autoscale::demand::utilization::{ReplicasInUse, WAYS, cost_of};

use crate::core::autoscale::class_demand::ClassDemand;

/// What a gateway sees of the demand.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DemandReport {
    /// By name.
    pub pools: BTreeMap<String, PoolReport>,
    /// By class and pools.
    pub pool_sets: BTreeMap<PoolSetKey, PoolSetReport>,
}

/// Which pool set, of which class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PoolSetKey {
    /// The class.
    pub class: String,
    /// The pool set's pools, the one wanted most first.
    pub pools: Vec<String>,
}

/// What it sees of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PoolReport {
    /// Jobs that run there.
    pub in_flight: u64,
    /// Tokens of those that wait for it.
    pub queued_tokens: u64,
    /// Replica seconds in use of late, in each of the ways.
    pub used: ReplicasInUse,
    /// The work that was sent there in the same time.
    pub work: f64,
    /// Seconds of a replica for a unit of work; `None` = not measured.
    pub cost: Option<f64>,
    /// How long starts took; `None` = none was seen.
    pub start: Option<Duration>,
}

/// What it sees of a pool set.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PoolSetReport {
    /// Work per second as it goes on.
    pub slow: f64,
    /// Its deviation.
    pub deviation: f64,
    /// What comes to that by the time that a replica has started.
    pub rise: f64,
    /// Work per second over the fast window.
    pub fast: f64,
    /// Work that waits.
    pub backlog: f64,
    /// How long the oldest has waited.
    pub oldest: Duration,
    /// Jobs that wait.
    pub waiting: u64,
    /// See [`ClassDemand::unmet`].
    pub unmet: bool,
}

impl PoolReport {
    /// Whether anything runs there or waits for it.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.in_flight > 0 || self.queued_tokens > 0
    }

    /// Seconds of a replica for a unit of work, as all measured it together, or
    /// as one of them did.
    #[must_use]
    pub fn cost(&self) -> Option<f64> {
        cost_of(self.used, self.work).or(self.cost)
    }

    /// Both, each counted whole.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            in_flight: self.in_flight.saturating_add(other.in_flight),
            queued_tokens: self.queued_tokens.saturating_add(other.queued_tokens),
            used: std::array::from_fn::<f64, WAYS, _>(|way| self.used[way] + other.used[way]),
            work: self.work + other.work,
            cost: larger(self.cost, other.cost),
            start: self.start.max(other.start),
        }
    }
}

impl PoolSetReport {
    /// What a class wants, of which so many jobs wait.
    #[must_use]
    pub const fn of(want: &ClassDemand, waiting: u64) -> Self {
        let ClassDemand { slow, deviation, rise, fast, backlog, oldest, unmet, .. } = *want;
        Self { slow, deviation, rise, fast, backlog, oldest, waiting, unmet }
    }

    /// Both, each counted whole.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        Self {
            slow: self.slow + other.slow,
            // What comes to one is no reason for what comes to another.
            deviation: self.deviation.hypot(other.deviation),
            rise: self.rise + other.rise,
            fast: self.fast + other.fast,
            backlog: self.backlog + other.backlog,
            oldest: self.oldest.max(other.oldest),
            waiting: self.waiting.saturating_add(other.waiting),
            unmet: self.unmet || other.unmet,
        }
    }

    /// Adds it to what a class wants here.
    pub fn add_to(&self, want: &mut ClassDemand) {
        want.slow += self.slow;
        want.deviation = want.deviation.hypot(self.deviation);
        want.rise += self.rise;
        want.fast += self.fast;
        want.backlog += self.backlog;
        want.oldest = want.oldest.max(self.oldest);
        want.unmet |= self.unmet;
    }
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

impl DemandReport {
    /// Counts another gateway's part, too.
    pub fn add(&mut self, other: &Self) {
        for (name, part) in &other.pools {
            let own = self.pools.entry(name.clone()).or_default();
            *own = own.plus(part);
        }
        for (key, part) in &other.pool_sets {
            let own = self.pool_sets.entry(key.clone()).or_default();
            *own = own.merged(part);
        }
    }

    /// Takes away a gateway's part that it holds.
    pub fn remove(&mut self, own: &Self) {
        for (name, own) in &own.pools {
            let Some(part) = self.pools.get_mut(name) else { continue };
            part.in_flight = part.in_flight.saturating_sub(own.in_flight);
            part.queued_tokens = part.queued_tokens.saturating_sub(own.queued_tokens);
            part.used.iter_mut().zip(own.used).for_each(|(part, own)| *part = (*part - own).max(0.0));
            part.work = (part.work - own.work).max(0.0);
        }
        for (key, own) in &own.pool_sets {
            let Some(part) = self.pool_sets.get_mut(key) else { continue };
            part.slow = (part.slow - own.slow).max(0.0);
            part.deviation = (part.deviation.powi(2) - own.deviation.powi(2)).max(0.0).sqrt();
            part.rise = (part.rise - own.rise).max(0.0);
            part.fast = (part.fast - own.fast).max(0.0);
            part.backlog = (part.backlog - own.backlog).max(0.0);
            part.waiting = part.waiting.saturating_sub(own.waiting);
        }
    }

    /// What counts while gateways are lost that last said `lost`: what `live` ones
    /// say, and of what is lost as much as they have not taken over since all of
    /// it came to `before`.
    #[must_use]
    pub fn bridged(live: &Self, lost: &Self, before: &Self) -> Self {
        let mut both = live.clone();
        both.add(lost);
        for (name, part) in &mut both.pools {
            let now = live.pools.get(name).copied().unwrap_or_default();
            let was = before.pools.get(name).copied().unwrap_or_default();
            part.in_flight = part.in_flight.min(was.in_flight).max(now.in_flight);
            part.queued_tokens = part.queued_tokens.min(was.queued_tokens).max(now.queued_tokens);
        }
        for (key, part) in &mut both.pool_sets {
            let now = live.pool_sets.get(key).copied().unwrap_or_default();
            let was = before.pool_sets.get(key).copied().unwrap_or_default();
            *part = PoolSetReport {
                slow: part.slow.min(was.slow).max(now.slow),
                deviation: part.deviation.min(was.deviation).max(now.deviation),
                rise: part.rise.min(was.rise).max(now.rise),
                fast: part.fast.min(was.fast).max(now.fast),
                backlog: part.backlog.min(was.backlog).max(now.backlog),
                oldest: part.oldest,
                unmet: part.unmet,
                waiting: part.waiting.min(was.waiting).max(now.waiting),
            };
        }
        both
    }

    /// Names of pools where anything runs or for which anything waits.
    pub fn busy(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().filter(|(_, part)| part.is_busy()).map(|(name, _)| &**name)
    }
}

/// What other gateways know, for [`crate::core::scheduler::Scheduler::replica_demand_with`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PeerDemand {
    /// The sum of what they see.
    pub sum: DemandReport,
    /// Whether there may be others, though none is known: replicas then may be
    /// used by them, and what is used is not counted twice.
    pub expected: bool,
    /// The number that was decided for a pool last, by one of them.
    pub decided: BTreeMap<String, DecidedNumber>,
    /// Whether that number is to be told; else it is only gone on from.
    pub follow: bool,
}

/// A number that a gateway decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedNumber {
    /// Replicas.
    pub desired: u32,
    /// Where it comes from, as a stable name.
    pub reason: String,
    /// Whether the pool must not go to zero, though nothing waits or runs.
    pub keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unmet_at_one_gateway_is_unmet_for_all() {
        let here = PoolSetReport { slow: 1.0, ..PoolSetReport::default() };
        let there = PoolSetReport { unmet: true, ..here };
        assert!(here.merged(&there).unmet && there.merged(&here).unmet && !here.merged(&here).unmet);
        let mut want = ClassDemand::default();
        here.add_to(&mut want);
        assert!(!want.unmet);
        there.add_to(&mut want);
        assert!(want.unmet && PoolSetReport::of(&want, 0).unmet);
    }
}
