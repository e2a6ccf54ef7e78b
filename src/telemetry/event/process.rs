//! Process events: configuration reloads, start and shutdown, refused connections and broken
//! invariants.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tracing::{debug, error, info, warn};

use crate::core::model::policy::Policy;
use crate::telemetry::metrics::ModelPairs;
use crate::telemetry::status::{ConfigStatus, MAX_CHANGES};
use crate::telemetry::text::{millis, shorten};
use crate::telemetry::{Telemetry, wall};

/// A configuration came into force, the first one included. Labels and log lines use its names from
/// now on.
#[derive(Debug, Clone, Copy)]
pub struct ConfigReloaded<'a> {
    /// Policy made from the configuration.
    pub policy: &'a Arc<Policy>,
    /// Hash of the file.
    pub digest: &'a str,
    /// Keys of the file that changed and need a restart.
    pub restart_needed: &'a [String],
    /// Models that may stand in for others, whose counters start at 0.
    pub pairs: &'a ModelPairs,
    /// What changed, a line for each key.
    pub changed: &'a [String],
}

impl ConfigReloaded<'_> {
    /// Writes the event and sets the policy and configuration status that the metrics show.
    pub fn emit(&self, telemetry: &Telemetry) {
        let at = Some(wall::now());
        telemetry.set_policy(Arc::clone(self.policy));
        telemetry.metrics().config_loaded(self.policy, self.pairs);
        telemetry.set_config_status(ConfigStatus {
            generation: self.policy.generation,
            digest: self.digest.to_owned(),
            loaded_at: at,
            tried_at: at,
            problems: Vec::new(),
            changed: self.changed.iter().take(MAX_CHANGES).cloned().collect(),
            restart_needed: self.restart_needed.to_vec(),
        });
        telemetry.changed("config", self.digest, || "loaded".to_owned());
        let restart = Some(self.restart_needed.join(", ")).filter(|keys| !keys.is_empty());
        telemetry.log(|| {
            info!(
                generation = self.policy.generation,
                digest = self.digest,
                restart_needed = restart.as_deref(),
                "config loaded"
            );
        });
    }
}

/// The files were read again and equal the configuration in force. Problems of an earlier reload
/// are therefore gone.
#[derive(Debug, Clone, Copy)]
pub struct ConfigUnchanged;

impl ConfigUnchanged {
    /// Clears the problems of the last reload in the metrics.
    pub fn emit(self, telemetry: &Telemetry) {
        let mut status = ConfigStatus::clone(&telemetry.config_status());
        status.tried_at = Some(wall::now());
        status.problems = Vec::new();
        telemetry.set_config_status(status);
        telemetry.log(|| debug!("config unchanged"));
    }
}

/// A configuration was refused. The configuration in force stays.
#[derive(Debug, Clone, Copy)]
pub struct ConfigRejected<'a> {
    /// All problems of the configuration; not empty.
    pub problems: &'a [String],
}

impl ConfigRejected<'_> {
    /// Writes the event and sets the problems of the last reload in the metrics.
    pub fn emit(&self, telemetry: &Telemetry) {
        let mut status = ConfigStatus::clone(&telemetry.config_status());
        status.tried_at = Some(wall::now());
        status.problems = self.problems.to_vec();
        telemetry.set_config_status(status);
        telemetry.changed("config", "", || format!("rejected: {}", self.problems.join("; ")));
        telemetry.log(|| error!(problems = self.problems.join("; "), "config rejected"));
    }
}

/// An operator, a signal or a changed file had the configuration read again. For the audit log.
#[derive(Debug, Clone, Copy)]
pub struct ConfigAudited<'a> {
    /// Cause of the reload: an operator, `signal`, or `file` for a change of the file.
    pub who: &'a str,
    /// `applied`, `unchanged` or `failed`.
    pub outcome: &'static str,
    /// Generation in force after the reload.
    pub generation: u64,
    /// Digest of the file in force after the reload.
    pub digest: &'a str,
    /// Configuration keys that changed, without their values.
    pub changed: &'a [&'a str],
}

impl ConfigAudited<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.audit(json!({
            "action": "reload",
            "who": self.who,
            "outcome": self.outcome,
            "generation": self.generation,
            "digest": self.digest,
            "changed": self.changed,
        }));
        let changed = self.changed.join(", ");
        telemetry.log(|| {
            info!(
                who = self.who,
                outcome = self.outcome,
                generation = self.generation,
                changed,
                "config read again"
            );
        });
    }
}

/// The listener refused a client connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionRefused {
    /// Reason, as a stable code.
    pub reason: &'static str,
}

impl ConnectionRefused {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| debug!(reason = self.reason, "connection refused"));
        telemetry.metrics().connection_refused(self.reason);
    }
}

/// Counts an answer that was cut off because its client took it too slowly.
#[derive(Debug, Clone, Copy)]
pub struct AnswerCutOff;

impl AnswerCutOff {
    /// Writes and counts the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| debug!("answer cut off: its client takes it too slowly"));
        telemetry.metrics().answer_cut_off();
    }
}

/// The listeners are open.
#[derive(Debug, Clone, Copy)]
pub struct ServerStarted {
    /// Address for clients.
    pub listen: SocketAddr,
    /// Address for operators.
    pub admin: SocketAddr,
    /// Address of the external scaler for KEDA; absent = the scaler is off.
    pub scale: Option<SocketAddr>,
}

