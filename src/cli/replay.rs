//! Arguments of `penstock replay`, and those with which a gateway records.

use std::path::PathBuf;

use clap::Args;

use crate::cli::operate::OutputArg;
use crate::config::syntax::units::ByteSize;

/// What stands under the help of `penstock replay`.
pub const EXAMPLES: &str = "Examples:
  penstock replay record
  penstock replay record --config new.yaml
  penstock replay record --config new.yaml -o csv
  penstock replay record --list

A record ends where its gateway ended, or where its folder was copied: a running
gateway's record can be replayed, too. Each start of a gateway is a run; the newest is
replayed unless --run says otherwise.";

/// Where a gateway records what happens.
#[derive(Debug, Clone, Args)]
pub struct RecordArgs {
    /// Record what the scheduler is told and what it decides in this folder, for
    /// `penstock replay`: times, sizes, tenants, classes, models, keyed hashes of
    /// prompts, and how requests ended; no prompts, answers or keys.
    #[arg(long, value_name = "FOLDER")]
    pub record: Option<PathBuf>,
    /// The most bytes of the record; the oldest go. At least 1MiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", requires = "record")]
    pub record_size: ByteSize,
}

/// `penstock replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The folder of the record.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Say what this configuration would have done. Secrets need not be here.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// List the runs in the folder.
    #[arg(long, conflicts_with_all = ["config", "run"])]
    pub list: bool,
    /// Replay this run, by the name that --list shows.
    #[arg(long, value_name = "RUN")]
    pub run: Option<u64>,
    /// How to print the report.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputArg,
    /// No progress on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}
