//! Bar chart of the ratios, as SVG, and a page with table and chart.

use std::fmt::Write as _;

use penstock::sim::chart::escaped;

use super::results::BenchResults;
use super::text::{cell, head};

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.25em .7em;text-align:right;\
border-bottom:1px solid #8884}td:first-child,th:first-child{text-align:left}.wide{overflow-x:auto}\
svg{max-width:100%;height:auto;margin:.6em 0}.doubt{color:#c40}";

/// One after the other for the targets that are compared.
const COLOURS: [&str; 6] = ["#2a78b5", "#e08020", "#3a9a50", "#b04a9a", "#8a6d3b", "#5a5a5a"];
/// Where bars begin, and their longest length.
const LEFT: f64 = 300.0;
const LENGTH: f64 = 460.0;
const BAR: f64 = 13.0;
const GAP: f64 = 9.0;
const TOP: f64 = 44.0;

/// A page that needs nothing else.
pub(super) fn page(results: &BenchResults) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Proxies</title><style>{STYLE}</style><h1>Proxies</h1>"
    );
    // Writing to a String cannot fail.
    for line in head(results) {
        let _ = write!(out, "<p>{}</p>", escaped(&line));
    }
    for doubt in results.doubts() {
        let _ = write!(out, "<p class=\"doubt\">{}</p>", escaped(&doubt));
    }
    out.push_str("<div class=\"wide\"><table><tr><th></th>");
    for target in &results.targets {
        let _ = write!(out, "<th>{}</th>", escaped(target));
    }
    out.push_str("</tr>");
    for figure in results.figures() {
        let _ = write!(out, "<tr><td>{}</td>", escaped(figure.facts().label));
        for target in &results.targets {
            let text = results.cell(figure, target).map(|found| cell(found, results.rounds));
            let _ = write!(out, "<td>{}</td>", text.unwrap_or_default());
        }
        out.push_str("</tr>");
    }
    let _ = writeln!(out, "</table></div>{}</html>", svg(results));
    out
}

/// A group of bars for each figure that has ratios, a bar for each target.
pub(super) fn svg(results: &BenchResults) -> String {
    let compared: Vec<&String> = results
        .targets
        .iter()
        .filter(|target| results.cells.iter().any(|cell| cell.target == **target && cell.ratio.is_some()))
        .collect();
    let ratios = |cell: &super::results::BenchCell| cell.ratio;
    let most = results.cells.iter().filter_map(ratios).fold(2.0, f64::max);
    let mut bars = String::new();
    let mut y = TOP;
    for figure in results.figures() {
        let start = y;
        for (place, target) in compared.iter().enumerate() {
            let Some(ratio) = results.cell(figure, target).and_then(ratios) else { continue };
            let length = (ratio.max(0.0) / most * LENGTH).max(1.0);
            let colour = COLOURS[place % COLOURS.len()];
            let _ = write!(
                bars,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{ratio:.2}</text>",
                LEFT + length + 5.0,
                y + BAR - 2.0
            );
            y += BAR;
        }
        if y > start {
            let facts = figure.facts();
            let more = if facts.more { " (more is better)" } else { "" };
            let _ = write!(
                bars,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}{more}</text>",
                LEFT - 8.0,
                f64::midpoint(start, y) + 4.0,
                escaped(facts.label)
            );
            y += GAP;
        }
    }
    frame(results, &compared, most, y) + &bars + "</svg>"
}

/// The head of the drawing: names of the targets, and the line at 1.
fn frame(results: &BenchResults, compared: &[&String], most: f64, height: f64) -> String {
    let width = LEFT + LENGTH + 60.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {:.0}\" width=\"{width}\" \
         font-family=\"system-ui,sans-serif\" font-size=\"11\" fill=\"#888\">",
        height + 10.0
    );
    let base = results.base.as_deref().unwrap_or_default();
    let one = LEFT + LENGTH / most;
    let _ = write!(
        out,
        "<line x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{:.1}\" y2=\"{height:.1}\" stroke=\"#888\"/>\
         <text x=\"{one:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} = 1</text>",
        TOP - 6.0,
        TOP - 10.0,
        escaped(base)
    );
    for (place, target) in compared.iter().enumerate() {
        let x = LEFT + place as f64 * 130.0;
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"6\" width=\"11\" height=\"11\" fill=\"{}\"/><text x=\"{}\" y=\"16\">{}</text>",
            COLOURS[place % COLOURS.len()],
            x + 16.0,
            escaped(target)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn a_bar_for_each_ratio() {
        let results = results();
        let svg = svg(&results);
        let ratios = results.cells.iter().filter(|cell| cell.ratio.is_some()).count();
        // One more for each name of a target that is compared.
        assert_eq!(svg.matches("<rect").count(), ratios + 2, "{svg}");
        assert!(svg.contains("nginx = 1") && svg.contains("(more is better)"), "{svg}");
        let page = page(&results);
        assert!(page.contains("<svg") && page.contains("99.0 (90.0–180.0) ×1.50"), "{page}");
    }
}
