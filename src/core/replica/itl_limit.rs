//! ITL limit: the sequences that a replica may run so that its streams keep their inter-token
//! latency.
//!
//! A step takes longer the more sequences it has. The ITL is therefore modelled as a line over
//! the running sequences: `gap = alone + slope * seqs`. The line goes through the mean of the
//! recent samples. Its slope is learned from the covariance of gaps and sequences, with the
//! predicted slope as the prior. The limit is where the line meets the target. Both means lag by
//! the same few seconds, so a falling limit does not overshoot while streams leave slowly.
//!
//! An objective that the engine cannot keep even for one sequence limits nothing: fewer
//! sequences would make no stream faster and every job wait. An objective counts as out of
//! reach when two conditions hold. The pool has never kept it. And the ITL stays above it
//! without the share of prefill and without the time that the other sequences may add: twice what
//! is predicted, and less as the samples show it. An ITL that by this reckoning stays far above the
//! objective, as long as the engine makes enough of its tokens, counts alike: tokens would be lost
//! for no promise.
//!
//! The limit does not fall below the number of sequences at which the engine makes enough of
//! the tokens that it could make ([`ItlAim::min_throughput`]).

use std::time::Duration;

use crate::model::event::ItlSample;

/// Target of the mean ITL, as a part of the objective: some streams are slower than the mean.
const TARGET: f64 = 0.9;
/// Part of the running sequences that one cut leaves at least.
const MIN_AFTER_CUT: f64 = 0.7;
/// Weight of the newest sample in the means. With ten samples a second the memory is about three
/// seconds. With a shorter memory, every prefill looks like a lack of capacity.
const NEWEST: f64 = 0.03;
/// Weight of the newest sample in the covariance of gaps and sequences.
const NEWEST_COVARIANCE: f64 = 0.005;
/// Largest weight of a sample with more gaps than the mean, as a multiple of the mean weight.
const MOST_PART: f64 = 4.0;
/// Variance of the sequences, in squared sequences, that weighs as much as the predicted slope.
const PRIOR_VARIANCE: f64 = 16.0;
/// Smallest slope that counts, as a part of the predicted one.
const LEAST_SLOPE: f64 = 0.25;
/// Multiple of its predicted time that a sequence may add to a step, as long as the samples do not
/// show it, before an objective counts as out of reach.
const MOST_SLOPE: f64 = 2.0;
/// Multiple of the objective that counts as far above it.
const FAR_ABOVE: f64 = 1.5;

/// ITL limit of one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItlLimit {
    limit: f64,
    /// Limit under the objective of released replicas.
    released: f64,
    mean: Option<ItlPoint>,
    /// Mean ratio of the ITL to the ITL predicted for a replica of speed factor 1.
    slowness: f64,
    /// Mean number of gaps of a sample.
    gaps: f64,
    /// Slower means, and the variance and covariance of the samples about them.
    base: ItlPoint,
    variance: f64,
    covariance: f64,
}

/// Running sequences, and the ITL in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct ItlPoint {
    seqs: f64,
    gap: f64,
}

impl ItlPoint {
    fn follow(&mut self, seen: Self, weight: f64) {
        self.seqs += (seen.seqs - self.seqs) * weight;
        self.gap += (seen.gap - self.gap) * weight;
    }
}

/// Conditions of a replica that its ITL limit depends on, beside the ITL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItlConditions {
    /// Sequences that run there.
    pub running: u32,
    /// Predicted nanoseconds of a step, at speed factor 1.
    pub step: f64,
    /// Predicted nanoseconds that one more sequence adds to a step.
    pub slope: f64,
    /// Predicted part of its time that the replica spends on prefill; below 1.
    pub prefilling: f64,
    /// Shortest mean ITL that its pool has shown.
    pub best: Option<Duration>,
    /// What the limit is for.
    pub aim: ItlAim,
    /// What the limit of a released replica is for; see [`crate::replica::reserved_replicas`].
    pub released: Option<ItlAim>,
}

/// Objective of an ITL limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItlAim {
    pub objective: Duration,
    /// Sequences that would run there without a limit.
    pub wanted: u32,
    /// Least part of the tokens of `wanted` sequences that the replica makes.
    pub min_throughput: f64,
}

impl Default for ItlLimit {
    fn default() -> Self {
        let base = ItlPoint::default();
        Self {
            limit: f64::INFINITY,
            released: f64::INFINITY,
            mean: None,
            slowness: 1.0,
            gaps: 0.0,
            base,
            variance: 0.0,
            covariance: 0.0,
        }
    }
}

impl ItlLimit {
    /// Limit in sequences; at least 1, `u32::MAX` where the ITL limits nothing.
    pub fn seqs(&self) -> u32 {
        self.limit as u32
    }

    /// Whether the samples show that the engine cannot keep the objective.
    pub fn is_out_of_reach(&self) -> bool {
        self.mean.is_some() && self.limit.is_infinite()
    }

