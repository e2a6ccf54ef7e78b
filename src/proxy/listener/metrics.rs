//! Metrics and log lines of the listener.

use std::io;

use crate::proxy::listener::rejected::RequestRejected;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{AnswerCutOff, ConnectionRefused, HandshakeFailed};
use crate::tls::HandshakeError;

/// Counters of client connections. Each method is quick.
pub(super) struct ListenerMetrics {
    telemetry: Telemetry,
    open: metrics::Gauge,
}

impl ListenerMetrics {
    pub(super) fn new(telemetry: Telemetry) -> Self {
        Self { open: telemetry.open_connections(), telemetry }
    }

    /// Counts a connection that was accepted.
    pub(super) fn accepted(&self) {
        self.open.increment(1.0);
    }

    /// Counts the end of an accepted connection, for any reason.
    pub(super) fn closed(&self) {
        self.open.decrement(1.0);
    }

    /// Counts a message that was refused, or given up because it did not arrive in time.
    pub(super) fn refused(&self, why: RequestRejected) {
        ConnectionRefused { reason: why.label() }.emit(&self.telemetry);
    }

    /// Counts an answer that was cut off because its client took it too slowly.
    pub(super) fn cut_off(&self) {
        AnswerCutOff.emit(&self.telemetry);
    }

    /// Counts a failed TLS handshake with a client.
    pub(super) fn handshake_failed(&self, why: HandshakeError) {
        HandshakeFailed { listener: "clients", reason: why.label() }.emit(&self.telemetry);
    }

    /// Logs a failed accept. The usual cause is a lack of file descriptors. The listener continues
    /// after a pause.
    pub(super) fn accept_failed(&self, error: &io::Error) {
        tracing::warn!(%error, "no connection could be accepted; are there enough file descriptors?");
    }
}
