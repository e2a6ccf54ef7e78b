//! Overload report: figures with their marks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

/// A figure and what it has to be.
#[derive(Debug, Clone, Serialize)]
pub struct Mark {
    /// What is measured.
    pub name: &'static str,
    /// The figure; absent when it could not be measured, which is a miss.
    pub value: Option<f64>,
    /// The most that it may be, or the least.
    pub mark: f64,
    /// Whether `mark` is the least.
    pub least: bool,
    /// What the figure is in.
    pub unit: &'static str,
}

impl Mark {
    pub(super) const fn most(name: &'static str, value: Option<f64>, mark: f64, unit: &'static str) -> Self {
        Self { name, value, mark, least: false, unit }
    }

    pub(super) const fn least(name: &'static str, value: Option<f64>, mark: f64, unit: &'static str) -> Self {
        Self { name, value, mark, least: true, unit }
    }

    /// Whether the figure is as it has to be.
    pub fn is_kept(&self) -> bool {
        self.value.is_some_and(|value| if self.least { value >= self.mark } else { value <= self.mark })
    }
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What everything follows from.
    pub seed: u64,
    /// Seconds of overload.
    pub seconds: f64,
    /// Requests a second, and what all engines can do of them.
    pub rate: f64,
    /// Requests a second that all engines can do.
    pub capacity: f64,
    /// Tenants in the configuration.
    pub tenants: u32,
    /// The figures with their marks.
    pub marks: Vec<Mark>,
    /// Requests by who sent them and how they ended.
    pub ends: BTreeMap<String, u64>,
    /// Proportional set size of the gateway, one value a second of the overload, in KiB.
    pub memory_kib: Vec<u64>,
}

impl Report {
    /// Marks that are missed, for people.
    pub fn missed(&self) -> Vec<String> {
        self.marks.iter().filter(|mark| !mark.is_kept()).map(|mark| mark.name.to_owned()).collect()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let Self { seed, seconds, rate, capacity, tenants, .. } = self;
        let mut text = format!(
            "seed {seed}: {seconds:.0} s with {rate:.0} requests/s at engines for {capacity:.0}, {tenants} tenants\n\n\
             {:<44}{:>12}  {:>12}\n",
            "figure", "value", "mark"
        );
        for mark in &self.marks {
            let value = mark.value.map_or("-".to_owned(), |value| format!("{value:.1}"));
            let bound = format!("{} {:.1}", if mark.least { "≥" } else { "≤" }, mark.mark);
            let result = if mark.is_kept() { "pass" } else { "MISSED" };
            let _ = writeln!(text, "{:<44}{value:>12}  {bound:>12} {:<4} {result}", mark.name, mark.unit);
        }
        text.push('\n');
        for (end, count) in &self.ends {
            let _ = writeln!(text, "{count:>8} x {end}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_most_or_the_least_and_no_figure_is_a_miss() {
        let kept = |mark: Mark| mark.is_kept();
        assert!(kept(Mark::most("a", Some(5.0), 5.0, "ms")) && !kept(Mark::most("a", Some(5.1), 5.0, "ms")));
        assert!(kept(Mark::least("a", Some(5.0), 5.0, "")) && !kept(Mark::least("a", Some(4.9), 5.0, "")));
        assert!(!kept(Mark::most("a", None, 5.0, "ms")));
    }
}
