//! Departures: replicas that drain, by the policy or an override, and replicas that a new policy
//! no longer has. A departing replica gets no new work.
//!
//! Jobs whose clients have seen nothing go to other replicas, with their age: at once from a
//! replica that drains, after `Health::drain` from one that left. After `Health::drain`, streams
//! that other engines can continue migrate, too. All other streams may end where they are.
//!
//! When no other replica is in service, jobs stay: their replica may still answer them. If it does
//! not, they return to their lanes as after any fault.

use std::time::Duration;

use crate::model::event::Action;
use crate::model::ids::ReplicaId;
use crate::model::overrides::Closed;
use crate::model::reason::PreemptReason;
use crate::replica::fleet::ReplicaChanges;

use crate::scheduler::Scheduler;

/// Drain time after a spot notice, at most. Clouds give at least 30 s from the notice to the end
/// of a machine; streams leave before that.
const SPOT_NOTICE: Duration = Duration::from_secs(20);

impl Scheduler {
    /// Follows up on what a new policy did to the replicas.
    pub(in crate::scheduler) fn follow_replica_changes(
        &mut self,
        changes: ReplicaChanges,
        out: &mut Vec<Action>,
    ) {
        let mut timers = std::mem::take(&mut self.timers.departures);
        timers.retain(|replica| self.is_departing(replica));
        self.timers.departures = timers;
        for replica in changes.left {
            self.affinity.prefixes.remove(replica);
            // One that runs nothing is forgotten already.
            if self.fleet.pool_of(replica).is_some() {
                self.expect_departure(replica);
            }
        }
        for replica in changes.draining {
            let why = if self.has_spot_notice(replica) {
                PreemptReason::SpotNotice
            } else {
                PreemptReason::Drained
            };
            self.preempt_all(replica, why, out);
            self.expect_departure(replica);
        }
    }

    /// The replica is to be empty after the time of a drain, or of the notice
    /// that an operator gave; at the moment that was settled first.
    pub(in crate::scheduler) fn expect_departure(&mut self, replica: ReplicaId) {
        let drain = self.policy.health.drain;
        let spot = self.has_spot_notice(replica);
        let until = self.now + if spot { drain.min(SPOT_NOTICE) } else { drain };
        let known = self.timers.departures.iter().find(|(_, other)| *other == replica);
        if known.is_none_or(|(at, _)| until < at) {
            self.timers.departures.retain(|other| other != replica);
            self.timers.departures.add(until, replica);
        }
    }

    /// Whether its machine will be taken away, by an operator's word or its
    /// orchestrator's.
    fn has_spot_notice(&self, replica: ReplicaId) -> bool {
        self.fleet.closed(replica) == Some(Closed::SpotNotice) || self.policy.spot_notices.contains(&replica)
    }

    /// The replica stays after all.
    pub(in crate::scheduler) fn expect_no_departure(&mut self, replica: ReplicaId) {
        if !self.is_departing(replica) {
            self.timers.departures.retain(|other| other != replica);
        }
    }

    /// Takes back what replicas that go have held for too long.
    pub(in crate::scheduler) fn clear_departing(&mut self, out: &mut Vec<Action>) {
        while let Some(replica) = self.timers.departures.pop_due(self.now) {
            let why = if self.has_spot_notice(replica) {
                PreemptReason::SpotNotice
            } else {
                PreemptReason::Drained
            };
            self.preempt_all(replica, why, out);
            if !self.fleet.is_up(replica) {
                self.migrate_streams(replica, why, out);
            }
        }
    }

    /// Whether the replica is about to go, or has left.
    fn is_departing(&self, replica: ReplicaId) -> bool {
        let closed = matches!(self.fleet.closed(replica), Some(Closed::Drained | Closed::SpotNotice));
        closed || self.policy.draining.contains(&replica) || self.policy.replicas.get(replica).is_none()
    }
}