    /// Limit in sequences under the objective of released replicas.
    pub fn released_seqs(&self) -> u32 {
        self.released as u32
    }

    /// Mean ITL now, in nanoseconds.
    pub fn mean(&self) -> Option<f64> {
        self.mean.map(|mean| mean.gap)
    }

    /// Ratio of its step times to those predicted for a replica of speed factor 1; `None` before
    /// the first sample.
    pub fn slowness(&self) -> Option<f64> {
        self.mean.map(|_| self.slowness)
    }

    /// Mean ITL that the limit aims at under an objective, in nanoseconds.
    pub fn target(&self, objective: Duration) -> f64 {
        objective.as_nanos() as f64 * TARGET
    }

    /// Learns from a sample of the replica's streams.
    pub fn learn(&mut self, sample: &ItlSample, at: &ItlConditions) {
        if sample.gaps == 0 {
            return;
        }
        let gaps = sample.gaps as f64;
        let gap = sample.total.as_nanos() as f64 / gaps;
        let seen = ItlPoint { seqs: f64::from(at.running).max(1.0), gap };
        let slowness = gap / at.step.max(1.0);
        if self.mean.is_none() {
            (self.base, self.slowness, self.gaps) = (seen, slowness, gaps);
        }
        // Each gap counts alike: a sample of long gaps has few of them.
        self.gaps += (gaps - self.gaps) * NEWEST;
        let part = (gaps / self.gaps).min(MOST_PART);
        let (newest, newest_moves) = (NEWEST * part, NEWEST_COVARIANCE * part);
        self.slowness += (slowness - self.slowness) * newest;
        let mean = self.mean.get_or_insert(seen);
        mean.follow(seen, newest);
        let (seqs, gap) = (seen.seqs - self.base.seqs, seen.gap - self.base.gap);
        self.variance += (seqs * seqs - self.variance) * newest_moves;
        self.covariance += (seqs * gap - self.covariance) * newest_moves;
        self.base.follow(seen, newest_moves);
        let mean = *mean;
        let predicted = at.slope + at.prefilling * mean.gap / mean.seqs;
        let slope = self.slope(mean, predicted);
        self.limit = self.limit_at(mean, slope, at, &at.aim);
        let released = at.released.map(|aim| self.limit_at(mean, slope, at, &aim));
        self.released = released.unwrap_or(f64::INFINITY);
    }

    /// Nanoseconds that one more sequence adds to a step. The line does not start below 0.
    fn slope(&self, mean: ItlPoint, predicted: f64) -> f64 {
        let (least, most) = (predicted * LEAST_SLOPE, mean.gap / mean.seqs);
        self.blend(predicted).max(least).min(most).max(1.0)
    }

    /// The slope that the samples show, with `prior` as the slope before the first one.
    fn blend(&self, prior: f64) -> f64 {
        (self.covariance + prior * PRIOR_VARIANCE) / (self.variance + PRIOR_VARIANCE)
    }

    fn limit_at(&self, mean: ItlPoint, slope: f64, at: &ItlConditions, goal: &ItlAim) -> f64 {
        let aim = self.target(goal.objective);
        let kept_once = at.best.is_some_and(|best| best.as_nanos() as f64 <= aim);
        let decoding = mean.gap * (1.0 - at.prefilling);
        let enough = enough_seqs(mean, decoding, at, goal);
        let (most, prefill) = (MOST_SLOPE * at.slope, at.prefilling * mean.gap / mean.seqs);
        let most_slope = (self.blend(most + prefill) - prefill).clamp(0.0, most);
        let shortest = |seqs: f64| decoding - most_slope * (mean.seqs - seqs).max(0.0);
        let far = goal.objective.as_nanos() as f64 * FAR_ABOVE;
        let out_of_reach = shortest(1.0) > aim || shortest(enough) > far;
        if out_of_reach && !kept_once {
            return f64::INFINITY;
        }
        let fits = mean.seqs + (aim - mean.gap) / slope;
        fits.max(f64::from(at.running) * MIN_AFTER_CUT).max(enough).max(1.0)
    }
}

