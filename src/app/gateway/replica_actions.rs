//! Replica actions of the scheduler, carried out by the fleet monitor or reported to telemetry.

use crate::core::model::event::ReplicaAction;
use crate::fleet::handle::FleetMonitor;
use crate::fleet::sleep::SleepOrder;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{
    EjectionWithheld, OverrideExpired, PoolDown, PoolStarted, PoolWanted, ReplicaEjected, ReplicaReadmitted,
};

/// Carries out replica actions in the order of the scheduler's decisions. Runs until the dispatcher
/// is dropped.
pub(in crate::app) async fn carry_out(
    mut actions: tokio::sync::mpsc::Receiver<ReplicaAction>,
    fleet: FleetMonitor,
    telemetry: Telemetry,
) {
    while let Some(action) = actions.recv().await {
        match action {
            ReplicaAction::Probe { replica } => fleet.probe(replica),
            ReplicaAction::Scrape { replica } => fleet.scrape_now(replica),
            ReplicaAction::Sleep { replica } => fleet.send_sleep_order(replica, SleepOrder::Sleep),
            ReplicaAction::Wake { replica, .. } => {
                let policy = telemetry.policy();
                let pool = policy.replicas.get(replica).and_then(|row| policy.pools.get(row.pool));
                if let Some(rules) = pool.and_then(|pool| pool.sleep) {
                    fleet.send_sleep_order(replica, SleepOrder::Wake { limit: rules.wake_timeout });
                }
            }
            ReplicaAction::Eject { replica, why } => ReplicaEjected { replica, fault: why }.emit(&telemetry),
            ReplicaAction::WithholdEjection { replica, why } => {
                EjectionWithheld { replica, fault: why }.emit(&telemetry);
            }
            ReplicaAction::PoolDown { pool, why } => PoolDown { pool, fault: why }.emit(&telemetry),
            ReplicaAction::Readmit { replica, after } => {
                ReplicaReadmitted { replica, after }.emit(&telemetry);
            }
            ReplicaAction::PoolWanted { pool, expected } => PoolWanted { pool, expected }.emit(&telemetry),
            ReplicaAction::PoolStarted { pool, took } => PoolStarted { pool, took }.emit(&telemetry),
            ReplicaAction::OverrideExpired { target } => {
                OverrideExpired { subject: target.name(&telemetry.policy()) }.emit(&telemetry);
            }
        }
    }
}
