//! Text form of the report, for a terminal of 80 columns.

use std::fmt::Write as _;

use crate::studies::plan::report::numbers::{count, number, of, percent, time, wrapped};
use crate::studies::plan::report::{
    Bursts, Percentiles, PlanClassRow, PlanFleetRow, PlanPoolRow, PlanReport,
};
use crate::studies::plan::trials::TriedFleet;

const WIDTH: usize = 80;
/// Column in which values begin, after their names.
const VALUES: usize = 22;

/// The whole report.
pub fn text(report: &PlanReport) -> String {
    let mut out = heading(report);
    out.push_str("\nRECOMMENDED\n");
    for (name, value) in advice(report) {
        out.push_str(&pair(name, &value));
    }
    out.push('\n');
    out.push_str(&table(&fleets(&report.fleets), 1));
    if !report.what_if.is_empty() {
        out.push_str("\nWHAT IF\n");
        out.push_str(&table(&what_if(report), 1));
    }
    out.push_str("\nTHE FOUR QUESTIONS\n");
    for answer in &report.answers {
        let _infallible = writeln!(out, "  {}", answer.question);
        out.push_str(&wrapped(&answer.answer, 4, WIDTH));
    }
    out.push_str("\nMEASURED\n");
    for (name, value) in measured(report) {
        out.push_str(&pair(name, &value));
    }
    out.push_str("\nFLEETS BY SIZE\n");
    out.push_str(&table(&by_replicas(&report.by_replicas), 0));
    if !report.notes.is_empty() {
        out.push_str("\nNOTES\n");
        for note in &report.notes {
            out.push_str(&wrapped(note, 2, WIDTH));
        }
    }
    out
}

/// The source and the setting.
pub(in crate::studies::plan) fn summary(report: &PlanReport) -> String {
    let (source, setting) = (&report.source, &report.setting);
    format!(
        "{} requests in {}, {} a second, on {} at {} an hour each; a replica starts in {}.",
        count(source.requests),
        time(source.span_s),
        number(source.rate),
        setting.profile,
        money(setting.price_per_hour),
        time(setting.start_s),
    )
}

fn heading(report: &PlanReport) -> String {
    format!("Capacity plan: {}\n{}", report.source.name, wrapped(&summary(report), 0, WIDTH))
}

/// The recommendation, as names with values.
pub(in crate::studies::plan) fn advice(report: &PlanReport) -> Vec<(&'static str, String)> {
    let (advice, promise) = (&report.advice, &report.promise);
    let bands = &report.measured.concurrency.bands;
    let tolerance = advice.tolerance.iter().map(|one| match one.enough_s < one.now_s {
        true => format!("{} {} (now {})", one.class, time(one.enough_s), time(one.now_s)),
        false => format!("{} {}", one.class, time(one.now_s)),
    });
    let kept = format!(
        "{:.3} of requests within objective, the least of {} starts ({} promised{}); {} of all requests can be kept by an idle replica",
        promise.least(),
        promise.kept.len(),
        promise.keep,
        if promise.holds { "" } else { ", NOT KEPT" },
        percent(report.setting.keepable),
    );
    vec![
        ("floor", format!("{}, always warm", of(advice.floor, "replica"))),
        ("maximum", of(advice.maximum, "replica")),
        (
            "burst ceiling",
            format!(
                "{} requests at once, {} warm before they come",
                count(advice.burst_requests),
                of(advice.burst_replicas, "replica"),
            ),
        ),
        (
            "concurrency bands",
            format!(
                "p50 {}, p90 {}, p99 {} requests; {}, {}, {} replicas",
                bands.p50,
                bands.p90,
                bands.p99,
                advice.replicas.p50,
                advice.replicas.p90,
                advice.replicas.p99
            ),
        ),
        ("queue tolerance", tolerance.collect::<Vec<_>>().join(", ")),
        ("pool mix", mix(report)),
        ("kept", kept),
    ]
}

/// The recommended pools and their use.
fn mix(report: &PlanReport) -> String {
    let (advice, pool) = (&report.advice, &report.setting.pool);
    let extra = advice.maximum.saturating_sub(advice.floor);
    let base = format!("{} of {pool} on demand", advice.floor);
    let rest = match extra {
        0 => ", and no more: demand never needs it".to_owned(),
        _ => format!(
            ", {extra} more as demand comes ({} of the hours; spot where you can lose them)",
            percent(advice.elastic)
        ),
    };
    let other = |row: &PlanPoolRow| match (row.replicas, row.cost_per_hour) {
        (Some(replicas), Some(cost)) => {
            format!("; {} alone: {replicas} at {} an hour", row.pool, money(cost))
        }
        _ => format!("; {} alone keeps no more than {:.3}", row.pool, row.kept),
    };
    let others: String = advice.pools.iter().filter(|row| row.pool != *pool).map(other).collect();
    format!("{base}{rest}{others}")
}

