//! Arguments of the operator commands, which inspect and change a running gateway.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::config::syntax::units::Span;

/// Where the gateway is, and how to print what it says.
#[derive(Debug, Clone, Args, Default)]
pub struct AdminArgs {
    /// The gateway's admin address; absent = the environment variable
    /// `PENSTOCK_ADMIN`, or else `http://127.0.0.1:8081`.
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// How to get in there.
    #[command(flatten)]
    pub access: AccessArgs,
    /// How to print the gateway's answer.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputArg::Table, conflicts_with = "json")]
    pub output: OutputArg,
    /// The same as `--output json`.
    #[arg(long)]
    pub json: bool,
}

/// `penstock ready`
#[derive(Debug, Clone, Args)]
pub struct ReadyArgs {
    /// Ask this URL instead of a gateway, such as an engine's
    /// `http://127.0.0.1:8000/health`; ready is an answer of 200.
    #[arg(value_name = "URL", conflicts_with = "admin")]
    pub url: Option<String>,
    /// The gateway's admin address; absent = the environment variable
    /// `PENSTOCK_ADMIN`, or else `http://127.0.0.1:8081`.
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// How to get in there.
    #[command(flatten)]
    pub access: AccessArgs,
}

impl AdminArgs {
    /// How the answer is to be printed.
    pub const fn format(&self) -> OutputArg {
        if self.json { OutputArg::Json } else { self.output }
    }
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub enum OutputArg {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For spreadsheets; lists only.
    Csv,
}

/// What opens a gateway's admin port.
#[derive(Debug, Clone, Args, Default, PartialEq, Eq)]
pub struct AccessArgs {
    /// A file with the operator's token; absent = the environment variable
    /// `PENSTOCK_ADMIN_TOKEN`.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The authorities of the gateway's certificate (PEM); absent = those of
    /// the system.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The operator's certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The private key of `--cert` (PEM).
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

/// What an override is of, for how long, and why.
#[derive(Debug, Clone, Args)]
pub struct OverrideArgs {
    /// Its name, as `list` shows it.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// How long it lasts, such as 30m or 2h, or `forever`.
    #[arg(long = "for", value_name = "TIME", default_value = "1h")]
    pub lasts: String,
    /// Why, for others who look and for the log; one line of at most 200 bytes.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Where the gateway is.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// What is drained, and whether to wait for its end.
#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    /// Wait until nothing runs there any more.
    #[arg(long)]
    pub wait: bool,
    /// With --wait: give up after this time, with exit code 1.
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "wait")]
    pub timeout: Span,
    /// What, how long, and why.
    #[command(flatten)]
    pub what: OverrideArgs,
}

/// What is to be as the file says again.
#[derive(Debug, Clone, Args)]
pub struct NameArgs {
    /// Its name, as `list` shows it.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Where the gateway is.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `penstock pools`
#[derive(Debug, Subcommand)]
pub enum PoolsCommand {
    /// List the pools with what runs there.
    #[command(after_help = "Example:\n  penstock pools list")]
    List(AdminArgs),
    /// Give a pool no new work; what it has goes on.
    #[command(after_help = "Example:\n  penstock pools cordon qwen --for 30m --reason 'new driver'")]
    Cordon(OverrideArgs),
    /// Give a pool work again, slowly at first.
    #[command(after_help = "Example:\n  penstock pools uncordon qwen")]
    Uncordon(NameArgs),
    /// Empty a pool: no new work, and what it has not begun goes to others.
    ///
    /// Streams go on to their end. A request that no other pool can take stays
    /// where it is.
    #[command(
        after_help = "Examples:\n  penstock pools drain qwen --for 2h\n  penstock pools drain qwen --wait --timeout 30m"
    )]
    Drain(DrainArgs),
    /// Drain a pool whose machines will be taken away.
    #[command(after_help = "Example:\n  penstock pools spot-notice qwen --for forever")]
    SpotNotice(OverrideArgs),
}

/// `penstock replicas`
#[derive(Debug, Subcommand)]
pub enum ReplicasCommand {
    /// List the replicas with their ledgers and predictions.
    #[command(after_help = "Example:\n  penstock replicas list")]
    List(AdminArgs),
    /// Give a replica no new work; what it has goes on.
    #[command(after_help = "Example:\n  penstock replicas cordon qwen/http://127.0.0.1:8001 --for 30m")]
    Cordon(OverrideArgs),
    /// Give a replica work again, slowly at first.
    #[command(after_help = "Example:\n  penstock replicas uncordon qwen/http://127.0.0.1:8001")]
    Uncordon(NameArgs),
    /// Empty a replica: no new work, and what it has not begun goes to others.
    ///
    /// Streams go on to their end. A request that no other replica can take
    /// stays where it is.
    #[command(
        after_help = "Example:\n  penstock replicas drain qwen/http://127.0.0.1:8001 --wait --reason driver"
    )]
    Drain(DrainArgs),
    /// Drain a replica whose machine will be taken away.
    #[command(
        after_help = "Example:\n  penstock replicas spot-notice qwen/http://127.0.0.1:8001 --for forever"
    )]
    SpotNotice(OverrideArgs),
}

/// `penstock tenants`
#[derive(Debug, Subcommand)]
pub enum TenantsCommand {
    /// List the tenants with what waits for them and what is left of their limits.
    #[command(after_help = "Example:\n  penstock tenants list")]
    List(AdminArgs),
    /// Send none of a tenant's requests to a replica.
    ///
    /// Those that wait stay in the queue until the pause or their patience
    /// ends. Of those that come, the ones that can wait until the pause ends
    /// are queued; the others are refused at once (503), and told when it ends.
    #[command(after_help = "Example:\n  penstock tenants pause research --for 10m --reason 'runaway job'")]
    Pause(OverrideArgs),
    /// End a tenant's pause and its boost.
    #[command(after_help = "Example:\n  penstock tenants resume research")]
    Resume(NameArgs),
    /// Multiply a tenant's weight for a time.
    #[command(after_help = "Example:\n  penstock tenants boost research --by 4 --for 30m")]
    Boost(BoostArgs),
}

/// `penstock tenants boost`
#[derive(Debug, Args)]
pub struct BoostArgs {
    /// What its weight is multiplied by, from 0.01 to 100.
    #[arg(long, value_name = "FACTOR")]
    pub by: f64,
    /// Whose, how long, and why.
    #[command(flatten)]
    pub what: OverrideArgs,
}

/// `penstock explain`
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The request's id: the answer's header `x-request-id`, or the log's
    /// `request_id`.
    #[arg(value_name = "REQUEST-ID")]
    pub request_id: String,
    /// Where the gateway is.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `penstock status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show it again every two seconds, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// Where the gateway is.
    #[command(flatten)]
    pub admin: AdminArgs,
}
