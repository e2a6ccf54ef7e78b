//! Elastic world: runs the autoscaler's timers and applies its orders to
//! engines and routers.

use std::cmp::Reverse;
use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::world::autoscale::policy::ScalePolicy;
use crate::sim::world::autoscale::scaler::{VisibleWorld, WorldScaler};
use crate::sim::world::autoscale::slots::ReplicaSlots;
use crate::sim::world::autoscale::{Scaled, Scaling, hpa, kpa};
use crate::sim::world::router::{Input, MemberState, ReplicaIndex};
use crate::sim::world::run::{Happening, Setup, World};

/// Time between two computations of the gateway's own replica number.
const LOOK: Duration = Duration::from_millis(250);

/// Timer of an autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim::world) enum Beat {
    /// KEDA polls.
    Poll,
    /// The HPA syncs.
    Sync,
    /// Knative's autoscaler takes a sample.
    Sample,
    /// The gateway recomputes its own number, as its scaler keeps it up to
    /// date.
    Look,
    /// The start of a replica is over; the number is that of its order.
    Ready(ReplicaIndex, u64),
}

/// The world's autoscaler and its replica slots.
#[derive(Debug)]
pub(in crate::sim::world) struct Elastic {
    scaler: WorldScaler,
    slots: ReplicaSlots,
    scaling: Scaling,
}

impl Elastic {
    pub(in crate::sim::world) fn new(scaling: &Scaling, setup: &Setup) -> Self {
        let until = setup.arrivals.last().map_or(Tick::ZERO, |arrival| arrival.at);
        Self {
            scaler: WorldScaler::new(scaling),
            slots: ReplicaSlots::new(scaling, setup.replicas.len(), until),
            scaling: scaling.clone(),
        }
    }

    pub(in crate::sim::world) fn settle(self, now: Tick) -> Scaled {
        self.slots.settle(now)
    }
}

impl World<'_> {
    /// Tells the routers which replicas are there, and starts the timers. The
    /// HPA's sync is offset by half its period, so that it never coincides with
    /// a poll.
    pub(in crate::sim::world) fn begin_scaling(&mut self) {
        let Some(elastic) = &self.elastic else { return };
        let (policy, poll) = (elastic.scaling.policy, elastic.scaling.poll);
        match policy {
            ScalePolicy::Fixed(_) => {}
            ScalePolicy::Kpa(_) => self.plan(Tick::ZERO + kpa::SAMPLE, Happening::Beat(Beat::Sample)),
            _ => {
                self.plan(Tick::ZERO + poll, Happening::Beat(Beat::Poll));
                self.plan(Tick::ZERO + hpa::SYNC / 2, Happening::Beat(Beat::Sync));
            }
        }
        if policy == ScalePolicy::Need {
            self.plan(Tick::ZERO + LOOK, Happening::Beat(Beat::Look));
        }
        self.tell_members();
    }

    /// Whether the replica is there and takes connections.
    pub(in crate::sim::world) fn answers(&self, replica: ReplicaIndex) -> bool {
        let is_there = self.elastic.as_ref().is_none_or(|elastic| elastic.slots.is_there(replica));
        is_there && !self.replicas[replica].crashed
    }

    pub(in crate::sim::world) fn beat(&mut self, beat: Beat) {
        let Some(elastic) = &self.elastic else { return };
        let again = match beat {
            Beat::Poll => elastic.scaling.poll,
            Beat::Sync => hpa::SYNC,
            Beat::Sample => kpa::SAMPLE,
            Beat::Look => LOOK,
            Beat::Ready(replica, order) => return self.ready(replica, order),
        };
        self.plan(self.now + again, Happening::Beat(beat));
        self.scale(beat);
    }

    /// Reports a new request to the autoscaler. When no replica is ordered, a
    /// policy with a push polls at once.
    pub(in crate::sim::world) fn knock(&mut self) {
        let is_heard = |elastic: &Elastic| elastic.slots.wanted() == 0 && elastic.scaling.policy.is_pushed();
        if self.elastic.as_ref().is_some_and(is_heard) {
            self.scale(Beat::Poll);
        }
    }

    fn scale(&mut self, beat: Beat) {
        let seen = self.seen();
        let Some(elastic) = &mut self.elastic else { return };
        let (now, current) = (self.now, elastic.slots.wanted());
        let count = match beat {
            Beat::Sync => elastic.scaler.sync(now, current, &seen),
            Beat::Sample => elastic.scaler.sample(now, current, &seen),
            Beat::Look => current,
            Beat::Poll | Beat::Ready(..) => elastic.scaler.poll(now, current, &seen),
        };
        let change = elastic.slots.order(now, count);
        for (replica, order, at) in change.starts {
            self.plan(at, Happening::Beat(Beat::Ready(replica, order)));
        }
        if !change.leaves.is_empty() {
            self.tell_members();
            for replica in change.leaves {
                self.let_leave(replica);
            }
        }
    }

    fn seen(&mut self) -> VisibleWorld {
        let now = self.now;
        let need = self.routers.first_mut().and_then(|router| router.needs(now).first().copied());
        let (mut inside, mut waiting) = (0, 0);
        for replica in &self.replicas {
            inside += replica.engine.requests() as usize;
            waiting += replica.engine.waiting() as usize;
        }
        let open = self.open + self.come - self.setup.arrivals.len();
        let ready = self.elastic.as_ref().map_or(0, |elastic| elastic.slots.ready());
        let running = inside.saturating_sub(waiting);
        VisibleWorld { queued: open.saturating_sub(running), running, ready, need }
    }

    /// Applies the starts that end now. Replicas that become ready at the same
    /// moment are announced to routers together.
    fn ready(&mut self, replica: ReplicaIndex, order: u64) {
        let mut next = Some((replica, order));
        let mut joined = false;
        while let Some((replica, order)) = next {
            let Some(elastic) = &mut self.elastic else { return };
            if elastic.slots.started(self.now, replica, order) {
                self.replicas[replica].renew();
                joined = true;
            }
            next = match self.heap.peek() {
                Some(Reverse((at, _, Happening::Beat(Beat::Ready(replica, order))))) if *at == self.now => {
                    Some((*replica, *order))
                }
                _ => None,
            };
            if next.is_some() {
                self.heap.pop();
            }
        }
        if joined {
            self.tell_members();
        }
    }

    fn tell_members(&mut self) {
        let Some(elastic) = &self.elastic else { return };
        let members: Vec<MemberState> = elastic.slots.members();
        for gateway in 0..self.routers.len() {
            self.tell(gateway, Input::Members { members: &members });
        }
    }

    /// Removes a leaving replica once nothing runs on it.
    pub(in crate::sim::world) fn let_leave(&mut self, replica: ReplicaIndex) {
        let engine = &self.replicas[replica];
        let Some(elastic) = &mut self.elastic else { return };
        if elastic.slots.is_leaving(replica) && engine.engine.requests() == 0 && engine.step.is_none() {
            elastic.slots.left(self.now, replica);
            self.tell_members();
        }
    }
}
