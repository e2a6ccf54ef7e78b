//! Line charts as SVG: several series, each with its range over the seeds. The
//! colours are readable on light and on dark pages.

use std::fmt::Write;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chart {
    /// Heading above the chart.
    pub title: String,
    /// Label under the horizontal axis.
    pub x_label: String,
    /// Label beside the vertical axis.
    pub y_label: String,
    /// Whether the vertical axis is logarithmic; then values that are not
    /// positive are left out.
    pub log_y: bool,
    pub series: Vec<ChartSeries>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChartSeries {
    /// Name in the legend.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<ChartPoint>,
    pub marks: Marks,
}

/// Drawing style of a series' points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Marks {
    /// A line with a dot at every point.
    #[default]
    LineAndDots,
    /// Only the line; for many points.
    Line,
    /// Only the dots; for points without values between them.
    Dots,
}

/// One point with its range.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChartPoint {
    pub x: f64,
    pub y: f64,
    /// Lower end of the range; `y` when the point has no range.
    pub low: f64,
    /// Upper end of the range; `y` when the point has no range.
    pub high: f64,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Colours that most colour-blind eyes tell apart (after Okabe and Ito), with
/// enough contrast to both white and near-black.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#8a6fd1", "#7f7f7f"];
const DASHES: [&str; 3] = ["", "7 4", "2 3"];
const STYLE: &str = "<style>.f{fill:#fff}.t{fill:#222}.g{stroke:#0002}.x{stroke:#444}\
    text{font:13px system-ui,sans-serif}.h{font-size:16px;font-weight:600}\
    @media(prefers-color-scheme:dark){.f{fill:#16181c}.t{fill:#e6e6e6}.g{stroke:#fff2}.x{stroke:#aaa}}</style>";

/// One axis: its range of values and its place on the page.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.log { value.log10() } else { value };
        let (low, high) = (scale(self.low), scale(self.high));
        let part = if high > low { (scale(value) - low) / (high - low) } else { 0.5 };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log { log_ticks(self.low, self.high) } else { even_ticks(self.low, self.high) }
    }
}

/// Round numbers at equal distances, about six of them.
fn even_ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low).max(f64::MIN_POSITIVE) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough).unwrap_or(10.0) * power;
    let first = (low / step - 1e-9).ceil();
    let ticks = (0..20).map(|index| (first + f64::from(index)) * step);
    ticks.take_while(|tick| *tick <= high + step * 1e-9).collect()
}

/// Ticks at 1, 2 and 5 of every decade; over more than four decades only at 1.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps: &[f64] = if last - first > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let ticks = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    ticks.filter(|tick| *tick >= low * 0.999 && *tick <= high * 1.001).take(40).collect()
}

