//! Signals that end a run.

use std::future::Future;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Runs to the end, or until a signal stops it.
///
/// # Errors
/// Those of the run; a signal came.
pub async fn until_stopped<T>(run: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = run => done,
        signal = stop() => bail!("stopped by {}", signal?),
    }
}

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
