//! Events of operators' overrides.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tracing::{info, warn};

use crate::telemetry::Telemetry;
use crate::telemetry::event::shorten;

/// An operator set something apart from the policy, or took that back.
#[derive(Debug, Clone, Copy)]
pub struct OverrideChanged<'a> {
    /// Who asked for it: `token:<id>`, `cert:<name>` or `local`.
    pub who: &'a str,
    /// Where they are.
    pub from: SocketAddr,
    /// What for: `cordon`, `resume` and so on.
    pub verb: &'a str,
    /// Of what: the name of a pool, replica or tenant.
    pub subject: &'a str,
    /// What was in force before; `none` = the policy.
    pub before: &'a str,
    /// What is now.
    pub after: &'a str,
    /// For how long; absent = until somebody ends it.
    pub lasts: Option<Duration>,
    /// The operator's words.
    pub reason: &'a str,
    /// Requests that went back to the queue.
    pub requeued: u64,
}

impl OverrideChanged<'_> {
    /// Writes the event, into the audit file too; a warning, so that it is in
    /// every log.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.audit(json!({
            "action": self.verb,
            "who": self.who,
            "from": self.from.to_string(),
            "subject": self.subject,
            "before": self.before,
            "after": self.after,
            "lasts_s": self.lasts.map(|lasts| lasts.as_secs()),
            "reason": self.reason,
        }));
        telemetry.log(|| {
            warn!(
                who = self.who,
                from = %self.from,
                verb = self.verb,
                subject = self.subject,
                before = self.before,
                after = self.after,
                lasts_s = self.lasts.map(|lasts| lasts.as_secs()),
                reason = shorten(self.reason),
                requeued = self.requeued,
                "override changed"
            );
        });
    }
}

/// An override has ended by itself.
#[derive(Debug, Clone, Copy)]
pub struct OverrideExpired<'a> {
    /// Of what: the name of a pool, replica or tenant.
    pub subject: &'a str,
}

impl OverrideExpired<'_> {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.audit(json!({ "action": "expire", "who": "time", "subject": self.subject }));
        telemetry.log(|| info!(subject = self.subject, "override expired"));
    }
}
