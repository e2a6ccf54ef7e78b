//! `loadtest overload`: several times as much load as the engines can take, from thousands of tenants
//! and with hostile clients among them, while one tenant asks for less than its share.

mod crowd;
mod hostile;
pub mod report;
mod stage;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use self::stage::Stage;

use crate::report::write_json;
use crate::signal::until_stopped;

/// Arguments of `loadtest overload`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  cargo build --release --workspace
  target/release/loadtest --threads 2 overload --json overload.json
  target/release/loadtest --threads 2 overload --duration 60 --queued 5000

Starts simulated engines and a gateway with --tenants tenants, in three parts:

  overload  --factor times what the engines can do: one tenant with a tenth of
            that in the interactive class, less than its share; another with as
            much as all engines can do in the same class; the rest from all
            tenants. Hostile clients beside them: no key, a wrong key, `n` too
            large, a body over the limit, bodies that drip, readers that do not
            read, clients that leave at once.
  recovery  all of these leave at once; how long until a request is served as
            before, and the ledger is empty.
  queue     --queued requests wait at once; the first tenant goes on meanwhile.

Marks: the first tenant's time to the first token at 99 % of its requests,
refused ones counted as too late, is within the objective of its class; memory
does not grow over the second half; refusals take 5 ms at most at 99 %, by the
gateway's own log, unless the request had waited before; recovery takes 2 s at most; the queue holds --queued and is
empty afterwards. Exit code 1 when a mark is missed.")]
pub struct OverloadArgs {
    /// Fixes what is asked, and when.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Seconds of overload.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub duration: u64,
    /// Load, as a multiple of what all engines can do.
    #[arg(long, default_value_t = 5.0)]
    pub factor: f64,
    /// Simulated engines.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub engines: u16,
    /// Tenants beside the two that are watched.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub tenants: u32,
    /// Requests that wait at once in the last part.
    #[arg(long, default_value_t = 50_000)]
    pub queued: usize,
    /// The gateway's program; absent = `penstock` beside this one.
    #[arg(long, value_name = "FILE")]
    pub penstock: Option<PathBuf>,
    /// Keep the gateway's configuration and log in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs `loadtest overload`.
///
/// # Errors
/// When something does not start, or a mark is missed.
pub async fn command(args: &OverloadArgs) -> Result<()> {
    ensure!(args.duration >= 10, "--duration must be 10 or more");
    ensure!(args.factor.is_finite() && args.factor > 1.2, "--factor must be a number above 1.2");
    let report = until_stopped(async { Stage::start(args).await?.run(args).await }).await?;
    print!("{}", report.text());
    write_json(args.json.as_deref(), &report)?;
    let missed = report.missed();
    ensure!(missed.is_empty(), "missed: {}", missed.join("; "));
    Ok(())
}
