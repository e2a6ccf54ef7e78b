//! Pool signal: what the scaler knows of one pool.

use tokio::time::Instant;

use crate::core::autoscale::replica_demand::ReplicaDemand;

/// Scale signal of one pool at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolSignal {
    pub(super) demand: ReplicaDemand,
    /// Time at which the pool was last seen with work.
    pub(super) last_busy: Option<Instant>,
}