impl ServerStarted {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let version = env!("CARGO_PKG_VERSION");
        telemetry.log(|| {
            let scale = self.scale.map(|address| address.to_string());
            info!(version, listen = %self.listen, admin = %self.admin, scale, "server started");
        });
    }
}

/// The shutdown has begun: no new connection is accepted, and running and waiting requests may end.
#[derive(Debug, Clone, Copy)]
pub struct ServerDraining {
    /// Requests in any phase.
    pub jobs: u64,
    /// Shutdown grace: time that the requests have to end.
    pub grace: Duration,
}

impl ServerDraining {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| info!(jobs = self.jobs, grace_ms = millis(self.grace), "server draining"));
    }
}

/// The server has stopped. The last event of a process.
#[derive(Debug, Clone, Copy)]
pub struct ServerStopped {
    /// Number of requests that were cut off.
    pub cut_off: u64,
}

impl ServerStopped {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| info!(cut_off = self.cut_off, "server stopped"));
    }
}

/// An invariant did not hold: a bug of the gateway.
#[derive(Debug, Clone, Copy)]
pub struct InvariantBroken<'a> {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// Facts that break the invariant.
    pub detail: &'a str,
}

impl InvariantBroken<'_> {
    /// Writes the event. The count is in the scheduler's snapshot.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| {
            error!(invariant = self.invariant, detail = shorten(self.detail), "invariant broken");
        });
    }
}

/// The process may open too few files for `server.max_connections`. The listener accepts fewer
/// connections, so that each can still have one to an engine.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionsLowered {
    /// `server.max_connections`.
    pub configured: usize,
    /// Connections that are accepted at once.
    pub accepted: usize,
    /// Files that the process may open.
    pub files: u64,
}

impl ConnectionsLowered {
    /// Writes the event to the log.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { configured, accepted, files } = self;
        telemetry.log(|| {
            warn!(configured, accepted, files, "fewer connections are accepted: too few files may be open");
        });
    }
}

/// The gateway records what its scheduler is told and decides.
#[derive(Debug, Clone, Copy)]
pub struct RecordStarted<'a> {
    pub folder: &'a Path,
    /// Most bytes of the record.
    pub bytes: u64,
}

impl RecordStarted<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let folder = self.folder.display();
        telemetry.log(|| info!(%folder, bytes = self.bytes, "recording"));
    }
}

/// The record cannot be written. Steps are lost until it can be written again.
#[derive(Debug, Clone, Copy)]
pub struct RecordLost<'a> {
    pub folder: &'a Path,
    pub error: &'a io::Error,
}

impl RecordLost<'_> {
    /// Writes the event. The writer counts lost steps.
    pub fn emit(self, telemetry: &Telemetry) {
        let folder = self.folder.display();
        telemetry.log(|| error!(%folder, error = %self.error, "record cannot be written"));
    }
}

/// The record can be written again. It has a gap.
#[derive(Debug, Clone, Copy)]
pub struct RecordBack<'a> {
    pub folder: &'a Path,
}

impl RecordBack<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let folder = self.folder.display();
        telemetry.log(|| info!(%folder, "record is written again"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::fixtures;

    fn last_line(telemetry: &Telemetry) -> Value {
        serde_json::from_str(telemetry.captured_log().lines().last().unwrap()).unwrap()
    }

    #[test]
    fn each_event_is_a_line_with_its_facts() {
        let telemetry = fixtures::telemetry(1);
        let policy = Arc::new(fixtures::policy(1));
        let keys = ["listen".to_owned(), "admin".to_owned()];
        ConfigReloaded {
            policy: &policy,
            digest: "d2",
            restart_needed: &keys,
            changed: &[],
            pairs: &ModelPairs::default(),
        }
        .emit(&telemetry);
        let line = last_line(&telemetry);
        assert_eq!((&line["digest"], &line["restart_needed"]), (&json!("d2"), &json!("listen, admin")));

        let (listen, admin) = ("0.0.0.0:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        ServerStarted { listen, admin, scale: None }.emit(&telemetry);
        let line = last_line(&telemetry);
        assert_eq!((&line["listen"], &line["admin"]), (&json!("0.0.0.0:1"), &json!("127.0.0.1:2")));

        ServerDraining { jobs: 3, grace: Duration::from_secs(30) }.emit(&telemetry);
        let line = last_line(&telemetry);
        assert_eq!((&line["jobs"], &line["grace_ms"]), (&json!(3), &json!(30_000.0)));

        ServerStopped { cut_off: 2 }.emit(&telemetry);
        assert_eq!(last_line(&telemetry)["cut_off"], 2);

        InvariantBroken { invariant: "one_queue_per_job", detail: "job 7 in two" }.emit(&telemetry);
        let line = last_line(&telemetry);
        assert_eq!((&line["level"], &line["invariant"]), (&json!("ERROR"), &json!("one_queue_per_job")));
    }

    #[test]
    fn a_rejected_config_keeps_the_generation_in_force() {
        let telemetry = fixtures::telemetry(1);
        ConfigRejected { problems: &["a: bad".into(), "b: worse".into()] }.emit(&telemetry);
        assert_eq!(last_line(&telemetry)["problems"], "a: bad; b: worse");
        let status = telemetry.config_status();
        assert_eq!((status.generation, &*status.digest), (1, "d1"));
        assert!(status.tried_at >= status.loaded_at);
        assert_eq!(telemetry.policy().generation, 1);

        ConfigUnchanged.emit(&telemetry);
        let status = telemetry.config_status();
        assert_eq!((status.generation, status.problems.len()), (1, 0), "the file in force is back");
    }
}
