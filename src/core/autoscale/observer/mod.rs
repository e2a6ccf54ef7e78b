//! Demand observer: measures the demand from the scheduler's facts, and remembers the number of
//! replicas that it told for each pool.
//!
//! The observer stands beside the scheduler. It takes [`DemandFact`]s in their order, and evaluates
//! the demand on a copy of what waits and runs ([`crate::autoscale::inputs`]). What the
//! scheduler's decisions need of the result goes back as an event
//! ([`DemandObserver::take_growth`]).

mod evaluate;
mod needs;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::autoscale::demand::Demand;
use crate::autoscale::demand::state::DemandState;
use crate::autoscale::demand_report::PoolReport;
use crate::autoscale::desired::DesiredReplicas;
use crate::autoscale::facts::{DemandFact, DemandFactKind, GroupClasses};
use crate::model::event::{Event, PoolGrowth};
use crate::model::ids::PoolId;
use crate::model::policy::Policy;
use crate::placement::Placement;

/// How many replicas each pool needs, and what that follows from.
#[derive(Debug, Default)]
pub struct DemandObserver {
    policy: Arc<Policy>,
    demand: Demand,
    /// Desired replicas of each pool, for the scale signal.
    desired_replicas: BTreeMap<PoolId, DesiredReplicas>,
    /// Growth of each pool that the scheduler was told, where it is not 1.
    told_growth: BTreeMap<PoolId, f64>,
    /// Facts that are not observed yet.
    received: Vec<DemandFact>,
}

impl DemandObserver {
    /// Takes all facts of the list, in constant time if the last ones were observed. The list is
    /// empty afterwards and keeps memory for the next facts.
    pub fn receive(&mut self, facts: &mut Vec<DemandFact>) {
        if self.received.is_empty() {
            std::mem::swap(&mut self.received, facts);
        } else {
            self.received.append(facts);
        }
    }

    /// Observes the facts that were received.
    pub fn observe(&mut self) {
        let mut facts = std::mem::take(&mut self.received);
        facts.drain(..).for_each(|fact| self.note(fact));
        self.received = facts;
    }

    fn note(&mut self, DemandFact { at: now, kind }: DemandFact) {
        match kind {
            DemandFactKind::PolicyChanged { policy, placement, classes } => {
                self.apply(policy, &placement, &classes);
            }
            DemandFactKind::Arrived { job, at, work } => {
                self.demand.profiles.enter(&job);
                self.demand.note_arrival(at, work, now);
            }
            DemandFactKind::Dispatched { job, at, pool, work, queued, again } => {
                self.demand.note_dispatch(at, pool, work, again, now);
                self.demand.profiles.sent(&job, pool);
                if !again {
                    let class = self.policy.classes.get(job.class);
                    let in_time = class.is_none_or(|class| queued <= class.ttft_objective);
                    self.demand.profiles.began(&job, pool, queued, in_time);
                }
            }
            DemandFactKind::Refused { job, scarce } => {
                self.demand.profiles.refused(&job);
                if let Some(at) = scarce {
                    self.demand.note_refusal(at, now);
                }
            }
            DemandFactKind::AttemptEnded { job, accounts, pool, lasted } => {
                self.demand.note_attempt_end(accounts, lasted);
                if let Some(pool) = pool {
                    self.demand.profiles.attempt_ended(&job, pool, lasted);
                }
            }
            DemandFactKind::Moved { from, to } => self.demand.profiles.moved(from, to),
            DemandFactKind::Left { job, output } => self.demand.profiles.leave(&job, output),
        }
    }

    fn apply(&mut self, policy: Arc<Policy>, placement: &Placement, classes: &GroupClasses) {
        self.demand.apply(placement.groups(), classes, policy.pools.capacity());
        let Policy { models, pools, classes, tenants, .. } = &*policy;
        let profiles = &mut self.demand.profiles;
        profiles.resize(models.capacity(), pools.capacity(), classes.capacity(), tenants.capacity());
        self.desired_replicas.retain(|pool, _| pools.get(*pool).is_some());
        self.told_growth.retain(|pool, _| pools.get(*pool).is_some());
        self.policy = policy;
    }

    /// The event that tells the scheduler how its pools are expected to grow. `None` when nothing
    /// has changed since the last one.
    #[must_use]
    pub fn take_growth(&mut self) -> Option<Event> {
        let mut changes = Vec::new();
        for (pool, desired) in &self.desired_replicas {
            let (pool, factor) = (*pool, desired.growth());
            let told = self.told_growth.get(&pool).copied().unwrap_or(1.0);
            if factor.total_cmp(&told).is_ne() {
                changes.push(PoolGrowth { pool, factor });
                self.told_growth.insert(pool, factor);
            }
        }
        (!changes.is_empty()).then_some(Event::GrowthExpected(changes))
    }

    /// The demand measured so far, to be kept over a restart. The scheduler adds what it knows of
    /// the pools.
    #[must_use]
    pub fn save(&mut self) -> DemandState {
        self.observe();
        self.demand.save(&self.policy)
    }

    /// Takes over the demand that was seen before a restart, as far as the policy
    /// has what it is of. False when it is of another version, and nothing was
    /// taken over.
    pub fn restore(&mut self, state: &DemandState) -> bool {
        self.observe();
        self.demand.restore(&self.policy, state)
    }

    /// What was measured here of the pool's replicas.
    fn measured(&self, pool: PoolId) -> PoolReport {
        let Some(own) = self.demand.pool(pool) else { return PoolReport::default() };
        let (used, work) = own.evidence();
        PoolReport { used, work, cost: own.cost(), ..PoolReport::default() }
    }
}
