//! Start errors: the reason why a gateway does not start, and the next step for the operator.

use std::io;
use std::net::SocketAddr;

use crate::fleet::fetch::NoTrustedCertificates;
use crate::record::error::RecordError;
use crate::telemetry::TelemetryError;
use crate::usage::UsageError;

/// Reason why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The client address cannot be bound.
    #[error("cannot listen on {address} (server.listen): {problem}{}", next_step(problem))]
    Listen {
        address: SocketAddr,
        /// Error of the operating system.
        problem: io::Error,
    },
    /// The admin address cannot be bound.
    #[error("cannot listen on {address} (server.admin): {problem}{}", next_step(problem))]
    Admin {
        address: SocketAddr,
        /// Error of the operating system.
        problem: io::Error,
    },
    /// The scaler's address cannot be bound.
    #[error("cannot listen on {address} (scale.listen): {problem}{}", next_step(problem))]
    Scale {
        address: SocketAddr,
        /// Error of the operating system.
        problem: io::Error,
    },
    /// The thread of the scale signal cannot be started.
    #[error("no thread for the scale signal: {0}")]
    ScaleThread(#[source] io::Error),
    /// The threads that serve clients cannot be started.
    #[error("no threads for the client listener: {0}")]
    Workers(#[source] io::Error),
    /// Traces cannot be exported.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The handler of SIGHUP cannot be set.
    #[error("no handler for SIGHUP: {0}")]
    Signals(#[source] io::Error),
    /// The thread of the audit file cannot be started.
    #[error("no thread for the audit file: {0}")]
    Audit(#[source] io::Error),
    /// The usage journal cannot be written.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The record cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// TLS to engines is not available.
    #[error(transparent)]
    Tls(#[from] NoTrustedCertificates),
}

/// Next step for an operator whose address cannot be bound.
pub(in crate::app) fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another program listens there: stop it, or choose another address",
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: choose a higher one",
        _ => "",
    }
}
