//! Table of a replay's results, as text.

use std::fmt::Write as _;

use super::DOUBTFUL_LAG_MS;
use super::results::{Group, Objective, Results};
use crate::report::Quantiles;

/// The table that `loadtest replay` prints.
pub fn table(results: &Results, objectives: &[Objective]) -> String {
    let mut text = format!(
        "{:<16}{:>8}{:>8}{:>8}{:>7} | {:>7}{:>8}{:>9} | {:>6}{:>7} | {:>8}{:>9} |",
        "",
        "offered",
        "served",
        "refused",
        "failed",
        "TTFT 50",
        "90",
        "99 %",
        "ITL 50",
        "99 %",
        "total 50",
        "99 %"
    );
    for objective in objectives {
        let _ = write!(text, "{:>10}", format!("{}/{}", objective.ttft_ms, objective.itl_ms));
    }
    text.push('\n');
    row(&mut text, "all", &results.all);
    for (name, group) in results.tenants.iter().chain(&results.classes) {
        row(&mut text, name, group);
    }
    text.push_str("\ntimes in ms from the planned instant; the last columns are the share of all offered calls\ninside TTFT/ITL\n");
    for (name, count) in results.all.refused.iter().chain(&results.all.failed) {
        let _ = writeln!(text, "{name:<40}{count:>8}");
    }
    if let Some(fairness) = results.fairness {
        let _ = writeln!(text, "{:<40}{fairness:>8.3}", "fairness between tenants (Jain)");
    }
    warnings(&mut text, results);
    text
}

fn warnings(text: &mut String, results: &Results) {
    if results.all.other_length > 0 {
        let _ = writeln!(
            text,
            "note: {} answers have another length than the one asked for",
            results.all.other_length
        );
    }
    if let Some(lag) = results.send_lag.filter(|lag| lag.p99_ms > DOUBTFUL_LAG_MS) {
        let _ = writeln!(
            text,
            "warning: calls left {:.1} ms late at the 99th percentile; this machine is too small for the load",
            lag.p99_ms
        );
    }
}

fn row(text: &mut String, name: &str, group: &Group) {
    let ms = |quantiles: Option<Quantiles>, at: fn(&Quantiles) -> f64| {
        quantiles.map_or_else(|| "-".to_owned(), |quantiles| format!("{:.1}", at(&quantiles)))
    };
    let p50 = |quantiles: &Quantiles| quantiles.p50_ms;
    let p99 = |quantiles: &Quantiles| quantiles.p99_ms;
    let name: String = name.chars().take(15).collect();
    let _ = write!(
        text,
        "{name:<16}{:>8}{:>8}{:>8}{:>7} | {:>7}{:>8}{:>9} | {:>6}{:>7} | {:>8}{:>9} |",
        group.offered,
        group.served,
        group.refusals(),
        group.failures(),
        ms(group.ttft, p50),
        ms(group.ttft, |q| q.p90_ms),
        ms(group.ttft, p99),
        ms(group.itl, p50),
        ms(group.itl, p99),
        ms(group.total, p50),
        ms(group.total, p99),
    );
    for goodput in &group.goodput {
        let _ = write!(text, "{goodput:>10.3}");
    }
    text.push('\n');
}
