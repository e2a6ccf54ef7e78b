//! Table of the benchmark, in Markdown with aligned columns.

use std::fmt::Write as _;

use super::results::{BenchCell, BenchResults, belongs};

/// What was measured, where, and how to read it; then the table and its doubts.
pub(super) fn text(results: &BenchResults) -> String {
    let mut out = head(results).join("\n") + "\n\n";
    out += &table(results);
    for doubt in results.doubts() {
        out += &format!("\n{doubt}\n");
    }
    out.trim_end().to_owned()
}

/// Lines above the table.
pub(super) fn head(results: &BenchResults) -> Vec<String> {
    let programs = [&results.programs.penstock, &results.programs.nginx];
    let mut lines: Vec<String> = programs.into_iter().flatten().map(ToString::to_string).collect();
    lines.push(results.machine.clone());
    let rounds = results.rounds;
    lines.push(match (rounds, &results.base) {
        (1, None) => "One round.".to_owned(),
        (1, Some(base)) => format!("One round; × is the ratio to {base}."),
        (_, None) => format!("Medians of {rounds} rounds, with their range."),
        (_, Some(base)) => {
            format!(
                "Medians of {rounds} rounds, with their range; × is the ratio to {base} in the same round."
            )
        }
    });
    lines
}

fn table(results: &BenchResults) -> String {
    let mut rows = vec![[vec![String::new()], results.targets.clone()].concat()];
    for figure in results.figures() {
        let mut row = vec![figure.facts().label.to_owned()];
        row.extend(results.targets.iter().map(|target| match results.cell(figure, target) {
            Some(found) => cell(found, results.rounds),
            None if belongs(figure, target) => "-".to_owned(),
            None => String::new(),
        }));
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
    let widths: Vec<usize> = (0..=results.targets.len()).map(width).collect();
    let rule = widths.iter().map(|width| "-".repeat(*width)).collect();
    rows.insert(1, rule);
    let mut out = String::new();
    for row in rows {
        for (text, width) in row.iter().zip(&widths) {
            let _ = write!(out, "| {text:<width$} ");
        }
        out.push_str("|\n");
    }
    out
}

/// Median, range and ratio.
pub(super) fn cell(cell: &BenchCell, rounds: u32) -> String {
    let digits = cell.figure.facts().digits;
    let mut text = if cell.limited() { "≥ ".to_owned() } else { String::new() };
    // Writing to a String cannot fail.
    let _ = write!(text, "{:.digits$}", cell.spread.median);
    if rounds > 1 {
        let _ = write!(text, " ({:.digits$}–{:.digits$})", cell.spread.low, cell.spread.high);
    }
    if let Some(ratio) = cell.ratio {
        let _ = write!(text, " ×{ratio:.2}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn columns_are_targets_and_cells_have_range_and_ratio() {
        let text = text(&results());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "2 cores");
        assert!(lines[1].contains("× is the ratio to nginx in the same round"), "{text}");
        assert!(lines[3].starts_with("| ") && lines[3].contains("| direct "), "{text}");
        assert!(text.contains("| CPU µs/request, saturated, 2 KiB |"), "{text}");
        assert!(text.contains("| 99.0 (90.0–180.0) ×1.50 |"), "{text}");
        assert!(text.contains("| ≥ 12121 (6666–13333) ") && text.ends_with("nginx 80 % (full)."), "{text}");
        let widths: Vec<usize> = lines[3..9].iter().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }

    #[test]
    fn one_round_has_no_range() {
        let mut results = results();
        let cell = cell(results.cell(super::super::rows::Figure::FullCpu, "penstock").expect("a cell"), 1);
        assert_eq!(cell, "99.0 ×1.50");
        results.rounds = 1;
        results.base = None;
        assert_eq!(head(&results).last().map(String::as_str), Some("One round."));
    }
}