/// The number in its shortest form.
fn label(value: f64) -> String {
    if value.abs() >= 1e6 {
        return format!("{:.0}M", value / 1e6);
    }
    let digits = if value.abs() >= 10.0 || value == 0.0 {
        0
    } else {
        (1.0 - value.abs().log10()).ceil().min(6.0) as usize
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// The text for a page: as content of an element or in double quotes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Chart {
    /// The chart as an SVG document. Values that are not finite are left out. A
    /// chart without any value says so.
    pub fn svg(&self) -> String {
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{title}\">{STYLE}<rect class=\"f\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\
             <text class=\"t h\" x=\"{LEFT}\" y=\"26\">{title}</text>\n",
            title = escaped(&self.title)
        );
        let kept: Vec<(usize, Vec<ChartPoint>)> = self.drawable_series();
        match self.axes(&kept) {
            Some((x, y)) => {
                self.frame(&x, &x_ticks(&kept, &x), &y, &mut out);
                for (index, points) in &kept {
                    line(*index, points, self.series[*index].marks, &x, &y, &mut out);
                }
                self.legend(&mut out);
            }
            None => {
                push(&mut out, format_args!("<text class=\"t\" x=\"{LEFT}\" y=\"90\">no values</text>\n"));
            }
        }
        out.push_str("</svg>\n");
        out
    }

    /// Each series with its points that can be drawn.
    fn drawable_series(&self) -> Vec<(usize, Vec<ChartPoint>)> {
        let fits = |value: f64| value.is_finite() && (!self.log_y || value > 0.0);
        let mend = |point: &ChartPoint| {
            let ranged = fits(point.low) && fits(point.high) && point.low <= point.high;
            let (low, high) = if ranged { (point.low, point.high) } else { (point.y, point.y) };
            ChartPoint { low: low.min(point.y), high: high.max(point.y), ..*point }
        };
        let good = |point: &&ChartPoint| point.x.is_finite() && fits(point.y);
        let points = |series: &ChartSeries| series.points.iter().filter(good).map(mend).collect();
        self.series.iter().map(points).enumerate().collect()
    }

    fn axes(&self, kept: &[(usize, Vec<ChartPoint>)]) -> Option<(Axis, Axis)> {
        let points = || kept.iter().flat_map(|(_, points)| points);
        let least = |of: fn(&ChartPoint) -> f64| points().map(of).reduce(f64::min);
        let most = |of: fn(&ChartPoint) -> f64| points().map(of).reduce(f64::max);
        let (mut left, mut right) = (least(|point| point.x)?, most(|point| point.x)?);
        if left == right {
            (left, right) = (left - 0.5, right + 0.5);
        }
        let (low, high) = (least(|point| point.low)?, most(|point| point.high)?);
        let (low, high) = match self.log_y {
            true => (low / 1.15, high * 1.15),
            // Linear axes start at zero, because shares and times are read
            // against zero.
            false if low >= 0.0 => (0.0, if high > 0.0 { high * 1.05 } else { 1.0 }),
            false => (low - (high - low) * 0.05, high + (high - low).max(1e-9) * 0.05),
        };
        let x = Axis { low: left, high: right, from: LEFT, to: WIDTH - RIGHT, log: false };
        let y = Axis { low, high, from: HEIGHT - BOTTOM, to: TOP, log: self.log_y };
        Some((x, y))
    }

    fn frame(&self, x: &Axis, across: &[f64], y: &Axis, out: &mut String) {
        for tick in y.ticks() {
            let at = y.place(tick);
            let (end, text) = (WIDTH - RIGHT, label(tick));
            push(
                out,
                format_args!("<line class=\"g\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"),
            );
            let (before, under) = (LEFT - 8.0, at + 4.0);
            push(
                out,
                format_args!(
                    "<text class=\"t\" x=\"{before}\" y=\"{under:.1}\" text-anchor=\"end\">{text}</text>\n"
                ),
            );
        }
        let floor = HEIGHT - BOTTOM;
        for &tick in across {
            let (at, under, text) = (x.place(tick), floor + 18.0, label(tick));
            push(
                out,
                format_args!("<line class=\"g\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{floor}\"/>"),
            );
            push(
                out,
                format_args!(
                    "<text class=\"t\" x=\"{at:.1}\" y=\"{under}\" text-anchor=\"middle\">{text}</text>\n"
                ),
            );
        }
        let end = WIDTH - RIGHT;
        push(out, format_args!("<path class=\"x\" fill=\"none\" d=\"M{LEFT} {TOP}V{floor}H{end}\"/>\n"));
        let (middle, bottom) = (f64::midpoint(LEFT, end), HEIGHT - 14.0);
        let (x_label, y_label) = (escaped(&self.x_label), escaped(&self.y_label));
        push(
            out,
            format_args!(
                "<text class=\"t\" x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{x_label}</text>\n"
            ),
        );
        let height = f64::midpoint(TOP, floor);
        push(
            out,
            format_args!(
                "<text class=\"t\" transform=\"translate(18 {height}) rotate(-90)\" text-anchor=\"middle\">{y_label}</text>\n"
            ),
        );
    }

    fn legend(&self, out: &mut String) {
        let left = WIDTH - RIGHT + 16.0;
        for (index, series) in self.series.iter().enumerate() {
            let y = TOP + 8.0 + 19.0 * index as f64;
            let (end, text, under) = (left + 26.0, left + 33.0, y + 4.0);
            let (stroke, name) = (stroke(index), escaped(&series.name));
            match series.marks {
                Marks::Dots => dot(index, f64::midpoint(left, end), y, out),
                Marks::LineAndDots | Marks::Line => {
                    push(
                        out,
                        format_args!("<line x1=\"{left}\" x2=\"{end}\" y1=\"{y}\" y2=\"{y}\" {stroke}/>"),
                    );
                }
            }
            push(out, format_args!("<text class=\"t\" x=\"{text}\" y=\"{under}\">{name}</text>\n"));
        }
    }
}

/// Ticks of the horizontal axis: the points' own places if these lie more than
/// 30 apart on the page, else round numbers.
fn x_ticks(kept: &[(usize, Vec<ChartPoint>)], axis: &Axis) -> Vec<f64> {
    let mut places: Vec<f64> = kept.iter().flat_map(|(_, points)| points).map(|point| point.x).collect();
    places.sort_unstable_by(f64::total_cmp);
    places.dedup();
    let apart = places.windows(2).all(|pair| axis.place(pair[1]) - axis.place(pair[0]) > 30.0);
    if apart { places } else { axis.ticks() }
}

/// Appends to `out`; writing to a string cannot fail.
fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(what);
    debug_assert!(written.is_ok());
}

