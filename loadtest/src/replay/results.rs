//! Results of a replay: figures made from the records.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::record::{Outcome, Record};
use crate::meter::{add, histogram};
use crate::report::Quantiles;

/// Shares at which curves are drawn, besides every hundredth.
const TAIL: [f64; 4] = [0.992, 0.995, 0.998, 0.999];

/// Distance of the points of [`Group::good_curve`].
const GOOD_STEP_MS: f64 = 25.0;

/// What a good answer is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Longest time to the first token, from the planned instant.
    pub ttft_ms: f64,
    /// Longest mean time between two tokens.
    pub itl_ms: f64,
}

impl Objective {
    fn met(&self, record: &Record) -> bool {
        let within =
            |time: Option<Duration>, ms: f64| time.is_some_and(|time| time.as_secs_f64() * 1e3 <= ms);
        record.served() && within(record.ttft, self.ttft_ms) && within(record.itl(), self.itl_ms)
    }
}

/// The calls that a comparison is about; an empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Judged {
    /// Names of tenants.
    pub tenants: Vec<String>,
    /// Names of classes.
    pub classes: Vec<String>,
}

impl Judged {
    fn includes(&self, plan: &Plan, record: &Record) -> bool {
        let tenant = self.tenants.is_empty() || self.tenants.contains(&plan.tenants[record.tenant]);
        let class = plan.classes[record.class].as_ref();
        tenant && (self.classes.is_empty() || class.is_some_and(|class| self.classes.contains(class)))
    }
}

/// Figures of one group of calls: a tenant's, a class's, or all. Times are of
/// the served ones.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// Calls that were planned.
    pub offered: u64,
    /// Calls that came whole.
    pub served: u64,
    /// Calls that the server had no room for, by status and code.
    pub refused: BTreeMap<String, u64>,
    /// Calls that failed in any other way.
    pub failed: BTreeMap<String, u64>,
    /// Served ones whose length is not the one asked for: the engine does not
    /// obey, or is not a simulated one.
    pub other_length: u64,
    /// Times that calls were sent again.
    pub retries: u64,
    /// Share of the offered inside each objective, in the order they were given.
    pub goodput: Vec<f64>,
    /// Planned instant to the first token.
    pub ttft: Option<Quantiles>,
    /// Mean time between two tokens, one value for each call.
    pub itl: Option<Quantiles>,
    /// Planned instant to the end.
    pub total: Option<Quantiles>,
    /// `(percent, milliseconds)` of the first token over the offered calls: a
    /// curve that ends early shows the calls that were not served.
    pub ttft_curve: Vec<(f64, f64)>,
    /// The same of the mean time between two tokens.
    pub itl_curve: Vec<(f64, f64)>,
    /// `(milliseconds, share)`: goodput if the first objective had this TTFT.
    pub good_curve: Vec<(f64, f64)>,
    /// From the first planned instant to the end of the last served call, seconds.
    pub makespan_s: f64,
    /// Prompt tokens and twice the output tokens that calls got in the measured
    /// window, for each second of it.
    pub service_rate: f64,
}

/// Figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Length of the measured window: from the end of the warm-up to the last
    /// planned instant.
    pub seconds: f64,
    /// Every measured call.
    pub all: Group,
    /// The calls that the comparison is about.
    pub judged: Group,
    /// By tenant, when there are several.
    pub tenants: BTreeMap<String, Group>,
    /// By class, when there are several.
    pub classes: BTreeMap<String, Group>,
    /// Jain's index over what each tenant received of its max-min fair share;
    /// with several tenants only. 1 = everybody got the same part of it.
    pub fairness: Option<f64>,
    /// Planned instant to the send: what the load generator itself is late.
    /// Large values mean that the figures are worth nothing.
    pub send_lag: Option<Quantiles>,
}

/// The span of planned instants that counts.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: Duration,
    to: Duration,
}

