//! Report of the matrix: its cells as a table and as JSON, with pass or fail.

use penstock::studies::no_harm::CellRow;
use penstock::studies::no_harm::matrix::{MatrixCell, ObjectiveFit};
use serde::Serialize;

use super::stage::Pair;
use crate::meter::Verdict;

/// What came of one cell.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// `fleet/requests/class`.
    pub cell: String,
    /// Output tokens a second straight at the engines, each round.
    pub straight: Vec<f64>,
    /// The same through the gateway.
    pub through: Vec<f64>,
    /// The mean of the rounds' ratios.
    pub ratio: f64,
    /// The least that it may be.
    pub mark: f64,
    /// Requests through the gateway that failed or were refused.
    pub failed: u64,
    /// Those of them that were refused (503).
    pub refused: u64,
    /// See `MatrixCell::asks_for_refusals`.
    pub may_refuse: bool,
    /// Median time to the first token of streams through the gateway and straight, ms.
    pub ttft_ms: [Option<f64>; 2],
    /// Share of all cores that was busy; near 1 the machine was too small.
    pub busy: f64,
    /// The objective that may cost throughput here, and whether engines can keep it.
    pub objective: Option<String>,
    /// Objectives that the gateway itself says no pool keeps.
    pub unkept: Vec<String>,
}

impl Row {
    /// Result of a cell in virtual time.
    pub(super) fn of_virtual_time(row: &CellRow) -> Self {
        Row {
            straight: vec![row.direct],
            through: vec![row.through],
            ratio: row.ratio(),
            failed: row.refused as u64,
            refused: row.refused as u64,
            may_refuse: row.cell.asks_for_refusals(row.direct),
            ..Row::new(&row.cell, &[], 0.0, Vec::new())
        }
    }

    pub(super) fn new(cell: &MatrixCell, pairs: &[Pair], busy: f64, unkept: Vec<String>) -> Self {
        let straight: Vec<f64> = pairs.iter().map(|pair| pair.straight.tokens_per_second).collect();
        let through: Vec<f64> = pairs.iter().map(|pair| pair.through.tokens_per_second).collect();
        let ratios = through.iter().zip(&straight).map(|(through, straight)| through / straight.max(1e-9));
        let last = pairs.last();
        let refused = Verdict::Status(503).to_string();
        let refused = |pair: &Pair| pair.through.outcomes.get(&refused).copied().unwrap_or(0);
        let mean = straight.iter().sum::<f64>() / pairs.len().max(1) as f64;
        Row {
            cell: cell.name(),
            ratio: ratios.sum::<f64>() / pairs.len().max(1) as f64,
            mark: cell.min_ratio(),
            failed: pairs.iter().map(|pair| pair.through.failed()).sum(),
            refused: pairs.iter().map(refused).sum(),
            may_refuse: cell.asks_for_refusals(mean),
            ttft_ms: [
                last.and_then(|pair| pair.through.ttft).map(|ttft| ttft.p50_ms),
                last.and_then(|pair| pair.straight.ttft).map(|ttft| ttft.p50_ms),
            ],
            busy,
            objective: objective(cell),
            unkept,
            straight,
            through,
        }
    }

    /// Whether it is above its mark, and every request was served that its class would
    /// wait for.
    pub fn passed(&self) -> bool {
        let allowed = if self.may_refuse { self.refused } else { 0 };
        self.ratio >= self.mark && self.failed <= allowed
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let time = |at: usize| self.ttft_ms[at].map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
        let mut line = format!(
            "{:<28}{:>9.0}{:>9.0}{:>8.3}{:>6.2}  {:<4}{:>8}{:>8}{:>6.0} %",
            self.cell,
            mean(&self.straight),
            mean(&self.through),
            self.ratio,
            self.mark,
            if self.passed() { "ok" } else { "LOW" },
            time(1),
            time(0),
            self.busy * 100.0,
        );
        if self.failed > 0 {
            let refused = if self.refused == self.failed { ", all refused" } else { "" };
            line += &format!("  {} failed{refused}", self.failed);
        }
        if let Some(objective) = &self.objective {
            line += &format!("  {objective}");
        }
        if !self.unkept.is_empty() {
            line += "  the gateway says so";
        }
        line
    }
}

/// The table's head.
pub(super) fn head() -> String {
    format!(
        "{:<28}{:>9}{:>9}{:>8}{:>6}  {:<4}{:>8}{:>8}{:>8}",
        "output tokens/s", "straight", "through", "ratio", "mark", "", "ttft", "through", "busy"
    )
}

fn objective(cell: &MatrixCell) -> Option<String> {
    let ms = cell.class.itl_ms;
    match cell.objective_fit() {
        ObjectiveFit::FullLoad => None,
        ObjectiveFit::LightLoad => Some(format!("itl {ms} ms: not kept under all of this load")),
        ObjectiveFit::Never => Some(format!("itl {ms} ms: not kept with one request")),
    }
}

#[cfg(test)]
mod tests {
    use penstock::studies::no_harm::matrix::{CellClass, MatrixFleet, RequestKind};

    use super::*;

    fn row(ratio: f64, failed: u64) -> Row {
        let [fleet, class] = ["70b", "interactive"];
        let cell = MatrixCell {
            fleet: MatrixFleet::named(fleet).expect("a fleet"),
            kind: RequestKind::Stream,
            class: CellClass::named(class).expect("a class"),
        };
        Row { ratio, failed, ..Row::new(&cell, &[], 0.5, Vec::new()) }
    }

    #[test]
    fn a_cell_passes_at_its_mark_when_nothing_failed() {
        assert!(row(0.80, 0).passed() && !row(0.79, 0).passed() && !row(0.99, 1).passed());
        let line = row(0.5, 2).line();
        let refused = Row { refused: 1, may_refuse: true, ..row(0.99, 1) };
        assert!(refused.passed() && !Row { may_refuse: false, ..refused.clone() }.passed());
        assert!(!Row { failed: 2, ..refused }.passed(), "one of them was not refused");
        assert!(line.contains("LOW") && line.contains("2 failed") && line.contains("itl 50 ms"), "{line}");
    }
}
