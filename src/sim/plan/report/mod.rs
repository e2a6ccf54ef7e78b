//! Capacity report in the form that programs read (JSON).

pub mod answers;
pub mod numbers;
pub mod page;
pub mod text;

use serde::Serialize;

use crate::sim::plan::measure::bursts::Surge;
use crate::sim::plan::measure::concurrency::{Bands, LevelBin};
use crate::sim::plan::trials::TriedFleet;

/// All of it.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// What was read, and what of it was simulated.
    pub source: DemandSourceRow,
    /// What it was read for.
    pub setting: SettingRow,
    /// The seven inputs.
    pub measured: MeasuredInputs,
    /// What to do.
    pub advice: Advice,
    /// Fleets, each against the others.
    pub fleets: Vec<PlanFleetRow>,
    /// The maximum, put through the simulator again.
    pub promise: VerifiedMaximum,
    /// What would be otherwise if.
    pub what_if: Vec<WhatIfRow>,
    /// The four preflight questions.
    pub answers: Vec<PreflightAnswer>,
    /// Fleets of the chosen pool by their size.
    pub by_replicas: Vec<TriedFleet>,
    /// Replicas that each window needs.
    pub need: Vec<WindowNeed>,
    /// Requests in service over time.
    pub over_time: Vec<LevelBin>,
    /// What the reader should know of it.
    pub notes: Vec<String>,
}

/// What was read.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DemandSourceRow {
    /// Its name.
    pub name: String,
    /// Requests.
    pub requests: u64,
    /// From the first to the last, seconds.
    pub span_s: f64,
    /// Requests a second.
    pub rate: f64,
    /// Requests that were simulated.
    pub simulated: u64,
    /// From when on, seconds from the start of the source.
    pub simulated_from_s: f64,
    /// How long that is, seconds.
    pub simulated_span_s: f64,
}

/// What it was read for.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SettingRow {
    /// The chosen pool.
    pub pool: String,
    /// Whose speed it has.
    pub profile: String,
    /// What a replica of it costs in an hour.
    pub price_per_hour: f64,
    /// From the decision to the first request that a new replica takes, seconds.
    pub start_s: f64,
    /// The share of requests to be served within their objectives, of those that
    /// an idle replica could serve so.
    pub keep: f64,
    /// That part of all requests.
    pub keepable: f64,
}

/// The seven inputs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MeasuredInputs {
    /// Requests in service at the same time.
    pub concurrency: Concurrency,
    /// What waited, where the source tells it.
    pub queue: Option<QueueFigures>,
    /// Surges of work.
    pub bursts: Bursts,
    /// What each class is and may wait.
    pub classes: Vec<PlanClassRow>,
    /// How much of a fixed fleet's time is idle but hot.
    pub residency: ResidencyFigures,
    /// How long requests are in service, seconds.
    pub duration_s: Percentiles,
    /// Whether that comes from the source; else from the simulated replicas.
    pub duration_from_source: bool,
    /// Tokens that arrive in a second.
    pub tokens: TokenRates,
}

/// Requests in service.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Concurrency {
    /// Sustained parallel work: nine of ten windows have at least this mean.
    pub floor: f64,
    /// Over the whole time.
    pub bands: Bands,
}

/// What waited.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct QueueFigures {
    /// Requests in the queue at the same time.
    pub depth: Bands,
    /// How long, seconds.
    pub wait_s: Percentiles,
}

/// Values below which a part of the samples lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of them.
    pub p50: f64,
    /// Nine tenths.
    pub p90: f64,
    /// All but a hundredth.
    pub p99: f64,
}

/// Surges.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Bursts {
    /// How many an hour are over before a replica has started.
    pub noise_per_hour: f64,
    /// How many an hour last longer.
    pub bursts_per_hour: f64,
    /// Of all: times the level before.
    pub height: Percentiles,
    /// Of all: seconds.
    pub length_s: Percentiles,
    /// Each of them, the highest first; at most 500.
    pub surges: Vec<Surge>,
}

