//! HTML page of a scenario's report: charts over load, and the table.

use crate::sim::chart::{Chart, ChartPoint, ChartSeries, escaped};
use crate::studies::scenario::figures::column_index;
use crate::studies::scenario::report::{FigureRow, ScenarioReport};

/// Charts: figure, heading, and whether the vertical axis is logarithmic.
const DRAWN: [(&str, &str, bool); 4] = [
    ("ttft_p99_ms", "99th percentile of the time to the first token, ms", true),
    ("ttft_p50_ms", "median time to the first token, ms", true),
    ("goodput", "share of all requests within both objectives", false),
    ("itl_p99_ms", "99th percentile of the mean time between tokens, ms", true),
];

/// A chart with the name of its file.
#[derive(Debug, Clone)]
pub struct Drawing {
    /// File name without its extension.
    pub name: String,
    pub chart: Chart,
}

/// Charts over load, for every case and group with more than one load.
pub fn drawings(report: &ScenarioReport) -> Vec<Drawing> {
    let mut panels: Vec<(&str, &str)> = Vec::new();
    for row in &report.rows {
        if !panels.contains(&(&*row.case, &*row.group)) {
            panels.push((&row.case, &row.group));
        }
    }
    let drawings = panels.iter().flat_map(|(case, group)| {
        let rows: Vec<&FigureRow> =
            report.rows.iter().filter(|row| row.case == *case && row.group == *group).collect();
        DRAWN.iter().filter_map(move |(figure, heading, log_y)| drawing(&rows, figure, heading, *log_y))
    });
    drawings.collect()
}

fn drawing(rows: &[&FigureRow], figure: &str, heading: &str, log_y: bool) -> Option<Drawing> {
    let (first, column) = (rows.first()?, column_index(figure)?);
    if rows.iter().all(|row| row.load == first.load) {
        return None;
    }
    let mut series: Vec<ChartSeries> = Vec::new();
    for row in rows {
        let spread = row.figures[column];
        let name = [&*row.design, &*row.policy].join(" ").trim_end().to_owned();
        let point = ChartPoint { x: row.load, y: spread.median, low: spread.low, high: spread.high };
        match series.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => series.push(ChartSeries { name, points: vec![point], ..ChartSeries::default() }),
        }
    }
    let group = if first.group == "all" { "" } else { &first.group };
    let parts: Vec<&str> = [first.case.as_str(), group].into_iter().filter(|part| !part.is_empty()).collect();
    let title = std::iter::once(heading).chain(parts.iter().copied()).collect::<Vec<_>>().join(" · ");
    let file = std::iter::once(figure).chain(parts).collect::<Vec<_>>().join("-");
    let name = file.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    let chart = Chart { title, x_label: "load".to_owned(), y_label: String::new(), log_y, series };
    Some(Drawing { name, chart })
}

/// The page, one file without external resources.
pub fn html(title: &str, about: &str, report: &ScenarioReport) -> String {
    let charts: String = drawings(report)
        .iter()
        .map(|drawing| format!("<figure>{}</figure>\n", drawing.chart.svg()))
        .collect();
    let cells = report.cells();
    let row = |tag: &str, row: &Vec<String>| {
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let heading: String = cells.iter().take(1).map(|cells| row("th", cells)).collect();
    let body: String = cells.iter().skip(1).map(|cells| row("td", cells)).collect();
    let (title, about) = (escaped(title), escaped(about));
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <style>:root{{color-scheme:light dark}}body{{font:15px system-ui,sans-serif;margin:2rem;max-width:80rem}}\
         figure{{margin:1.5rem 0;max-width:54rem}}table{{border-collapse:collapse;font-size:13px}}\
         th,td{{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8884}}\
         th{{position:sticky;top:0;background:Canvas}}div{{overflow-x:auto}}</style>\n\
         <h1>{title}</h1>\n<p>{about}</p>\n{charts}<div><table>\n{heading}{body}</table></div>\n\
         <p>Medians over the seeds; ranges in brackets and as bands. Times in milliseconds.</p></html>\n"
    )
}
