//! Arguments of `penstock plan`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use crate::cli::operate::AccessArgs;
use crate::cli::output::ResultForm;
use crate::config::syntax::units::Span;
use crate::sim::trace::ColumnNames;
use crate::studies::plan::whatif::Factor;

/// What stands under the help of `penstock plan`.
pub const EXAMPLES: &str = "Examples:
  penstock plan loadtest/traces/azure2023_conv.csv.gz
  penstock plan loadtest/traces/azure2023_code.csv.gz --html plan.html
  penstock plan loadtest/traces/azure2023_code.csv.gz --traffic x1.5 -o json

From what a gateway has seen: --live asks a running one, --state reads the file
that it keeps as scale.state_file. Both remember the last four hours by minute.

More what-ifs: --class interactive.max_wait=5s, --add-replica. Each may be
given more than once, and each stands alone beside the fleet as it is.

A table needs three columns, in any order, known by many names: the time (t_s,
timestamp, time_ms; seconds, or dates like 2026-11-16T18:15:46Z), the prompt's
tokens (in_tokens, prompt_tokens) and the answer's (out_tokens,
completion_tokens). It may have tenant, class, wait_s and duration_s. Other
names: --columns time=created,input=size,output=made.";

/// `penstock plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub source: PlanSource,
    #[command(flatten)]
    pub basis: PlanBasis,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    #[command(flatten)]
    pub report: PlanReportArgs,
}

/// Where the demand is read from.
#[derive(Debug, Args)]
pub struct PlanSource {
    /// A trace, or any table with times and tokens: .csv or .jsonl, also with .gz.
    #[arg(value_name = "FILE")]
    pub source: Option<PathBuf>,
    /// What the table's columns are called, where it is unusual: time, input, output,
    /// tenant, class, wait, duration.
    #[arg(long, value_name = "NAMES", requires = "source")]
    pub columns: Option<ColumnNames>,
    /// Read the usage journal in this folder instead.
    #[arg(long, value_name = "FOLDER", conflicts_with = "source")]
    pub journal: Option<PathBuf>,
    /// Read the usage database in this SQLite file instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "journal"])]
    pub sqlite: Option<PathBuf>,
    /// Read the usage database whose address is in this environment variable.
    #[arg(long, value_name = "VARIABLE", conflicts_with_all = ["source", "journal", "sqlite"])]
    pub postgres: Option<String>,
    /// Plan from what the running gateway has seen; without an address, the one in
    /// the environment variable `PENSTOCK_ADMIN`, or else `http://127.0.0.1:8081`.
    #[arg(
        long,
        value_name = "URL",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["source", "journal", "sqlite", "postgres"]
    )]
    pub live: Option<String>,
    /// How to get in at the gateway's admin port.
    #[command(flatten)]
    pub access: AccessArgs,
    /// Plan from a gateway's `scale.state_file`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "journal", "sqlite", "postgres", "live"])]
    pub state: Option<PathBuf>,
    /// Of a usage log, what ended from then on: a day, a time with its zone, or an age such
    /// as 7d.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["source", "live", "state"])]
    pub since: Option<String>,
    /// Of a usage log, what ended before then.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["source", "live", "state"])]
    pub until: Option<String>,
    /// Of a usage log or of what a gateway has seen, only this model's requests.
    #[arg(long, value_name = "NAME", conflicts_with = "source")]
    pub model: Option<String>,
}

/// What replicas can do and cost, and what classes ask for.
#[derive(Debug, Args)]
pub struct PlanBasis {
    /// Classes, pools, prices and start times come from this configuration; without another
    /// source, the usage log that it names is read.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only this pool of the configuration; may be given more than once.
    #[arg(long, value_name = "NAME", requires = "config")]
    pub pool: Vec<String>,
    /// The accelerator and model whose speed replicas have; absent = what the gateway of
    /// `--live` or `--state` has measured of each pool, or else h100-8b. More than one are
    /// compared, the cheapest is taken. With a configuration, POOL=PROFILE is for one pool. A
    /// name that is not there lists those that are.
    #[arg(long, value_name = "PROFILE")]
    pub profile: Vec<String>,
    /// The speed as measured, in place of a profile: prompt tokens read a second, and the time
    /// between two tokens, like read=21000,gap=8ms.
    #[arg(long, value_name = "RATES", conflicts_with = "profile")]
    pub rates: Option<String>,
    /// What a replica costs in an hour; absent = what the configuration or the profile says.
    #[arg(long, value_name = "PRICE")]
    pub price: Option<f64>,
    /// From the decision to the first request that a new replica takes; absent = the
    /// configuration's longest cold_start, or 3m.
    #[arg(long, value_name = "TIME")]
    pub start: Option<Span>,
    /// How many replicas there are today: what-ifs are held against them.
    #[arg(long, value_name = "N")]
    pub replicas: Option<NonZeroU32>,
    /// The share of requests to be served within their objectives, of those that an idle
    /// replica could serve so.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99)]
    pub keep: f64,
    /// The classes of a source that does not tell any, dealt by these shares, like
    /// interactive=0.8,batch=0.2; absent = all are interactive.
    #[arg(long, value_name = "SHARES")]
    pub mix: Option<String>,
    /// The objective for the first token, of the class interactive or else the first one.
    #[arg(long, value_name = "TIME")]
    pub ttft: Option<Span>,
    /// The objective for the time between two tokens, of the same class.
    #[arg(long, value_name = "TIME")]
    pub itl: Option<Span>,
}

/// Changes whose effect is reported beside the plan.
#[derive(Debug, Args)]
pub struct WhatIfArgs {
    /// What if there were one replica more, in this pool or the chosen one?
    #[arg(long, value_name = "POOL", num_args = 0..=1, default_missing_value = "")]
    pub add_replica: Vec<String>,
    /// What if a class had another max_wait, ttft or itl? Like interactive.max_wait=5s.
    #[arg(long, value_name = "CLASS.KEY=TIME")]
    pub class: Vec<String>,
    /// What if there were so many times the traffic? Like x1.5.
    #[arg(long, value_name = "TIMES")]
    pub traffic: Vec<Factor>,
}

/// How the plan is computed and shown.
#[derive(Debug, Args)]
pub struct PlanReportArgs {
    /// Simulations at once; absent = one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// How to print the report.
    #[command(flatten)]
    pub form: ResultForm,
    /// Write the report as a page with plots here.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// No progress on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}
