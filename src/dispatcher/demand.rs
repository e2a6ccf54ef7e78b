//! Demand: the demand observer behind a lock of its own. It is evaluated off the dispatcher's lock.
//!
//! The scheduler records demand facts in each step. A reader of the demand takes the facts, with a
//! copy of what waits and runs, in one short hold of the dispatcher's lock. When nobody reads, the step
//! that fills the list of facts hands them over after it has left the dispatcher's lock. That step
//! never waits for a reader. Whoever needs both locks takes the observer's first.

use std::sync::Arc;

use crate::core::autoscale::demand::state::DemandState;
use crate::core::autoscale::demand_report::{DemandReport, PeerDemand};
use crate::core::autoscale::inputs::DemandInputs;
use crate::core::autoscale::observer::DemandObserver;
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::event::Event;
use crate::dispatcher::Dispatcher;

impl Dispatcher {
    /// Replica demand of every pool at this moment.
    pub fn replica_demand(&self) -> Vec<ReplicaDemand> {
        self.replica_demand_with(&PeerDemand::default())
    }

    /// Replica demand of every pool at this moment, with the demand that peers report included.
    pub fn replica_demand_with(&self, others: &PeerDemand) -> Vec<ReplicaDemand> {
        let observer = &mut *self.observer.lock();
        let inputs = self.demand_inputs(observer, others.expected);
        let demands = observer.replica_demand(&inputs, others);
        if let Some(growth) = observer.take_growth() {
            self.event(growth);
        }
        demands
    }

    /// This gateway's part of the demand.
    pub fn demand_report(&self) -> DemandReport {
        let observer = &mut *self.observer.lock();
        let inputs = self.demand_inputs(observer, true);
        observer.demand_report(&inputs)
    }

    /// The demand measured so far, to be kept over a restart.
    pub fn demand_state(&self) -> DemandState {
        let observer = &mut *self.observer.lock();
        self.state.lock().scheduler.flush_demand_facts(observer);
        let mut state = observer.save();
        self.state.lock().scheduler.complete_demand_state(&mut state);
        state
    }

    /// Restores the demand measured before a restart. False if `state` has another version.
    pub fn restore_demand(&self, state: &DemandState) -> bool {
        let observer = &mut *self.observer.lock();
        self.state.lock().scheduler.flush_demand_facts(observer);
        let restored = observer.restore(state);
        if restored {
            let policy = Arc::clone(self.state.lock().scheduler.policy());
            self.event(Event::StartsRestored(state.starts(&policy)));
        }
        restored
    }

    fn demand_inputs(&self, observer: &mut DemandObserver, shared: bool) -> DemandInputs {
        let mut state = self.state.lock();
        let now = self.clock.now();
        state.scheduler.demand_inputs(observer, now, shared)
    }

    /// Observes the recorded facts. Does nothing while the demand is read, since the reader has
    /// just taken them.
    pub(super) fn observe_demand(&self) {
        if let Some(mut observer) = self.observer.try_lock() {
            self.state.lock().scheduler.flush_demand_facts(&mut observer);
            observer.observe();
        }
    }
}
