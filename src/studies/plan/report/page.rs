//! HTML page of the report: one file without external resources.

use std::fmt::Write as _;

use crate::sim::chart::{Chart, ChartPoint, ChartSeries, Marks, escaped};
use crate::studies::plan::measure::bursts::Surge;
use crate::studies::plan::report::text;
use crate::studies::plan::report::{PlanReport, WindowNeed};
use crate::studies::plan::trials::TriedFleet;

const STYLE: &str = ":root{color-scheme:light dark;--edge:#8884;--soft:#8881}\
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:58rem;padding:0 1rem;\
background:Canvas;color:CanvasText}h1{font-size:1.6rem;margin-bottom:.2rem}\
h2{font-size:1.25rem;margin:2.5rem 0 .5rem}h3{font-size:1.05rem;margin:1.2rem 0 .2rem}p{margin:.3rem 0}\
figure{margin:1.2rem 0}svg{max-width:100%;height:auto;border:1px solid var(--edge);border-radius:6px}\
figcaption,.note{font-size:.9rem;opacity:.8}\
dl{display:grid;grid-template-columns:11rem 1fr;gap:.35rem 1rem;margin:.5rem 0}dt{font-weight:600}dd{margin:0}\
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}.tiles div{flex:1 1 9rem;border:1px solid var(--edge);\
border-radius:6px;padding:.6rem .8rem;background:var(--soft)}.tiles b{display:block;font-size:1.5rem;line-height:1.3}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}\
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--edge);white-space:nowrap}\
.named th:first-child,.named td:first-child{text-align:left}\
@media(max-width:40rem){dl{grid-template-columns:1fr;gap:0 0}dd{margin-bottom:.5rem}}";

pub fn html(report: &PlanReport) -> String {
    let title = escaped(&format!("Capacity plan: {}", report.source.name));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style></head>\n\
         <body>\n<h1>{title}</h1>\n<p>{}</p>\n",
        escaped(&text::summary(report))
    );
    tiles(report, &mut out);
    pairs(&text::advice(report), &mut out);
    table(&text::fleets(&report.fleets), "named", &mut out);
    out.push_str(
        "<p class=\"note\">kept: of the requests that an idle replica serves within their objectives. \
         goodput: of all. A fixed peak is the smallest fleet that keeps the promise without ever \
         changing; the recommended one follows what each window of time needs, with starts paid for.</p>\n",
    );
    if !report.what_if.is_empty() {
        out.push_str("<h2>What if</h2>\n");
        table(&text::what_if(report), "named", &mut out);
    }
    out.push_str("<h2>The four preflight questions</h2>\n");
    for answer in &report.answers {
        push(&mut out, format_args!("<h3>{}</h3>\n<p>{}</p>\n", answer.question, escaped(&answer.answer)));
    }
    for (chart, caption) in charts(report) {
        let caption = escaped(&caption);
        push(&mut out, format_args!("<figure>{}<figcaption>{caption}</figcaption></figure>\n", chart.svg()));
    }
    out.push_str("<h2>Fleets by size</h2>\n");
    table(&text::by_replicas(&report.by_replicas), "", &mut out);
    out.push_str("<h2>What was measured</h2>\n");
    pairs(&text::measured(report), &mut out);
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2>\n");
        for note in &report.notes {
            push(&mut out, format_args!("<p>{}</p>\n", escaped(note)));
        }
    }
    out.push_str("</body></html>\n");
    out
}

/// The key numbers at the top of the page.
fn tiles(report: &PlanReport, out: &mut String) {
    let (advice, fleets) = (&report.advice, &report.fleets);
    let cost =
        |name: &str| fleets.iter().find(|fleet| fleet.name == name).map_or(0.0, |row| row.cost_per_hour);
    let (fixed, follows) = (cost("fixed peak"), cost("recommended"));
    let tile = |value: String, what: &str| format!("<div><b>{value}</b>{what}</div>");
    let least = report.promise.least();
    let tiles = [
        tile(format!("{}\u{2013}{}", advice.floor, advice.maximum), "replicas, floor to maximum"),
        tile(
            format!("{least:.3}"),
            if report.promise.holds { "kept, simulated again" } else { "kept: less than promised" },
        ),
        tile(text::money(follows), &format!("an hour, following demand ({})", against(follows, fixed))),
        tile(text::money(fixed), "an hour at a fixed peak"),
    ];
    push(out, format_args!("<div class=\"tiles\">{}</div>\n", tiles.concat()));
}

