//! Key events: keys that operators make and revoke, and keys that end.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tracing::warn;

use crate::telemetry::text::shorten;
use crate::telemetry::{Telemetry, wall};

/// How long before its end a key is about to end.
pub const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Most ids in a log line.
const MAX_IDS: usize = 10;

/// An operator made or revoked a key.
#[derive(Debug, Clone, Copy)]
pub struct KeyChanged<'a> {
    /// Operator: `token:<id>`, `cert:<name>` or `local`.
    pub who: &'a str,
    /// Address of the operator.
    pub from: SocketAddr,
    /// `key_create` or `key_revoke`.
    pub verb: &'a str,
    /// Public id of the key.
    pub key_id: &'a str,
    /// Tenant of the key.
    pub tenant: &'a str,
    /// Public id of the key that it replaces.
    pub replaces: Option<&'a str>,
}

impl KeyChanged<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.audit(json!({
            "action": self.verb,
            "who": self.who,
            "from": self.from.to_string(),
            "subject": self.key_id,
            "tenant": self.tenant,
            "replaces": self.replaces,
        }));
        telemetry.log(|| {
            warn!(
                who = self.who,
                from = %self.from,
                verb = self.verb,
                key_id = self.key_id,
                tenant = self.tenant,
                replaces = self.replaces,
                "key changed"
            );
        });
    }
}

/// The keys in force were counted: some end within 14 days, or a key file has a mistake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeysCounted {
    /// Keys that open, those that end soon included.
    pub active: u64,
    /// Ids of keys that end within [`EXPIRES_SOON`], the soonest first.
    pub expiring: Vec<String>,
    /// Keys that opened once.
    pub expired: u64,
    /// End of the key that ends next.
    pub next: Option<SystemTime>,
    /// What is wrong with key files.
    pub problems: Vec<String>,
}

impl KeysCounted {
    /// Counts keys by when they end.
    pub fn of<'a>(
        ends: impl IntoIterator<Item = (&'a str, Option<SystemTime>)>,
        problems: &[String],
        now: SystemTime,
    ) -> Self {
        let mut counted = Self { problems: problems.to_vec(), ..Self::default() };
        let mut soon: Vec<(SystemTime, &str)> = Vec::new();
        for (id, end) in ends {
            match end {
                Some(end) if end <= now => counted.expired += 1,
                Some(end) => {
                    counted.active += 1;
                    counted.next = Some(counted.next.map_or(end, |next| next.min(end)));
                    if end <= now + EXPIRES_SOON {
                        soon.push((end, id));
                    }
                }
                None => counted.active += 1,
            }
        }
        soon.sort_unstable();
        counted.expiring = soon.into_iter().map(|(_, id)| id.to_owned()).collect();
        counted
    }

    /// Sets the metrics, and writes what is to be looked at when `is_news`.
    pub fn emit(&self, is_news: bool, telemetry: &Telemetry) {
        let states =
            [("active", self.active), ("expiring", self.expiring.len() as u64), ("expired", self.expired)];
        telemetry.metrics().keys(states, self.next.map_or(0.0, wall::unix_seconds), self.problems.len());
        if !is_news {
            return;
        }
        if let Some(next) = self.next.filter(|_| !self.expiring.is_empty()) {
            let ids: Vec<&str> = self.expiring.iter().take(MAX_IDS).map(String::as_str).collect();
            let (count, ids, next) = (self.expiring.len(), ids.join(", "), wall::unix_seconds(next));
            telemetry.log(|| warn!(count, ids, next, "keys end soon"));
        }
        for problem in &self.problems {
            telemetry.log(|| warn!(problem = shorten(problem), "key file left out"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_by_their_end() {
        let day = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * 24 * 3600);
        let ends = [
            ("never", None),
            ("over", Some(day(100))),
            ("later", Some(day(110))),
            ("soon", Some(day(101))),
            ("far", Some(day(200))),
        ];
        let counted = KeysCounted::of(ends, &[], day(100));
        assert_eq!((counted.active, counted.expired, counted.next), (4, 1, Some(day(101))));
        assert_eq!(counted.expiring, ["soon", "later"]);
    }
}
