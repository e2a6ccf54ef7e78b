//! The operators' listener: metrics, health, and what the gateway knows and
//! does. It knows the rest of the process only through the closures of
//! [`AdminState`], and runs on a thread of its own ([`spawn`]).

mod auth;
mod config_view;
mod explain;
mod operate;
mod overview;
mod report;
mod routes;
mod server;
mod standing;
mod usage;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::config::settings::Settings;
use crate::config::watch::ReloadReport;
use crate::core::autoscale::demand::state::DemandState;
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::limits::LimitStatus;
use crate::core::model::ids::JobId;
use crate::core::model::snapshot::{OverrideResult, Snapshot, WaitExplanation};
use crate::telemetry::Telemetry;
use crate::telemetry::metrics::EngineView;
use crate::usage::bill::{Bill, BillQuery};

pub use crate::admin::operate::OperatorCommand;
pub use crate::admin::routes::router;
pub use crate::admin::server::{AdminHandle, AdminTls, spawn};
pub use crate::admin::standing::SourceReport;

/// A reload that goes on; `None` when the process is going down.
pub type Reloading = Pin<Box<dyn Future<Output = Option<ReloadReport>> + Send>>;

/// Makes a bill beside the admin thread, or says why there is none.
pub type Billing =
    Arc<dyn Fn(BillQuery) -> Pin<Box<dyn Future<Output = Result<Bill, String>> + Send>> + Send + Sync>;

/// What the admin routes ask the rest of the process. Every closure is called
/// on the admin thread and must be quick; a reload reads files elsewhere.
#[derive(Clone)]
pub struct AdminState {
    /// Everything that waits and runs, over all schedulers.
    pub snapshot: Arc<dyn Fn() -> Snapshot + Send + Sync>,
    /// The configuration in force.
    pub settings: Arc<dyn Fn() -> Arc<Settings> + Send + Sync>,
    /// Reads the configuration again, because somebody asks for it, and brings it
    /// into force.
    pub reload: Arc<dyn Fn(Arc<str>) -> Reloading + Send + Sync>,
    /// The engines' own views, as last read.
    pub engines: Arc<dyn Fn() -> Vec<EngineView> + Send + Sync>,
    /// How the sources of replicas stand.
    pub sources: Arc<dyn Fn() -> Vec<SourceReport> + Send + Sync>,
    /// How it stands with all limits.
    pub limits: Arc<dyn Fn() -> Vec<LimitStatus> + Send + Sync>,
    /// What pools need, as scalers are told it.
    pub needs: Arc<dyn Fn() -> Vec<ReplicaDemand> + Send + Sync>,
    /// The demand that was seen.
    pub demand: Arc<dyn Fn() -> DemandState + Send + Sync>,
    /// Puts an operator's wish in force.
    pub operate: Arc<dyn Fn(OperatorCommand) -> OverrideResult + Send + Sync>,
    /// Why a job waits; `None` when it does not.
    pub explain: Arc<dyn Fn(JobId) -> Option<WaitExplanation> + Send + Sync>,
    /// Who used what; absent where nothing is written down.
    pub bill: Option<Billing>,
    /// Whether new requests are taken; if not, why: `starting`, `draining`.
    pub ready: Arc<dyn Fn() -> Result<(), &'static str> + Send + Sync>,
    /// Metrics and the state of the configuration.
    pub telemetry: Telemetry,
}

impl fmt::Debug for AdminState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminState")
    }
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
