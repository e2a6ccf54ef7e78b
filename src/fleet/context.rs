//! Context of the fleet's tasks: what all scrapes, probes and sleep orders share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::dispatcher::Dispatcher;
use crate::fleet::fetch::ReplicaClient;
use crate::telemetry::Telemetry;

/// Times of the fleet's tasks. The default is meant for the gateway; tests use shorter ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetTiming {
    /// Limit for one answer about metrics or models.
    pub scrape_timeout: Duration,
    /// Limit for one whole probe.
    pub probe_timeout: Duration,
    /// Time between two model info requests.
    pub info_interval: Duration,
    /// Time after a failed model info request; at least the scrape interval applies.
    pub info_retry: Duration,
}

impl Default for FleetTiming {
    fn default() -> Self {
        Self {
            scrape_timeout: Duration::from_secs(5),
            probe_timeout: Duration::from_secs(1),
            info_interval: Duration::from_secs(300),
            info_retry: Duration::from_secs(10),
        }
    }
}

/// State shared by all tasks of the fleet.
pub(super) struct FleetContext {
    /// Client for replicas without TLS of their own.
    pub(super) fetcher: Arc<ReplicaClient>,
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) telemetry: Telemetry,
    pub(super) timing: FleetTiming,
    pub(super) permits: Semaphore,
}
