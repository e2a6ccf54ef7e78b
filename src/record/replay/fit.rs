//! Fit: simulated engines that take the time that the recorded ones took.
//!
//! Three numbers are read off the record for each pool: the time between two tokens as a line over the
//! KV tokens of the streams, and the prefill rate (as the scheduler learns it). The simulation of the
//! recorded requests under the recorded policy then shows by how much the engines are off, and
//! [`PoolFit::correct`] moves the numbers: decode times by a factor, first tokens by the time that a
//! message travels.

use std::time::Duration;

use crate::core::model::event::ReplicaReport;
use crate::core::model::policy::{Pool, Replica};
use crate::core::replica::speed::prefill_rate::PrefillRate;
use crate::sim::engine::EngineOptions;
use crate::sim::engine::profile::StepProfile;
use crate::sim::world::replica::{CacheHitReporting, ReplicaSetup};
use crate::studies::plan::setting::of_rates;

/// Prompt tokens a second of a pool that showed nothing.
const USUAL_READ: f64 = 20_000.0;
/// Milliseconds between two tokens at a pool that showed nothing.
const USUAL_GAP: f64 = 10.0;
/// Bounds of one correction of a factor.
const CORRECTION: (f64, f64) = (0.25, 4.0);

/// What the replicas of a pool showed.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolSamples {
    pub prefill: PrefillRate,
    /// Sums over the samples of the time between tokens (`y`, in ms) at KV tokens `x`.
    gaps: LineSums,
    /// Latest values that replicas reported.
    report: ReplicaReport,
    pauses: PauseSums,
}

/// Times between two reports of a replica.
#[derive(Debug, Clone, Copy, Default)]
struct PauseSums {
    total: Duration,
    count: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct LineSums {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl PoolSamples {
    /// Adds a sample of the time between tokens.
    pub fn gap(&mut self, millis: f64, kv: f64, weight: f64) {
        let sums = &mut self.gaps;
        sums.weight += weight;
        sums.x += weight * kv;
        sums.y += weight * millis;
        sums.xx += weight * kv * kv;
        sums.xy += weight * kv * millis;
    }

    /// Adds a report that came `pause` after the one before.
    pub fn report(&mut self, report: &ReplicaReport, pause: Option<Duration>) {
        let last = &mut self.report;
        last.slots = report.slots.or(last.slots);
        last.kv_tokens = report.kv_tokens.or(last.kv_tokens);
        last.max_model_len = report.max_model_len.or(last.max_model_len);
        last.cached_tokens = report.cached_tokens.or(last.cached_tokens);
        if let Some(pause) = pause {
            self.pauses.total = self.pauses.total.saturating_add(pause);
            self.pauses.count = self.pauses.count.saturating_add(1);
        }
    }

    /// Mean time between two reports of a replica.
    #[must_use]
    pub fn report_period(&self) -> Option<Duration> {
        self.pauses.total.checked_div(self.pauses.count).filter(|period| !period.is_zero())
    }
}

impl LineSums {
    /// Constant and slope of the line, both at least 0; absent without samples.
    fn line(&self) -> Option<(f64, f64)> {
        if self.weight <= 0.0 {
            return None;
        }
        let mean = self.y / self.weight;
        let spread = self.weight * self.xx - self.x * self.x;
        let slope = (self.weight * self.xy - self.x * self.y) / spread;
        let constant = (self.y - slope * self.x) / self.weight;
        let told = spread > (0.1 * self.x).powi(2) && slope > 0.0 && constant > 0.0;
        Some(if told { (constant, slope) } else { (mean, 0.0) })
    }
}

/// A simulated engine like those of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolFit {
    profile: StepProfile,
    one_way: Duration,
    hits: CacheHitReporting,
    /// Values that each report repeats.
    pub(super) told: ReplicaReport,
    /// Whether the pool showed any time.
    pub(super) is_measured: bool,
}

/// Sums over the requests of a pool that one attempt served: recorded or simulated.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ServiceSums {
    /// Streams, and the sums of their times to the first token and from then on, in seconds.
    pub(super) streams: f64,
    pub(super) first: f64,
    pub(super) rest: f64,
    /// Plain answers, and the sum of their times.
    pub(super) plain: f64,
    pub(super) whole: f64,
}

impl PoolFit {
    pub(super) fn new(samples: &PoolSamples, answers_tell: bool) -> Option<Self> {
        let line = samples.gaps.line();
        let read = samples.prefill.per_second(u64::MAX).map(|read| read as f64);
        let (gap, slope) = line.unwrap_or((USUAL_GAP, 0.0));
        let usual = of_rates(read.unwrap_or(USUAL_READ).max(1.0), Duration::from_secs_f64(gap / 1e3))?;
        let hits = match (answers_tell, samples.report.cached_tokens) {
            (true, _) => CacheHitReporting::Answers,
            (false, Some(_)) => CacheHitReporting::Counter,
            (false, None) => CacheHitReporting::Nowhere,
        };
        Some(Self {
            profile: StepProfile { c: slope, ..usual },
            one_way: Duration::ZERO,
            hits,
            told: samples.report,
            is_measured: line.is_some() || read.is_some(),
        })
    }

    /// Moves the numbers so that the simulated sums come nearer to the recorded ones.
    pub(super) fn correct(&mut self, recorded: &ServiceSums, simulated: &ServiceSums) {
        let factor = |recorded: f64, simulated: f64| {
            let factor = recorded / simulated;
            if factor.is_finite() { factor.clamp(CORRECTION.0, CORRECTION.1) } else { 1.0 }
        };
        let profile = &mut self.profile;
        if recorded.streams == 0.0 || simulated.streams == 0.0 {
            let whole = factor(recorded.whole / recorded.plain, simulated.whole / simulated.plain);
            (profile.t_w, profile.c, profile.a) = (profile.t_w * whole, profile.c * whole, profile.a * whole);
            return;
        }
        let mean = |sums: &ServiceSums| (sums.first / sums.streams, sums.rest / sums.streams);
        let ((first, rest), (simulated_first, simulated_rest)) = (mean(recorded), mean(simulated));
        let decode = factor(rest, simulated_rest);
        (profile.t_w, profile.c) = (profile.t_w * decode, profile.c * decode);
        let one_way = self.one_way.as_secs_f64() + (first - simulated_first) / 2.0;
        if one_way < 0.0 {
            profile.a *= factor(first, simulated_first - 2.0 * self.one_way.as_secs_f64()).min(1.0);
        }
        self.one_way = Duration::try_from_secs_f64(one_way.max(0.0)).unwrap_or_default();
    }

    pub(super) fn engine(&self, replica: &Replica, pool: &Pool) -> ReplicaSetup {
        let options = EngineOptions {
            max_seqs: replica.max_seqs.or(self.told.slots),
            kv_tokens: replica.kv_tokens.or(self.told.kv_tokens),
            priority_scheduling: pool.engine_priority,
            ..EngineOptions::default()
        };
        ReplicaSetup {
            one_way: self.one_way,
            told_hits: self.hits,
            ..ReplicaSetup::new(self.profile, options)
        }
    }
}
