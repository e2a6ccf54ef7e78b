//! Events in the life of the process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tracing::{debug, error, info};

use crate::core::model::policy::Policy;
use crate::telemetry::event::{millis, shorten};
use crate::telemetry::{ConfigStatus, Telemetry, wall};

/// A configuration came into force, the first one included. Its names are the
/// ones that labels and log lines use from here on.
#[derive(Debug, Clone, Copy)]
pub struct ConfigReloaded<'a> {
    /// The rules.
    pub policy: &'a Arc<Policy>,
    /// Hash of the file.
    pub digest: &'a str,
    /// Keys of the file that changed and need a restart.
    pub restart_needed: &'a [String],
}

impl ConfigReloaded<'_> {
    /// Writes the event and changes what the metrics say of the configuration.
    pub fn emit(&self, telemetry: &Telemetry) {
        let at = Some(wall::now());
        telemetry.set_policy(Arc::clone(self.policy));
        telemetry.set_config_status(ConfigStatus {
            generation: self.policy.generation,
            digest: self.digest.to_owned(),
            loaded_at: at,
            tried_at: at,
            problems: Vec::new(),
        });
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

/// The files were read again and are what is in force: whatever was wrong with
/// them before is mended.
#[derive(Debug, Clone, Copy)]
pub struct ConfigUnchanged;

impl ConfigUnchanged {
    /// Changes what the metrics say of the last reload.
    pub fn emit(self, telemetry: &Telemetry) {
        let mut status = ConfigStatus::clone(&telemetry.config_status());
        status.tried_at = Some(wall::now());
        status.problems = Vec::new();
        telemetry.set_config_status(status);
        telemetry.log(|| debug!("config unchanged"));
    }
}

/// A configuration was refused; the one before it stays in force.
#[derive(Debug, Clone, Copy)]
pub struct ConfigRejected<'a> {
    /// Everything that is wrong with it; not empty.
    pub problems: &'a [String],
}

impl ConfigRejected<'_> {
    /// Writes the event and changes what the metrics say of the last reload.
    pub fn emit(&self, telemetry: &Telemetry) {
        let mut status = ConfigStatus::clone(&telemetry.config_status());
        status.tried_at = Some(wall::now());
        status.problems = self.problems.to_vec();
        telemetry.set_config_status(status);
        telemetry.log(|| error!(problems = self.problems.join("; "), "config rejected"));
    }
}

/// Somebody or something had the configuration read again, for the audit log.
#[derive(Debug, Clone, Copy)]
pub struct ConfigAudited<'a> {
    /// Who asked for it: an operator, `signal`, or `file` for a change that
    /// was seen.
    pub who: &'a str,
    /// `applied`, `unchanged` or `failed`.
    pub outcome: &'static str,
    /// The generation in force now.
    pub generation: u64,
    /// The digest of the file in force now.
    pub digest: &'a str,
    /// The keys of the file that are different now, without their values.
    pub changed: &'a [&'a str],
}

impl ConfigAudited<'_> {
    /// Writes the event, into the audit file too.
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

/// A client connection was turned away at the door.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionRefused {
    /// Why, as a stable code.
    pub reason: &'static str,
}

impl ConnectionRefused {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| debug!(reason = self.reason, "connection refused"));
        telemetry.metrics().connection_refused(self.reason);
    }
}

/// A client took its answer too slowly, and the answer was cut off.
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
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    /// Where KEDA connects, if anywhere.
    pub scale: Option<SocketAddr>,
}

impl ServerStarted {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let version = env!("CARGO_PKG_VERSION");
        telemetry.log(|| {
            let scale = self.scale.map(|address| address.to_string());
            info!(version, listen = %self.listen, admin = %self.admin, scale, "server started");
        });
    }
}

/// No new connection is taken; what runs or waits may end.
#[derive(Debug, Clone, Copy)]
pub struct ServerDraining {
    /// Requests in any phase.
    pub jobs: u64,
    /// How long they may take.
    pub grace: Duration,
}

impl ServerDraining {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| info!(jobs = self.jobs, grace_ms = millis(self.grace), "server draining"));
    }
}

/// The last event of a process.
#[derive(Debug, Clone, Copy)]
pub struct ServerStopped {
    /// Requests that were cut off.
    pub cut_off: u64,
}

impl ServerStopped {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| info!(cut_off = self.cut_off, "server stopped"));
    }
}

/// Something that must always hold did not: a bug of ours.
#[derive(Debug, Clone, Copy)]
pub struct InvariantBroken<'a> {
    /// Which one.
    pub invariant: &'static str,
    /// What was found.
    pub detail: &'a str,
}

impl InvariantBroken<'_> {
    /// Writes the event; the scheduler's snapshot has the count.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| {
            error!(invariant = self.invariant, detail = shorten(self.detail), "invariant broken");
        });
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
        ConfigReloaded { policy: &policy, digest: "d2", restart_needed: &keys }.emit(&telemetry);
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
