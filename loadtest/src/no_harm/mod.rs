//! `loadtest no-harm`: the matrix of [`penstock::studies::no_harm::matrix`] in real time over HTTP.
//! Clients call the engines directly and through a gateway, in turn. A gateway must not cost
//! throughput that the engines have.

mod args;
mod report;
mod stage;
mod virtual_time;

pub use self::args::NoHarmArgs;
pub use self::report::Row;

use anyhow::{Context, Result, ensure};

use self::stage::Stage;
use crate::child::Work;
use crate::process;
use crate::report::write_json;
use crate::signal::until_stopped;

/// Runs `loadtest no-harm`.
///
/// # Errors
/// When the arguments are wrong, something does not start, it is stopped, or a cell
/// is below its mark.
pub async fn command(args: &NoHarmArgs) -> Result<()> {
    let rows = until_stopped(measure(args)).await?;
    write_json(args.json.as_deref(), &rows)?;
    let low: Vec<_> = rows.iter().filter(|row| !row.passed()).map(|row| row.cell.as_str()).collect();
    ensure!(low.is_empty(), "{} of {} cells failed: {}", low.len(), rows.len(), low.join(", "));
    println!("all {} cells passed", rows.len());
    Ok(())
}

/// Measures the cells and prints a line for each.
///
/// # Errors
/// When the arguments are wrong, something does not start, or no request of a side
/// succeeded.
pub async fn measure(args: &NoHarmArgs) -> Result<Vec<Row>> {
    if args.virtual_time {
        return virtual_time::measure(args).await;
    }
    let cells = args.cells()?;
    let (warmup, window) = args.times()?;
    let own = std::env::current_exe().context("find this program")?;
    let penstock = process::built_gateway_program(args.penstock.as_deref())?;
    let most =
        cells.iter().map(|cell| cell.requests().clients as usize * cell.fleet.profiles().count()).max();
    process::require_open_files(most.unwrap_or(0) + 64)?;
    let folder = Work::make("no-harm", args.keep.as_deref())?;
    let stage = Stage {
        penstock,
        loadtest: args.loadtest.clone().unwrap_or(own),
        work: folder.path.clone(),
        warmup,
        window,
        speedup: args.speedup,
        off_model: args.off_model.clone(),
        prefix_cache: !args.no_prefix_cache,
    };
    println!("{}", report::head());
    let mut rows = Vec::with_capacity(cells.len());
    for cell in &cells {
        let running = stage.start(cell).await.with_context(|| cell.name())?;
        let before = process::machine_ticks()?;
        let mut pairs = Vec::new();
        for round in 1..=args.rounds {
            pairs.push(stage.round(cell, &running, round).await?);
        }
        let busy = (process::machine_ticks()? - before).share();
        let row = Row::new(cell, &pairs, busy, running.unkept().await?);
        println!("{}", row.line());
        rows.push(row);
    }
    Ok(rows)
}
