//! Replicas that go: those that are about to, by the policy or by an operator's
//! word, and those that a new policy no longer has. They get no new work. What
//! clients have seen nothing of goes to others, with its age: at once from a
//! replica that is about to go, after `Health::drain` from one that left. After
//! that time streams go on elsewhere, too, where others can go on with them; the
//! rest may end.
//!
//! Where no other replica is in service, jobs stay: what is there may yet
//! answer them, and if it does not they come back as from any fault.

use std::time::Duration;

use crate::core::model::event::{Action, PreemptReason};
use crate::core::model::ids::ReplicaId;
use crate::core::model::overrides::Closed;
use crate::core::replica::fleet::Departures;

use crate::core::scheduler::Scheduler;

/// What clouds give at least from the notice to the end of a machine is 30 s;
/// streams leave it before that.
const SPOT_NOTICE: Duration = Duration::from_secs(20);

impl Scheduler {
    /// Follows up on what a new policy did to the replicas.
    pub(in crate::core::scheduler) fn follow_departures(
        &mut self,
        departures: Departures,
        out: &mut Vec<Action>,
    ) {
        let mut departing = std::mem::take(&mut self.departing);
        departing.retain(|(_, replica)| self.is_departing(*replica));
        self.departing = departing;
        for replica in departures.left {
            self.prefixes.remove(replica);
            // One that runs nothing is forgotten already.
            if self.fleet.pool_of(replica).is_some() {
                self.expect_departure(replica);
            }
        }
        for replica in departures.draining {
            let why = if self.has_spot_notice(replica) {
                PreemptReason::SpotNotice
            } else {
                PreemptReason::Drained
            };
            self.vacate(replica, why, out);
            self.expect_departure(replica);
        }
    }

    /// The replica is to be empty after the time of a drain, or of the notice
    /// that an operator gave; at the moment that was settled first.
    pub(in crate::core::scheduler) fn expect_departure(&mut self, replica: ReplicaId) {
        let drain = self.policy.health.drain;
        let spot = self.has_spot_notice(replica);
        let until = self.now + if spot { drain.min(SPOT_NOTICE) } else { drain };
        let known = self.departing.iter().find(|(_, other)| *other == replica);
        if known.is_none_or(|(at, _)| until < *at) {
            self.departing.retain(|(_, other)| *other != replica);
            self.departing.insert((until, replica));
        }
    }

    /// Whether its machine will be taken away, by an operator's word or its
    /// orchestrator's.
    fn has_spot_notice(&self, replica: ReplicaId) -> bool {
        self.fleet.closed(replica) == Some(Closed::SpotNotice) || self.policy.spot_notices.contains(&replica)
    }

    /// The replica stays after all.
    pub(in crate::core::scheduler) fn expect_no_departure(&mut self, replica: ReplicaId) {
        if !self.is_departing(replica) {
            self.departing.retain(|(_, other)| *other != replica);
        }
    }

    /// Takes back what replicas that go have held for too long.
    pub(in crate::core::scheduler) fn clear_departing(&mut self, out: &mut Vec<Action>) {
        while let Some(&(at, replica)) = self.departing.first().filter(|(at, _)| *at <= self.now) {
            self.departing.remove(&(at, replica));
            let why = if self.has_spot_notice(replica) {
                PreemptReason::SpotNotice
            } else {
                PreemptReason::Drained
            };
            self.vacate(replica, why, out);
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