impl Results {
    /// Sums up a run. Calls planned in the first `warmup` share of its time do
    /// not count.
    pub fn of(
        plan: &Plan,
        records: &[Record],
        warmup: f64,
        objectives: &[Objective],
        judged: &Judged,
    ) -> Self {
        let to = plan.span();
        let window = Window { from: to.mul_f64(warmup.clamp(0.0, 1.0)), to };
        let measured: Vec<&Record> = records.iter().filter(|record| record.at >= window.from).collect();
        let group = |keep: &dyn Fn(&Record) -> bool| {
            let kept: Vec<&Record> = measured.iter().copied().filter(|record| keep(record)).collect();
            Group::of(&kept, window, objectives)
        };
        let mut lag = histogram();
        measured.iter().filter(|record| !record.lag.is_zero()).for_each(|record| add(&mut lag, record.lag));
        let tenants: BTreeMap<_, _> = several(&plan.tenants)
            .map(|(number, name)| (name.clone(), group(&|record| record.tenant == number)))
            .collect();
        let name = |class: &Option<String>| class.clone().unwrap_or_else(|| "none".to_owned());
        Results {
            seconds: (window.to - window.from).as_secs_f64(),
            all: group(&|_| true),
            judged: group(&|record| judged.includes(plan, record)),
            fairness: fairness(plan.tenants.len(), &measured, window),
            tenants,
            classes: several(&plan.classes)
                .map(|(number, class)| (name(class), group(&|record| record.class == number)))
                .collect(),
            send_lag: Quantiles::of(&lag),
        }
    }
}

/// The items with their numbers, unless there is only one.
fn several<T>(items: &[T]) -> impl Iterator<Item = (usize, &T)> {
    items.iter().enumerate().filter(|_| items.len() > 1)
}

impl Group {
    fn of(records: &[&Record], window: Window, objectives: &[Objective]) -> Self {
        let (mut ttft, mut itl, mut total) = (histogram(), histogram(), histogram());
        let (mut refused, mut failed) = (BTreeMap::new(), BTreeMap::new());
        let (mut other_length, mut retries) = (0, 0);
        for record in records {
            retries += u64::from(record.retries);
            match &record.outcome {
                Outcome::Served => {
                    other_length += u64::from(record.tokens != u64::from(record.output));
                    add(&mut total, record.total);
                    record.ttft.iter().for_each(|time| add(&mut ttft, *time));
                    record.itl().iter().for_each(|time| add(&mut itl, *time));
                }
                Outcome::Refused(text) => *refused.entry(text.clone()).or_default() += 1,
                Outcome::Failed(text) => *failed.entry(text.clone()).or_default() += 1,
            }
        }
        let offered = records.len() as u64;
        let met = |objective: &Objective| records.iter().filter(|record| objective.met(record)).count();
        let first = records.iter().map(|record| record.at).min().unwrap_or_default();
        let last =
            records.iter().filter(|record| record.served()).map(|record| record.at + record.total).max();
        let seconds = (window.to - window.from).as_secs_f64();
        Group {
            offered,
            served: total.len(),
            refused,
            failed,
            other_length,
            retries,
            goodput: objectives
                .iter()
                .map(|objective| share(met(objective) as f64, offered as f64))
                .collect(),
            ttft: Quantiles::of(&ttft),
            itl: Quantiles::of(&itl),
            total: Quantiles::of(&total),
            ttft_curve: curve(&ttft, offered),
            itl_curve: curve(&itl, offered),
            good_curve: good_curve(records, objectives),
            makespan_s: last.map_or(0.0, |last| last.saturating_sub(first).as_secs_f64()),
            service_rate: share(received(records.iter().copied(), window), seconds),
        }
    }

    /// Calls that the server had no room for.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Calls that failed in any other way.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// What calls got before the end of the window: their prompt with the first
/// token, their output evenly from there to the last token.
fn received<'a>(records: impl Iterator<Item = &'a Record>, window: Window) -> f64 {
    records.map(|record| received_of(record, window.to)).sum()
}

fn received_of(record: &Record, end: Duration) -> f64 {
    let (Some(first), Some(last)) = (record.ttft, record.last) else { return 0.0 };
    let Some(left) = end.checked_sub(record.at + first) else { return 0.0 };
    let streaming = last.saturating_sub(first);
    let part = if left < streaming { left.div_duration_f64(streaming) } else { 1.0 };
    f64::from(record.input) + part * 2.0 * record.tokens as f64
}

