//! State of the world's autoscaler, and its timers.

use crate::core::model::time::Tick;
use crate::sim::world::autoscale::scaler::WorldScaler;
use crate::sim::world::autoscale::slots::ReplicaSlots;
use crate::sim::world::autoscale::{Scaling, ScalingOutcome};
use crate::sim::world::router::ReplicaIndex;
use crate::sim::world::setup::Setup;

/// Timer of an autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim::world) enum ScaleTimer {
    /// KEDA polls.
    Poll,
    /// The HPA syncs.
    Sync,
    /// Knative's autoscaler takes a sample.
    Sample,
    /// The gateway recomputes its own number, as its scaler keeps it up to
    /// date.
    Recompute,
    /// The start of a replica is over; the number is that of its order.
    Ready(ReplicaIndex, u64),
}

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
