//! Scenario report: medians over the seeds with their range, as a table and as
//! JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::sim::spread::RunSpread;
use crate::studies::scenario::case::Trial;
use crate::studies::scenario::figures::{COLUMNS, FigureColumn, Figures};
use crate::studies::scenario::plan::ScenarioPlan;

/// One row: a design in a case under a load, for one group of requests.
#[derive(Debug, Clone)]
pub struct FigureRow {
    /// Name of the case; empty when there is only one.
    pub case: String,
    pub load: f64,
    pub design: String,
    /// Scale policy; empty without autoscaling.
    pub policy: String,
    pub group: String,
    /// One spread for each of [`COLUMNS`].
    pub figures: Vec<RunSpread>,
}

#[derive(Debug, Clone, Default)]
pub struct ScenarioReport {
    /// Rows in the scenario's order.
    pub rows: Vec<FigureRow>,
}

impl ScenarioReport {
    /// The figures of the runs, each in the order of [`ScenarioPlan::groups`].
    pub fn new(plan: &ScenarioPlan, runs: &[(Trial, Vec<Figures>)]) -> Self {
        let mut by_row: BTreeMap<Trial, Vec<&Vec<Figures>>> = BTreeMap::new();
        for (trial, figures) in runs {
            by_row.entry(Trial { seed: 0, ..*trial }).or_default().push(figures);
        }
        let mut report = Self::default();
        for (trial, seeds) in by_row {
            let case = &plan.cases[trial.case];
            for (index, group) in plan.groups().into_iter().enumerate() {
                let spread = |column: usize| {
                    let figures = seeds.iter().filter_map(|figures| figures.get(index));
                    RunSpread::of(figures.map(|figures| figures[column])).unwrap_or_default()
                };
                report.rows.push(FigureRow {
                    case: case.name.clone(),
                    load: case.loads[trial.load],
                    design: case.designs[trial.design].to_string(),
                    policy: case.policies().get(trial.policy).map(ToString::to_string).unwrap_or_default(),
                    group: group.to_owned(),
                    figures: (0..COLUMNS.len()).map(spread).collect(),
                });
            }
        }
        report
    }

    pub fn json(&self) -> Value {
        let row = |row: &FigureRow| {
            let named = COLUMNS.iter().zip(&row.figures);
            let figures: Map<String, Value> =
                named.map(|(column, spread)| (column.name.to_owned(), json!(spread))).collect();
            json!({
                "case": row.case, "load": row.load, "design": row.design, "policy": row.policy,
                "group": row.group, "figures": figures,
            })
        };
        Value::Array(self.rows.iter().map(row).collect())
    }

    /// The report as a table: medians, with the range over the seeds for the
    /// p99 and the goodput. Columns with only their dull value are left out.
    pub fn table(&self) -> String {
        if self.rows.is_empty() {
            return "no rows\n".to_owned();
        }
        let cells = self.cells();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..cells[0].len()).map(width).collect();
        let words = self.words();
        let mut out = String::new();
        for row in &cells {
            let mut line = String::new();
            for (index, cell) in row.iter().enumerate() {
                let width = widths[index];
                // Text columns are aligned to the left, numbers to the right.
                // Writing to a string cannot fail.
                let done = if index < words {
                    write!(line, "{cell:<width$}  ")
                } else {
                    write!(line, "{cell:>width$}  ")
                };
                debug_assert!(done.is_ok());
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    /// Number of text columns, which are at the left.
    fn words(&self) -> usize {
        2 + usize::from(self.has_cases()) + usize::from(self.has_groups())
    }

    fn has_cases(&self) -> bool {
        self.rows.iter().any(|row| !row.case.is_empty())
    }

    fn has_policies(&self) -> bool {
        self.rows.iter().any(|row| !row.policy.is_empty())
    }

    fn has_groups(&self) -> bool {
        self.rows.iter().any(|row| row.group != "all")
    }

    /// Cells of the table; the first row is the heading.
    pub(super) fn cells(&self) -> Vec<Vec<String>> {
        let dull = |(index, column): &(usize, &FigureColumn)| {
            let same = |row: &FigureRow| Some(row.figures[*index].high) == column.hidden_value;
            !(column.hidden_value.is_some() && self.rows.iter().all(same))
        };
        let shown: Vec<(usize, &FigureColumn)> = COLUMNS.iter().enumerate().filter(dull).collect();
        let ranged = |column: &FigureColumn| matches!(column.name, "ttft_p99_ms" | "goodput");
        let mut heading = vec!["load".to_owned(), "design".to_owned()];
        if self.has_cases() {
            heading.insert(0, "case".to_owned());
        }
        if self.has_policies() {
            heading.push("policy".to_owned());
        }
        if self.has_groups() {
            heading.push("group".to_owned());
        }
        heading.extend(shown.iter().map(|(_, column)| column.title.to_owned()));
        let row = |row: &FigureRow| {
            let mut cells = vec![format!("{}", row.load), row.design.clone()];
            if self.has_cases() {
                cells.insert(0, row.case.clone());
            }
            if self.has_policies() {
                cells.push(row.policy.clone());
            }
            if self.has_groups() {
                cells.push(row.group.clone());
            }
            cells.extend(shown.iter().map(|(index, column)| {
                let (spread, digits) = (row.figures[*index], column.digits);
                match ranged(column) && spread.low < spread.high {
                    true => format!(
                        "{:.digits$} [{:.digits$}-{:.digits$}]",
                        spread.median, spread.low, spread.high
                    ),
                    false => format!("{:.digits$}", spread.median),
                }
            }));
            cells
        };
        std::iter::once(heading).chain(self.rows.iter().map(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dull_columns_and_lonely_names_are_left_out() {
        let figures = |cut: f64| {
            let value = |column: &FigureColumn| {
                RunSpread::of([if column.name == "cut" { cut } else { 0.0 }]).expect("a number")
            };
            COLUMNS.iter().map(value).collect()
        };
        let row = |cut| FigureRow {
            case: String::new(),
            load: 0.7,
            design: "penstock".to_owned(),
            policy: String::new(),
            group: "all".to_owned(),
            figures: figures(cut),
        };
        let plain = ScenarioReport { rows: vec![row(0.0)] };
        assert!(!plain.table().contains("cut") && plain.table().starts_with("load  design"));
        let mut other = row(0.25);
        other.case = "crash".to_owned();
        let report = ScenarioReport { rows: vec![row(0.0), other] };
        let table = report.table();
        assert!(table.starts_with("case   load  design"), "{table}");
        assert!(table.lines().nth(2).unwrap().contains("0.2500"), "{table}");
        assert_eq!(report.json()[1]["figures"]["cut"]["median"], 0.25);
        assert_eq!(ScenarioReport::default().table(), "no rows\n");
    }
}
