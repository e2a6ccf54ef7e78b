//! State of the world's autoscaler.

use crate::core::model::time::Tick;
use crate::sim::world::autoscale::scaler::WorldScaler;
use crate::sim::world::autoscale::slots::ReplicaSlots;
use crate::sim::world::autoscale::{Scaling, ScalingOutcome};
use crate::sim::world::setup::Setup;

/// The world's autoscaler and its replica slots.
#[derive(Debug)]
pub(in crate::sim::world) struct Elastic {
    pub(super) scaler: WorldScaler,
    pub(super) slots: ReplicaSlots,
    pub(super) scaling: Scaling,
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

    pub(in crate::sim::world) fn settle(self, now: Tick) -> ScalingOutcome {
        self.slots.into_outcome(now)
    }
}
