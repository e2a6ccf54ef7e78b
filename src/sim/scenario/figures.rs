//! Figures of one run.

use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::world::record::{Objectives, Summary, WorldRecord};
use crate::sim::world::run::RunOutcome;

/// A column of figures.
#[derive(Debug, Clone, Copy)]
pub struct FigureColumn {
    /// Name in JSON.
    pub name: &'static str,
    /// Heading in tables.
    pub title: &'static str,
    /// Digits after the point.
    pub digits: usize,
    /// Dull value: the column is left out of a table when every cell has this
    /// value.
    pub hidden_value: Option<f64>,
}

const fn column(name: &'static str, title: &'static str, digits: usize, dull: Option<f64>) -> FigureColumn {
    FigureColumn { name, title, digits, hidden_value: dull }
}

/// Every figure. Times are in milliseconds unless the name says otherwise.
pub const COLUMNS: [FigureColumn; 25] = [
    column("offered", "offered", 0, None),
    column("ttft_p50_ms", "p50", 0, None),
    column("ttft_p99_ms", "p99", 0, None),
    column("ttft_most_ms", "most", 0, None),
    column("itl_p99_ms", "itl p99", 1, None),
    column("goodput", "goodput", 3, None),
    column("within_150_ms", "≤ 150 ms", 3, Some(0.0)),
    column("within_500_ms", "≤ 500 ms", 3, Some(0.0)),
    column("within_1_s", "≤ 1 s", 3, Some(0.0)),
    column("refused", "refused", 3, Some(0.0)),
    column("told_most_ms", "told", 0, Some(0.0)),
    column("cut", "cut", 4, Some(0.0)),
    column("lost", "lost", 4, Some(0.0)),
    column("retried", "retried", 4, Some(0.0)),
    column("hit_rate", "hits", 3, Some(0.0)),
    column("makespan_s", "makespan s", 1, None),
    column("tokens_per_s", "tokens/s", 0, None),
    column("jain", "jain", 3, Some(0.0)),
    column("worst_share", "least share", 3, Some(0.0)),
    column("cost_per_1000", "cost", 3, Some(0.0)),
    column("replica_hours", "replica h", 2, Some(0.0)),
    column("peak_replicas", "peak", 0, Some(0.0)),
    column("turns_per_hour", "turns/h", 1, Some(0.0)),
    column("engine_waiting", "waiting", 0, None),
    column("broken_invariants", "broken", 0, Some(0.0)),
];

/// One value for each of [`COLUMNS`].
pub type Figures = [f64; COLUMNS.len()];

/// The index of a figure in [`COLUMNS`].
#[must_use]
pub fn column_index(name: &str) -> Option<usize> {
    COLUMNS.iter().position(|column| column.name == name)
}

/// Run to which a set of requests belongs.
#[derive(Debug)]
pub(super) struct FigureFrame<'a> {
    pub(super) outcome: &'a RunOutcome,
    /// Objectives of each class.
    pub(super) goals: &'a [Objectives],
    /// Weight of each tenant.
    pub(super) weights: &'a [f64],
    /// Whether the tenants' shares are among the figures.
    pub(super) shares: bool,
    /// Whether the shares within other TTFT objectives are among the figures.
    pub(super) graded: bool,
    /// See [`cost_per_thousand`].
    pub(super) cost: f64,
}

/// Mean cost of a thousand answers: the time in which engines computed, at
/// their prices. Each step is shared by the requests that it served. Idle time
/// is not counted.
pub(super) fn cost_per_thousand(outcome: &RunOutcome, prices: impl Iterator<Item = f64>) -> f64 {
    let spent: f64 =
        outcome.busy.iter().zip(prices).map(|(busy, price)| busy.as_secs_f64() / 3600.0 * price).sum();
    let served = outcome.records.iter().filter(|record| record.served()).count();
    1_000.0 * spent / served.max(1) as f64
}

