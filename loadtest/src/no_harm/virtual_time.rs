//! The matrix in virtual time: no engines, no gateway, no sockets, only the scheduler and the
//! model of an engine.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use penstock::studies::no_harm::matrix::{CellClass, MatrixCell, MatrixFleet, RequestKind};
use penstock::studies::no_harm::{self, CellConditions};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::report::Row;
use super::{NoHarmArgs, report};

/// Cells that are measured together: they differ only in their class, and need one measurement
/// straight at the engines.
struct CellGroup {
    fleet: &'static MatrixFleet,
    kind: RequestKind,
    classes: Vec<&'static CellClass>,
}

/// Measures the cells on all cores, and prints a line for each in the order of the matrix.
///
/// # Errors
/// When a value is out of range, or an invariant of the scheduler broke.
pub(super) async fn measure(args: &NoHarmArgs) -> Result<Vec<Row>> {
    let (warmup, window) = args.times()?;
    let conditions = CellConditions {
        warmup,
        window,
        rtt: Duration::from_millis(u64::from(args.rtt)),
        step_time_factors: args.off_model.clone(),
        prefix_cache: !args.no_prefix_cache,
        ..CellConditions::default()
    };
    let cores = Arc::new(Semaphore::new(thread::available_parallelism()?.get()));
    let start = |group: CellGroup| {
        let (cores, conditions) = (Arc::clone(&cores), conditions.clone());
        tokio::spawn(async move {
            let _core = cores.acquire_owned().await?;
            spawn_blocking(move || group.measure(&conditions)).await?
        })
    };
    let running: Vec<_> = groups(args.cells()?).into_iter().map(start).collect();
    println!("{}", report::head());
    let mut rows = Vec::new();
    for group in running {
        let group = group.await??;
        group.iter().for_each(|row| println!("{}", row.line()));
        rows.extend(group);
    }
    Ok(rows)
}

impl CellGroup {
    fn measure(&self, conditions: &CellConditions) -> Result<Vec<Row>> {
        let name = || format!("{}/{}", self.fleet.name, self.kind.name());
        let rows = no_harm::measure(self.fleet, self.kind, &self.classes, conditions);
        let rows = rows.map_err(Error::msg).with_context(name)?;
        Ok(rows.iter().map(Row::of_virtual_time).collect())
    }
}

fn groups(cells: Vec<MatrixCell>) -> Vec<CellGroup> {
    let mut groups: Vec<CellGroup> = Vec::new();
    for MatrixCell { fleet, kind, class } in cells {
        match groups.last_mut() {
            Some(last) if (last.fleet, last.kind) == (fleet, kind) => last.classes.push(class),
            _ => groups.push(CellGroup { fleet, kind, classes: vec![class] }),
        }
    }
    groups
}
