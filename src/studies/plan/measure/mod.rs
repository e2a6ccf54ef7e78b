//! Measured inputs: the report's seven inputs, measured over the whole source.

pub mod bursts;
pub mod concurrency;

use std::time::Duration;

use crate::sim::trace::{TraceCall, TrafficTrace};
use crate::sim::world::record::quantile;
use crate::studies::plan::measure::bursts::{Surge, surges};
use crate::studies::plan::measure::concurrency::Levels;
use crate::studies::plan::report::{Bursts, Percentiles, PlanClassRow, QueueFigures, TokenRates};
use crate::studies::plan::setting::Setting;

/// Length of the bins of work and tokens.
const BIN: Duration = Duration::from_secs(10);
/// Most bins; a longer source has longer bins.
const MOST_BINS: u32 = 1_000_000;
/// Shortest time that shows sustained demand.
const SUSTAINED: Duration = Duration::from_secs(60);
/// Most surges that a report lists.
pub const MAX_LISTED_SURGES: usize = 500;

/// Time for which demand must last to count as sustained: a minute, or a
/// replica's start time if that is longer.
pub fn sustained(start: Duration) -> Duration {
    start.max(SUSTAINED)
}

/// Length of the bins in which the source's work is counted.
pub fn bin(trace: &TrafficTrace) -> Duration {
    BIN.max(trace.span() / MOST_BINS)
}

/// Percentiles of the samples; 0 without samples.
pub fn percentiles(mut samples: Vec<f64>) -> Percentiles {
    let mut part = |part| quantile(&mut samples, part);
    Percentiles { p50: part(0.5), p90: part(0.9), p99: part(0.99) }
}

/// Service time of a request: as the source says, or as at a replica that is as
/// busy as the recommended fleet.
#[derive(Debug, Clone, Copy)]
pub struct ServiceTime {
    /// Factor on the TTFT of an idle replica.
    pub slowness: f64,
    /// Time between two tokens, in seconds.
    pub itl_s: f64,
}

impl ServiceTime {
    /// Seconds that the call is in service.
    pub fn seconds(&self, setting: &Setting, pool: usize, call: &TraceCall) -> f64 {
        if let Some(took) = call.took {
            return took.saturating_sub(call.waited.unwrap_or_default()).as_secs_f64();
        }
        let alone = setting.pools[pool].idle_latency(call.prompt, call.output);
        alone.ttft.as_secs_f64() * self.slowness + self.itl_s * f64::from(call.output.saturating_sub(1))
    }
}

/// Requests in service over time.
pub fn in_service(trace: &TrafficTrace, seconds: &[f64]) -> Levels {
    let stays = trace.calls.iter().zip(seconds).map(|(call, seconds)| {
        let from = call.at + call.waited.unwrap_or_default();
        (from, from + Duration::from_secs_f64(seconds.clamp(0.0, 1e9)))
    });
    Levels::of(stays, end(trace))
}

/// End of the source, at least one second after its start.
fn end(trace: &TrafficTrace) -> Duration {
    trace.span().max(Duration::from_secs(1))
}

/// Waiting requests, where the source records waits.
pub fn queue(trace: &TrafficTrace) -> Option<QueueFigures> {
    let known = || trace.calls.iter().filter_map(|call| Some((call.at, call.waited?)));
    known().next()?;
    let depth = Levels::of(known().map(|(at, waited)| (at, at + waited)), end(trace)).percentiles();
    Some(QueueFigures {
        depth,
        wait_s: percentiles(known().map(|(_, waited)| waited.as_secs_f64()).collect()),
    })
}

/// Sums of an amount per call, bin by bin; the last bin may be shorter.
fn binned(trace: &TrafficTrace, amount: impl Fn(usize, &TraceCall) -> f64) -> Vec<f64> {
    let width = bin(trace).as_nanos();
    let place = |at: Duration| (at.as_nanos() / width) as usize;
    let mut bins = vec![0.0; place(trace.span()) + 1];
    for (index, call) in trace.calls.iter().enumerate() {
        bins[place(call.at)] += amount(index, call);
    }
    bins
}

/// Surges of work, where `work` has the replica-seconds of each call. The
/// report lists the highest surges first.
pub fn bursts(trace: &TrafficTrace, work: &[f64], start: Duration) -> Bursts {
    let bins = binned(trace, |index, _| work[index]);
    let mut found = surges(&bins, bin(trace).as_secs_f64(), sustained(start));
    found.sort_by(|a, b| b.height.total_cmp(&a.height));
    let hours = (end(trace).as_secs_f64() / 3_600.0).max(1e-9);
    let of = |what: fn(&Surge) -> f64| percentiles(found.iter().map(what).collect());
    let noise = found.iter().filter(|surge| surge.is_noise(start)).count();
    Bursts {
        noise_per_hour: noise as f64 / hours,
        bursts_per_hour: (found.len() - noise) as f64 / hours,
        height: of(|surge| surge.height),
        length_s: of(|surge| surge.lasts_s),
        surges: found,
    }
}

/// Tokens that arrive per second.
pub fn tokens(trace: &TrafficTrace) -> TokenRates {
    let span = end(trace).as_secs_f64();
    let sum = |of: fn(&TraceCall) -> u32| trace.calls.iter().map(|call| f64::from(of(call))).sum::<f64>();
    let mut bins = binned(trace, |_, call| f64::from(call.prompt) + f64::from(call.output));
    if bins.len() > 1 {
        // The last bin is shorter than the others.
        bins.pop();
    }
    let all = percentiles(bins.iter().map(|sum| sum / bin(trace).as_secs_f64().min(span)).collect());
    TokenRates { input: sum(|call| call.prompt) / span, output: sum(|call| call.output) / span, all }
}

/// The classes that have work.
pub fn classes(trace: &TrafficTrace, setting: &Setting) -> Vec<PlanClassRow> {
    let size = |call: &TraceCall| f64::from(call.prompt) + f64::from(call.output);
    let all: f64 = trace.calls.iter().map(size).sum();
    let row = |(index, (name, class)): (usize, &(String, crate::core::model::policy::Class))| {
        let own = || trace.calls.iter().filter(move |call| call.class as usize == index);
        let requests = own().count();
        let waits: Vec<Duration> = own().filter_map(|call| call.waited).collect();
        let within = waits.iter().filter(|waited| **waited <= class.max_wait).count();
        PlanClassRow {
            name: name.clone(),
            requests: requests as f64 / trace.calls.len().max(1) as f64,
            tokens: own().map(size).sum::<f64>() / all.max(1.0),
            ttft_s: class.ttft_objective.as_secs_f64(),
            itl_s: class.itl_objective.as_secs_f64(),
            max_wait_s: class.max_wait.as_secs_f64(),
            waits_for_a_start: class.max_wait >= setting.start,
            waited_within: (!waits.is_empty()).then(|| within as f64 / waits.len() as f64),
        }
    };
    setting.classes.iter().enumerate().map(row).filter(|row| row.requests > 0.0).collect()
}
