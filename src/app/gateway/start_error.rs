//! Start errors: the reason why a gateway does not start, and the next step for the operator.

use std::io;
use std::net::SocketAddr;

use crate::fleet::fetch::NoTls;
use crate::telemetry::TelemetryError;
use crate::usage::UsageError;

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The client address cannot be had.
    #[error("cannot listen on {address} (server.listen): {problem}{}", next_step(problem))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system says.
        problem: io::Error,
    },
    /// The admin address cannot be had.
    #[error("cannot listen on {address} (server.admin): {problem}{}", next_step(problem))]
    Admin {
        /// The address.
        address: SocketAddr,
        /// What the operating system says.
        problem: io::Error,
    },
    /// The scaler's address cannot be had.
    #[error("cannot listen on {address} (scale.listen): {problem}{}", next_step(problem))]
    Scale {
        /// The address.
        address: SocketAddr,
        /// What the operating system says.
        problem: io::Error,
    },
    /// The scale signal has nobody to keep it.
    #[error("no thread for the scale signal: {0}")]
    ScaleThread(#[source] io::Error),
    /// Traces cannot be sent.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// SIGHUP cannot be listened to.
    #[error("no handler for SIGHUP: {0}")]
    Signals(#[source] io::Error),
    /// The audit file has nobody to write it.
    #[error("no thread for the audit file: {0}")]
    Audit(#[source] io::Error),
    /// The usage journal cannot be written.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// TLS to engines is not available.
    #[error(transparent)]
    Tls(#[from] NoTls),
}

/// What to do about an address that cannot be had.
pub(in crate::app) fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another program listens there: stop it, or choose another address",
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: choose a higher one",
        _ => "",
    }
}