/// The measured inputs, as names with values.
pub(in crate::studies::plan) fn measured(report: &PlanReport) -> Vec<(&'static str, String)> {
    let measured = &report.measured;
    let (bands, residency, tokens) = (&measured.concurrency.bands, &measured.residency, &measured.tokens);
    let each = |line: fn(&PlanClassRow) -> String| -> String {
        measured.classes.iter().map(line).collect::<Vec<_>>().join("; ")
    };
    let concurrency = format!(
        "floor {}, mean {}, p50 {}, p90 {}, p99 {}, top {}",
        number(measured.concurrency.floor),
        number(bands.mean),
        bands.p50,
        bands.p90,
        bands.p99,
        bands.most
    );
    let hot =
        format!("{} idle but hot, of {} fixed", percent(residency.idle), of(residency.replicas, "replica"));
    let rates = format!(
        "in {}, out {}; both {}",
        number(tokens.input),
        number(tokens.output),
        parts(&tokens.all, number)
    );
    vec![
        ("concurrency", concurrency),
        ("queue", queue(report)),
        ("bursts", bursts(&measured.bursts)),
        ("latency tolerance", each(tolerance)),
        ("class mix", each(share)),
        ("residency", hot),
        ("duration", format!("{} in service", parts(&measured.duration_s, time))),
        ("tokens a second", rates),
    ]
}

fn parts(of: &Percentiles, say: fn(f64) -> String) -> String {
    format!("p50 {}, p90 {}, p99 {}", say(of.p50), say(of.p90), say(of.p99))
}

fn queue(report: &PlanReport) -> String {
    let Some(queue) = &report.measured.queue else { return "not in the source".to_owned() };
    let depth = &queue.depth;
    format!(
        "depth p50 {}, p90 {}, p99 {}; wait {}",
        depth.p50,
        depth.p90,
        depth.p99,
        parts(&queue.wait_s, time)
    )
}

fn bursts(bursts: &Bursts) -> String {
    format!(
        "{} an hour, and {} an hour of noise; height p50 x{}, p99 x{}; length p50 {}, p99 {}",
        number(bursts.bursts_per_hour),
        number(bursts.noise_per_hour),
        number(bursts.height.p50),
        number(bursts.height.p99),
        time(bursts.length_s.p50),
        time(bursts.length_s.p99),
    )
}

fn tolerance(row: &PlanClassRow) -> String {
    let within = row.waited_within.map_or(String::new(), |part| format!(", kept by {}", percent(part)));
    let (wait, first, gap) = (time(row.max_wait_s), time(row.ttft_s), time(row.itl_s));
    format!("{} {wait} (first token {first}, gap {gap}){within}", row.name)
}

fn share(row: &PlanClassRow) -> String {
    format!("{} {} of requests, {} of tokens", row.name, percent(row.requests), percent(row.tokens))
}

/// An amount of money, with cents where they count.
pub(in crate::studies::plan) fn money(amount: f64) -> String {
    if amount >= 100.0 { count(amount.round() as u64) } else { format!("{amount:.2}") }
}

fn millis(value: f64) -> String {
    time(value / 1e3)
}

fn figures(run: &TriedFleet) -> [String; 5] {
    [
        millis(run.ttft_p50_ms),
        millis(run.ttft_p99_ms),
        format!("{:.3}", run.goodput),
        percent(run.refused),
        percent(run.idle),
    ]
}

/// The compared fleets; the first row is the heading.
pub(in crate::studies::plan) fn fleets(rows: &[PlanFleetRow]) -> Vec<Vec<String>> {
    let heading = ["fleet", "replicas", "cost/h", "kept", "p50", "p99", "goodput", "refused", "idle"];
    let row = |row: &PlanFleetRow| {
        let replicas = match row.replicas {
            (low, high) if low == high => low.to_string(),
            (low, high) => format!("{low}-{high} (mean {:.1})", row.mean),
        };
        let first = [row.name.clone(), replicas, money(row.cost_per_hour), format!("{:.3}", row.kept)];
        let none = || ["-"; 5].map(str::to_owned);
        first.into_iter().chain(row.run.as_ref().map_or_else(none, figures)).collect()
    };
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(rows.iter().map(row)).collect()
}

/// The what-if changes beside the unchanged fleet; the first row is the
/// heading.
pub(in crate::studies::plan) fn what_if(report: &PlanReport) -> Vec<Vec<String>> {
    let heading = ["", "replicas", "cost/h", "kept", "p50", "p99", "goodput", "refused", "idle"];
    let row = |name: &str, run: &TriedFleet| {
        let first =
            [name.to_owned(), run.replicas.to_string(), money(run.cost_per_hour), format!("{:.3}", run.kept)];
        first.into_iter().chain(figures(run)).collect::<Vec<_>>()
    };
    let base = report.fleets.iter().find_map(|fleet| Some(row(&fleet.name, fleet.run.as_ref()?)));
    let changed = report.what_if.iter().map(|change| row(&change.name, &change.run));
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(base).chain(changed).collect()
}

/// The fleets by size; the first row is the heading.
pub(in crate::studies::plan) fn by_replicas(runs: &[TriedFleet]) -> Vec<Vec<String>> {
    let heading = ["replicas", "cost/h", "kept", "p50", "p99", "goodput", "refused", "idle"];
    let row = |run: &TriedFleet| {
        let first = [run.replicas.to_string(), money(run.cost_per_hour), format!("{:.3}", run.kept)];
        first.into_iter().chain(figures(run)).collect()
    };
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(runs.iter().map(row)).collect()
}

fn pair(name: &str, value: &str) -> String {
    let lines = wrapped(value, VALUES, WIDTH);
    format!("  {name:<width$}{}", lines.trim_start(), width = VALUES - 2)
}

/// A table of columns. The first `left` columns are aligned to the left, the
/// others to the right.
fn table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let gap = widths[column].saturating_sub(cell.chars().count());
            let (before, after) = if column < left { (0, gap) } else { (gap, 0) };
            let _infallible = write!(line, " {:before$}{cell}{:after$}", "", "");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
