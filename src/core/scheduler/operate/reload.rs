//! Reload: replaces the policy while jobs wait and run.

use std::sync::Arc;

use crate::core::model::event::{Action, RejectReason};
use crate::core::model::ids::JobId;
use crate::core::model::invariant::InvariantId;
use crate::core::model::policy::Policy;
use crate::core::placement::Placement;
use crate::core::queue::lane_key::LaneKey;

use crate::core::scheduler::Scheduler;

impl Scheduler {
    /// Swaps the policy. Jobs that wait keep their places, jobs that run go
    /// on; what has no place in the new policy is refused. This looks at
    /// everything, once.
    pub(in crate::core::scheduler) fn reload(&mut self, policy: Arc<Policy>, out: &mut Vec<Action>) {
        let placement = Arc::new(Placement::new(&policy));
        self.groups.apply(&policy, &placement);
        self.policy = policy;
        self.placement = placement;
        let departures = self.fleet.apply(&self.policy, self.now);
        self.demand.apply(&self.policy, &self.placement, &self.groups, self.now);
        self.groups.mark_halted(&self.fleet, self.now);
        self.apply_all_closed();
        self.lengths.retain(&self.policy);
        self.limits.apply(&self.policy);
        self.count_quotas();
        self.renew_preemptible();

        let orphans = self.place_all_lanes();
        for (job, reason) in orphans {
            self.reject(job, reason, out);
        }
        self.follow_departures(departures, out);
        self.renew_holds(out);
        self.groups.mark_all_changed();
        self.vain_waits_possible = true;
    }

    /// Moves jobs to other lanes where the context windows of their models changed.
    fn refresh_context_groups(&mut self) {
        for job in self.jobs.values_mut() {
            let fit = self.placement.context_group(job.spec.model, job.spec.context);
            if fit == job.spec.context_group {
                continue;
            }
            let before = job.spec;
            job.spec.context_group = fit;
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

    /// Gives every lane its place in the new groups. Returns the jobs that
    /// have none.
    fn place_all_lanes(&mut self) -> Vec<(JobId, RejectReason)> {
        self.refresh_context_groups();
        self.timers.head_updates.clear();
        let keys: Vec<LaneKey> = self.queue.lanes().map(|(key, _)| key).collect();
        let mut orphans = Vec::new();
        for key in keys {
            let Some(lane) = self.queue.lane_mut(key) else { continue };
            (lane.head_positions, lane.refresh_at) = ([None; 2], None);
            let waiting = lane.load().requests;
            if let Some(spot) = self.lane_position(key) {
                for _ in 0..waiting {
                    self.groups[spot.group].joined(spot.class, spot.pool_set, key.tenant, self.now);
                }
                let jobs = self.queue.lane(key).into_iter().flat_map(|lane| lane.jobs());
                for job in jobs.filter_map(|id| self.jobs.get(&id)) {
                    self.groups[spot.group].note_wide(job.spec.sequences);
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
