//! Request records: the outcome of each request, and the figures of a run.

use std::time::Duration;

use penstock_core::model::time::Tick;

/// Outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WorldRecord {
    /// Number of the tenant.
    pub tenant: u32,
    /// Number of the class.
    pub class: u32,
    /// Time from arrival to the first attempt at an engine.
    pub sent_after: Option<Duration>,
    pub prompt: u32,
    pub output: u32,
    /// Prompt tokens from the prefix cache.
    pub cached: u32,
    pub arrived: Tick,
    /// Time from arrival to the engine's first token. The client of a plain
    /// answer does not see that token.
    pub ttft: Option<Duration>,
    /// Mean time between tokens.
    pub itl: Duration,
    /// Time of the last token.
    pub ended: Option<Tick>,
    pub refused: bool,
    /// Time from arrival to the refusal.
    pub refused_after: Option<Duration>,
    /// Whether the stream broke after its first token.
    pub cut: bool,
    /// Whether the client left before the end.
    pub client_left: bool,
    /// Times that the request was sent to an engine.
    pub attempts: u32,
    /// Times that the router preempted the request.
    pub preemptions: u32,
}

impl WorldRecord {
    /// Whether the request was answered in full.
    pub fn served(&self) -> bool {
        self.ended.is_some() && !self.refused && !self.cut
    }

    /// Whether the request was answered in full within both objectives.
    pub fn met_objectives(&self, goal: &Objectives) -> bool {
        self.served() && self.ttft.is_some_and(|ttft| ttft <= goal.ttft) && self.itl <= goal.itl
    }
}

/// Objectives of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objectives {
    /// Longest time to the first token.
    pub ttft: Duration,
    /// Largest mean time between tokens.
    pub itl: Duration,
}

/// Figures of a set of requests. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Requests in the set.
    pub offered: u64,
    /// Median TTFT of served requests.
    pub ttft_p50: f64,
    /// 99th percentile of the TTFT of served requests.
    pub ttft_p99: f64,
    /// Longest TTFT of served requests.
    pub ttft_max: f64,
    /// Longest time from arrival to a refusal.
    pub refusal_max: f64,
    /// 99th percentile of the requests' mean ITL.
    pub itl_p99: f64,
    /// Share of all offered requests that were served within both objectives.
    pub goodput: f64,
    /// Share of all offered requests that were refused.
    pub refused: f64,
    /// Share of all offered requests that broke after their first token.
    pub cut: f64,
    /// Share of all offered requests that got neither an answer nor a refusal.
    pub lost: f64,
    /// Share of the prompt tokens of served requests that came from the prefix
    /// cache.
    pub hit_rate: f64,
    /// Seconds from the first arrival to the last end.
    pub makespan: f64,
    /// Tokens of served requests: prompt + 2 × output.
    pub service: u64,
}

impl Summary {
    /// The figures of the records.
    pub fn of<'a>(records: impl Iterator<Item = &'a WorldRecord>, goal: &Objectives) -> Self {
        let (mut ttft, mut itl, mut sum) = (Vec::new(), Vec::new(), Self::default());
        let (mut good, mut refused, mut cut, mut lost) = (0u64, 0u64, 0u64, 0u64);
        let (mut prompt, mut cached) = (0u64, 0u64);
        let (mut first, mut last) = (Tick::NEVER, Tick::ZERO);
        for record in records {
            sum.offered += 1;
            good += u64::from(record.met_objectives(goal));
            refused += u64::from(record.refused);
            sum.refusal_max =
                sum.refusal_max.max(record.refused_after.map_or(0.0, |told| told.as_secs_f64() * 1e3));
            cut += u64::from(record.cut);
            first = first.min(record.arrived);
            if record.served() {
                ttft.extend(record.ttft.map(|ttft| ttft.as_secs_f64() * 1e3));
                itl.push(record.itl.as_secs_f64() * 1e3);
                prompt += u64::from(record.prompt);
                cached += u64::from(record.cached);
                sum.service += u64::from(record.prompt) + 2 * u64::from(record.output);
                last = last.max(record.ended.unwrap_or(Tick::ZERO));
            } else if !record.refused && !record.cut && !record.client_left {
                lost += 1;
            }
        }
        let share = |count: u64| count as f64 / sum.offered.max(1) as f64;
        Self {
            ttft_p50: quantile(&mut ttft, 0.5),
            ttft_p99: quantile(&mut ttft, 0.99),
            ttft_max: quantile(&mut ttft, 1.0),
            itl_p99: quantile(&mut itl, 0.99),
            goodput: share(good),
            refused: share(refused),
            cut: share(cut),
            lost: share(lost),
            hit_rate: cached as f64 / prompt.max(1) as f64,
            makespan: last.since(first).as_secs_f64(),
            ..sum
        }
    }
}

/// The value below which the share `part` of the samples lies; 0 without
/// samples. Sorts the samples.
#[must_use]
pub fn quantile(samples: &mut [f64], part: f64) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    samples.sort_unstable_by(f64::total_cmp);
    let rank = (part * samples.len() as f64).ceil() as usize;
    samples[rank.clamp(1, samples.len()) - 1]
}
