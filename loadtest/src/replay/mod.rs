//! `loadtest replay`: a trace sent to an OpenAI endpoint in real time, open loop. Every call goes
//! out at its planned instant, whatever the others do. Its times count from that instant, so a
//! stalled server cannot hide behind calls that were never sent.

mod args;
mod call;
mod drive;
mod plan;
mod progress;
mod prompt;
mod record;
mod results;
mod source;
mod table;

pub use self::args::ReplayArgs;
pub use self::drive::{Drive, LEAD};
pub use self::plan::{Plan, Planned};
pub use self::prompt::{Api, Length, Prompt, Writer};
pub use self::record::{Outcome, Record};
pub use self::results::{Group, Judged, Objective, Results};
pub use self::source::{Arrivals, Source, Talk};
pub use self::table::table;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio::sync::watch;

use crate::report::write_json;
use crate::signal::until_stopped;

/// Send lag at the 99th percentile from which the figures are in doubt.
pub const DOUBTFUL_LAG_MS: f64 = 5.0;

/// Runs `loadtest replay`.
///
/// # Errors
/// When the arguments are wrong, the run is stopped, or not one call was
/// served.
pub async fn command(args: &ReplayArgs) -> Result<()> {
    let plan = Arc::new(args.plan()?);
    let drive = args.drive(&plan).await?;
    let records = until_stopped(run(drive, Arc::clone(&plan))).await?;
    let results = Results::of(&plan, &records, args.warmup, &args.goals, &Judged::default());
    print!("{}", table(&results, &args.goals));
    write_json(args.json.as_deref(), &results)?;
    if results.all.served == 0 {
        bail!("no call was served");
    }
    Ok(())
}

/// Runs the plan on threads of its own; they end when the future is dropped.
///
/// # Errors
/// When it cannot be run.
pub async fn run(drive: Drive, plan: Arc<Plan>) -> Result<Vec<Record>> {
    let (_stop, stopped) = watch::channel(false);
    tokio::task::spawn_blocking(move || drive.run(&plan, &stopped)).await.context("the run failed")?
}
