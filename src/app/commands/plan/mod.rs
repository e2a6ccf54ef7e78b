//! `penstock plan`: reads the source and the setting, and prints the report.

mod seen;
mod setting;
mod source;

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, bail};

use crate::cli::plan::PlanArgs;
use crate::studies::plan::make::{PlanRequest, plan};
use crate::studies::plan::report::page;
use crate::studies::plan::report::text;
use crate::studies::plan::trials::FleetTrials;
use crate::studies::plan::whatif::WhatIf;

/// Simulations between two lines of progress when standard error is no terminal.
const QUIET_STEP: usize = 25;

/// Runs the command and returns the text for standard output.
pub(in crate::app) fn run(args: &PlanArgs) -> anyhow::Result<String> {
    if !(0.5..=1.0).contains(&args.basis.keep) {
        bail!("--keep: must be from 0.5 to 1, such as 0.99");
    }
    let settings = args.basis.config.as_deref().map(setting::load).transpose()?;
    let seen = seen::read_measured(args)?;
    let setting = setting::build(args, settings.as_ref(), seen.as_ref())?;
    let source = source::read(args, settings.as_ref(), &setting, seen.as_ref())?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let progress = progress(args.report.quiet);
    let lab = FleetTrials {
        setting: &setting,
        threads: args.report.threads.map_or(cores, usize::from),
        progress: &progress,
    };
    let asked = PlanRequest { name: source.name, what_if: what_if(args), notes: source.notes };
    // Checked before the work, so that a wrong path does not cost the work.
    if let Some(path) = &args.report.html {
        write(path, "")?;
    }
    let report = plan(source.trace, &lab, asked).map_err(anyhow::Error::msg)?;
    if !args.report.quiet && io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    if let Some(path) = &args.report.html {
        write(path, &page::html(&report))?;
    }
    if args.report.form.is_json() {
        let json = serde_json::to_string_pretty(&report).context("the report as JSON")?;
        return Ok(format!("{json}\n"));
    }
    Ok(text::text(&report))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// All requested changes, in the order of the help text.
fn what_if(args: &PlanArgs) -> Vec<WhatIf> {
    let named = |pool: &String| WhatIf::AddReplica((!pool.is_empty()).then(|| pool.clone()));
    let more = args.what_if.add_replica.iter().map(named);
    let classes = args.what_if.class.iter().cloned().map(WhatIf::Class);
    more.chain(classes).chain(args.what_if.traffic.iter().copied().map(WhatIf::Traffic)).collect()
}

/// Progress of the simulations: one line that a terminal overwrites, else a line now and then.
fn progress(quiet: bool) -> impl Fn(&str) + Sync {
    let (done, terminal) = (AtomicUsize::new(0), io::stderr().is_terminal());
    move |what: &str| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if quiet {
            return;
        }
        if terminal {
            eprint!("\r\x1b[K[simulation {done}] {what}");
        } else if done.is_multiple_of(QUIET_STEP) {
            eprintln!("[simulation {done}] {what}");
        }
    }
}
