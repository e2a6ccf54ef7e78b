//! Arguments of `penstock config` and `penstock diff`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::output::ResultForm;

/// `penstock config`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say what a key of the configuration means.
    ///
    /// Its meaning, values, default and range, whether a change needs a restart, what a
    /// file has there, and where the reference is.
    #[command(
        after_help = "Examples:\n  penstock config explain 'pools.*.max_seqs'\n  penstock config explain server.drain_grace --config penstock.yaml"
    )]
    Explain(ExplainKeyArgs),
}

/// `penstock config explain`
#[derive(Debug, Args)]
pub struct ExplainKeyArgs {
    /// The key, such as `pools.*.max_seqs` or `pools.llama.replicas[0].url`.
    #[arg(value_name = "PATH")]
    pub path: String,
    /// Show what this file has there, too.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `penstock diff`
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The configuration in force.
    #[arg(value_name = "OLD")]
    pub old: PathBuf,
    /// The new one.
    #[arg(value_name = "NEW")]
    pub new: PathBuf,
    /// How to print what changes.
    #[command(flatten)]
    pub form: ResultForm,
}
