//! Capacity report in the form that programs read (JSON).

pub mod answers;
pub mod numbers;
pub mod page;
pub mod text;

use serde::Serialize;

use crate::studies::plan::measure::bursts::Surge;
use crate::studies::plan::measure::concurrency::{LevelBin, LevelPercentiles};
use crate::studies::plan::trials::TriedFleet;

/// Capacity report.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// The source, and the part of it that was simulated.
    pub source: DemandSourceRow,
    pub setting: SettingRow,
    pub measured: MeasuredInputs,
    /// Recommendation.
    pub advice: Advice,
    /// Fleets compared with each other.
    pub fleets: Vec<PlanFleetRow>,
    /// Second simulation of the maximum.
    pub promise: VerifiedMaximum,
    pub what_if: Vec<WhatIfRow>,
    pub answers: Vec<PreflightAnswer>,
    /// Fleets of the chosen pool, by size.
    pub by_replicas: Vec<TriedFleet>,
    /// Replicas that each window needs.
    pub need: Vec<WindowNeed>,
    /// Requests in service over time.
    pub over_time: Vec<LevelBin>,
    /// Facts about the report that the reader should know.
    pub notes: Vec<String>,
}

/// Source of the demand.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DemandSourceRow {
    pub name: String,
    pub requests: u64,
    /// Seconds from the first to the last request.
    pub span_s: f64,
    /// Requests per second.
    pub rate: f64,
    /// Requests that were simulated.
    pub simulated: u64,
    /// Begin of the simulated stretch, in seconds from the start of the source.
    pub simulated_from_s: f64,
    /// Length of the simulated stretch, in seconds.
    pub simulated_span_s: f64,
}

/// Setting of the plan.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SettingRow {
    /// The chosen pool.
    pub pool: String,
    /// Name of the pool's step-time profile.
    pub profile: String,
    /// Price of one replica per hour.
    pub price_per_hour: f64,
    /// Seconds from the decision to the first request that a new replica takes.
    pub start_s: f64,
    /// Share of requests that must meet their objectives, of those that an idle
    /// replica serves within them.
    pub keep: f64,
    /// Share of all requests that an idle replica serves within their
    /// objectives.
    pub keepable: f64,
}

/// The seven measured inputs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MeasuredInputs {
    /// Requests in service at the same time.
    pub concurrency: Concurrency,
    /// Waiting requests, where the source records waits.
    pub queue: Option<QueueFigures>,
    pub bursts: Bursts,
    /// Each class's share and allowed wait.
    pub classes: Vec<PlanClassRow>,
    /// Share of a fixed fleet's time that is idle but warm.
    pub residency: ResidencyFigures,
    /// Seconds that requests are in service.
    pub duration_s: Percentiles,
    /// Whether `duration_s` comes from the source; otherwise from the simulated
    /// replicas.
    pub duration_from_source: bool,
    /// Tokens that arrive per second.
    pub tokens: TokenRates,
}

/// Requests in service.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Concurrency {
    /// Sustained parallel work: nine of ten windows have at least this mean.
    pub floor: f64,
    /// Percentiles over the whole time.
    pub bands: LevelPercentiles,
}

/// Waiting requests.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct QueueFigures {
    /// Requests in the queue at the same time.
    pub depth: LevelPercentiles,
    /// Seconds that requests waited.
    pub wait_s: Percentiles,
}

/// Percentiles of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

/// Surges of work.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Bursts {
    /// Surges per hour that end before a replica could start.
    pub noise_per_hour: f64,
    /// Surges per hour that last longer.
    pub bursts_per_hour: f64,
    /// Height of all surges, as a multiple of the level before.
    pub height: Percentiles,
    /// Length of all surges, in seconds.
    pub length_s: Percentiles,
    /// Surges, the highest first; at most 500.
    pub surges: Vec<Surge>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct PlanClassRow {
    pub name: String,
    /// Share of the requests.
    pub requests: f64,
    /// Share of the tokens.
    pub tokens: f64,
    /// TTFT objective, in seconds.
    pub ttft_s: f64,
    /// ITL objective, in seconds.
    pub itl_s: f64,
    /// Longest allowed wait, in seconds.
    pub max_wait_s: f64,
    /// Whether `max_wait_s` is long enough for a replica to start.
    pub waits_for_a_start: bool,
    /// Share of requests that waited no longer than `max_wait_s`, of those with
    /// a wait in the source.
    pub waited_within: Option<f64>,
}

