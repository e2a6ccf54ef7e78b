//! Replicas that go: those that are about to, and those that a new policy no
//! longer has. Neither gets new work, and streams go on to their end. What
//! clients have seen nothing of goes to others, with its age: at once from a
//! replica that is about to go, after `Health::drain` from one that left.
//!
//! Where no other replica is in service, such jobs stay: what is there may yet
//! answer them, and if it does not they come back as from any fault.

use crate::core::event::{Action, Recalled};
use crate::core::fleet::Departures;

use super::Scheduler;

impl Scheduler {
    /// Follows up on what a new policy did to the replicas.
    pub(super) fn depart(&mut self, departures: Departures, out: &mut Vec<Action>) {
        let until = self.now + self.policy.health.drain;
        let policy = &self.policy;
        self.departed.retain(|(_, replica)| policy.replicas.get(*replica).is_none());
        for replica in departures.left {
            self.prefixes.remove(replica);
            // One that runs nothing is forgotten already.
            if self.fleet.pool_of(replica).is_some() {
                self.departed.insert((until, replica));
            }
        }
        for replica in departures.draining {
            let spot = self.policy.spot_notices.contains(&replica);
            self.vacate(replica, if spot { Recalled::SpotNotice } else { Recalled::Drained }, out);
        }
    }

    /// Takes back what departed replicas have held for too long.
    pub(super) fn clear_departed(&mut self, out: &mut Vec<Action>) {
        while let Some(&(at, replica)) = self.departed.first().filter(|(at, _)| *at <= self.now) {
            self.departed.remove(&(at, replica));
            self.vacate(replica, Recalled::Drained, out);
        }
    }
}
