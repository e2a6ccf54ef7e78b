//! Replica events: ejection, readmission, probes, and scrapes of the engine's metrics.

use std::time::Duration;

use tracing::{debug, info, warn};

use crate::core::model::event::EngineFault;
use crate::core::model::ids::ReplicaId;
use crate::telemetry::Telemetry;
use crate::telemetry::text::{millis, pool_of, shorten};

/// A replica was ejected and gets no work until a probe succeeds.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaEjected {
    pub replica: ReplicaId,
    pub fault: EngineFault,
}

impl ReplicaEjected {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let fault = self.fault.name();
        let replica = policy.replicas.name(self.replica);
        telemetry.changed("ejected", replica, || fault.to_owned());
        telemetry.log(|| warn!(replica, fault, "replica ejected"));
        telemetry.metrics().ejected(&policy, pool_of(&policy, self.replica), fault);
    }
}

/// A replica caused a fault but stays in service, because too many replicas of its pool are out of
/// service already. The replica only pauses.
#[derive(Debug, Clone, Copy)]
pub struct EjectionWithheld {
    pub replica: ReplicaId,
    pub fault: EngineFault,
}

impl EjectionWithheld {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (replica, fault) = (policy.replicas.name(self.replica), self.fault.name());
        telemetry.log(|| warn!(replica, fault, "replica not ejected: too many of its pool are out"));
        telemetry.metrics().spared(&policy, pool_of(&policy, self.replica), fault);
    }
}

/// A replica was readmitted and gets work again.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaReadmitted {
    pub replica: ReplicaId,
    /// Time for which the replica was out of service.
    pub after: Duration,
}

impl ReplicaReadmitted {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let replica = policy.replicas.name(self.replica);
        telemetry.changed("readmitted", replica, || format!("after {} ms", self.after.as_millis()));
        telemetry.log(|| info!(replica, after_ms = millis(self.after), "replica readmitted"));
        telemetry.metrics().readmitted(&policy, pool_of(&policy, self.replica));
    }
}

/// A probe of an ejected replica failed. Probes repeat, so the line has level debug; the ejection
/// was the warning.
#[derive(Debug, Clone, Copy)]
pub struct ProbeFailed<'a> {
    pub replica: ReplicaId,
    pub problem: &'a str,
}

impl ProbeFailed<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let replica = policy.replicas.name(self.replica);
        telemetry.log(|| debug!(replica, problem = shorten(self.problem), "probe failed"));
        telemetry.metrics().probe_failed(&policy, pool_of(&policy, self.replica));
    }
}

/// A scrape of the engine's metrics failed. Emit for every failed scrape: the first failure in a
/// row is a warning, the others are debug lines.
#[derive(Debug, Clone, Copy)]
pub struct ScrapeFailed<'a> {
    pub replica: ReplicaId,
    pub problem: &'a str,
    /// Whether the scrape before this one succeeded.
    pub first: bool,
}

impl ScrapeFailed<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let replica = policy.replicas.name(self.replica);
        let problem = shorten(self.problem);
        telemetry.log(|| {
            if self.first {
                warn!(replica, problem, "scrape failed");
            } else {
                debug!(replica, problem, "scrape failed");
            }
        });
        telemetry.metrics().scrape_failed(&policy, pool_of(&policy, self.replica));
    }
}

/// A scrape of the engine's metrics succeeded after failures.
#[derive(Debug, Clone, Copy)]
pub struct ScrapeRecovered {
    pub replica: ReplicaId,
}

impl ScrapeRecovered {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        telemetry.log(|| info!(replica = policy.replicas.name(self.replica), "scrape recovered"));
    }
}

/// The engine does not serve the model that the configuration names.
#[derive(Debug, Clone, Copy)]
pub struct ModelMismatch<'a> {
    pub replica: ReplicaId,
    /// Engine's name of the model, from the configuration.
    pub expected: &'a str,
    /// Models that the engine reports.
    pub served: &'a [String],
}

impl ModelMismatch<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let replica = policy.replicas.name(self.replica);
        let served = self.served.join(", ");
        telemetry.log(|| {
            warn!(replica, expected = self.expected, served = shorten(&served), "model not served by engine");
        });
        telemetry.metrics().model_mismatch(&policy, pool_of(&policy, self.replica));
    }
}