/// Sequences at which the replica makes enough of the tokens that it could make. `decoding` is the
/// ITL without the share of prefill.
fn enough_seqs(mean: ItlPoint, decoding: f64, at: &ItlConditions, goal: &ItlAim) -> f64 {
    let best = at.best.map_or(0.0, |best| best.as_nanos() as f64);
    let alone = best.min(decoding).max(decoding - at.slope * (mean.seqs - 1.0)).max(0.0);
    let (wanted, slope) = (f64::from(goal.wanted), (mean.gap - alone).max(0.0) / mean.seqs);
    let spared = (1.0 - goal.min_throughput) * slope * wanted;
    (goal.min_throughput * wanted * alone / (alone + spared).max(1.0)).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e6;

    /// An engine whose gaps are `alone + slope * seqs` milliseconds, for this many
    /// samples. As many sequences run as the limit and the demand allow.
    fn run(limit: &mut ItlLimit, (alone, slope): (f64, f64), demand: u32, times: u32, wanted: u32) {
        let mut best = None;
        for _ in 0..times {
            let running = demand.min(limit.seqs());
            let gap = Duration::from_nanos(((alone + slope * f64::from(running)) * MS) as u64);
            let sample = ItlSample { gaps: 10, total: gap * 10 };
            best = best.into_iter().chain([gap]).min();
            let objective = Duration::from_millis(50);
            let (step, slope) = (8.0 * MS, 0.4 * MS);
            let at = ItlConditions {
                running,
                step,
                slope,
                prefilling: 0.0,
                best,
                aim: ItlAim { objective, wanted, min_throughput: 0.9 },
                released: None,
            };
            limit.learn(&sample, &at);
        }
    }

    #[test]
    fn it_settles_where_the_line_meets_the_aim() {
        for (alone, slope) in [(30.0, 0.77), (10.0, 0.2), (10.0, 1.0), (20.0, 0.1)] {
            let mut limit = ItlLimit::default();
            for demand in [4, 8, 12, 16, 400] {
                run(&mut limit, (alone, slope), demand, 50, 1);
            }
            run(&mut limit, (alone, slope), 400, 3_000, 1);
            let fits = (50.0 * TARGET - alone) / slope;
            let near = (fits * 0.9)..(fits * 1.1);
            assert!(near.contains(&f64::from(limit.seqs())), "{} of {fits}", limit.seqs());
        }
    }

    #[test]
    fn an_objective_out_of_reach_limits_nothing() {
        let mut limit = ItlLimit::default();
        run(&mut limit, (62.0, 0.4), 16, 1_000, 1);
        assert_eq!(limit.seqs(), u32::MAX);
    }

    #[test]
    fn an_objective_far_out_of_reach_costs_no_tokens() {
        // A doubtful forecast: each sequence may add 3.6 ms, and 14 of them 50 ms.
        let run_at = |gap: f64| {
            let mut limit = ItlLimit::default();
            for _ in 0..100 {
                let sample = ItlSample { gaps: 10, total: Duration::from_nanos((gap * 10.0 * MS) as u64) };
                let at = ItlConditions {
                    running: 14,
                    step: 11.0 * MS,
                    slope: 1.8 * MS,
                    prefilling: 0.1,
                    best: Some(Duration::from_nanos((gap * MS) as u64)),
                    aim: ItlAim { objective: Duration::from_millis(50), wanted: 16, min_throughput: 0.9 },
                    released: None,
                };
                limit.learn(&sample, &at);
            }
            limit.seqs()
        };
        assert_eq!(run_at(88.0), u32::MAX);
        assert!(run_at(62.0) <= 15);
    }

    #[test]
    fn what_the_samples_show_of_one_sequence_replaces_the_doubt() {
        // Twice the predicted 1.8 ms of each sequence would leave less than 50 ms of either engine.
        let run_at = |alone: f64| {
            let mut limit = ItlLimit::default();
            for nth in 0..1_000 {
                let running = 1 + nth % 35;
                let gap = alone + 2.0 * f64::from(running);
                let sample = ItlSample { gaps: 10, total: Duration::from_nanos((gap * 10.0 * MS) as u64) };
                let at = ItlConditions {
                    running,
                    step: 11.0 * MS,
                    slope: 1.8 * MS,
                    prefilling: 0.0,
                    best: Some(Duration::from_nanos(((alone + 2.0) * MS) as u64)),
                    aim: ItlAim { objective: Duration::from_millis(50), wanted: 16, min_throughput: 0.9 },
                    released: None,
                };
                limit.learn(&sample, &at);
            }
            limit.seqs()
        };
        assert_eq!(run_at(48.0), u32::MAX);
        assert!(run_at(30.0) <= 30);
    }

    #[test]
    fn what_was_kept_once_is_not_out_of_reach() {
        let mut limit = ItlLimit::default();
        let sample = ItlSample { gaps: 10, total: Duration::from_millis(700) };
        let best = Some(Duration::from_millis(40));
        let objective = Duration::from_millis(50);
        for _ in 0..100 {
            let at = ItlConditions {
                running: 10,
                step: 8.0 * MS,
                slope: 0.2 * MS,
                prefilling: 0.0,
                best,
                aim: ItlAim { objective, wanted: 1, min_throughput: 0.9 },
                released: None,
            };
            limit.learn(&sample, &at);
        }
        assert_eq!(limit.seqs(), 7, "one cut at a time");
    }

    #[test]
    fn most_of_the_tokens_are_made() {
        let mut limit = ItlLimit::default();
        run(&mut limit, (30.0, 0.77), 64, 3_000, 64);
        let tokens = |seqs: f64| seqs / (30.0 + 0.77 * seqs);
        let part = tokens(f64::from(limit.seqs())) / tokens(64.0);
        assert!((0.8..0.97).contains(&part), "{part} at {}", limit.seqs());
    }
}
