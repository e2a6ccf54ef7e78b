//! What the operating system asks of the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::watch::ReloadHandle;

/// Waits for SIGTERM or Ctrl-C and says which it was.
///
/// # Errors
/// The operating system takes no handler.
pub(super) struct Shutdown {
    term: Signal,
    int: Signal,
}

impl Shutdown {
    /// Takes the signals over from the default, which is to die.
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them.
    pub(super) async fn asked(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "Ctrl-C",
        }
    }
}

/// Reloads the configuration at every SIGHUP.
pub(super) async fn reload_on_hangup(reload: ReloadHandle) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    while hangup.recv().await.is_some() {
        reload.nudge();
    }
    Ok(())
}
