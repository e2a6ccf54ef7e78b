//! Replica actions of the scheduler, carried out by the fleet monitor or told to telemetry.

use crate::core::model::event::Action;
use crate::fleet::handle::FleetMonitor;
use crate::fleet::sleep::SleepOrder;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{
    EjectionWithheld, OverrideExpired, PoolDown, PoolStarted, PoolWanted, ReplicaEjected, ReplicaReadmitted,
};

/// Carries the scheduler's wishes about replicas to those who fulfil them.
pub(in crate::app) async fn carry_out(
    mut actions: tokio::sync::mpsc::Receiver<Action>,
    fleet: FleetMonitor,
    telemetry: Telemetry,
) {
    while let Some(action) = actions.recv().await {
        match action {
            Action::Probe { replica } => fleet.probe(replica),
            Action::Inspect { replica } => fleet.inspect(replica),
            Action::Sleep { replica } => fleet.order(replica, SleepOrder::Sleep),
            Action::Wake { replica, .. } => {
                let policy = telemetry.policy();
                let pool = policy.replicas.get(replica).and_then(|row| policy.pools.get(row.pool));
                if let Some(rules) = pool.and_then(|pool| pool.sleep) {
                    fleet.order(replica, SleepOrder::Wake { limit: rules.wake_timeout });
                }
            }
            Action::Eject { replica, why } => ReplicaEjected { replica, fault: why }.emit(&telemetry),
            Action::Spare { replica, why } => EjectionWithheld { replica, fault: why }.emit(&telemetry),
            Action::PoolDown { pool, why } => PoolDown { pool, fault: why }.emit(&telemetry),
            Action::Readmit { replica, after } => ReplicaReadmitted { replica, after }.emit(&telemetry),
            Action::PoolWanted { pool, expected } => PoolWanted { pool, expected }.emit(&telemetry),
            Action::PoolStarted { pool, took } => PoolStarted { pool, took }.emit(&telemetry),
            Action::OverrideExpired { lever } => {
                OverrideExpired { subject: lever.name(&telemetry.policy()) }.emit(&telemetry);
            }
            // The request that is concerned tells its own story.
            Action::Dispatch { .. }
            | Action::Reject { .. }
            | Action::Requeue { .. }
            | Action::WouldLimit { .. }
            | Action::Settled { .. }
            | Action::Idled(_)
            | Action::Recall { .. }
            | Action::HandOver { .. } => {}
        }
    }
}
