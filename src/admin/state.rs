//! Admin state: the parts of the process that the admin routes ask.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::auth::operators::OperatorTokens;
use crate::cluster::{ClusterStatus, RequestFinder};
use crate::config::settings::Settings;
use crate::config::watch::ReloadHandle;
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::snapshot::Snapshot;
use crate::dispatcher::Dispatcher;
use crate::fleet::discovery::DiscoverySources;
use crate::fleet::view::FleetView;
use crate::scaler::SignalCache;
use crate::telemetry::Telemetry;
use crate::telemetry::metrics::EngineView;
use crate::usage::bill::RowSource;

/// Handles to the parts of the process. Every call to them is quick enough for the admin thread.
#[derive(Debug, Clone)]
pub struct AdminState {
    /// Dispatcher, which knows all waiting and running requests.
    pub dispatcher: Arc<Dispatcher>,
    pub settings: Arc<ArcSwap<Settings>>,
    /// Handle that reads the configuration again.
    pub reload: ReloadHandle,
    /// Last known status of every replica.
    pub engines: Arc<FleetView>,
    pub sources: DiscoverySources,
    /// Scale signal, as scalers read it.
    pub signals: Arc<SignalCache>,
    /// What is shared with other gateways; absent without `cluster`.
    pub cluster: Option<Arc<Mutex<ClusterStatus>>>,
    /// Finds requests of other gateways; absent without `cluster`.
    pub finder: Option<RequestFinder>,
    /// Source of the usage rows; absent when the configuration keeps none.
    pub usage: Option<RowSource>,
    /// Tokens of the operators' identity provider.
    pub operator_tokens: Arc<OperatorTokens>,
    /// Metrics, recent requests and the state of the configuration.
    pub telemetry: Telemetry,
}

impl AdminState {
    pub(super) fn snapshot(&self) -> Snapshot {
        self.dispatcher.snapshot()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Replica demand of each pool, as scalers read it.
    pub(super) fn demands(&self) -> Vec<ReplicaDemand> {
        self.signals.view().demands().collect()
    }

    /// Gauges of the engines, as last read.
    pub(super) fn engine_views(&self) -> Vec<EngineView> {
        let rows = self.engines.all().into_iter();
        rows.map(|(replica, status)| EngineView {
            replica,
            report: status.gauges_age().map(|_| status.report(true)),
            age: status.gauges_age(),
            unread_for: status.unread_for(),
            problem: status.problem.map(|problem| problem.to_string()),
        })
        .collect()
    }

    /// Whether the gateway takes new requests.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn readiness(&self) -> Result<(), &'static str> {
        if self.dispatcher.shutdown().is_draining() { Err("draining") } else { Ok(()) }
    }
}