fn curve(histogram: &Histogram<u64>, offered: u64) -> Vec<(f64, f64)> {
    let served = share(histogram.len() as f64, offered as f64);
    let hundredths = (1..=99).map(|percent| f64::from(percent) / 100.0);
    let points = hundredths.chain(TAIL).filter(|part| *part <= served);
    points
        .map(|part| (100.0 * part, histogram.value_at_quantile((part / served).min(1.0)) as f64 / 1e3))
        .collect()
}

fn good_curve(records: &[&Record], objectives: &[Objective]) -> Vec<(f64, f64)> {
    let Some(first) = objectives.first() else { return Vec::new() };
    let limits = (1..=40).map(|step| f64::from(step) * GOOD_STEP_MS);
    let good = |ttft_ms: f64| {
        let objective = Objective { ttft_ms, ..*first };
        records.iter().filter(|record| objective.met(record)).count() as f64
    };
    limits.map(|limit| (limit, share(good(limit), records.len() as f64))).collect()
}

/// Jain's index over received / max-min fair share of what all received.
fn fairness(tenants: usize, measured: &[&Record], window: Window) -> Option<f64> {
    let of = |tenant: usize| measured.iter().copied().filter(move |record| record.tenant == tenant);
    let demand: Vec<f64> = (0..tenants).map(|t| of(t).map(|record| record.service() as f64).sum()).collect();
    let got: Vec<f64> = (0..tenants).map(|t| received(of(t), window)).collect();
    let parts: Vec<f64> = max_min(&demand, got.iter().sum())
        .into_iter()
        .zip(&got)
        .filter(|(fair, _)| *fair > 0.0)
        .map(|(fair, got)| got / fair)
        .collect();
    let (sum, squares): (f64, f64) = (parts.iter().sum(), parts.iter().map(|part| part * part).sum());
    (parts.len() > 1 && squares > 0.0).then(|| sum * sum / (parts.len() as f64 * squares))
}