/// One class.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PlanClassRow {
    /// Its name.
    pub name: String,
    /// Its part of the requests.
    pub requests: f64,
    /// Its part of the tokens.
    pub tokens: f64,
    /// Its objective for the first token, seconds.
    pub ttft_s: f64,
    /// Its objective for the time between tokens, seconds.
    pub itl_s: f64,
    /// How long its requests may wait, seconds.
    pub max_wait_s: f64,
    /// Whether that is long enough for a replica to start.
    pub waits_for_a_start: bool,
    /// Of those whose wait the source tells: the part that waited no longer.
    pub waited_within: Option<f64>,
}

/// How much of a fixed fleet's time is idle but hot.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ResidencyFigures {
    /// Replicas of the fixed fleet.
    pub replicas: usize,
    /// Share of their time without a step.
    pub idle: f64,
    /// Share of the fixed fleet's hours that demand did not need.
    pub unneeded: f64,
}

/// Tokens a second, over ten seconds each.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct TokenRates {
    /// Of prompts, the mean.
    pub input: f64,
    /// Of answers, the mean.
    pub output: f64,
    /// Both together.
    pub all: Percentiles,
}

/// What to do.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Advice {
    /// Whether any fleet that was tried keeps the promise.
    pub kept: bool,
    /// Replicas that are always warm.
    pub floor: usize,
    /// The most replicas.
    pub maximum: usize,
    /// Requests in service at the top of a surge that is over before a replica
    /// has started.
    pub burst_requests: u64,
    /// Replicas that have to be warm for it.
    pub burst_replicas: usize,
    /// Replicas needed, over time.
    pub replicas: Percentiles,
    /// How long each class should be allowed to wait.
    pub tolerance: Vec<Tolerance>,
    /// Each pool alone.
    pub pools: Vec<PlanPoolRow>,
    /// Share of the recommended replicas' hours that are above the floor: what
    /// may come and go.
    pub elastic: f64,
    /// Share of the tokens that can wait until a replica has started.
    pub patient: f64,
}

/// How long a class should be allowed to wait.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tolerance {
    /// The class.
    pub class: String,
    /// Seconds that it may wait now.
    pub now_s: f64,
    /// Seconds that are enough with the recommended fleet.
    pub enough_s: f64,
}

/// A pool alone.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PlanPoolRow {
    /// Its name.
    pub pool: String,
    /// The smallest fixed fleet of it; absent = none keeps the promise.
    pub replicas: Option<usize>,
    /// What that costs in an hour.
    pub cost_per_hour: Option<f64>,
    /// The most of the promise that was kept.
    pub kept: f64,
}

/// A fleet.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PlanFleetRow {
    /// What it is.
    pub name: String,
    /// The fewest and the most replicas.
    pub replicas: (usize, usize),
    /// The mean.
    pub mean: f64,
    /// What it costs in an hour, on average.
    pub cost_per_hour: f64,
    /// Within the objectives, of what an idle replica serves so.
    pub kept: f64,
    /// Its simulation; absent where it has several.
    pub run: Option<TriedFleet>,
}

/// The maximum, put through the simulator again.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VerifiedMaximum {
    /// What was promised.
    pub keep: f64,
    /// What was kept, from each place of the source on.
    pub kept: Vec<f64>,
    /// Whether all of them are what was promised.
    pub holds: bool,
}

impl VerifiedMaximum {
    /// The least that was kept.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.kept.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }
}

/// What would be otherwise if.
#[derive(Debug, Clone, Serialize)]
pub struct WhatIfRow {
    /// As it was asked.
    pub name: String,
    /// What came of it.
    pub run: TriedFleet,
}

/// A preflight question.
#[derive(Debug, Clone, Serialize)]
pub struct PreflightAnswer {
    /// The question.
    pub question: &'static str,
    /// In sentences.
    pub answer: String,
}

/// What a window of time needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WindowNeed {
    /// When it begins, seconds.
    pub at_s: f64,
    /// How long it is, seconds.
    pub lasts_s: f64,
    /// The smallest fleet that keeps the promise in it.
    pub needs: usize,
    /// The fleet for it, as rises are met and falls are followed.
    pub has: usize,
}
