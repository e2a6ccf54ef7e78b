//! Results: every value by round, and their medians, ranges and ratios.

use penstock::sim::spread::RunSpread;
use serde::Serialize;

use super::args::TargetKind;
use super::programs::Programs;
use super::rows::{Figure, Of};

/// One value.
#[derive(Debug, Clone, Serialize)]
pub struct BenchSample {
    /// From 1.
    pub round: u32,
    /// Whose.
    pub target: String,
    /// Of what.
    pub figure: Figure,
    /// In the unit of the figure's label.
    pub value: f64,
}

/// One cell of the table.
#[derive(Debug, Clone, Serialize)]
pub struct BenchCell {
    /// Of what.
    pub figure: Figure,
    /// The figure in words, with its unit.
    pub label: &'static str,
    /// Whose.
    pub target: String,
    /// Over the rounds.
    pub spread: RunSpread,
    /// The median of the rounds' ratios to [`BenchResults::base`]; absent for it.
    pub ratio: Option<f64>,
    /// Of a rate at saturation: the part of its core that the proxy used, from the medians. Below
    /// .9 something else was the limit, and the rate could be higher.
    pub busy: Option<f64>,
}

/// Part of a core that other programs may have.
const DOUBTFUL_OTHERS: f64 = 0.05;

/// Part of a core from which a proxy counts as saturated.
pub(super) const BUSY: f64 = 0.9;

impl BenchCell {
    /// Whether something else than the proxy was the limit.
    pub(super) fn limited(&self) -> bool {
        self.busy.is_some_and(|busy| busy < BUSY)
    }
}

/// What other programs had of the cores, as parts of all time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Others {
    /// Of the proxies' core.
    pub proxy_core: f64,
    /// Of the load's cores, together.
    pub load_cores: f64,
}

/// All of a benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct BenchResults {
    /// What was measured.
    pub programs: Programs,
    /// Where.
    pub machine: String,
    /// Parts of the proxies' and of the load's core that neither of them used.
    pub others: Others,
    /// How many rounds.
    pub rounds: u32,
    /// Targets in the order of the table.
    pub targets: Vec<String>,
    /// The target of the ratios: nginx, else the first proxy.
    pub base: Option<String>,
    /// Every value.
    pub samples: Vec<BenchSample>,
    /// Medians.
    pub cells: Vec<BenchCell>,
}

/// The target that the others are compared with.
pub(super) fn base(targets: &[String]) -> Option<String> {
    let direct = TargetKind::Direct.name();
    let nginx = targets.iter().find(|target| *target == TargetKind::Nginx.name());
    nginx.or_else(|| targets.iter().find(|target| *target != direct)).cloned()
}

/// What each proxy adds to the latency of the engines themselves in the same round.
pub(super) fn added(samples: &[BenchSample]) -> Vec<BenchSample> {
    let pairs = [(Figure::LatencyP50, Figure::AddedP50), (Figure::LatencyP99, Figure::AddedP99)];
    let mut added = Vec::new();
    for (whole, figure) in pairs {
        for sample in samples.iter().filter(|sample| sample.figure == whole) {
            if sample.target == TargetKind::Direct.name() {
                continue;
            }
            if let Some(direct) = value(samples, sample.round, TargetKind::Direct.name(), whole) {
                added.push(BenchSample { figure, value: sample.value - direct, ..sample.clone() });
            }
        }
    }
    added
}

fn value(samples: &[BenchSample], round: u32, target: &str, figure: Figure) -> Option<f64> {
    let is_it =
        |sample: &&BenchSample| sample.round == round && sample.target == target && sample.figure == figure;
    samples.iter().find(is_it).map(|sample| sample.value)
}

/// The cells that have a value, figure by figure.
pub(super) fn cells(samples: &[BenchSample], targets: &[String], base: Option<&str>) -> Vec<BenchCell> {
    let mut cells = Vec::new();
    for figure in Figure::ALL {
        for target in targets {
            let of = |sample: &&BenchSample| sample.figure == figure && sample.target == *target;
            let own: Vec<&BenchSample> = samples.iter().filter(of).collect();
            let Some(spread) = RunSpread::of(own.iter().map(|sample| sample.value)) else { continue };
            let ratio = |base: &str| {
                let ratios = own.iter().filter_map(|sample| {
                    let other = value(samples, sample.round, base, figure)?;
                    (other > 0.0).then_some(sample.value / other)
                });
                RunSpread::of(ratios).map(|ratio| ratio.median)
            };
            let ratio = base.filter(|base| base != target).and_then(ratio);
            let label = figure.facts().label;
            let busy = busy(&cells, figure, target, spread.median);
            cells.push(BenchCell { figure, label, target: target.clone(), spread, ratio, busy });
        }
    }
    cells
}

/// CPU of a request or chunk times their rate.
fn busy(cells: &[BenchCell], rate: Figure, target: &str, median: f64) -> Option<f64> {
    let cost = match rate {
        Figure::FullRate => Figure::FullCpu,
        Figure::Prompt220kRate => Figure::Prompt220kCpu,
        Figure::FloodRate => Figure::FloodCpu,
        _ => return None,
    };
    let cost = cells.iter().find(|cell| cell.figure == cost && cell.target == target)?;
    Some(cost.spread.median * median / 1e6)
}

