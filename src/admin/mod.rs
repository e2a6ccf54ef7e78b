//! The operators' listener: metrics, health, and what the gateway knows and
//! does. It knows the rest of the process only through the closures of
//! [`AdminState`], and runs on a thread of its own ([`spawn`]).

mod config_view;
mod report;
mod routes;
mod server;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use crate::config::settings::Settings;
use crate::core::snapshot::Snapshot;
use crate::telemetry::Telemetry;
use crate::telemetry::metrics::EngineView;

pub use crate::admin::routes::router;
pub use crate::admin::server::{AdminHandle, spawn};

/// A reload that goes on.
pub type Reloading = Pin<Box<dyn Future<Output = ReloadReport> + Send>>;

/// What the admin routes ask the rest of the process. Every closure is called
/// on the admin thread and must be quick; a reload reads files elsewhere.
#[derive(Clone)]
pub struct AdminState {
    /// Everything that waits and runs, over all schedulers.
    pub snapshot: Arc<dyn Fn() -> Snapshot + Send + Sync>,
    /// The configuration in force.
    pub settings: Arc<dyn Fn() -> Arc<Settings> + Send + Sync>,
    /// Reads the configuration again and brings it into force.
    pub reload: Arc<dyn Fn() -> Reloading + Send + Sync>,
    /// The engines' own views, as last read.
    pub engines: Arc<dyn Fn() -> Vec<EngineView> + Send + Sync>,
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

/// What became of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadReport {
    /// Whether the file is in force now.
    pub result: ReloadResult,
    /// Generation in force.
    pub generation: u64,
    /// Hash of the configuration in force.
    pub digest: String,
    /// Everything that is wrong with the file; empty unless rejected.
    pub problems: Vec<String>,
    /// Keys that changed and take effect only at a restart.
    pub restart_needed: Vec<String>,
}

/// Whether a reload changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadResult {
    /// The file is in force now.
    Applied,
    /// The file is the one that was in force.
    Unchanged,
    /// The file is not valid; the configuration before it stays in force.
    Rejected,
}

#[cfg(test)]
mod tests;
