//! HTML page of a comparison: one self-contained file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use penstock::sim::chart::{Chart, ChartPoint, ChartSeries, escaped};
use penstock::sim::spread::RunSpread;

use super::scenario::Scenario;
use super::stage::Run;
use super::summary::Row;
use super::text::{columns, doubts};
use crate::replay::Group;

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.25em .7em;text-align:right;\
border-bottom:1px solid #8884}td:first-child,th:first-child{text-align:left}small{opacity:.65;display:block;\
font-size:.75em}.wide{overflow-x:auto}svg{max-width:100%;height:auto;margin:.6em 0}.doubt{color:#c40}\
pre{overflow-x:auto;background:#8882;padding:1em}";

/// The page.
pub(super) fn page(scenario: &Scenario, source: &str, rows: &[Row], runs: &[Run]) -> String {
    let title = escaped(scenario.about.trim());
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    );
    let seconds = runs.first().map_or(0.0, |run| run.results.seconds);
    let _ = write!(
        out,
        "<p>{} rounds of {seconds:.0} measured seconds, contestants interleaved, engines and contestants fresh \
         for every run. Medians, with the range of the rounds below. Times count from the planned instant of a \
         call; <em>good</em> is the share of all offered calls inside TTFT/ITL; <em>p99 ratio</em> is the first \
         line's TTFT p99 over this line's.</p>",
        scenario.rounds
    );
    for doubt in doubts(runs) {
        let _ = write!(out, "<p class=\"doubt\">Doubtful: {}</p>", escaped(&doubt));
    }
    table(&mut out, scenario, rows);
    charts(&mut out, scenario, runs);
    groups(&mut out, scenario, runs);
    let _ = writeln!(out, "<h2>Scenario</h2><pre>{}</pre></html>", escaped(source));
    out
}

fn table(out: &mut String, scenario: &Scenario, rows: &[Row]) {
    let columns = columns(scenario);
    let simulated = rows.iter().any(|row| row.simulated.is_some());
    out.push_str("<div class=\"wide\"><table><tr><th></th>");
    for column in &columns {
        let _ = write!(out, "<th>{}</th>", column.head);
    }
    out.push_str(if simulated { "<th>simulated</th></tr>" } else { "</tr>" });
    for row in rows {
        let _ = write!(out, "<tr><td>{}</td>", escaped(&row.contestant));
        for column in &columns {
            out.push_str(&cell((column.of)(row), column.digits));
        }
        if simulated {
            let text = row.simulated.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
            let _ = write!(out, "<td>{text}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
}

fn cell(spread: Option<RunSpread>, digits: usize) -> String {
    let Some(RunSpread { median, low, high }) = spread else { return "<td>-</td>".to_owned() };
    format!("<td>{median:.digits$}<small>{low:.digits$}–{high:.digits$}</small></td>")
}

fn charts(out: &mut String, scenario: &Scenario, runs: &[Run]) {
    let percent = "percent of the offered calls";
    let times = [
        chart(scenario, runs, "Time to first token", [percent, "TTFT, ms"], |group| &group.ttft_curve),
        chart(scenario, runs, "Mean time between tokens", [percent, "ITL, ms"], |group| &group.itl_curve),
    ];
    times.iter().for_each(|chart| out.push_str(&chart.svg()));
    let limit = scenario.objectives[0].itl_ms;
    let title = format!("Goodput over the first-token objective, ITL within {limit} ms");
    let labels = ["objective, ms", "share of the offered calls"];
    let mut good = chart(scenario, runs, &title, labels, |group| &group.good_curve);
    good.log_y = false;
    out.push_str(&good.svg());
}

/// A line for each contestant: the median over the rounds and their range.
fn chart(
    scenario: &Scenario,
    runs: &[Run],
    title: &str,
    [x_label, y_label]: [&str; 2],
    curve: fn(&Group) -> &Vec<(f64, f64)>,
) -> Chart {
    let series = scenario.contestants.iter().map(|contestant| {
        let own = runs.iter().filter(|run| run.contestant == contestant.name);
        let curves: Vec<&Vec<(f64, f64)>> = own.map(|run| curve(&run.results.judged)).collect();
        let length = curves.iter().map(|curve| curve.len()).min().unwrap_or(0);
        let point = |place: usize| {
            let RunSpread { median, low, high } = RunSpread::of(curves.iter().map(|curve| curve[place].1))?;
            Some(ChartPoint { x: curves[0][place].0, y: median, low, high })
        };
        let points = (0..length).filter_map(point).collect();
        ChartSeries { name: contestant.name.clone(), points, ..ChartSeries::default() }
    });
    Chart {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        y_label: y_label.to_owned(),
        log_y: true,
        series: series.collect(),
    }
}

/// Tenants and classes, contestant by contestant.
fn groups(out: &mut String, scenario: &Scenario, runs: &[Run]) {
    type Of = fn(&Run) -> &BTreeMap<String, Group>;
    let kinds: [(&str, Of); 2] =
        [("Tenants", |run| &run.results.tenants), ("Classes", |run| &run.results.classes)];
    for (title, of) in kinds {
        let names: BTreeSet<String> = runs.iter().flat_map(|run| of(run).keys().cloned()).collect();
        if names.is_empty() {
            continue;
        }
        let _ = write!(
            out,
            "<h2>{title}</h2><div class=\"wide\"><table><tr><th></th><th></th><th>offered</th><th>served</th>\
             <th>refused</th><th>failed</th><th>TTFT p50</th><th>TTFT p99</th><th>ITL p99</th><th>good</th>\
             <th>span s</th></tr>"
        );
        for contestant in &scenario.contestants {
            for name in &names {
                let own = runs.iter().filter(|run| run.contestant == contestant.name);
                let found: Vec<&Group> = own.filter_map(|run| of(run).get(name)).collect();
                if found.iter().any(|group| group.offered > 0) {
                    group_row(out, &contestant.name, name, &found);
                }
            }
        }
        out.push_str("</table></div>");
    }
}

fn group_row(out: &mut String, contestant: &str, name: &str, found: &[&Group]) {
    let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escaped(contestant), escaped(name));
    let spread =
        |of: &dyn Fn(&Group) -> Option<f64>| RunSpread::of(found.iter().filter_map(|group| of(group)));
    let cells = [
        (spread(&|group| Some(group.offered as f64)), 0),
        (spread(&|group| Some(group.served as f64)), 0),
        (spread(&|group| Some(group.refusals() as f64)), 0),
        (spread(&|group| Some(group.failures() as f64)), 0),
        (spread(&|group| group.ttft.map(|times| times.p50_ms)), 1),
        (spread(&|group| group.ttft.map(|times| times.p99_ms)), 1),
        (spread(&|group| group.itl.map(|times| times.p99_ms)), 1),
        (spread(&|group| group.goodput.first().copied()), 3),
        (spread(&|group| Some(group.makespan_s)), 1),
    ];
    cells.into_iter().for_each(|(spread, digits)| out.push_str(&cell(spread, digits)));
    out.push_str("</tr>");
}