impl BenchResults {
    /// A cell of the table.
    pub(super) fn cell(&self, figure: Figure, target: &str) -> Option<&BenchCell> {
        self.cells.iter().find(|cell| cell.figure == figure && cell.target == target)
    }

    /// The figures that somebody has.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let has = |figure: &Figure| self.cells.iter().any(|cell| cell.figure == *figure);
        Figure::ALL.into_iter().filter(has).collect()
    }

    /// Lines below the table: what makes figures doubtful.
    pub(super) fn doubts(&self) -> Vec<String> {
        let limited = self.cells.iter().filter(|cell| cell.limited());
        let part = |cell: &BenchCell| {
            let busy = cell.busy.unwrap_or_default() * 100.0;
            format!("{} {busy:.0} % ({})", cell.target, cell.figure.facts().row.name())
        };
        let parts: Vec<String> = limited.map(part).collect();
        let mut doubts = Vec::new();
        if !parts.is_empty() {
            doubts.push(format!(
                "≥: the proxy did not use all of its core, and was not the limit: {}.",
                parts.join(", ")
            ));
        }
        let Others { proxy_core, load_cores } = self.others;
        if proxy_core.max(load_cores) > DOUBTFUL_OTHERS {
            doubts.push(format!(
                "Other programs had {:.0} % of the proxies' core and {:.0} % of the load's: rates and times are \
                 doubtful.",
                proxy_core * 100.0,
                load_cores * 100.0
            ));
        }
        doubts
    }
}

/// Whether figures of this kind are of this target.
pub(super) fn belongs(figure: Figure, target: &str) -> bool {
    figure.facts().of == Of::All || target != TargetKind::Direct.name()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn sample(round: u32, target: &str, figure: Figure, value: f64) -> BenchSample {
        BenchSample { round, target: target.to_owned(), figure, value }
    }

    /// Three rounds; in the second one the machine was half as fast.
    pub(in super::super) fn results() -> BenchResults {
        let mut samples = Vec::new();
        for (round, slow) in [(1, 1.0), (2, 2.0), (3, 1.1)] {
            for (target, times, rate) in
                [("direct", 0.0, 40_000.0), ("nginx", 1.0, 13_333.0), ("penstock", 1.5, 10_500.0)]
            {
                samples.push(sample(round, target, Figure::LatencyP50, slow * (0.2 + times * 0.1)));
                samples.push(sample(round, target, Figure::FullRate, rate / slow));
                if times > 0.0 {
                    samples.push(sample(round, target, Figure::FullCpu, 60.0 * slow * times));
                }
            }
        }
        samples.extend(added(&samples));
        let targets: Vec<String> = ["direct", "nginx", "penstock"].map(str::to_owned).to_vec();
        let base = base(&targets);
        BenchResults {
            programs: Programs { penstock: None, nginx: None },
            machine: "2 cores".to_owned(),
            others: Others { proxy_core: 0.02, load_cores: 0.01 },
            rounds: 3,
            cells: cells(&samples, &targets, base.as_deref()),
            targets,
            base,
            samples,
        }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let results = results();
        let cell = results.cell(Figure::FullCpu, "penstock").expect("a cell");
        assert_eq!((cell.spread.low, cell.spread.high), (90.0, 180.0));
        assert!((cell.spread.median - 99.0).abs() < 1e-9, "{cell:?}");
        assert!(cell.ratio.is_some_and(|ratio| (ratio - 1.5).abs() < 1e-9), "{cell:?}");
        assert!(results.cell(Figure::FullCpu, "nginx").expect("a cell").ratio.is_none());
        assert!(results.cell(Figure::FullCpu, "direct").is_none());
        assert_eq!(
            results.figures(),
            [Figure::FullCpu, Figure::FullRate, Figure::LatencyP50, Figure::AddedP50]
        );
    }

    #[test]
    fn latency_is_added_to_that_of_the_engines() {
        let results = results();
        let cell = results.cell(Figure::AddedP50, "penstock").expect("a cell");
        assert!((cell.spread.median - 0.165).abs() < 1e-9, "{cell:?}");
        assert!(results.cell(Figure::AddedP50, "direct").is_none());
        assert!(added(&[sample(1, "nginx", Figure::LatencyP50, 1.0)]).is_empty(), "nothing to compare with");
    }

    #[test]
    fn ratios_are_to_nginx_or_to_the_first_proxy() {
        let base = |names: &[&str]| base(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(base(&["direct", "penstock", "nginx"]).as_deref(), Some("nginx"));
        assert_eq!(base(&["direct", "penstock"]).as_deref(), Some("penstock"));
        assert_eq!(base(&["direct"]), None);
    }

    #[test]
    fn a_proxy_that_was_not_busy_is_named() {
        let mut results = results();
        let limited = "≥: the proxy did not use all of its core, and was not the limit: nginx 80 % (full).";
        assert_eq!(results.doubts(), [limited]);
        let busy = |target: &str| results.cell(Figure::FullRate, target).expect("a cell").busy;
        assert!(busy("penstock").is_some_and(|busy| busy >= BUSY), "{:?}", busy("penstock"));
        assert_eq!(busy("direct"), None);
        results.others.load_cores = 0.3;
        assert!(results.doubts()[1].contains("2 % of the proxies' core and 30 %"), "{:?}", results.doubts());
    }
}
