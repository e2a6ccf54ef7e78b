//! Telemetry: log, audit log, metrics, traces and request history of the process.
//!
//! Logic builds an event (`telemetry::event`) and emits it. Only that module decides what an event
//! becomes in the log and the metrics.

mod audit;
mod error;
pub mod event;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod log;
pub mod metrics;
pub mod request_history;
mod status;
pub(crate) mod summary;
mod text;
pub mod trace;
pub mod wall;

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

pub use self::error::TelemetryError;
pub use self::status::ConfigStatus;
use crate::config::settings::identity::AuditFile;
use crate::config::settings::{REFUSALS_PER_SECOND, TelemetrySettings};
use crate::core::model::policy::Policy;
use crate::telemetry::audit::AuditLog;
use crate::telemetry::log::LogCapture;
pub use crate::telemetry::log::sampler::RefusalKind;
use crate::telemetry::log::sampler::RefusalSampler;
use crate::telemetry::metrics::{Metrics, RecordMeters, Scrape, UsageMeters};
use crate::telemetry::request_history::RequestHistory;
use crate::telemetry::request_history::live_events::{LiveEvent, LiveEventKind};
use crate::telemetry::trace::Tracer;

/// Telemetry of one process. Clones share everything.
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
    refusals: RefusalSampler,
    started: Instant,
}

impl Telemetry {
    /// Makes metrics and, when an OTLP endpoint is set, traces. The log is set up separately by
    /// [`log::init`], once in a process.
    ///
    /// # Errors
    /// When the OTLP endpoint cannot be used, or when an endpoint is set and no tokio runtime is
    /// running.
    pub fn new(settings: &TelemetrySettings) -> Result<Self, TelemetryError> {
        Ok(Self::with(Tracer::new(settings)?, settings.refusals_per_second, None))
    }

    /// Makes telemetry without traces that keeps its log lines in memory for
    /// [`Self::captured_log`].
    pub fn for_tests() -> Self {
        Self::with(Tracer::disabled(), REFUSALS_PER_SECOND, Some(LogCapture::default()))
    }

    fn with(tracer: Tracer, refusals_per_second: u32, capture: Option<LogCapture>) -> Self {
        Self(Arc::new(TelemetryParts {
            metrics: Metrics::new(),
            tracer,
            history: RequestHistory::default(),
            policy: ArcSwap::default(),
            config: ArcSwap::default(),
            capture,
            audit: OnceLock::new(),
            refusals: RefusalSampler::new(refusals_per_second),
            started: Instant::now(),
        }))
    }

    /// Policy in force, whose names appear in labels and log lines.
    pub fn policy(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    /// Status of the configuration in force and of the last load.
    pub fn config_status(&self) -> Arc<ConfigStatus> {
        self.0.config.load_full()
    }

    /// Source of request traces.
    pub fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// Trails of recent requests.
    pub fn history(&self) -> &RequestHistory {
        &self.0.history
    }

    /// Gauge of open client connections.
    pub fn open_connections(&self) -> ::metrics::Gauge {
        self.0.metrics.open_connections().clone()
    }

    /// Histogram of how long ready tasks wait for their worker thread.
    pub fn worker_delay(&self) -> ::metrics::Histogram {
        self.0.metrics.worker_delay().clone()
    }

    /// Metric handles of the usage journal.
    pub fn usage_meters(&self) -> UsageMeters {
        self.0.metrics.usage_meters()
    }

    /// Metric handles of the record.
    pub fn record_meters(&self) -> RecordMeters {
        self.0.metrics.record_meters()
    }

    /// Renders all metrics in Prometheus text format 0.0.4.
    pub fn render(&self, scrape: &Scrape<'_>) -> String {
        self.0.metrics.render(&self.policy(), &self.config_status(), scrape)
    }

    /// Folds raw histogram samples into their buckets. Without a call a second, memory grows until the next scrape.
    pub fn upkeep(&self) {
        self.0.metrics.upkeep();
    }

    /// Writes audit entries to a file as well, from now on. Only the first call has an effect.
    ///
    /// # Errors
    /// The thread that writes the file cannot be started.
    pub fn audit_to(&self, file: AuditFile) -> io::Result<()> {
        let audit = AuditLog::start(file, self.0.metrics.audit_lost())?;
        let _first_stays = self.0.audit.set(audit);
        Ok(())
    }

    /// Adds an entry to the audit file, if one is set. Never waits.
    pub(in crate::telemetry) fn audit(&self, entry: serde_json::Value) {
        if let Some(audit) = self.0.audit.get() {
            audit.add(entry);
        }
    }

    /// Tells those who watch live events of a change.
    pub(in crate::telemetry) fn changed(
        &self,
        change: &'static str,
        subject: &str,
        detail: impl FnOnce() -> String,
    ) {
        self.0.history.events().publish(|| LiveEvent {
            at: wall::now(),
            what: LiveEventKind::Change { change, subject: subject.into(), detail: detail().into() },
        });
    }

    /// Waits until all audit entries are written. Blocks: at most `limit` for a place in the queue,
    /// and at most `limit` again for the write.
    pub fn flush_audit(&self, limit: Duration) {
        if let Some(audit) = self.0.audit.get() {
            audit.flush(limit);
        }
    }

    /// Sends the spans that still wait, for at most `timeout`.
    pub async fn shutdown(&self, timeout: Duration) {
        self.0.tracer.shutdown(timeout).await;
    }

    /// Log lines so far, of telemetry made by [`Self::for_tests`]; else empty.
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

    /// Whether a refusal is written whole, to the log and the usage journal. Otherwise it is counted for
    /// [`Self::take_counted_refusals`].
    pub(in crate::telemetry) fn writes_refusal(&self, kind: RefusalKind) -> bool {
        let is_logged = self.0.refusals.count_and_sample(kind, self.0.started.elapsed().as_secs());
        if !is_logged {
            self.0.metrics.line_kept_back();
        }
        is_logged
    }

    /// Takes the numbers of refusals that were only counted since the last call. One task of the process must call
    /// this once a second.
    pub fn take_counted_refusals(&self) -> Vec<(RefusalKind, u64)> {
        self.0.refusals.take_counted(self.0.started.elapsed().as_secs())
    }

    /// Runs `write`, which writes log lines, against the process log or the log in memory.
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
