//! Context of the fleet's tasks: what all scrapes, probes and sleep orders share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::dispatcher::Dispatcher;
use crate::fleet::fetch::ReplicaClient;
use crate::telemetry::Telemetry;

/// The fleet's times. The default is right for the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetTiming {
    /// For one answer about metrics or models.
    pub scrape_timeout: Duration,
    /// For all of one probe.
    pub probe_timeout: Duration,
    /// Between two questions about the models.
    pub info_every: Duration,
    /// The same after one that failed; no shorter than the scrape interval.
    pub info_retry: Duration,
}

impl Default for FleetTiming {
    fn default() -> Self {
        Self {
            scrape_timeout: Duration::from_secs(5),
            probe_timeout: Duration::from_secs(1),
            info_every: Duration::from_secs(300),
            info_retry: Duration::from_secs(10),
        }
    }
}

/// What all tasks share.
pub(super) struct FleetContext {
    pub(super) fetcher: ReplicaClient,
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) telemetry: Telemetry,
    pub(super) timing: FleetTiming,
    pub(super) permits: Semaphore,
}
