//! Signals of the operating system.

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::watch::ReloadHandle;

pub(in crate::app) struct OsSignals {
    term: Signal,
    int: Signal,
}

impl OsSignals {
    /// Replaces the default action of both signals, which ends the process. SIGXFSZ would end it as
    /// well, at a write beyond the limit of file size (`ulimit -f`); with a handler the write fails.
    ///
    /// # Errors
    /// The operating system takes no handler.
    pub(in crate::app) fn listen() -> std::io::Result<Self> {
        // The handler stays when the stream is dropped.
        let _nobody_waits = signal(SignalKind::from_raw(Number::XFSZ.as_raw()))?;
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal and returns its name.
    pub(in crate::app) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "Ctrl-C",
        }
    }
}

/// Replaces the default action of SIGHUP, which ends the process.
///
/// # Errors
/// The operating system takes no handler.
pub(in crate::app) fn hang_up() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Reloads the configuration at every `signal`.
pub(in crate::app) async fn reload_at(mut signal: Signal, reload: ReloadHandle) {
    while signal.recv().await.is_some() {
        reload.request_reload();
    }
}
