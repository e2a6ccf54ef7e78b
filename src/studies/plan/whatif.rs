//! What-if rows: one simulation for each change to the plan, everything else
//! unchanged.

use std::str::FromStr;

use crate::sim::trace::TrafficTrace;
use crate::studies::plan::demand::TraceStretch;
use crate::studies::plan::report::WhatIfRow;
use crate::studies::plan::trials::FleetTrials;

/// A change to the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum WhatIf {
    /// One more replica of this pool; absent = of the chosen pool.
    AddReplica(Option<String>),
    /// A class's time, as written `interactive.max_wait=5s`.
    Class(String),
    /// A multiple of the traffic: gaps are shorter, and bursts keep their
    /// shape.
    Traffic(Factor),
}

/// A factor, as written `x1.5` or `1.5`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factor(pub f64);

impl FromStr for Factor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_start_matches('x').parse::<f64>().ok();
        let times = number.filter(|times| (0.01..=100.0).contains(times)).map(Self);
        times.ok_or_else(|| format!("`{text}`: write it like x1.5, from x0.01 to x100"))
    }
}

/// Runs each change against the fleet.
///
/// # Errors
///
/// A sentence that names the unknown pool or class.
pub fn rows(
    lab: &FleetTrials<'_>,
    asked: &[WhatIf],
    trace: &TrafficTrace,
    fleet: &[usize],
    chosen: usize,
) -> Result<Vec<WhatIfRow>, String> {
    asked.iter().map(|what_if| row(lab, what_if, trace, fleet, chosen)).collect()
}

fn row(
    lab: &FleetTrials<'_>,
    what_if: &WhatIf,
    trace: &TrafficTrace,
    fleet: &[usize],
    chosen: usize,
) -> Result<WhatIfRow, String> {
    let run = |lab: &FleetTrials<'_>, trace: &TrafficTrace, fleet: &[usize], name: String| {
        let run = lab.run(&TraceStretch::of(trace), fleet, "what if");
        WhatIfRow { name, run }
    };
    match what_if {
        WhatIf::AddReplica(pool) => {
            let place = pool_of(lab, pool.as_deref())?.unwrap_or(chosen);
            let mut more = fleet.to_vec();
            more[place] += 1;
            let name = format!("+1 replica {}", lab.setting.pools[place].name);
            Ok(run(lab, trace, &more, name))
        }
        WhatIf::Class(text) => {
            let mut setting = lab.setting.clone();
            setting.set_class(text).map_err(|what| format!("--class: {what}"))?;
            Ok(run(&lab.with(&setting), trace, fleet, text.clone()))
        }
        WhatIf::Traffic(Factor(times)) => {
            let mut more = trace.clone();
            more.stretch(1.0 / times);
            Ok(run(lab, &more, fleet, format!("traffic x{times}")))
        }
    }
}

/// The index of a pool by its name.
///
/// # Errors
///
/// A sentence that names the known pools.
pub fn pool_of(lab: &FleetTrials<'_>, name: Option<&str>) -> Result<Option<usize>, String> {
    let Some(name) = name else { return Ok(None) };
    let pools = &lab.setting.pools;
    let names = || pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
    let place = pools.iter().position(|pool| pool.name == name);
    place.map(Some).ok_or_else(|| format!("--add-replica: there is no pool `{name}`; there are: {}", names()))
}

/// Checks that every change can be made; called before the simulations.
///
/// # Errors
///
/// A sentence that names the unknown pool or class.
pub fn check(lab: &FleetTrials<'_>, asked: &[WhatIf]) -> Result<(), String> {
    for what_if in asked {
        match what_if {
            WhatIf::AddReplica(pool) => pool_of(lab, pool.as_deref()).map(drop)?,
            WhatIf::Class(text) => {
                lab.setting.clone().set_class(text).map_err(|what| format!("--class: {what}"))?;
            }
            WhatIf::Traffic(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_read_with_and_without_the_x() {
        assert_eq!("x1.5".parse(), Ok(Factor(1.5)));
        assert_eq!("2".parse(), Ok(Factor(2.0)));
        for text in ["", "x", "x0", "-1", "x1000", "1,5"] {
            assert!(text.parse::<Factor>().unwrap_err().contains("x1.5"), "{text}");
        }
    }
}