impl FigureFrame<'_> {
    /// The figures of these records.
    pub(super) fn figures(&self, records: &[&WorldRecord]) -> Figures {
        let any = Objectives { ttft: Duration::MAX, itl: Duration::MAX };
        let summary = Summary::of(records.iter().copied(), &any);
        let count = records.len().max(1) as f64;
        let good_within = |ttft: Option<u64>| {
            let goal = |goal: &Objectives| Objectives {
                ttft: ttft.map_or(goal.ttft, Duration::from_millis),
                ..*goal
            };
            let good = |record: &&&WorldRecord| {
                self.goals.get(record.class as usize).is_none_or(|own| record.met_objectives(&goal(own)))
            };
            records.iter().filter(good).count() as f64 / count
        };
        let graded = |ttft| if self.graded { good_within(Some(ttft)) } else { 0.0 };
        let retried = records.iter().filter(|record| record.attempts > 1).count();
        let window = FigureWindow::of(records);
        let received = records.iter().fold(0.0, |sum, record| sum + window.service(record));
        let scaled = self.outcome.scaled.as_ref();
        let (jain, worst) = if self.shares { self.fairness(records, &window) } else { (0.0, 0.0) };
        [
            summary.offered as f64,
            summary.ttft_p50,
            summary.ttft_p99,
            summary.ttft_max,
            summary.itl_p99,
            good_within(None),
            graded(150),
            graded(500),
            graded(1_000),
            summary.refused,
            summary.refusal_max,
            summary.cut,
            summary.lost,
            retried as f64 / count,
            summary.hit_rate,
            summary.makespan,
            received / window.seconds(),
            jain,
            worst,
            self.cost,
            scaled.map_or(0.0, |scaled| scaled.replica_hours),
            scaled.map_or(0.0, |scaled| f64::from(scaled.peak)),
            scaled.map_or(0.0, |scaled| scaled.turns_per_hour),
            self.outcome.most_waiting.iter().copied().max().unwrap_or(0) as f64,
            self.outcome.broken_invariants as f64,
        ]
    }

    /// Fairness of the tenants' service: Jain's index over the ratios of
    /// received service to max-min fair share, and the least of those ratios.
    fn fairness(&self, records: &[&WorldRecord], window: &FigureWindow) -> (f64, f64) {
        let mut demand = vec![0.0; self.weights.len()];
        let mut received = demand.clone();
        for record in records {
            let Some(wanted) = demand.get_mut(record.tenant as usize) else { continue };
            *wanted += cost(record);
            received[record.tenant as usize] += window.service(record);
        }
        let shares = fair_shares(&demand, self.weights, received.iter().sum());
        let pairs = received.iter().zip(&shares).filter(|(_, share)| **share > 0.0);
        let ratios: Vec<f64> = pairs.map(|(got, share)| got / share).collect();
        let (sum, squares): (f64, f64) =
            (ratios.iter().sum(), ratios.iter().map(|ratio| ratio * ratio).sum());
        let worst = ratios.iter().copied().reduce(f64::min).unwrap_or(0.0);
        (sum * sum / (ratios.len() as f64 * squares).max(f64::MIN_POSITIVE), worst)
    }
}

/// Service of a request in tokens: prompt + 2 × output.
fn cost(record: &WorldRecord) -> f64 {
    f64::from(record.prompt) + 2.0 * f64::from(record.output)
}

/// Time in which requests arrived. Service counts as far as it falls in this
/// window.
#[derive(Debug)]
struct FigureWindow {
    start: Tick,
    end: Tick,
}

impl FigureWindow {
    fn of(records: &[&WorldRecord]) -> Self {
        let times = || records.iter().map(|record| record.arrived);
        let (start, last) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
        // All requests of a burst arrive at once; its window ends with the last
        // answer.
        let ends = || records.iter().filter_map(|record| record.ended).max().unwrap_or(last);
        let end = if last.since(start) < Duration::from_secs(1) { ends() } else { last };
        Self { start, end }
    }

    fn seconds(&self) -> f64 {
        self.end.since(self.start).as_secs_f64().max(1e-9)
    }

    /// Service of a request within the window. Prompt tokens count at the first
    /// token, output tokens evenly from then to the end.
    fn service(&self, record: &WorldRecord) -> f64 {
        let (Some(ttft), Some(ended), true) = (record.ttft, record.ended, record.served()) else {
            return 0.0;
        };
        let first = record.arrived + ttft;
        if first > self.end {
            return 0.0;
        }
        let whole = ended.since(first).as_secs_f64();
        let within = self.end.min(ended).since(first).as_secs_f64();
        let part = if whole > 0.0 { within / whole } else { 1.0 };
        f64::from(record.prompt) + 2.0 * f64::from(record.output) * part
    }
}

