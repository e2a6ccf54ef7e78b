//! Gateway of a replay: the scheduler as a router of the simulated world, with the events of the record
//! that come from neither a request nor an engine.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::event::ReplicaReport;
use crate::core::model::time::Tick;
use crate::dispatcher::event_log::{Decision, LoggedStep};
use crate::record::replay::history::{History, OutsideEvent};
use crate::sim::world::gateway::{EventTrace, SimGateway, TracedStep};
use crate::sim::world::router::{Input, ReplicaIndex, Router, RouterCommand};

/// Time for which a simulated replica does not answer probes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimOutage {
    pub(super) replica: ReplicaIndex,
    pub(super) from: Tick,
    pub(super) until: Tick,
}

impl SimOutage {
    fn is_of(&self, replica: ReplicaIndex, now: Tick) -> bool {
        self.replica == replica && (self.from..self.until).contains(&now)
    }
}

#[derive(Debug)]
pub(super) struct ReplayGateway {
    gateway: SimGateway,
    log: EventTrace,
    history: Arc<Mutex<History>>,
    /// Events that are still to be told, in order of time.
    outside: VecDeque<OutsideEvent>,
    down: Vec<SimOutage>,
    /// Values that the reports of each replica repeat.
    told: Vec<ReplicaReport>,
}

impl ReplayGateway {
    pub(super) fn new(
        gateway: SimGateway,
        history: &Arc<Mutex<History>>,
        outside: Vec<OutsideEvent>,
        down: Vec<SimOutage>,
        told: Vec<ReplicaReport>,
    ) -> Self {
        let log = EventTrace::default();
        let gateway = gateway.recorded(&log);
        Self { gateway, log, history: Arc::clone(history), outside: outside.into(), down, told }
    }

    fn tell_outside(&mut self, now: Tick, out: &mut Vec<RouterCommand>) {
        while self.outside.front().is_some_and(|next| next.at <= now)
            && let Some(next) = self.outside.pop_front()
        {
            self.gateway.step(now, next.event, out);
        }
    }

    fn is_down(&self, replica: ReplicaIndex, now: Tick) -> bool {
        self.down.iter().any(|outage| outage.is_of(replica, now))
    }

    /// Moves the steps of the scheduler into the history.
    fn note(&self) {
        let mut history = self.history.lock();
        for TracedStep { at, event, actions } in self.log.lock().drain(..) {
            let decisions = actions.iter().filter_map(Decision::of).collect();
            history.step(&LoggedStep { at, event, decisions });
        }
    }
}

impl Router for ReplayGateway {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        self.tell_outside(now, out);
        let input = match input {
            Input::Reported { replica, .. } if self.is_down(replica, now) => Input::Wake,
            Input::Probed { replica, alive: true } if self.is_down(replica, now) => {
                Input::Probed { replica, alive: false }
            }
            Input::Reported { replica, report } => {
                let told = self.told.get(replica).copied().unwrap_or_default();
                let report = ReplicaReport { slots: told.slots, max_model_len: told.max_model_len, ..report };
                Input::Reported { replica, report }
            }
            other => other,
        };
        self.gateway.handle(now, input, out);
        self.note();
    }

    fn next_wake(&self) -> Option<Tick> {
        let outside = self.outside.front().map(|next| next.at);
        [self.gateway.next_wake(), outside].into_iter().flatten().min()
    }

    fn replica_demand(&mut self, now: Tick, out: &mut Vec<RouterCommand>) -> Vec<ReplicaDemand> {
        self.gateway.replica_demand(now, out)
    }

    fn broken_invariants(&self) -> u64 {
        self.gateway.broken_invariants()
    }
}
