//! Elastic world: runs the autoscaler's timers and applies its orders to
//! engines and routers.

use std::time::Duration;

use crate::world::autoscale::policy::ScalePolicy;
use crate::world::autoscale::scaler::VisibleWorld;
use crate::world::autoscale::state::Elastic;
use crate::world::autoscale::{hpa, kpa};
use crate::world::event::{ScaleTimer, WorldEvent};
use crate::world::router::{Input, MemberState, ReplicaIndex};
use crate::world::run::World;
use penstock_core::model::time::Tick;

/// Time between two computations of the gateway's own replica number.
const RECOMPUTE_PERIOD: Duration = Duration::from_millis(250);

impl World<'_> {
    /// Tells the routers which replicas are there, and starts the timers. The
    /// HPA's sync is offset by half its period, so that it never coincides with
    /// a poll.
    pub(in crate::world) fn begin_scaling(&mut self) {
        let Some(elastic) = &self.elastic else { return };
        let (policy, poll) = (elastic.scaling.policy, elastic.scaling.poll);
        match policy {
            ScalePolicy::Fixed(_) => {}
            ScalePolicy::Kpa(_) => {
                self.schedule(Tick::ZERO + kpa::SAMPLE, WorldEvent::Beat(ScaleTimer::Sample));
            }
            _ => {
                self.schedule(Tick::ZERO + poll, WorldEvent::Beat(ScaleTimer::Poll));
                self.schedule(Tick::ZERO + hpa::SYNC / 2, WorldEvent::Beat(ScaleTimer::Sync));
            }
        }
        if policy == ScalePolicy::Need {
            self.schedule(Tick::ZERO + RECOMPUTE_PERIOD, WorldEvent::Beat(ScaleTimer::Recompute));
        }
        self.announce_members();
    }

    /// Whether the replica is there and takes connections.
    pub(in crate::world) fn is_reachable(&self, replica: ReplicaIndex) -> bool {
        let is_there = self.elastic.as_ref().is_none_or(|elastic| elastic.slots.is_there(replica));
        is_there && !self.replicas[replica].crashed
    }

    pub(in crate::world) fn beat(&mut self, beat: ScaleTimer) {
        let Some(elastic) = &self.elastic else { return };
        let again = match beat {
            ScaleTimer::Poll => elastic.scaling.poll,
            ScaleTimer::Sync => hpa::SYNC,
            ScaleTimer::Sample => kpa::SAMPLE,
            ScaleTimer::Recompute => RECOMPUTE_PERIOD,
            ScaleTimer::Ready(replica, order) => return self.finish_starts(replica, order),
        };
        self.schedule(self.now + again, WorldEvent::Beat(beat));
        self.scale(beat);
    }

    /// Reports a new request to the autoscaler. When no replica is ordered, a
    /// policy with a push polls at once.
    pub(in crate::world) fn push_arrival(&mut self) {
        let is_heard = |elastic: &Elastic| elastic.slots.ordered() == 0 && elastic.scaling.policy.is_pushed();
        if self.elastic.as_ref().is_some_and(is_heard) {
            self.scale(ScaleTimer::Poll);
        }
    }

    fn scale(&mut self, beat: ScaleTimer) {
        let seen = self.visible_world();
        let Some(elastic) = &mut self.elastic else { return };
        let (now, current) = (self.now, elastic.slots.ordered());
        let count = match beat {
            ScaleTimer::Sync => elastic.scaler.sync(now, current, &seen),
            ScaleTimer::Sample => elastic.scaler.sample(now, current, &seen),
            ScaleTimer::Recompute => current,
            ScaleTimer::Poll | ScaleTimer::Ready(..) => elastic.scaler.poll(now, current, &seen),
        };
        let change = elastic.slots.order(now, count);
        for start in change.starts {
            let ready = ScaleTimer::Ready(start.replica, start.order);
            self.schedule(start.ready_at, WorldEvent::Beat(ready));
        }
        if !change.leaves.is_empty() {
            self.announce_members();
            for replica in change.leaves {
                self.remove_if_idle(replica);
            }
        }
    }

    fn visible_world(&mut self) -> VisibleWorld {
        let need = self.replica_demand();
        let (mut inside, mut waiting) = (0, 0);
        for replica in &self.replicas {
            inside += replica.engine.requests() as usize;
            waiting += replica.engine.waiting() as usize;
        }
        let open = self.open + self.arrived - self.setup.arrivals.len();
        let ready = self.elastic.as_ref().map_or(0, |elastic| elastic.slots.ready());
        let running = inside.saturating_sub(waiting);
        let tokens = self.elastic.as_ref().map_or(0.0, |elastic| {
            let known = matches!(elastic.scaling.policy, ScalePolicy::Known(_));
            elastic.scaling.highest_demand(self.now, known)
        });
        VisibleWorld { queued: open.saturating_sub(running), running, ready, demand: need, tokens }
    }

    /// Applies the starts that end now. Replicas that become ready at the same
    /// moment are announced to routers together.
    fn finish_starts(&mut self, replica: ReplicaIndex, order: u64) {
        let mut next = Some((replica, order));
        let mut joined = false;
        while let Some((replica, order)) = next {
            let Some(elastic) = &mut self.elastic else { return };
            if elastic.slots.started(self.now, replica, order) {
                self.replicas[replica].replace_engine();
                joined = true;
            }
            next = match self.queue.peek() {
                Some((at, WorldEvent::Beat(ScaleTimer::Ready(replica, order)))) if at == self.now => {
                    Some((replica, order))
                }
                _ => None,
            };
            if next.is_some() {
                self.queue.pop();
            }
        }
        if joined {
            self.announce_members();
        }
    }

    fn announce_members(&mut self) {
        let Some(elastic) = &self.elastic else { return };
        let members: Vec<MemberState> = elastic.slots.members();
        for gateway in 0..self.routers.len() {
            self.notify_router(gateway, Input::Members { members: &members });
        }
    }

    /// Removes a leaving replica once nothing runs on it.
    pub(in crate::world) fn remove_if_idle(&mut self, replica: ReplicaIndex) {
        let engine = &self.replicas[replica];
        let Some(elastic) = &mut self.elastic else { return };
        if elastic.slots.is_leaving(replica) && engine.engine.requests() == 0 && engine.step.is_none() {
            elastic.slots.clear(self.now, replica);
            self.announce_members();
        }
    }
}
