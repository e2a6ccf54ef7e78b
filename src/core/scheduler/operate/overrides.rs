//! Overrides in the scheduler: closed pools and replicas, paused and boosted tenants.
//!
//! A closed replica gets nothing new and finishes its streams, as far as it may
//! ([`crate::scheduler::health::departures`]). A replica that opens again starts slowly, since it
//! may have been restarted in between. A paused tenant's jobs wait; those that surely cannot wait until
//! the pause ends are refused when they come. A pause earns no priority.

use std::sync::Arc;

use crate::model::event::{Action, Event, JobAction, RejectReason, ReplicaAction};
use crate::model::ids::{GroupIndex, ReplicaId, TenantId};
use crate::model::overrides::{Closed, Override, OverrideTarget};
use crate::model::reason::PreemptReason;
use crate::model::snapshot::OverrideResult;
use crate::model::time::Tick;
use crate::queue::lane_key::{LaneKey, LanePart};
use crate::queue::quota::QuotaState;

use crate::scheduler::Scheduler;

impl Scheduler {
    /// [`Self::handle`] of an operator's event. Returns the state before and after it, and
    /// how many jobs it put back into the queue.
    pub fn operate(&mut self, now: Tick, event: Event, out: &mut Vec<Action>) -> OverrideResult {
        let (before, first) = (self.snapshot(now), out.len());
        self.handle(now, event, out);
        let preempted = |action: &&Action| matches!(action, Action::Job(JobAction::Preempt { .. }));
        let requeued = out[first..].iter().filter(preempted).count() as u64;
        OverrideResult { before, after: self.snapshot(now), requeued }
    }

    /// Puts an override in force; one whose time is over already changes
    /// nothing.
    pub(in crate::scheduler) fn set_override(&mut self, wanted: Override, out: &mut Vec<Action>) {
        if wanted.until <= self.now {
            return;
        }
        let measure = wanted.change;
        self.overrides.set(wanted, self.now);
        self.apply_override(measure.target());
        let why = match measure.closed() {
            Some(Closed::Drained) => PreemptReason::Drained,
            Some(Closed::SpotNotice) => PreemptReason::SpotNotice,
            Some(Closed::Cordoned) | None => return,
        };
        for replica in self.replicas_of(measure.target()) {
            self.preempt_all(replica, why, out);
            if self.fleet.pool_of(replica).is_some() {
                self.expect_departure(replica);
            }
        }
    }

    /// Ends the override of a target, if there is one.
    pub(in crate::scheduler) fn end_override(&mut self, target: OverrideTarget) {
        if !self.overrides.end(target) {
            return;
        }
        if let OverrideTarget::Pause(tenant) = target {
            self.resume(tenant);
        }
        self.apply_override(target);
    }

    /// Ends the overrides whose time is over.
    pub(in crate::scheduler) fn expire_overrides(&mut self, out: &mut Vec<Action>) {
        while let Some(target) = self.overrides.due(self.now) {
            self.end_override(target);
            out.push(Action::Replica(ReplicaAction::OverrideExpired { target }));
        }
    }

    /// Closes and opens every replica as the overrides in force say.
    pub(in crate::scheduler) fn apply_all_closed(&mut self) {
        let policy = Arc::clone(&self.policy);
        for (replica, _, row) in policy.replicas.iter() {
            if self.fleet.closed(replica) != self.overrides.closed(row.pool, replica) {
                self.apply_closed(replica);
            }
        }
    }

    /// Where a tenant stands in a group: a paused one is parked.
    pub(in crate::scheduler) fn quota_state(&self, group: GroupIndex, tenant: TenantId) -> QuotaState {
        match self.overrides.paused_until(tenant) {
            Some(_) => QuotaState::Parked,
            None => self.groups[group].quotas.state(tenant),
        }
    }

    /// Whether the quotas allow a job of the tenant with `seqs` sequences.
    pub(in crate::scheduler) fn allows(&self, group: GroupIndex, tenant: TenantId, seqs: u32) -> bool {
        self.overrides.paused_until(tenant).is_none() && self.groups[group].quotas.allows(tenant, seqs)
    }

    /// The reason to tell a tenant's client whose job waits in vain.
    pub(in crate::scheduler) fn reason_for(&self, tenant: TenantId, usual: RejectReason) -> RejectReason {
        self.overrides.paused_until(tenant).map_or(usual, |_| RejectReason::Paused)
    }

    /// Whether all replicas are closed as the overrides say.
    pub(in crate::scheduler) fn overrides_are_followed(&self) -> bool {
        self.policy.replicas.iter().filter(|(_, _, row)| self.policy.pools.get(row.pool).is_some()).all(
            |(id, _, row)| {
                let closed = self.overrides.closed(row.pool, id);
                self.fleet.closed(id) == closed && !(closed.is_some() && self.fleet.is_up(id))
            },
        )
    }

    /// Brings everything that the target moves up to date.
    fn apply_override(&mut self, target: OverrideTarget) {
        match target {
            OverrideTarget::Pool(_) | OverrideTarget::Replica(_) => {
                self.replicas_of(target).into_iter().for_each(|replica| self.apply_closed(replica));
            }
            OverrideTarget::Pause(tenant) | OverrideTarget::Boost(tenant) => {
                for group in self.groups.indexes() {
                    self.refresh_quota_state(group, tenant);
                    self.groups.mark_changed(Some(group));
                }
            }
        }
    }

    /// The replicas that a target closes, in the order of the file.
    fn replicas_of(&self, target: OverrideTarget) -> Vec<ReplicaId> {
        match target {
            OverrideTarget::Pool(pool) => {
                self.policy.pools.get(pool).map_or(Vec::new(), |row| row.replicas.clone())
            }
            OverrideTarget::Replica(replica) => vec![replica],
            OverrideTarget::Pause(_) | OverrideTarget::Boost(_) => Vec::new(),
        }
    }

    fn apply_closed(&mut self, replica: ReplicaId) {
        let Some(pool) = self.fleet.pool_of(replica) else { return };
        self.fleet.set_closed(replica, self.overrides.closed(pool, replica), self.now);
        self.expect_no_departure(replica);
        self.vain_waits_possible = true;
        self.mark_pool(pool);
    }

    /// A pause is over: the tenant stands where one stands that comes now, and
    /// how slowly its jobs went says nothing of how they will go.
    fn resume(&mut self, tenant: TenantId) {
        for group in self.groups.iter_mut() {
            group.forget_drain_rates_of(tenant, self.now);
        }
        let lanes: Vec<LaneKey> = self.queue.lanes().map(|(key, _)| key).collect();
        for key in lanes.into_iter().filter(|key| key.tenant == tenant) {
            let waits = self.queue.lane(key).is_some_and(|lane| lane.head(LanePart::New).is_some());
            if let Some(spot) = self.lane_position(key).filter(|_| waits) {
                self.groups[spot.group].lift(spot.class, spot.pool_set, tenant);
            }
        }
    }
}
