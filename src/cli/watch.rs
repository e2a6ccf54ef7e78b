//! Arguments of the commands that list and watch requests.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::operate::{AdminArgs, OutputArg};
use crate::config::syntax::units::Span;

/// `penstock requests`
#[derive(Debug, Subcommand)]
pub enum RequestsCommand {
    /// List requests that wait, that run, and that ended last.
    ///
    /// Those that wait come first, the oldest first, then those that run, then
    /// those that ended, the last one first. WHY is what a request waits for, the
    /// replica where it runs, or how it ended. STARTS IN is predicted from how fast
    /// its tenant's requests of the class have started; `-` means not known.
    #[command(
        after_help = "Examples:\n  penstock requests list --waiting\n  penstock requests list --tenant research --class batch --limit 1000 -o csv"
    )]
    List(RequestListArgs),
}

/// `penstock queues`
#[derive(Debug, Subcommand)]
pub enum QueuesCommand {
    /// List what waits, by tenant, class and model.
    #[command(after_help = "Examples:\n  penstock queues list\n  penstock queues list -o csv")]
    List(AdminArgs),
}

/// `penstock requests list`
#[derive(Debug, Args)]
pub struct RequestListArgs {
    /// Only requests that wait; --running and --finished add to it.
    #[arg(long)]
    pub waiting: bool,
    /// Only requests that run.
    #[arg(long)]
    pub running: bool,
    /// Only requests that have ended.
    #[arg(long)]
    pub finished: bool,
    /// Whose.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// The most requests to list.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub limit: u16,
    /// Where the gateway is.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Which requests are meant; each may be given more than once.
#[derive(Debug, Clone, Args, Default)]
pub struct FilterArgs {
    /// Only this tenant's.
    #[arg(long, value_name = "NAME")]
    pub tenant: Vec<String>,
    /// Only of this class.
    #[arg(long, value_name = "NAME")]
    pub class: Vec<String>,
    /// Only of this model.
    #[arg(long, value_name = "NAME")]
    pub model: Vec<String>,
    /// Only of this pool: that ran there, or wait and may go there.
    #[arg(long, value_name = "NAME")]
    pub pool: Vec<String>,
}

/// `penstock tail`
#[derive(Debug, Args)]
pub struct TailArgs {
    /// Which requests.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Only this event: arrived, dispatched, first_token, returned, fell_back, ended
    /// or change; may be given more than once.
    #[arg(long, value_name = "EVENT")]
    pub event: Vec<String>,
    /// End after so many events.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// End after this time, such as 10s.
    #[arg(long = "for", value_name = "TIME")]
    pub lasts: Option<Span>,
    /// Where the gateway is.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `penstock doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The configuration file.
    #[arg(value_name = "FILE", default_value = "penstock.yaml")]
    pub config: PathBuf,
    /// How to print what was found.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputArg::Table)]
    pub output: OutputArg,
}

/// `penstock top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The table to begin with: queues, pools, replicas, tenants or requests.
    #[arg(long, value_name = "TABLE")]
    pub view: Option<String>,
    /// Only lines that have this text in them.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    /// Sort by this column, as its heading says; `-` before it for the largest first.
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Time between two looks, such as 2s.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub every: Span,
    /// Print the tables once and end.
    #[arg(long)]
    pub once: bool,
    /// Print one table as CSV; the queues, or that of --view.
    #[arg(long, requires = "once")]
    pub csv: bool,
    /// Where the gateway is.
    #[command(flatten)]
    pub admin: AdminArgs,
}
