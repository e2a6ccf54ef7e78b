//! Summary of a contestant: its figures over all rounds, beside those of the first contestant.

use penstock::sim::spread::RunSpread;
use serde::Serialize;

use super::scenario::Scenario;
use super::stage::Run;
use crate::report::Quantiles;

/// One contestant's line. Latencies and shares are of the judged calls.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Who.
    pub contestant: String,
    /// First token, median, ms.
    pub ttft_p50: Option<RunSpread>,
    /// First token, 99 %, ms.
    pub ttft_p99: Option<RunSpread>,
    /// Mean time between tokens, 99 % of the calls, ms.
    pub itl_p99: Option<RunSpread>,
    /// Share of the offered inside each objective.
    pub goodput: Vec<Option<RunSpread>>,
    /// Share of the offered that was refused.
    pub refused: Option<RunSpread>,
    /// Share of the offered that failed.
    pub failed: Option<RunSpread>,
    /// Jain's index between the tenants of all calls.
    pub fairness: Option<RunSpread>,
    /// Prompt and twice the output tokens of all calls, for each second.
    pub service_rate: Option<RunSpread>,
    /// From the first planned instant to the last end, all calls, seconds.
    pub makespan: Option<RunSpread>,
    /// CPU of the contestant for each call, ms.
    pub cpu_ms: Option<RunSpread>,
    /// Share of the machine that was busy.
    pub busy: Option<RunSpread>,
    /// What a thousand served calls cost: the time in which engines computed, at
    /// their price. Absent where engines have no price.
    pub cost: Option<RunSpread>,
    /// The first contestant's `ttft_p99` over this one's, round by round.
    pub ratio: Option<RunSpread>,
    /// The same ratio in the simulation, where the scenario gives it.
    pub simulated: Option<f64>,
}

/// A line for each contestant, in the scenario's order.
pub fn rows(scenario: &Scenario, runs: &[Run]) -> Vec<Row> {
    let first = scenario.contestants.first().map(|contestant| contestant.name.as_str()).unwrap_or_default();
    let rows = scenario.contestants.iter().map(|contestant| {
        let own: Vec<&Run> = runs.iter().filter(|run| run.contestant == contestant.name).collect();
        let mut row = Row::of(&contestant.name, &own, scenario.objectives.len());
        let p99 = |run: &Run| run.results.judged.ttft.map(|times| times.p99_ms);
        let ratio = |run: &&Run| {
            let other = runs.iter().find(|other| other.round == run.round && other.contestant == first)?;
            Some(p99(other)? / p99(run)?)
        };
        row.ratio = RunSpread::of(own.iter().filter_map(ratio));
        row.simulated = contestant.simulated;
        row
    });
    rows.collect()
}

impl Row {
    fn of(name: &str, runs: &[&Run], objectives: usize) -> Self {
        let spread =
            |value: &dyn Fn(&Run) -> Option<f64>| RunSpread::of(runs.iter().filter_map(|run| value(run)));
        let time = |quantiles: Option<Quantiles>, of: fn(&Quantiles) -> f64| quantiles.map(|q| of(&q));
        let part = |count: u64, run: &Run| Some(count as f64 / run.results.judged.offered.max(1) as f64);
        Row {
            contestant: name.to_owned(),
            ttft_p50: spread(&|run| time(run.results.judged.ttft, |q| q.p50_ms)),
            ttft_p99: spread(&|run| time(run.results.judged.ttft, |q| q.p99_ms)),
            itl_p99: spread(&|run| time(run.results.judged.itl, |q| q.p99_ms)),
            goodput: (0..objectives)
                .map(|place| spread(&|run| run.results.judged.goodput.get(place).copied()))
                .collect(),
            refused: spread(&|run| part(run.results.judged.refusals(), run)),
            failed: spread(&|run| part(run.results.judged.failures(), run)),
            fairness: spread(&|run| run.results.fairness),
            service_rate: spread(&|run| Some(run.results.all.service_rate)),
            makespan: spread(&|run| Some(run.results.all.makespan_s)),
            cpu_ms: spread(&|run| run.cpu_ms),
            busy: spread(&|run| Some(run.busy)),
            cost: spread(&|run| run.cost_per_1000),
            ratio: None,
            simulated: None,
        }
    }
}
