//! Reload: replaces the policy while jobs wait and run.

use crate::model::event::{Action, RejectReason};
use crate::model::ids::JobId;
use crate::model::invariant::InvariantId;
use crate::model::policy::{Class, Policy, Quota, Tenant};
use crate::model::time::Tick;
use crate::placement::{Placement, PreparedPolicy};
use crate::queue::lane_key::LaneKey;
use crate::replica::fleet::ActiveObjective;

use crate::scheduler::Scheduler;

/// What has to be done anew because the order of service changed.
struct OrderRenewal {
    /// The models or their context windows changed, so that jobs may belong to other lanes.
    lanes: bool,
    /// Running jobs may have another place in the order in which they are preempted.
    preemptible: bool,
    /// Some waiting job has several sequences.
    has_multi_sequence: bool,
}

impl Scheduler {
    /// [`Self::handle`] of an `Event::PolicyChanged`. Returns the policy that was in force, for the
    /// caller to drop.
    pub fn change_policy(
        &mut self,
        now: Tick,
        policy: PreparedPolicy,
        out: &mut Vec<Action>,
    ) -> PreparedPolicy {
        self.begin_step(now, out);
        let before = self.reload(policy, out);
        self.end_step(out);
        before
    }

    /// Swaps the policy. Jobs that wait keep their places, jobs that run go
    /// on; what has no place in the new policy is refused. A replica that stays as it is costs a
    /// comparison. Lanes and jobs are looked at only when the order of service changes.
    ///
    /// Returns the policy that was in force, for the caller to drop.
    pub(in crate::scheduler) fn reload(
        &mut self,
        PreparedPolicy { policy, placement }: PreparedPolicy,
        out: &mut Vec<Action>,
    ) -> PreparedPolicy {
        let changes = self.fleet.apply(&self.policy, &policy, self.now);
        let before = std::mem::replace(&mut self.policy, policy);
        let routes = std::mem::replace(&mut self.placement, placement);
        let renewal = self.order_renewal(&before, &routes, changes.moved);
        if renewal.is_some() {
            self.renew_groups();
        }
        self.demand.apply(&self.policy, &self.placement, &self.groups, self.now);
        self.groups.mark_halted(&self.fleet, self.now);
        self.apply_all_closed();
        if before.limits != self.policy.limits {
            self.limits.apply(&self.policy.limits);
        }
        let orphans = renewal.map_or_else(Vec::new, |renewal| self.renew_order(&renewal));
        for (job, reason) in orphans {
            self.reject(job, reason, out);
        }
        self.follow_replica_changes(changes, out);
        self.renew_pool_start_waits(out);
        // A replica that is back in the policy may have timers from before it left.
        self.run_replica_timers(out);
        self.groups.mark_all_changed();
        self.vain_waits_possible = true;
        PreparedPolicy { policy: before, placement: routes }
    }

    /// What the order of service needs after the policy `before`; `None` if the order is the same.
    fn order_renewal(&self, before: &Policy, routes: &Placement, moved: bool) -> Option<OrderRenewal> {
        let classes = before.classes.agrees_with(&self.policy.classes, Class::eq);
        let shares = |one: &Tenant, two: &Tenant| (one.parent, one.quota) == (two.parent, two.quota);
        // Nobody waits for a tenant that comes, and all others keep their places.
        let comes_alone = |row: &Tenant| row.parent.is_none() && row.quota == Quota::default();
        let tenants = self.policy.tenants.extends(&before.tenants, shares, comes_alone);
        if !moved && classes && tenants && *self.placement == *routes {
            return None;
        }
        let lanes = !self.placement.has_windows_of(routes);
        let has_multi_sequence = self.groups.iter().any(|group| group.max_sequences() > 1);
        Some(OrderRenewal { lanes, preemptible: moved || lanes || !classes, has_multi_sequence })
    }

    /// Builds the pool groups anew. Nothing waits in them, and they hold no replica.
    fn renew_groups(&mut self) {
        let held = self.groups.iter().flat_map(|group| &group.held_replicas).map(|hold| hold.replica);
        for replica in held.collect::<Vec<_>>() {
            self.fleet.set_held(replica, false, self.now);
        }
        self.groups.apply(&self.policy, &self.placement);
        for (pool, ..) in
            self.policy.pools.iter().filter(|(pool, ..)| self.placement.group_of(*pool).is_none())
        {
            self.fleet.set_objective(pool, ActiveObjective::default(), self.now);
        }
    }

    /// Puts everything into the new order. Returns the jobs that have no place in it.
    fn renew_order(&mut self, renewal: &OrderRenewal) -> Vec<(JobId, RejectReason)> {
        self.lengths.retain(&self.policy);
        self.limits.forget_unknown(&self.policy);
        self.count_quotas();
        if renewal.preemptible {
            self.renew_preemptible();
        }
        if renewal.lanes {
            self.refresh_context_groups();
        }
        self.place_all_lanes(renewal.has_multi_sequence)
    }

    /// Moves jobs to other lanes where the context windows of their models changed.
    fn refresh_context_groups(&mut self) {
        for job in self.jobs.values_mut() {
            let context_group = self.placement.context_group(job.spec.model, job.spec.context);
            if context_group == job.spec.context_group {
                continue;
            }
            let before = job.spec;
            job.spec.context_group = context_group;
            if let Some(part) = job.part() {
                let place = job.position_in(part);
                let weight = self.policy.tenants.get(before.tenant).map_or(1.0, |row| row.weight);
                let whole = self.queue.remove(&before, part, place);
                self.invariants.check(InvariantId::QueueConsistent, whole);
                self.queue.drop_empty(LaneKey::of(&before));
                self.queue.push(&job.spec, part, place, weight);
            }
        }
    }

    /// Gives every lane its place in the new groups. Returns the jobs that have none. Looks at single
    /// jobs only if some job has several sequences.
    fn place_all_lanes(&mut self, has_multi_sequence: bool) -> Vec<(JobId, RejectReason)> {
        self.timers.head_updates.clear();
        let keys: Vec<LaneKey> = self.queue.lanes().map(|(key, _)| key).collect();
        let mut orphans = Vec::new();
        for key in keys {
            let Some(lane) = self.queue.lane_mut(key) else { continue };
            (lane.head_positions, lane.refresh_at) = ([None; 2], None);
            let waiting = lane.load().requests;
            if let Some(spot) = self.lane_position(key).filter(|_| waiting > 0) {
                self.groups[spot.group].joined(spot.class, spot.pool_set, key.tenant, waiting, self.now);
                let lane = self.queue.lane(key).filter(|_| has_multi_sequence);
                let jobs = lane.into_iter().flat_map(|lane| lane.jobs());
                for job in jobs.filter_map(|id| self.jobs.get(&id)) {
                    self.groups[spot.group].add_multi_sequence(job.spec.sequences);
                }
            }
            if let Some(reason) = self.reason_to_withdraw(key) {
                let lane = self.queue.lane(key);
                orphans.extend(lane.into_iter().flat_map(|lane| lane.jobs()).map(|job| (job, reason)));
            } else {
                self.refresh_lane(key);
            }
        }
        orphans
    }
}
