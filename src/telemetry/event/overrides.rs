//! Override events: overrides that an operator set or ended, here or at another gateway, and overrides that
//! expired.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tracing::{info, warn};

use crate::telemetry::Telemetry;
use crate::telemetry::text::shorten;

/// The text, and after it the reason that an operator gave, if any.
fn with_reason(mut text: String, reason: &str) -> String {
    if !reason.is_empty() {
        text.extend([": ", shorten(reason)]);
    }
    text
}

/// An operator set or ended an override.
#[derive(Debug, Clone, Copy)]
pub struct OverrideChanged<'a> {
    /// Operator: `token:<id>`, `cert:<name>` or `local`.
    pub who: &'a str,
    /// Address of the operator.
    pub from: SocketAddr,
    /// Action: `cordon`, `resume` and so on.
    pub verb: &'a str,
    /// Name of the pool, replica or tenant.
    pub subject: &'a str,
    /// Override in force before; `none` = the policy applied.
    pub before: &'a str,
    /// Override in force now; `none` = the policy applies.
    pub after: &'a str,
    /// Duration of the override; absent = until an operator ends it.
    pub lasts: Option<Duration>,
    /// Reason in the operator's words.
    pub reason: &'a str,
    /// Number of requests that went back to the queue.
    pub requeued: u64,
}

impl OverrideChanged<'_> {
    /// Writes the event to the log and the audit file. The log line is a warning, so that a log at
    /// level `warn` has the line too.
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
        telemetry.changed("override", self.subject, || {
            let Self { verb, before, after, who, .. } = self;
            with_reason(format!("{verb} by {who}: {before}, now {after}"), self.reason)
        });
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

/// An override that an operator set or ended at another gateway began or ended here.
#[derive(Debug, Clone, Copy)]
pub struct OverrideHeard<'a> {
    /// Operator at the other gateway.
    pub who: &'a str,
    /// Id and name of the other gateway.
    pub gateway: &'a str,
    pub gateway_name: &'a str,
    /// The change that began; `end` = the override ended.
    pub verb: &'a str,
    /// Name of the pool, replica or tenant.
    pub subject: &'a str,
    /// Time that is left of the override; absent = until an operator ends it.
    pub lasts: Option<Duration>,
    /// Reason in the operator's words.
    pub reason: &'a str,
    /// Number of requests that went back to the queue.
    pub requeued: u64,
}

impl OverrideHeard<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let lasts_s = self.lasts.map(|lasts| lasts.as_secs());
        telemetry.audit(json!({
            "action": self.verb,
            "who": self.who,
            "gateway": self.gateway,
            "gateway_name": self.gateway_name,
            "subject": self.subject,
            "lasts_s": lasts_s,
            "reason": self.reason,
        }));
        telemetry.changed("override", self.subject, || {
            let Self { verb, who, gateway_name, .. } = self;
            with_reason(format!("{verb} by {} at {}", shorten(who), shorten(gateway_name)), self.reason)
        });
        telemetry.log(|| {
            warn!(
                who = shorten(self.who),
                gateway = shorten(self.gateway),
                gateway_name = shorten(self.gateway_name),
                verb = self.verb,
                subject = self.subject,
                lasts_s,
                reason = shorten(self.reason),
                requeued = self.requeued,
                "override changed at another gateway"
            );
        });
    }
}

#[derive(Debug, Clone, Copy)]
pub struct OverrideExpired<'a> {
    /// Name of the pool, replica or tenant.
    pub subject: &'a str,
}

impl OverrideExpired<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.audit(json!({ "action": "expire", "who": "time", "subject": self.subject }));
        telemetry.changed("override", self.subject, || "expired".to_owned());
        telemetry.log(|| info!(subject = self.subject, "override expired"));
    }
}
