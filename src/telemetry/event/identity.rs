//! Certificates, identity providers and operators.

use std::net::SocketAddr;
use std::time::SystemTime;

use tracing::{debug, info, warn};

use crate::telemetry::event::shorten;
use crate::telemetry::{Telemetry, wall};

/// A listener has a new certificate, the first one included.
#[derive(Debug, Clone, Copy)]
pub struct CertificateLoaded {
    /// `clients`, `admin` or `scale`.
    pub listener: &'static str,
    /// When it ends.
    pub ends: SystemTime,
}

impl CertificateLoaded {
    /// Writes the event and sets the metric.
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

/// A client was lost in the TLS handshake.
#[derive(Debug, Clone, Copy)]
pub struct HandshakeFailed {
    /// `clients`, `admin` or `scale`.
    pub listener: &'static str,
    /// Why, as a stable code.
    pub reason: &'static str,
}

impl HandshakeFailed {
    /// Writes and counts the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| debug!(listener = self.listener, reason = self.reason, "handshake failed"));
        telemetry.metrics().handshake_failed(self.listener, self.reason);
    }
}

/// An identity provider's keys are known, or others than before.
#[derive(Debug, Clone, Copy)]
pub struct IssuerKeysFetched<'a> {
    /// The provider, as the file names it.
    pub issuer: &'a str,
    /// How many there are.
    pub keys: usize,
}

impl IssuerKeysFetched<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| info!(issuer = shorten(self.issuer), keys = self.keys, "issuer keys fetched"));
    }
}

/// An identity provider's keys could not be fetched; those from before hold.
#[derive(Debug, Clone, Copy)]
pub struct IssuerKeysLost<'a> {
    /// The provider, as the file names it.
    pub issuer: &'a str,
    /// What is wrong.
    pub problem: &'a str,
    /// Keys from before.
    pub held: usize,
    /// Whether the last fetch had worked.
    pub first: bool,
}

impl IssuerKeysLost<'_> {
    /// Writes the event, loudly once, and counts it.
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

/// Somebody was not let in at the operators' port.
#[derive(Debug, Clone, Copy)]
pub struct AdminRefused {
    /// Where they are.
    pub from: SocketAddr,
    /// Why, as a stable code.
    pub reason: &'static str,
}

impl AdminRefused {
    /// Writes and counts the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| warn!(from = %self.from, reason = self.reason, "operator refused"));
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
        AdminRefused { from: "10.0.0.1:2".parse().unwrap(), reason: "missing" }.emit(&telemetry);
        assert_eq!((&last()["from"], &last()["reason"]), (&"10.0.0.1:2".into(), &"missing".into()));
        HandshakeFailed { listener: "admin", reason: "timeout" }.emit(&telemetry);
        assert_eq!(last()["listener"], "admin");
    }
}
