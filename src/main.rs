//! The `penstock` command.

use std::process::ExitCode;

use clap::Parser;
use penstock::app;
use penstock::cli::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    app::answer_shell();
    app::run(Cli::parse())
}