/// A cost compared with another, in words.
fn against(cost: f64, other: f64) -> String {
    match (100.0 * (cost / other.max(f64::MIN_POSITIVE) - 1.0)).round() {
        less if less < 0.0 => format!("{:.0} % less", -less),
        more if more > 0.0 => format!("{more:.0} % more"),
        _ => "the same".to_owned(),
    }
}

fn pairs(rows: &[(&'static str, String)], out: &mut String) {
    out.push_str("<dl>\n");
    for (name, value) in rows {
        push(out, format_args!("<dt>{name}</dt><dd>{}</dd>\n", escaped(value)));
    }
    out.push_str("</dl>\n");
}

fn table(rows: &[Vec<String>], class: &str, out: &mut String) {
    push(out, format_args!("<div class=\"scroll\"><table class=\"{class}\">\n"));
    for (index, row) in rows.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        push(out, format_args!("<tr>{cells}</tr>\n"));
    }
    out.push_str("</table></div>\n");
}

/// The charts, each with the text under it.
pub fn charts(report: &PlanReport) -> Vec<(Chart, String)> {
    vec![over_time(report), need(report), burst_map(report), first_token(report), cost(report)]
}

/// A unit of time that suits a span, and its length in seconds.
fn unit(span_s: f64) -> (&'static str, f64) {
    match span_s {
        _ if span_s > 2.0 * 86_400.0 => ("days", 86_400.0),
        _ if span_s > 3.0 * 3_600.0 => ("hours", 3_600.0),
        _ if span_s > 180.0 => ("minutes", 60.0),
        _ => ("seconds", 1.0),
    }
}

fn point(x: f64, y: f64) -> ChartPoint {
    ChartPoint { x, y, low: y, high: y }
}

fn flat(name: &str, from: f64, to: f64, y: f64) -> ChartSeries {
    ChartSeries { name: name.to_owned(), points: vec![point(from, y), point(to, y)], marks: Marks::Line }
}

fn over_time(report: &PlanReport) -> (Chart, String) {
    let (name, seconds) = unit(report.source.span_s);
    let bands = &report.measured.concurrency.bands;
    let end = report.source.span_s / seconds;
    let points = report.over_time.iter().map(|bin| ChartPoint {
        x: bin.at_s / seconds,
        y: bin.mean,
        low: bin.low as f64,
        high: bin.high as f64,
    });
    let level = |name: &str, value: u64| flat(name, 0.0, end, value as f64);
    let series = vec![
        ChartSeries { name: "mean, least to most".to_owned(), points: points.collect(), marks: Marks::Line },
        level("p99 of the time", bands.p99),
        level("p50 of the time", bands.p50),
        flat("floor", 0.0, end, report.measured.concurrency.floor),
    ];
    let chart = Chart {
        title: "Requests in service over time".to_owned(),
        x_label: format!("{name} from the start"),
        y_label: "requests".to_owned(),
        series,
        ..Chart::default()
    };
    (chart, "Concurrency: the band is from the least to the most in each stretch.".to_owned())
}

fn need(report: &PlanReport) -> (Chart, String) {
    let (name, seconds) = unit(report.source.span_s);
    let end = report.source.span_s / seconds;
    let steps = |of: fn(&WindowNeed) -> usize| -> Vec<ChartPoint> {
        let ends = |window: &WindowNeed| {
            let (from, to) = (window.at_s / seconds, (window.at_s + window.lasts_s) / seconds);
            [point(from, of(window) as f64), point(to, of(window) as f64)]
        };
        report.need.iter().flat_map(ends).collect()
    };
    let series = vec![
        flat("fixed peak", 0.0, end, report.advice.maximum as f64),
        ChartSeries {
            name: "recommended".to_owned(),
            points: steps(|window| window.has),
            marks: Marks::Line,
        },
        ChartSeries { name: "needed".to_owned(), points: steps(|window| window.needs), marks: Marks::Line },
    ];
    let chart = Chart {
        title: "Replicas over time".to_owned(),
        x_label: format!("{name} from the start"),
        y_label: "replicas".to_owned(),
        series,
        ..Chart::default()
    };
    let caption = "The smallest fleet that keeps the promise in each window, and the one that follows it: \
                   a rise is met when it comes, a fall is followed one window later.";
    (chart, caption.to_owned())
}

fn burst_map(report: &PlanReport) -> (Chart, String) {
    let start = report.setting.start_s;
    let surges = &report.measured.bursts.surges;
    let longest = surges.iter().map(|surge| surge.lasts_s).fold(start, f64::max);
    let (name, seconds) = unit(longest);
    let dots = |name: &str, of: &dyn Fn(&Surge) -> bool| {
        let kept = surges.iter().filter(|surge| of(surge));
        let points = kept.map(|surge| point(surge.lasts_s / seconds, surge.height)).collect();
        ChartSeries { name: name.to_owned(), points, marks: Marks::Dots }
    };
    let tallest = surges.iter().map(|surge| surge.height).fold(2.0, f64::max);
    let wall = vec![point(start / seconds, 1.0), point(start / seconds, tallest)];
    let series = vec![
        dots("noise", &|surge| surge.lasts_s < start),
        dots("burst", &|surge| surge.lasts_s >= start),
        ChartSeries { name: "a replica has started".to_owned(), points: wall, marks: Marks::Line },
    ];
    let chart = Chart {
        title: "Surges: how long, how high".to_owned(),
        x_label: format!("length, {name}"),
        y_label: "times the work before".to_owned(),
        log_y: true,
        series,
    };
    let caption =
        "Left of the line a surge is over before a replica has started: only warm replicas carry it.";
    (chart, caption.to_owned())
}

fn first_token(report: &PlanReport) -> (Chart, String) {
    let line = |name: &str, of: fn(&TriedFleet) -> f64| ChartSeries {
        name: name.to_owned(),
        points: report.by_replicas.iter().map(|run| point(run.replicas as f64, of(run))).collect(),
        marks: Marks::LineAndDots,
    };
    let ends = (report.by_replicas.first(), report.by_replicas.last());
    let (from, to) = match ends {
        (Some(first), Some(last)) => (first.replicas as f64, last.replicas as f64),
        _ => (0.0, 1.0),
    };
    let mut series = vec![line("p99", |run| run.ttft_p99_ms), line("p50", |run| run.ttft_p50_ms)];
    let goals = report.measured.classes.iter();
    series
        .extend(goals.map(|class| flat(&format!("{} objective", class.name), from, to, class.ttft_s * 1e3)));
    let chart = Chart {
        title: "Time to the first token, by replicas".to_owned(),
        x_label: format!("replicas of {}", report.setting.pool),
        y_label: "milliseconds".to_owned(),
        log_y: true,
        series,
    };
    (chart, "Of the requests that were served; the gateway refuses what cannot be in time.".to_owned())
}

fn cost(report: &PlanReport) -> (Chart, String) {
    // A share of 0 has no place on a logarithmic axis.
    let missed = |kept: f64| (1.0 - kept).max(1e-4);
    let ends = (report.by_replicas.first(), report.by_replicas.last());
    let (from, to) = match ends {
        (Some(first), Some(last)) => (first.cost_per_hour, last.cost_per_hour),
        _ => (0.0, 1.0),
    };
    let fixed = report.by_replicas.iter().map(|run| point(run.cost_per_hour, missed(run.kept)));
    let mut series = vec![
        ChartSeries { name: "fixed fleets".to_owned(), points: fixed.collect(), marks: Marks::LineAndDots },
        flat("promised", from, to, missed(report.setting.keep)),
    ];
    let follows = report.fleets.iter().find(|fleet| fleet.name == "recommended");
    series.extend(follows.map(|fleet| ChartSeries {
        name: "recommended".to_owned(),
        points: vec![point(fleet.cost_per_hour, missed(fleet.kept))],
        marks: Marks::Dots,
    }));
    let chart = Chart {
        title: "Requests outside their objectives, by what a fleet costs".to_owned(),
        x_label: "cost an hour".to_owned(),
        y_label: "share missed".to_owned(),
        log_y: true,
        series,
    };
    let caption = "Of the requests that an idle replica serves in time; below 0.0001 counts as that. \
                   The dot is the fleet that follows demand.";
    (chart, caption.to_owned())
}

/// Appends to `out`; writing to a string cannot fail.
fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(what);
    debug_assert!(written.is_ok());
}
