//! `loadtest soak`: two gateways behind a TCP balancer serve while all around them fails. Every answer
//! is compared with the answer of an undisturbed engine.

mod balancer;
mod gateway;
pub mod report;
mod services;
mod stage;
pub mod trouble;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use self::report::Report;
use self::stage::Stage;

use crate::report::write_json;
use crate::signal::until_stopped;

/// The shortest run with time for some troubles.
const SHORTEST_RUN: u64 = 10;
/// Where Debian's package `libfaketime` has its library.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Arguments of `loadtest soak`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  cargo build --release --workspace
  target/release/loadtest --threads 2 soak --seed 1 --duration 3600 --json soak.json
  target/release/loadtest --threads 2 soak --seed 1 --duration 60

Starts two gateways behind a TCP balancer that follows their readiness, and
simulated vLLM engines: some listed, some named by DNS, some in Kubernetes.
Clients with keys and with tokens send streams and plain requests, each on a
connection of its own. Engines are killed, ended, frozen, cut, slowed and busy
all the time, one at a time. Around the gateways one trouble follows another:

  disk full       a gateway's writes to files fail
  no descriptors  a gateway can open no file and no connection
  restart         SIGTERM and a new start of one gateway, then of the other
  reload          good and broken configurations, one after the other
  database        the usage database is away (with --postgres)
  collector       the trace collector is away or silent
  identity        the identity provider is away or silent
  DNS             the name server is away or fails
  Kubernetes      the API server is away or silent
  clock           the wall clock jumps, by up to a month (with libfaketime)

The seed fixes requests, faults of engines, and the order and kind of all
troubles. Promises: a request fails before its first token only with advice when
to ask again; no stream ends without its end or an error event; no text and no
usage differs; every answered request has one usage row, or a counted loss; at
the end ledgers, queues, connections and engines are empty, and no descriptor is
left open. Exit code 1 when a promise is broken.")]
pub struct SoakArgs {
    /// Fixes what is asked, and what fails how.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Seconds of load.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub duration: u64,
    /// Simulated engines: a third each listed, in DNS and in Kubernetes.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(3..=60))]
    pub engines: u16,
    /// Share of what all engines can do.
    #[arg(long, default_value_t = 0.5)]
    pub load: f64,
    /// Only these kinds of trouble, such as `disk_full,restart`.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub only: Vec<String>,
    /// A PostgreSQL server for usage rows, such as postgres://penstock@127.0.0.1:5432/postgres; absent
    /// = SQLite, which cannot be away.
    #[arg(long, value_name = "URL")]
    pub postgres: Option<String>,
    /// Library that gives the gateways a wall clock of their own; absent = that of Debian's package
    /// libfaketime, if it is there.
    #[arg(long, value_name = "FILE")]
    pub faketime: Option<PathBuf>,
    /// The gateway's program; absent = `penstock` beside this one.
    #[arg(long, value_name = "FILE")]
    pub penstock: Option<PathBuf>,
    /// Keep the gateways' files and logs in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl SoakArgs {
    fn faketime(&self) -> Option<PathBuf> {
        self.faketime.clone().or_else(|| Some(PathBuf::from(FAKETIME)).filter(|path| path.exists()))
    }
}

/// Runs `loadtest soak`.
///
/// # Errors
/// When something does not start, or a promise is broken.
pub async fn command(args: &SoakArgs) -> Result<()> {
    let report = until_stopped(run(args)).await?;
    print!("{}", report.text());
    write_json(args.json.as_deref(), &report)?;
    ensure!(report.broken_promises.is_empty(), "broken: {}", report.broken_promises.join("; "));
    Ok(())
}

/// Runs the soak and reports.
///
/// # Errors
/// When an argument is out of range, or something does not start.
pub async fn run(args: &SoakArgs) -> Result<Report> {
    ensure!(args.duration >= SHORTEST_RUN, "--duration must be {SHORTEST_RUN} or more");
    ensure!(args.load.is_finite() && args.load > 0.0, "--load must be a number above 0");
    Stage::new(args).await?.run(Duration::from_secs(args.duration)).await
}