/// Share of a fixed fleet's time that is idle but warm.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ResidencyFigures {
    /// Replicas of the fixed fleet.
    pub replicas: usize,
    /// Share of the replicas' time without a step.
    pub idle: f64,
    /// Share of the fixed fleet's replica-hours that demand did not need.
    pub unneeded: f64,
}

/// Tokens per second, measured over bins of ten seconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct TokenRates {
    /// Mean prompt tokens per second.
    pub input: f64,
    /// Mean output tokens per second.
    pub output: f64,
    /// Prompt and output tokens together.
    pub all: Percentiles,
}

/// Recommendation.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Advice {
    /// Whether any tried fleet meets the objectives.
    pub kept: bool,
    /// Replicas that are always warm.
    pub floor: usize,
    /// Most replicas.
    pub maximum: usize,
    /// Most requests in service during a surge that ends before a replica could
    /// start.
    pub burst_requests: u64,
    /// Warm replicas that such a surge needs.
    pub burst_replicas: usize,
    /// Replicas needed over time.
    pub replicas: Percentiles,
    /// Recommended longest wait of each class.
    pub tolerance: Vec<Tolerance>,
    /// Each pool on its own.
    pub pools: Vec<PlanPoolRow>,
    /// Share of the recommended fleet's replica-hours above the floor, which
    /// may come and go.
    pub elastic: f64,
    /// Share of the tokens that can wait until a replica has started.
    pub patient: f64,
}

/// Recommended longest wait of a class.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tolerance {
    pub class: String,
    /// Present longest wait, in seconds.
    pub now_s: f64,
    /// Longest wait that suffices with the recommended fleet, in seconds.
    pub enough_s: f64,
}

/// A pool on its own.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PlanPoolRow {
    pub pool: String,
    /// Smallest fixed fleet of the pool; absent = no fleet meets the
    /// objectives.
    pub replicas: Option<usize>,
    /// Cost of that fleet per hour.
    pub cost_per_hour: Option<f64>,
    /// Largest share of requests within their objectives that any fleet of the
    /// pool reached.
    pub kept: f64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct PlanFleetRow {
    /// Description of the fleet.
    pub name: String,
    /// Fewest and most replicas.
    pub replicas: (usize, usize),
    /// Mean number of replicas.
    pub mean: f64,
    /// Mean cost per hour.
    pub cost_per_hour: f64,
    /// Share of requests within their objectives, of those that an idle replica
    /// serves within them.
    pub kept: f64,
    /// Simulation of the fleet; absent where there are several.
    pub run: Option<TriedFleet>,
}

/// Second simulation of the maximum.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VerifiedMaximum {
    /// Required share of requests within their objectives.
    pub keep: f64,
    /// Share reached from each place of the source.
    pub kept: Vec<f64>,
    /// Whether every run reached the required share.
    pub holds: bool,
}

impl VerifiedMaximum {
    /// The smallest share that was reached.
    pub fn least(&self) -> f64 {
        self.kept.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }
}

/// One changed condition with its simulation.
#[derive(Debug, Clone, Serialize)]
pub struct WhatIfRow {
    /// The change as it was asked for.
    pub name: String,
    /// Simulation with the change.
    pub run: TriedFleet,
}

#[derive(Debug, Clone, Serialize)]
pub struct PreflightAnswer {
    pub question: &'static str,
    /// Answer in sentences.
    pub answer: String,
}

/// Replicas of one window of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WindowNeed {
    /// Begin, in seconds.
    pub at_s: f64,
    /// Length, in seconds.
    pub lasts_s: f64,
    /// Smallest fleet that meets the objectives in the window.
    pub needs: usize,
    /// Fleet in the window when rises are met at once and falls are followed
    /// one window later.
    pub has: usize,
}
