//! State of the world's autoscaler.

use crate::world::autoscale::scaler::WorldScaler;
use crate::world::autoscale::slots::ReplicaSlots;
use crate::world::autoscale::{Scaling, ScalingOutcome};
use crate::world::setup::Setup;
use penstock_core::model::time::Tick;

/// The world's autoscaler and its replica slots.
#[derive(Debug)]
pub(in crate::world) struct Elastic {
    pub(super) scaler: WorldScaler,
    pub(super) slots: ReplicaSlots,
    pub(super) scaling: Scaling,
}

impl Elastic {
    pub(in crate::world) fn new(scaling: &Scaling, setup: &Setup) -> Self {
        let until = setup.arrivals.last().map_or(Tick::ZERO, |arrival| arrival.at);
        Self {
            scaler: WorldScaler::new(scaling),
            slots: ReplicaSlots::new(scaling, setup.replicas.len(), until),
            scaling: scaling.clone(),
        }
    }

    pub(in crate::world) fn settle(self, now: Tick) -> ScalingOutcome {
        self.slots.into_outcome(now)
    }
}
