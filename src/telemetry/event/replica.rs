//! Events in the life of a replica.

use std::time::Duration;

use tracing::{debug, info, warn};

use crate::core::model::event::EngineFault;
use crate::core::model::ids::ReplicaId;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{millis, pool_of, shorten};

/// The replica gets no work until a probe succeeds.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaEjected {
    /// The replica.
    pub replica: ReplicaId,
    /// Why.
    pub fault: EngineFault,
}

impl ReplicaEjected {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let fault = self.fault.name();
        telemetry.log(|| warn!(replica = policy.replicas.name(self.replica), fault, "replica ejected"));
        telemetry.metrics().ejected(&policy, pool_of(&policy, self.replica), fault);
    }
}

/// The replica is to blame for a fault, but too many of its pool are out of
/// service already: it only pauses.
#[derive(Debug, Clone, Copy)]
pub struct EjectionWithheld {
    /// The replica.
    pub replica: ReplicaId,
    /// What was wrong.
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

/// The replica gets work again.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaReadmitted {
    /// The replica.
    pub replica: ReplicaId,
    /// How long it was out.
    pub after: Duration,
}

impl ReplicaReadmitted {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let replica = policy.replicas.name(self.replica);
        telemetry.log(|| info!(replica, after_ms = millis(self.after), "replica readmitted"));
        telemetry.metrics().readmitted(&policy, pool_of(&policy, self.replica));
    }
}

/// An ejected replica is still not there. Probes repeat, so this is a debug
/// line; the ejection was the warning.
#[derive(Debug, Clone, Copy)]
pub struct ProbeFailed<'a> {
    /// The replica.
    pub replica: ReplicaId,
    /// What was wrong.
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

/// The engine's own view could not be read. Emit for every failed scrape: the
/// first of a row is a warning, the others are debug lines.
#[derive(Debug, Clone, Copy)]
pub struct ScrapeFailed<'a> {
    /// The replica.
    pub replica: ReplicaId,
    /// What was wrong.
    pub problem: &'a str,
    /// Whether the scrape before it succeeded.
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

/// The engine's own view can be read again.
#[derive(Debug, Clone, Copy)]
pub struct ScrapeRecovered {
    /// The replica.
    pub replica: ReplicaId,
}

impl ScrapeRecovered {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        telemetry.log(|| info!(replica = policy.replicas.name(self.replica), "scrape recovered"));
    }
}

/// The engine does not serve the model that the file says it serves.
#[derive(Debug, Clone, Copy)]
pub struct ModelMismatch<'a> {
    /// The replica.
    pub replica: ReplicaId,
    /// The engine's name of the model, from the file.
    pub expected: &'a str,
    /// What the engine says it serves.
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
