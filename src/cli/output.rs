//! Output formats of commands that ask no gateway.

use clap::{Args, ValueEnum};

use crate::cli::operate::OutputArg;

/// How a result that is no list is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub enum ResultOutput {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// How to print a result that is no list.
#[derive(Debug, Clone, Copy, Args, Default)]
pub struct ResultForm {
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = ResultOutput::Table)]
    pub output: ResultOutput,
    /// The same as `--output json`.
    #[arg(long, hide = true, conflicts_with = "output")]
    pub json: bool,
}

impl ResultForm {
    /// Whether the result is printed for programs.
    pub const fn is_json(self) -> bool {
        self.json || matches!(self.output, ResultOutput::Json)
    }
}

/// How to print a list.
#[derive(Debug, Clone, Copy, Args, Default)]
pub struct ListForm {
    /// How to print the list.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputArg::Table)]
    pub output: OutputArg,
    /// The same as `--output json`.
    #[arg(long, hide = true, conflicts_with = "output")]
    pub json: bool,
}

impl ListForm {
    /// How the list is to be printed.
    pub const fn format(self) -> OutputArg {
        if self.json { OutputArg::Json } else { self.output }
    }
}

/// How the result of `penstock check` is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckOutput {
    /// For people, each problem with its line of the file.
    #[value(alias = "text")]
    Table,
    /// For programs.
    Json,
    /// For spreadsheets, a row for each problem.
    Csv,
    /// Annotations for GitHub Actions.
    Github,
}