/// Max-min fair shares of `total` under demands and weights. No share exceeds
/// its demand; what that frees goes to the others by weight.
fn fair_shares(demand: &[f64], weights: &[f64], total: f64) -> Vec<f64> {
    let mut shares = vec![0.0; demand.len()];
    let mut open: Vec<usize> = (0..demand.len()).filter(|index| demand[*index] > 0.0).collect();
    let mut left = total;
    loop {
        let weight: f64 = open.iter().map(|index| weights[*index]).sum();
        let level = left / weight.max(f64::MIN_POSITIVE);
        let (sated, hungry): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|index| demand[**index] <= level * weights[**index]);
        if sated.is_empty() || hungry.is_empty() {
            for index in &open {
                shares[*index] = (level * weights[*index]).min(demand[*index]);
            }
            return shares;
        }
        for index in sated {
            shares[index] = demand[index];
            left -= demand[index];
        }
        open = hungry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_max_min() {
        assert_eq!(fair_shares(&[10.0, 10.0, 100.0], &[1.0; 3], 60.0), [10.0, 10.0, 40.0]);
        assert_eq!(fair_shares(&[50.0, 50.0], &[1.0, 3.0], 40.0), [10.0, 30.0]);
        assert_eq!(fair_shares(&[5.0, 0.0], &[1.0, 1.0], 40.0), [5.0, 0.0]);
        assert_eq!(fair_shares(&[], &[], 0.0), [0.0; 0]);
    }

    fn record(tenant: u32, at: u64, ended: u64) -> WorldRecord {
        WorldRecord {
            tenant,
            prompt: 100,
            output: 50,
            arrived: Tick::from_millis(at),
            ttft: Some(Duration::from_millis(100)),
            ended: Some(Tick::from_millis(ended)),
            ..WorldRecord::default()
        }
    }

    #[test]
    fn service_counts_as_far_as_it_falls_in_the_window() {
        let outcome = RunOutcome::default();
        let goals = [Objectives { ttft: Duration::from_millis(100), itl: Duration::from_millis(1) }];
        let frame = FigureFrame {
            outcome: &outcome,
            goals: &goals,
            weights: &[1.0, 1.0],
            shares: true,
            graded: false,
            cost: 0.0,
        };
        // The second one has half of its output after the window of 2 s.
        let records = [record(0, 0, 1_000), record(1, 1_800, 2_000), record(0, 2_000, 2_100)];
        let records: Vec<_> = records.iter().collect();
        let figures = frame.figures(&records);
        let of = |name| figures[column_index(name).unwrap()];
        assert_eq!(of("offered"), 3.0);
        assert_eq!(of("tokens_per_s"), 200.0, "two of them: the third began after the window");
        assert_eq!(of("goodput"), 1.0);
        assert_eq!(of("jain"), 1.0);
        let late = record(1, 0, 4_000);
        let some: Vec<_> = [&late].into_iter().chain(records).collect();
        assert!(frame.figures(&some)[column_index("tokens_per_s").unwrap()] < 300.0);
    }

    #[test]
    fn one_who_gets_half_of_its_share_shows() {
        let outcome = RunOutcome::default();
        let frame = FigureFrame {
            outcome: &outcome,
            goals: &[],
            weights: &[1.0, 1.0],
            shares: true,
            graded: false,
            cost: 0.0,
        };
        let mut records: Vec<WorldRecord> =
            (0..40).map(|index| record(0, index * 100, index * 100 + 100)).collect();
        let refused = |index: u64| WorldRecord {
            refused: !index.is_multiple_of(3),
            ..record(1, index * 100, index * 100 + 100)
        };
        records.extend((0..39).map(refused));
        let figures = frame.figures(&records.iter().collect::<Vec<_>>());
        let (jain, worst) =
            (figures[column_index("jain").unwrap()], figures[column_index("worst_share").unwrap()]);
        assert!((0.7..0.9).contains(&jain) && (0.4..0.6).contains(&worst), "{jain} {worst}");
    }
}
