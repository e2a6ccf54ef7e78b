//! Arguments of `penstock usage`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::operate::{AccessArgs, AdminArgs};
use crate::usage::bill::ask;
use crate::usage::bill::{Dimension, TimeShare};

/// `penstock usage`
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// What lines are told apart by, with commas: tenant, model, pool, day, key,
    /// class.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "tenant", value_parser = ask::dimension)]
    pub by: Vec<Dimension>,
    /// From when on: a day (its begin, UTC), a time with its zone, or an age such
    /// as 7d; absent = the first row.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Before when, in the same ways; absent = now.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// How replicas' busy time is shared among the requests that ran there: by
    /// their tokens in each of the engine's steps, or by their tokens of the day.
    #[arg(long, value_enum, default_value_t = ShareArg::Steps)]
    pub share: ShareArg,
    /// How to print it.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t = BillFormat::Table)]
    pub format: BillFormat,
    /// Ask the running gateway with this admin address instead.
    #[arg(long, value_name = "URL", conflicts_with_all = ["sqlite", "postgres", "journal"])]
    pub admin: Option<String>,
    /// How to get in there.
    #[command(flatten)]
    pub access: AccessArgs,
    /// The configuration whose database is asked.
    #[arg(short, long, value_name = "FILE", default_value = "penstock.yaml")]
    pub config: PathBuf,
    /// Ask this SQLite file instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["postgres", "journal"])]
    pub sqlite: Option<PathBuf>,
    /// Ask the PostgreSQL database whose address is in this environment variable
    /// instead.
    #[arg(long, value_name = "VARIABLE", conflicts_with = "journal")]
    pub postgres: Option<String>,
    /// Read the JSON lines of the journal in this folder instead.
    #[arg(long, value_name = "FOLDER")]
    pub journal: Option<PathBuf>,
}

impl UsageArgs {
    /// The gateway that is asked.
    pub fn admin_args(&self) -> AdminArgs {
        AdminArgs { admin: self.admin.clone(), access: self.access.clone(), ..AdminArgs::default() }
    }
}

/// How busy time is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShareArg {
    /// By tokens in each step of the engine: what the hardware spent.
    Steps,
    /// By tokens of the day: what other bills go by.
    Tokens,
}

impl From<ShareArg> for TimeShare {
    fn from(share: ShareArg) -> Self {
        match share {
            ShareArg::Steps => Self::Steps,
            ShareArg::Tokens => Self::Tokens,
        }
    }
}

/// How a bill is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BillFormat {
    /// For people; hours and costs are rounded.
    Table,
    /// For spreadsheets; exact.
    Csv,
    /// For programs; exact.
    Json,
}
