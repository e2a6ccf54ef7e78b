//! Figures of one run.

use std::time::Duration;

use crate::sim::world::record::{Objectives, Summary, WorldRecord};
use crate::sim::world::run::RunOutcome;
use crate::studies::scenario::fairness::{FairWindows, FigureWindow, overall};

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
pub const COLUMNS: [FigureColumn; 27] = [
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
    column("jain_60_s", "jain 60 s", 3, Some(0.0)),
    column("below_share_wait_ms", "below share", 0, Some(0.0)),
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
    /// Whether fairness over any 60 s is among the figures.
    pub(super) fairness: bool,
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
        let (jain, worst) = if self.shares { overall(records, self.weights, &window) } else { (0.0, 0.0) };
        let FairWindows { jain: jain_60, longest_wait } =
            if self.fairness { FairWindows::of(records, self.weights) } else { FairWindows::default() };
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
            jain_60,
            longest_wait,
            self.cost,
            scaled.map_or(0.0, |scaled| scaled.replica_hours),
            scaled.map_or(0.0, |scaled| f64::from(scaled.peak)),
            scaled.map_or(0.0, |scaled| scaled.turns_per_hour),
            self.outcome.most_waiting.iter().copied().max().unwrap_or(0) as f64,
            self.outcome.broken_invariants as f64,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::time::Tick;

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
            fairness: false,
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
            fairness: false,
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
