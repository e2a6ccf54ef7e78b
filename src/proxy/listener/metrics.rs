//! Metrics and log lines of the listener.

use std::io;

use crate::proxy::listener::rejected::RequestRejected;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{AnswerCutOff, ConnectionRefused, HandshakeFailed};
use crate::tls::HandshakeError;

/// Counts what happens to client connections. Each method is quick.
pub(super) struct ListenerMetrics {
    telemetry: Telemetry,
    open: metrics::Gauge,
}

impl ListenerMetrics {
    pub(super) fn new(telemetry: Telemetry) -> Self {
        Self { open: telemetry.open_connections(), telemetry }
    }

    /// A connection was accepted.
    pub(super) fn accepted(&self) {
        self.open.increment(1.0);
    }

    /// An accepted connection has ended, for whatever reason.
    pub(super) fn closed(&self) {
        self.open.decrement(1.0);
    }

    /// A message was refused, or given up because it did not come in time.
    pub(super) fn refused(&self, why: RequestRejected) {
        ConnectionRefused { reason: why.label() }.emit(&self.telemetry);
    }

    /// A client took its answer too slowly, and the answer was cut off.
    pub(super) fn cut_off(&self) {
        AnswerCutOff.emit(&self.telemetry);
    }

    /// The TLS handshake with a client failed.
    pub(super) fn handshake_failed(&self, why: HandshakeError) {
        HandshakeFailed { listener: "clients", reason: why.label() }.emit(&self.telemetry);
    }

    /// The operating system gave no connection, mostly for want of file
    /// descriptors. The listener goes on after a pause.
    pub(super) fn accept_failed(&self, error: &io::Error) {
        tracing::warn!(%error, "no connection could be accepted; are there enough file descriptors?");
    }
}
