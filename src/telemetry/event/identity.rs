//! Identity events: TLS certificates and handshakes, keys of identity providers, and refused
//! operators.

use std::net::SocketAddr;
use std::time::SystemTime;

use tracing::{debug, info, warn};

use crate::telemetry::text::shorten;
use crate::telemetry::{RefusalKind, Telemetry, wall};

/// A listener loaded a new certificate, the first one included.
#[derive(Debug, Clone, Copy)]
pub struct CertificateLoaded {
    /// `clients`, `admin` or `scale`.
    pub listener: &'static str,
    /// End of the certificate's validity.
    pub ends: SystemTime,
}

impl CertificateLoaded {
    /// Writes the event and sets the metric. A certificate that has already ended is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        let ends = wall::unix_seconds(self.ends);
        telemetry.metrics().certificate_ends(self.listener, ends);
        let over = self.ends <= wall::now();
        telemetry.log(|| {
            if over {
                warn!(listener = self.listener, ends, "certificate loaded that has ended");
            } else {
                info!(listener = self.listener, ends, "certificate loaded");
            }
        });
    }
}

/// A TLS handshake with a client failed.
#[derive(Debug, Clone, Copy)]
pub struct HandshakeFailed {
    /// `clients`, `admin` or `scale`.
    pub listener: &'static str,
    /// Reason, as a stable code.
    pub reason: &'static str,
}

impl HandshakeFailed {
    /// Writes and counts the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| debug!(listener = self.listener, reason = self.reason, "handshake failed"));
        telemetry.metrics().handshake_failed(self.listener, self.reason);
    }
}

/// The keys of an identity provider were fetched for the first time, or changed.
#[derive(Debug, Clone, Copy)]
pub struct IssuerKeysFetched<'a> {
    /// Identity provider, as the configuration names it.
    pub issuer: &'a str,
    /// Number of keys.
    pub keys: usize,
}

impl IssuerKeysFetched<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| info!(issuer = shorten(self.issuer), keys = self.keys, "issuer keys fetched"));
    }
}

/// The keys of an identity provider could not be fetched. The keys fetched before stay in force.
#[derive(Debug, Clone, Copy)]
pub struct IssuerKeysLost<'a> {
    /// Identity provider, as the configuration names it.
    pub issuer: &'a str,
    pub problem: &'a str,
    /// Number of keys fetched before.
    pub held: usize,
    /// Whether the fetch before succeeded.
    pub first: bool,
}

impl IssuerKeysLost<'_> {
    /// Writes and counts the event. The first failure in a row is a warning, the others are debug
    /// lines.
    pub fn emit(self, telemetry: &Telemetry) {
        let (issuer, problem, held) = (shorten(self.issuer), shorten(self.problem), self.held);
        telemetry.log(|| {
            if self.first {
                warn!(issuer, problem, held, "issuer keys lost");
            } else {
                debug!(issuer, problem, held, "issuer keys lost");
            }
        });
        telemetry.metrics().issuer_failed();
    }
}

/// The identity provider of operators did not tell where the console signs in. Addresses told
/// before stay in use, and tokens are checked as ever.
#[derive(Debug, Clone, Copy)]
pub struct SignInNotKnown<'a> {
    /// Identity provider, as the configuration names it.
    pub issuer: &'a str,
    pub problem: &'a str,
    /// Whether the question before was answered.
    pub first: bool,
}

impl SignInNotKnown<'_> {
    /// Writes the event. The first failure in a row is a warning, the others are debug lines.
    pub fn emit(self, telemetry: &Telemetry) {
        let (issuer, problem) = (shorten(self.issuer), shorten(self.problem));
        telemetry.log(|| {
            if self.first {
                warn!(issuer, problem, "sign-in addresses not known");
            } else {
                debug!(issuer, problem, "sign-in addresses not known");
            }
        });
    }
}

/// The admin listener refused a request.
#[derive(Debug, Clone, Copy)]
pub struct AdminRefused {
    /// Address of the operator.
    pub from: SocketAddr,
    /// Reason, as a stable code.
    pub reason: &'static str,
}

impl AdminRefused {
    /// Writes and counts the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let (listener, reason) = ("admin", self.reason);
        let kind = RefusalKind { listener, tenant: None, reason, outcome: None, status: None };
        if telemetry.writes_refusal(kind) {
            telemetry.log(|| warn!(from = %self.from, reason, "operator refused"));
        }
        telemetry.metrics().admin_refused(self.reason);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::fixtures;

    #[test]
    fn each_event_is_a_line_with_its_facts() {
        let telemetry = fixtures::telemetry(1);
        let last = || -> serde_json::Value {
            serde_json::from_str(telemetry.captured_log().lines().last().unwrap()).unwrap()
        };
        let ends = wall::now() + Duration::from_secs(60);
        CertificateLoaded { listener: "clients", ends }.emit(&telemetry);
        assert_eq!((&last()["level"], &last()["listener"]), (&"INFO".into(), &"clients".into()));
        CertificateLoaded { listener: "clients", ends: SystemTime::UNIX_EPOCH }.emit(&telemetry);
        assert_eq!(last()["level"], "WARN");
        IssuerKeysFetched { issuer: "https://id", keys: 2 }.emit(&telemetry);
        assert_eq!((&last()["issuer"], &last()["keys"]), (&"https://id".into(), &2.into()));
        for (first, level) in [(true, "WARN"), (false, "DEBUG")] {
            IssuerKeysLost { issuer: "https://id", problem: "status 500", held: 2, first }.emit(&telemetry);
            assert_eq!((&last()["level"], &last()["problem"]), (&level.into(), &"status 500".into()));
        }
        for (first, level) in [(true, "WARN"), (false, "DEBUG")] {
            SignInNotKnown { issuer: "https://id", problem: "status 404", first }.emit(&telemetry);
            assert_eq!((&last()["level"], &last()["problem"]), (&level.into(), &"status 404".into()));
        }
        AdminRefused { from: "10.0.0.1:2".parse().unwrap(), reason: "missing" }.emit(&telemetry);
        assert_eq!((&last()["from"], &last()["reason"]), (&"10.0.0.1:2".into(), &"missing".into()));
        HandshakeFailed { listener: "admin", reason: "timeout" }.emit(&telemetry);
        assert_eq!(last()["listener"], "admin");
    }
}
