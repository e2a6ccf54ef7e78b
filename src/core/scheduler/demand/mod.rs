//! Demand: how many replicas are needed. The [`Autoscaler`] follows the jobs; the scheduler shows it
//! what waits and runs, and passes its answers on.

pub(super) mod autoscaler;
mod inputs;
mod replica_demand;
mod report;

use crate::core::autoscale::demand::state::DemandState;
use crate::core::autoscale::demand_report::{DemandReport, PeerDemand};
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::time::Tick;

use self::autoscaler::Autoscaler;
use self::inputs::DemandInputs;
use super::Scheduler;

impl Scheduler {
    /// The demand measured so far, to be kept over a restart.
    #[must_use]
    pub fn demand_state(&self) -> DemandState {
        self.autoscaler.save(&self.demand_inputs())
    }

    /// Takes over the demand that was seen before a restart, as far as the policy
    /// has what it is of. False when it is of another version, and nothing was
    /// taken over.
    pub fn restore_demand(&mut self, state: &DemandState) -> bool {
        self.autoscaler.restore(&self.policy, state)
    }

    /// One row for each pool of the policy. Asked twice at the same instant, it
    /// says the same.
    pub fn replica_demand(&mut self, now: Tick) -> Vec<ReplicaDemand> {
        self.replica_demand_with(now, &PeerDemand::default())
    }

    /// The same where other gateways serve the same pools: by what all of them
    /// see together.
    pub fn replica_demand_with(&mut self, now: Tick, others: &PeerDemand) -> Vec<ReplicaDemand> {
        let now = self.now.max(now);
        let (autoscaler, inputs) = self.autoscaling();
        autoscaler.replica_demand(&inputs, now, others)
    }

    /// What this gateway sees of the demand, for others to count.
    pub fn demand_report(&mut self, now: Tick) -> DemandReport {
        let now = self.now.max(now);
        let (autoscaler, inputs) = self.autoscaling();
        autoscaler.demand_report(&inputs, now)
    }

    /// The autoscaler, and what it sees of the rest.
    pub(super) fn autoscaling(&mut self) -> (&mut Autoscaler, DemandInputs<'_>) {
        let Self { autoscaler, policy, placement, groups, fleet, queue, overrides, now, .. } = self;
        (autoscaler, DemandInputs { policy, placement, groups, fleet, queue, overrides, now: *now })
    }

    fn demand_inputs(&self) -> DemandInputs<'_> {
        let Self { policy, placement, groups, fleet, queue, overrides, now, .. } = self;
        DemandInputs { policy, placement, groups, fleet, queue, overrides, now: *now }
    }
}