/// Shares `supply` so that nobody gets more than its demand, and nobody could
/// get more without taking from one who has less.
fn max_min(demand: &[f64], supply: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..demand.len()).collect();
    order.sort_by(|a, b| demand[*a].total_cmp(&demand[*b]));
    let (mut left, mut shares) = (supply, vec![0.0; demand.len()]);
    for (done, tenant) in order.iter().enumerate() {
        let even = left / (demand.len() - done) as f64;
        shares[*tenant] = demand[*tenant].min(even);
        left -= shares[*tenant];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::plan::Planned;

    const OBJECTIVE: Objective = Objective { ttft_ms: 150.0, itl_ms: 50.0 };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A served call of 11 tokens.
    fn served(at: u64, ttft: u64, itl: u64) -> Record {
        Record {
            at: ms(at),
            tenant: 0,
            class: 0,
            input: 100,
            output: 11,
            tokens: 11,
            lag: ms(1),
            ttft: Some(ms(ttft)),
            last: Some(ms(ttft + 10 * itl)),
            total: ms(ttft + 10 * itl + 1),
            outcome: Outcome::Served,
            retries: 0,
        }
    }

    fn unserved(at: u64, outcome: Outcome) -> Record {
        Record { ttft: None, last: None, tokens: 0, outcome, ..served(at, 0, 0) }
    }

    fn plan(records: &[Record], tenants: usize) -> Plan {
        let planned = |record: &Record| Planned {
            at: record.at,
            tenant: record.tenant,
            class: record.class,
            input: record.input,
            output: record.output,
            prefix: std::sync::Arc::default(),
        };
        Plan {
            tenants: (0..tenants).map(|tenant| format!("t{tenant}")).collect(),
            classes: vec![None],
            calls: records.iter().map(planned).collect(),
            prefix_block: 0,
        }
    }

    fn results(records: &[Record], tenants: usize, warmup: f64) -> Results {
        Results::of(&plan(records, tenants), records, warmup, &[OBJECTIVE], &Judged::default())
    }

    #[test]
    fn goodput_is_of_all_offered_calls() {
        let refused = Outcome::Refused("429 rate_limit_exceeded".to_owned());
        let records = [
            served(0, 150, 50),
            served(1, 151, 50),
            served(2, 150, 51),
            unserved(3, refused.clone()),
            unserved(4, refused),
            unserved(5, Outcome::Failed("timeout".to_owned())),
        ];
        let all = results(&records, 1, 0.0).all;
        assert_eq!((all.offered, all.served, all.refusals(), all.failures()), (6, 3, 2, 1));
        assert_eq!(all.refused["429 rate_limit_exceeded"], 2);
        assert!((all.goodput[0] - 1.0 / 6.0).abs() < 1e-9, "{:?}", all.goodput);
        assert!((all.ttft.expect("times").p50_ms - 150.0).abs() < 0.5);
        assert!((all.itl.expect("times").max_ms - 51.0).abs() < 0.1);
        let last = all.ttft_curve.last().expect("a curve").0;
        assert!((49.0..=50.0).contains(&last), "half were served: {last}");
        let good: Vec<f64> = all.good_curve.iter().take(7).map(|point| 6.0 * point.1).collect();
        assert_eq!(good, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let records: Vec<Record> =
            (0..=100).map(|at| served(at, if at < 20 { 9000 } else { 10 }, 5)).collect();
        let measured = results(&records, 1, 0.2);
        assert_eq!(measured.all.offered, 81);
        assert!(measured.all.ttft.expect("times").max_ms < 11.0);
        assert!((measured.seconds - 0.08).abs() < 1e-9);
    }

    #[test]
    fn one_token_has_no_gap() {
        let one = Record { tokens: 1, output: 1, last: Some(ms(30)), ..served(0, 30, 0) };
        assert_eq!(one.itl(), Some(Duration::ZERO));
        assert!(OBJECTIVE.met(&one));
        assert!(!OBJECTIVE.met(&unserved(0, Outcome::Failed(String::new()))));
    }

    #[test]
    fn answers_of_another_length_are_told() {
        let all = results(&[Record { tokens: 10, ..served(0, 1, 1) }, served(1, 1, 1)], 1, 0.0).all;
        assert_eq!((all.served, all.other_length), (2, 1));
    }

    #[test]
    fn shares_are_max_min_fair() {
        assert_eq!(max_min(&[10.0, 100.0, 30.0], 60.0), [10.0, 25.0, 25.0]);
        assert_eq!(max_min(&[10.0, 10.0], 60.0), [10.0, 10.0]);
        assert_eq!(max_min(&[], 60.0), [0.0; 0]);
    }

    #[test]
    fn an_answer_that_goes_on_after_the_window_counts_in_part() {
        let record = served(1_000, 100, 20);
        let at = |end| received_of(&record, ms(end));
        assert_eq!([at(0), at(1_050), at(1_100), at(1_200), at(9_000)], [0.0, 0.0, 100.0, 111.0, 122.0]);
        assert_eq!(received_of(&unserved(0, Outcome::Failed(String::new())), ms(9_000)), 0.0);
    }

    #[test]
    fn fairness_falls_when_a_tenant_is_kept_waiting() {
        let call = |at, tenant, ttft| Record { tenant, ..served(at, ttft, 0) };
        let even: Vec<Record> = (0..200).map(|at| call(at * 10, (at % 2) as usize, 5)).collect();
        let fair = results(&even, 2, 0.0);
        assert!(fair.fairness.expect("two tenants") > 0.999);
        assert_eq!(fair.tenants.len(), 2);
        let judged = Judged { tenants: vec!["t1".to_owned()], classes: Vec::new() };
        let judged = Results::of(&plan(&even, 2), &even, 0.0, &[OBJECTIVE], &judged);
        assert_eq!((judged.judged.offered, judged.all.offered), (100, 200));
        let slow: Vec<Record> = even
            .iter()
            .map(|record| {
                if record.tenant == 1 {
                    call(record.at.as_millis() as u64, 1, 60_000)
                } else {
                    record.clone()
                }
            })
            .collect();
        assert!(results(&slow, 2, 0.0).fairness.expect("two tenants") < 0.55);
    }
}
