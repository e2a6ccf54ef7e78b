//! Telemetry: log lines, metrics and traces of the process. Logic builds an event
//! (`telemetry::event`) and emits it; what that means for the log and the metrics is written down
//! there and nowhere else.

mod audit;
pub mod event;
#[cfg(test)]
pub(crate) mod fixtures;
mod json_line;
pub mod log;
pub mod metrics;
pub mod request_history;
mod sampler;
pub mod trace;
pub mod wall;

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::config::settings::TelemetrySettings;
use crate::config::settings::identity::AuditFile;
use crate::core::model::policy::Policy;
use crate::telemetry::audit::AuditLog;
use crate::telemetry::log::LogCapture;
use crate::telemetry::metrics::{Metrics, Scrape, UsageMeters};
use crate::telemetry::request_history::RequestHistory;
use crate::telemetry::sampler::Sampler;
use crate::telemetry::trace::Tracer;

/// How often raw histogram samples are folded into their buckets.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

/// Metrics and traces of one process; clones share everything.
#[derive(Clone)]
pub struct Telemetry(Arc<TelemetryParts>);

struct TelemetryParts {
    metrics: Metrics,
    tracer: Tracer,
    history: RequestHistory,
    policy: ArcSwap<Policy>,
    config: ArcSwap<ConfigStatus>,
    capture: Option<LogCapture>,
    audit: OnceLock<AuditLog>,
    strangers: Sampler,
    started: Instant,
}

/// What is known about the configuration in force and the last try to change
/// it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigStatus {
    /// Counts the loaded configurations; 0 before the first.
    pub generation: u64,
    /// Hash of the file in force; empty before the first load.
    pub digest: String,
    /// When it came into force.
    pub loaded_at: Option<SystemTime>,
    /// When the last try ended, successful or not.
    pub tried_at: Option<SystemTime>,
    /// What was wrong with the last try; empty when it succeeded.
    pub problems: Vec<String>,
}

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Spans are sent from a tokio runtime, and there is none here.
    #[error("telemetry.otlp_endpoint: traces need a running tokio runtime")]
    NoRuntime,
    /// The collector's address cannot be used.
    #[error("telemetry.otlp_endpoint: {0}; expected http://host:port of an OTLP gRPC collector")]
    Endpoint(String),
}

impl Telemetry {
    /// Metrics and, when an OTLP endpoint is set, traces. The log is set up by
    /// [`log::init`], once in a process.
    ///
    /// # Errors
    /// When the OTLP endpoint cannot be used, or outside of a tokio runtime
    /// when there is one.
    pub fn new(settings: &TelemetrySettings) -> Result<Self, TelemetryError> {
        Ok(Self::with(Tracer::new(settings)?, None))
    }

    /// No traces, and log lines kept in memory for [`Self::captured_log`].
    #[must_use]
    pub fn for_tests() -> Self {
        Self::with(Tracer::disabled(), Some(LogCapture::default()))
    }

    fn with(tracer: Tracer, capture: Option<LogCapture>) -> Self {
        Self(Arc::new(TelemetryParts {
            metrics: Metrics::new(),
            tracer,
            history: RequestHistory::default(),
            policy: ArcSwap::default(),
            config: ArcSwap::default(),
            capture,
            audit: OnceLock::new(),
            strangers: Sampler::default(),
            started: Instant::now(),
        }))
    }

    /// The rules whose names appear in labels and log lines.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    /// What is known about the configuration in force.
    #[must_use]
    pub fn config_status(&self) -> Arc<ConfigStatus> {
        self.0.config.load_full()
    }

    /// The source of request traces.
    #[must_use]
    pub fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// What became of recent requests.
    #[must_use]
    pub fn history(&self) -> &RequestHistory {
        &self.0.history
    }

    /// How many client connections are open.
    pub fn open_connections(&self) -> ::metrics::Gauge {
        self.0.metrics.open_connections().clone()
    }

    /// What the usage journal counts.
    #[must_use]
    pub fn usage_meters(&self) -> UsageMeters {
        self.0.metrics.usage_meters()
    }

    /// All metrics in Prometheus text format 0.0.4.
    #[must_use]
    pub fn render(&self, scrape: &Scrape<'_>) -> String {
        self.0.metrics.render(&self.policy(), &self.config_status(), scrape)
    }

    /// Folds raw histogram samples into their buckets, for ever. One task of
    /// the process must run this, or memory grows until the next scrape.
    pub async fn upkeep(self) {
        let mut every = tokio::time::interval(UPKEEP_EVERY);
        loop {
            every.tick().await;
            self.0.metrics.upkeep();
        }
    }

    /// Keeps the audit log in a file, too, from now on; the first file that is
    /// given stays.
    ///
    /// # Errors
    /// The thread that writes it cannot be started.
    pub fn audit_to(&self, file: AuditFile) -> io::Result<()> {
        let audit = AuditLog::start(file, self.0.metrics.audit_lost())?;
        let _first_stays = self.0.audit.set(audit);
        Ok(())
    }

    /// Adds an entry to the audit file, if there is one. Never waits.
    pub(in crate::telemetry) fn audit(&self, entry: serde_json::Value) {
        if let Some(audit) = self.0.audit.get() {
            audit.add(entry);
        }
    }

    /// Waits until the audit file has everything, for at most `limit`. Blocks.
    pub fn flush_audit(&self, limit: Duration) {
        if let Some(audit) = self.0.audit.get() {
            audit.flush(limit);
        }
    }

    /// Sends what traces are still held, for at most `timeout`.
    pub async fn shutdown(&self, timeout: Duration) {
        self.0.tracer.shutdown(timeout).await;
    }

    /// The log lines so far, of a telemetry made by [`Self::for_tests`].
    #[must_use]
    pub fn captured_log(&self) -> String {
        self.0.capture.as_ref().map(LogCapture::text).unwrap_or_default()
    }

    pub(in crate::telemetry) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(in crate::telemetry) fn set_policy(&self, policy: Arc<Policy>) {
        self.0.policy.store(policy);
    }

    pub(in crate::telemetry) fn set_config_status(&self, status: ConfigStatus) {
        self.0.config.store(Arc::new(status));
    }

    /// The same for a line that anybody can cause who reaches the port. Only some
    /// of each second are written, and how many were not.
    pub(in crate::telemetry) fn log_stranger(&self, write: impl FnOnce()) {
        match self.0.strangers.pass(self.0.started.elapsed().as_secs()) {
            Some(0) => self.log(write),
            Some(kept_back) => self.log(|| {
                write();
                tracing::info!(kept_back, "requests without a valid credential were not logged");
            }),
            None => self.0.metrics.line_kept_back(),
        }
    }

    /// Runs `write`, which writes log lines, against the right log.
    pub(in crate::telemetry) fn log(&self, write: impl FnOnce()) {
        match &self.0.capture {
            None => write(),
            Some(capture) => tracing::dispatcher::with_default(capture.dispatch(), write),
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").field("tracer", &self.0.tracer).finish_non_exhaustive()
    }
}
