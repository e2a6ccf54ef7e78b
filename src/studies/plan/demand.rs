//! Simulated demand: the stretches of a trace that are simulated, as arrivals
//! of the world.
//!
//! Every source of demand becomes a [`TrafficTrace`]: a file, a usage log, or
//! calls drawn from a gateway's own measurements. Nothing else here depends on
//! the source.

use std::ops::Range;
use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::engine::BLOCK_TOKENS;
use crate::sim::trace::{TrafficTrace, reblock};
use crate::sim::world::arrival::{Arrival, PREFIX_BLOCK};
use crate::studies::plan::setting::Setting;

/// Output tokens that a request allows, unless its answer is longer.
const MAX_OUTPUT: u32 = 4_096;

/// Limits of one simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulationLimit {
    pub requests: usize,
    pub output: u64,
}

/// Limits of a simulation of the whole source.
pub const WHOLE: SimulationLimit = SimulationLimit { requests: 30_000, output: 8_000_000 };
/// Limits of a simulation of one window.
pub const WINDOW: SimulationLimit = SimulationLimit { requests: 4_000, output: 1_000_000 };

/// A stretch of a trace, ready to be simulated.
#[derive(Debug, Clone)]
pub struct TraceStretch {
    pub arrivals: Vec<Arrival>,
    /// Time from the first to the last arrival.
    pub span: Duration,
}

impl TraceStretch {
    /// The trace as arrivals of the world.
    pub fn of(trace: &TrafficTrace) -> Self {
        let block = trace.prefix_block;
        let arrivals = trace.calls.iter().map(|call| Arrival {
            at: Tick::ZERO + call.at,
            tenant: 0,
            class: call.class,
            prompt: call.prompt,
            output: call.output,
            max_output: MAX_OUTPUT.max(call.output),
            prefix: reblock(&call.prefix, block, PREFIX_BLOCK).into(),
            blocks: reblock(&call.prefix, block, BLOCK_TOKENS).into(),
            ..Arrival::default()
        });
        Self { arrivals: arrivals.collect(), span: trace.span() }
    }

    /// Whether an idle replica of some pool serves each request within its
    /// class's objectives, with its prompt read in full.
    pub fn servable_when_idle(&self, setting: &Setting) -> Vec<bool> {
        let goals = setting.goals();
        let can = |arrival: &Arrival| {
            let Some(goal) = goals.get(arrival.class as usize) else { return false };
            setting.pools.iter().any(|pool| {
                let alone = pool.idle_latency(arrival.prompt, arrival.output);
                alone.ttft <= goal.ttft && alone.itl <= goal.itl
            })
        };
        self.arrivals.iter().map(can).collect()
    }
}

/// The calls of the stretch within the budget whose work arrives fastest. All
/// calls when they fit the budget.
pub fn busiest(trace: &TrafficTrace, work: &[f64], budget: SimulationLimit) -> Range<usize> {
    let calls = &trace.calls;
    let mut best = (f64::NEG_INFINITY, 0..calls.len());
    let (mut first, mut output, mut sum, mut full) = (0, 0u64, 0.0, false);
    for (index, call) in calls.iter().enumerate() {
        (output, sum) = (output + u64::from(call.output), sum + work[index]);
        while first < index && (index + 1 - first > budget.requests || output > budget.output) {
            (output, sum) = (output - u64::from(calls[first].output), sum - work[first]);
            first += 1;
            full = true;
        }
        let rate = sum / (call.at - calls[first].at).as_secs_f64().max(1.0);
        if full && rate > best.0 {
            best = (rate, first..index + 1);
        }
    }
    best.1
}

/// The calls of each window of this width, in order.
pub fn windows(trace: &TrafficTrace, width: Duration) -> Vec<Range<usize>> {
    let count = trace.span().as_nanos().div_ceil(width.as_nanos().max(1)).max(1) as u32;
    let place = |index: u32| trace.calls.partition_point(|call| call.at < width * index);
    let mut windows: Vec<Range<usize>> = (0..count).map(|index| place(index)..place(index + 1)).collect();
    // A call at the very end belongs to the last window.
    if let Some(last) = windows.last_mut() {
        last.end = trace.calls.len();
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::trace::TraceCall;

    fn trace(at: &[u64]) -> TrafficTrace {
        let call = |at: &u64| TraceCall {
            at: Duration::from_secs(*at),
            prompt: 10,
            output: 10,
            ..TraceCall::default()
        };
        TrafficTrace { calls: at.iter().map(call).collect(), ..TrafficTrace::default() }
    }

    #[test]
    fn the_busiest_stretch_is_where_work_comes_fastest() {
        let trace = trace(&[0, 10, 20, 21, 22, 23, 40, 60]);
        let budget = |requests, output| SimulationLimit { requests, output };
        let work = vec![1.0; 8];
        assert_eq!(busiest(&trace, &work, budget(8, 1_000)), 0..8);
        assert_eq!(busiest(&trace, &work, budget(4, 1_000)), 2..6);
        assert_eq!(busiest(&trace, &work, budget(8, 40)), 2..6, "answers count, too");
        let mut heavy = work;
        heavy[7] = 100.0;
        assert_eq!(busiest(&trace, &heavy, budget(4, 1_000)), 4..8);
    }

    #[test]
    fn every_call_is_in_one_window() {
        let trace = trace(&[0, 10, 20, 21, 22, 23, 40, 60]);
        let windows = windows(&trace, Duration::from_secs(20));
        assert_eq!(windows, [0..2, 2..6, 6..8]);
    }
}
