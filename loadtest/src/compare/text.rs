//! Text report of a comparison.

use std::fmt::Write as _;

use penstock::sim::spread::RunSpread;

use super::scenario::Scenario;
use super::stage::Run;
use super::summary::Row;
use crate::replay::DOUBTFUL_LAG_MS;

/// Share of busy cores from which the figures are in doubt.
const DOUBTFUL_BUSY: f64 = 0.9;

/// A cell with so many digits after the point.
fn cell(spread: Option<RunSpread>, digits: usize) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.digits$}", spread.median))
}

type Of = Box<dyn Fn(&Row) -> Option<RunSpread>>;

/// One column of figures.
pub(super) struct Column {
    /// Above it.
    pub(super) head: String,
    /// Digits after the point.
    pub(super) digits: usize,
    /// Its value in a line.
    pub(super) of: Of,
}

/// The columns of the table.
pub(super) fn columns(scenario: &Scenario) -> Vec<Column> {
    let column = |head: &str, digits, of: fn(&Row) -> Option<RunSpread>| Column {
        head: head.to_owned(),
        digits,
        of: Box::new(of),
    };
    let mut columns = vec![
        column("TTFT p50 ms", 1, |row| row.ttft_p50),
        column("TTFT p99 ms", 1, |row| row.ttft_p99),
        column("ITL p99 ms", 1, |row| row.itl_p99),
    ];
    columns.extend(scenario.objectives.iter().enumerate().map(|(place, objective)| Column {
        head: format!("good {}/{}", objective.ttft_ms, objective.itl_ms),
        digits: 3,
        of: Box::new(move |row| row.goodput.get(place).copied().flatten()),
    }));
    columns.extend([
        column("refused", 3, |row| row.refused),
        column("failed", 3, |row| row.failed),
        column("Jain", 3, |row| row.fairness),
        column("service/s", 0, |row| row.service_rate),
        column("span s", 1, |row| row.makespan),
        column("CPU ms", 2, |row| row.cpu_ms),
        column("busy", 2, |row| row.busy),
        column("p99 ratio", 3, |row| row.ratio),
    ]);
    if scenario.engines.values().any(|group| group.price > 0.0) {
        columns.push(column("cost of 1,000", 4, |row| row.cost));
    }
    columns
}

/// The table, medians over the rounds, and what makes it doubtful.
pub(super) fn table(scenario: &Scenario, rows: &[Row], runs: &[Run]) -> String {
    let columns = columns(scenario);
    let simulated = rows.iter().any(|row| row.simulated.is_some());
    let width = rows.iter().map(|row| row.contestant.chars().count()).max().unwrap_or(0).max(10);
    let mut text = format!("{:<width$}", "");
    for column in &columns {
        let _ = write!(text, "{:>14}", column.head);
    }
    if simulated {
        let _ = write!(text, "{:>12}{:>8}", "simulated", "off by");
    }
    text.push('\n');
    for row in rows {
        let _ = write!(text, "{:<width$}", row.contestant);
        for column in &columns {
            let _ = write!(text, "{:>14}", cell((column.of)(row), column.digits));
        }
        if let (Some(expected), Some(ratio)) = (row.simulated, row.ratio) {
            let off = 100.0 * (ratio.median / expected - 1.0);
            let _ = write!(text, "{expected:>12.3}{:>8}", format!("{off:+.0} %"));
        }
        text.push('\n');
    }
    let first = rows.first().map(|row| row.contestant.as_str()).unwrap_or_default();
    let _ = writeln!(
        text,
        "\nmedians of {} rounds; times from the planned instant; good = share of all offered calls inside\n\
         TTFT/ITL; service = prompt + 2 x output tokens; p99 ratio = {first}'s TTFT p99 over this one's",
        scenario.rounds
    );
    for doubt in doubts(runs) {
        let _ = writeln!(text, "warning: {doubt}");
    }
    text
}

/// What makes the figures doubtful.
pub(super) fn doubts(runs: &[Run]) -> Vec<String> {
    let mut doubts = Vec::new();
    for run in runs {
        let who = format!("round {}, {}", run.round, run.contestant);
        if let Some(lag) = run.results.send_lag.filter(|lag| lag.p99_ms > DOUBTFUL_LAG_MS) {
            doubts.push(format!("{who}: calls left {:.1} ms late at the 99th percentile", lag.p99_ms));
        }
        if run.busy > DOUBTFUL_BUSY {
            doubts.push(format!("{who}: the machine was {:.0} % busy", 100.0 * run.busy));
        }
        if run.results.all.other_length > 0 {
            doubts.push(format!("{who}: {} answers have another length", run.results.all.other_length));
        }
    }
    doubts
}