fn stroke(index: usize) -> String {
    let colour = COLOURS[index % COLOURS.len()];
    let dash = DASHES[(index / COLOURS.len()) % DASHES.len()];
    format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"")
}

fn dot(index: usize, x: f64, y: f64, out: &mut String) {
    let colour = COLOURS[index % COLOURS.len()];
    push(out, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
}

fn line(index: usize, points: &[ChartPoint], marks: Marks, x: &Axis, y: &Axis, out: &mut String) {
    if points.is_empty() {
        return;
    }
    let path = |values: &mut dyn Iterator<Item = (f64, f64)>| {
        let pairs = values.map(|(right, up)| format!("{:.1},{:.1}", x.place(right), y.place(up)));
        pairs.collect::<Vec<_>>().join(" ")
    };
    let colour = COLOURS[index % COLOURS.len()];
    if points.iter().any(|point| point.high > point.low) {
        let above = points.iter().map(|point| (point.x, point.high));
        let below = points.iter().rev().map(|point| (point.x, point.low));
        let band = path(&mut above.chain(below));
        push(out, format_args!("<polygon points=\"{band}\" fill=\"{colour}\" opacity=\"0.15\"/>\n"));
    }
    if marks != Marks::Dots {
        let along = path(&mut points.iter().map(|point| (point.x, point.y)));
        push(out, format_args!("<polyline points=\"{along}\" fill=\"none\" {}/>\n", stroke(index)));
    }
    if marks != Marks::Line {
        points.iter().for_each(|point| dot(index, x.place(point.x), y.place(point.y), out));
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let series = |name: &str, height: f64| ChartSeries {
            name: name.to_owned(),
            points: (5..12)
                .map(|x| f64::from(x) / 10.0)
                .map(|x| ChartPoint { x, y: height * x, low: height * x * 0.8, high: height * x * 1.3 })
                .collect(),
            marks: Marks::LineAndDots,
        };
        Chart {
            title: "p99 & more".to_owned(),
            x_label: "load".to_owned(),
            y_label: "ms".to_owned(),
            log_y: true,
            series: vec![series("<one>", 100.0), series("two", 9_000.0)],
        }
    }

    #[test]
    fn everything_is_in_it_and_inside_the_frame() {
        let svg = chart().svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<polygon").count()), (2, 2));
        assert!(svg.contains("p99 &amp; more") && svg.contains("&lt;one&gt;") && !svg.contains("<one>"));
        assert!(svg.contains("prefers-color-scheme:dark"));
        for attribute in ["cx=\"", "cy=\""] {
            for found in svg.split(attribute).skip(1) {
                let value: f64 = found.split('"').next().unwrap().parse().unwrap();
                assert!((TOP..=WIDTH - RIGHT).contains(&value), "{value}");
            }
        }
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
        for load in ["0.5", "0.6", "0.7", "1.1"] {
            assert!(svg.contains(&format!(">{load}</text>")), "{load} is where a point is");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let mut chart = chart();
        let odd = [f64::NAN, f64::INFINITY, 0.0, -1.0];
        chart.series[0].points =
            odd.iter().map(|y| ChartPoint { x: 1.0, y: *y, ..ChartPoint::default() }).collect();
        chart.series[1].points[0].low = f64::NAN;
        let svg = chart.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 1);
        chart.series.truncate(1);
        assert!(chart.svg().contains("no values"));
        assert!(Chart::default().svg().ends_with("</svg>\n"));
        chart.series[0].points = vec![ChartPoint { x: 3.0, y: 5.0, low: 5.0, high: 5.0 }];
        assert!(chart.svg().contains("<circle"), "one point is a chart too");
    }

    #[test]
    fn dots_and_lines_can_stand_alone() {
        let mut chart = chart();
        chart.series.truncate(1);
        let count = |chart: &Chart| {
            let svg = chart.svg();
            (svg.matches("<polyline").count(), svg.matches("<circle").count())
        };
        assert_eq!(count(&chart), (1, 7));
        chart.series[0].marks = Marks::Line;
        assert_eq!(count(&chart), (1, 0));
        chart.series[0].marks = Marks::Dots;
        assert_eq!(count(&chart), (0, 8), "one of them in the legend");
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(even_ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(log_ticks(30.0, 600.0), [50.0, 100.0, 200.0, 500.0]);
        assert_eq!(log_ticks(1.0, 1e6).len(), 7);
        let labels: Vec<_> =
            [0.0, 0.6000000000000001, 1.0, 0.05, 12.0, 100.0, 2_500_000.0, -0.5].map(label).into();
        assert_eq!(labels, ["0", "0.6", "1", "0.05", "12", "100", "2M", "-0.5"]);
    }
}
