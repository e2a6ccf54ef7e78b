//! Demand report: one gateway's part of the demand, keyed by names, for its peers to add. Pools
//! and classes that the policy does not have are ignored, because gateways may run different
//! policy files for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::autoscale::demand::utilization::{DIMENSIONS, ReplicasInUse, cost_of};

use crate::autoscale::class_demand::ClassDemand;

/// Demand as one gateway sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DemandReport {
    /// By pool name.
    pub pools: BTreeMap<String, PoolReport>,
    /// By class and pool set.
    pub pool_sets: BTreeMap<PoolSetKey, PoolSetReport>,
}

/// Key of a pool set's demand: the class and the pools, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PoolSetKey {
    pub class: String,
    /// Pools of the pool set, the preferred one first.
    pub pools: Vec<String>,
}

/// Demand of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PoolReport {
    /// Jobs that run there.
    pub in_flight: u64,
    /// Tokens of the jobs that wait for the pool.
    pub queued_tokens: u64,
    /// Recent replica seconds in use, in each of the ways.
    pub used: ReplicasInUse,
    /// Work sent to the pool in the same time as `used`.
    pub work: f64,
    /// Replica seconds for a unit of work; `None` = not measured.
    pub cost: Option<f64>,
    /// Mean time of a start; `None` = no start was measured.
    pub start: Option<Duration>,
}

/// Demand of one class in one pool set.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PoolSetReport {
    /// Sustained work per second.
    pub sustained: f64,
    /// Standard deviation of the concurrent work.
    pub deviation: f64,
    /// Expected rise of the work per second until a replica has started.
    pub rise: f64,
    /// Work per second over the fast window.
    pub fast: f64,
    /// Waiting work.
    pub backlog: f64,
    /// Age of the oldest waiting job.
    pub oldest: Duration,
    /// Jobs that wait.
    pub waiting: u64,
    /// See [`ClassDemand::unmet`].
    pub unmet: bool,
}

impl PoolReport {
    /// Whether jobs run in the pool or wait for it.
    pub const fn is_busy(&self) -> bool {
        self.in_flight > 0 || self.queued_tokens > 0
    }

    /// Replica seconds for a unit of work: from the measurements of all gateways together, else
    /// from one of them.
    pub fn cost(&self) -> Option<f64> {
        cost_of(self.used, self.work).or(self.cost)
    }

    /// Sum of both reports. The oldest waiting job of either counts.
    pub fn merged(&self, other: &Self) -> Self {
        Self {
            in_flight: self.in_flight.saturating_add(other.in_flight),
            queued_tokens: self.queued_tokens.saturating_add(other.queued_tokens),
            used: std::array::from_fn::<f64, DIMENSIONS, _>(|way| self.used[way] + other.used[way]),
            work: self.work + other.work,
            cost: larger(self.cost, other.cost),
            start: self.start.max(other.start),
        }
    }
}

impl PoolSetReport {
    /// Report of a class's demand, with its number of waiting jobs.
    pub const fn of(want: &ClassDemand, waiting: u64) -> Self {
        let ClassDemand { sustained: slow, deviation, rise, fast, backlog, oldest, unmet, .. } = *want;
        Self { sustained: slow, deviation, rise, fast, backlog, oldest, waiting, unmet }
    }

    /// Sum of both reports. The oldest waiting job of either counts.
    pub fn merged(&self, other: &Self) -> Self {
        Self {
            sustained: self.sustained + other.sustained,
            // Arrivals at two gateways are independent, so their variances add.
            deviation: self.deviation.hypot(other.deviation),
            rise: self.rise + other.rise,
            fast: self.fast + other.fast,
            backlog: self.backlog + other.backlog,
            oldest: self.oldest.max(other.oldest),
            waiting: self.waiting.saturating_add(other.waiting),
            unmet: self.unmet || other.unmet,
        }
    }

    pub fn add_to(&self, want: &mut ClassDemand) {
        want.sustained += self.sustained;
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
    /// Adds the report of another gateway.
    pub fn add(&mut self, other: &Self) {
        for (name, part) in &other.pools {
            let own = self.pools.entry(name.clone()).or_default();
            *own = own.merged(part);
        }
        for (key, part) in &other.pool_sets {
            let own = self.pool_sets.entry(key.clone()).or_default();
            *own = own.merged(part);
        }
    }

    /// Subtracts the report of a gateway. The costs, start times, ages and `unmet` of the sum stay.
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
            part.sustained = (part.sustained - own.sustained).max(0.0);
            part.deviation = (part.deviation.powi(2) - own.deviation.powi(2)).max(0.0).sqrt();
            part.rise = (part.rise - own.rise).max(0.0);
            part.fast = (part.fast - own.fast).max(0.0);
            part.backlog = (part.backlog - own.backlog).max(0.0);
            part.waiting = part.waiting.saturating_sub(own.waiting);
        }
    }

    /// Demand while gateways are lost: the reports of the `live` ones, plus the last reports of the
    /// `lost` ones as far as live gateways have not taken their requests over. `before` is the sum
    /// of all reports before the loss and bounds the result, unless the live reports alone exceed
    /// it.
    pub fn with_lost(live: &Self, lost: &Self, before: &Self) -> Self {
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
                sustained: part.sustained.min(was.sustained).max(now.sustained),
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

    /// Names of pools in which jobs run or for which jobs wait.
    pub fn busy(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().filter(|(_, part)| part.is_busy()).map(|(name, _)| &**name)
    }
}

/// Demand of other gateways, for
/// [`crate::autoscale::observer::DemandObserver::replica_demand`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PeerDemand {
    /// Sum of their demand reports.
    pub sum: DemandReport,
    /// True when other gateways may exist, even if none is known. Other gateways may then use a
    /// part of each replica, and used capacity is not counted twice.
    pub expected: bool,
    /// Numbers that one of the gateways decided last, by pool name.
    pub decided: BTreeMap<String, DecidedNumber>,
    /// True when this gateway reports the decided numbers. When false, it only continues from them.
    pub follow: bool,
}

/// Number of replicas that a gateway decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedNumber {
    /// Desired replicas.
    pub desired: u32,
    /// Reason of the number, as a stable name.
    pub reason: String,
    /// True when the pool must not go to zero although no job waits or runs.
    pub keep_above_zero: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unmet_at_one_gateway_is_unmet_for_all() {
        let here = PoolSetReport { sustained: 1.0, ..PoolSetReport::default() };
        let there = PoolSetReport { unmet: true, ..here };
        assert!(here.merged(&there).unmet && there.merged(&here).unmet && !here.merged(&here).unmet);
        let mut want = ClassDemand::default();
        here.add_to(&mut want);
        assert!(!want.unmet);
        there.add_to(&mut want);
        assert!(want.unmet && PoolSetReport::of(&want, 0).unmet);
    }
}
