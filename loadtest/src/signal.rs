//! Signals that end a run.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for Ctrl-C, SIGTERM or SIGHUP; its name.
///
/// # Errors
/// When the process may not listen for signals.
pub async fn stop() -> Result<&'static str> {
    let listen = |kind| -> Result<Signal> { signal(kind).context("cannot listen for signals") };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "Ctrl-C",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    })
}
