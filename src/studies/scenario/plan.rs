//! Scenario plan: the worlds and trials of a scenario, and their runs.

use std::path::Path;

use crate::sim::world::record::{Objectives, WorldRecord};
pub use crate::studies::scenario::case::Case;
pub use crate::studies::scenario::case::Trial;
use crate::studies::scenario::figures::{FigureFrame, Figures, cost_per_thousand};
use crate::studies::scenario::file::GroupBy;
use crate::studies::scenario::file::Scenario;
use crate::studies::scenario::make::Maker;

/// Default number of runs per row.
pub const USUAL_SEEDS: u64 = 5;
/// Default share of the arrivals that is not counted.
pub const USUAL_WARMUP: f64 = 0.1;

/// A checked scenario, ready to run.
#[derive(Debug, Clone)]
pub struct ScenarioPlan {
    /// Worlds, in the scenario's order.
    pub cases: Vec<Case>,
    pub seeds: u64,
    warmup: f64,
    goals: Vec<Objectives>,
    graded: bool,
    fairness: bool,
    by: GroupBy,
    classes: Vec<String>,
    tenants: Vec<String>,
}

impl ScenarioPlan {
    /// Checks the scenario and reads its traces, whose paths are relative to
    /// `folder`.
    ///
    /// # Errors
    ///
    /// The first mistake, with the name of the field.
    pub fn new(scenario: &Scenario, folder: &Path) -> Result<Self, String> {
        let mut maker = Maker::new(scenario, folder)?;
        let cases: Result<Vec<Case>, String> = match scenario.cases.is_empty() {
            true => maker.case("", &scenario.world).map(|case| vec![case]),
            false => scenario
                .cases
                .iter()
                .map(|(name, case)| maker.case(name, &case.over(&scenario.world)))
                .collect(),
        };
        let mut cases = cases?;
        for case in &mut cases {
            case.facts.policy = maker.policy(&case.replica_groups)?;
            for design in &case.designs {
                design.check(&case.facts.policy)?;
            }
            if let Some(scale) = &case.scale {
                scale.set_cold_starts(&mut case.facts.policy);
            }
        }
        let warmup = scenario.warmup.unwrap_or(USUAL_WARMUP);
        if !(0.0..=0.9).contains(&warmup) {
            return Err("warmup: must be from 0 to 0.9".to_owned());
        }
        let goals = maker.classes.iter().map(|(_, row)| match scenario.goal {
            Some(goal) => Objectives { ttft: goal.ttft.0, itl: goal.itl.0 },
            None => Objectives { ttft: row.ttft.0, itl: row.itl.0 },
        });
        Ok(Self {
            cases,
            seeds: scenario.seeds.unwrap_or(USUAL_SEEDS).clamp(1, 1_000),
            warmup,
            goals: goals.collect(),
            graded: scenario.graded,
            fairness: scenario.fairness,
            by: scenario.by,
            classes: maker.classes.iter().map(|(name, _)| name.clone()).collect(),
            tenants: maker.tenants.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    /// Every run; runs of one row are adjacent.
    pub fn trials(&self) -> Vec<Trial> {
        let mut trials = Vec::new();
        for (index, case) in self.cases.iter().enumerate() {
            for load in 0..case.loads.len() {
                for (design, policy) in case.design_policy_pairs() {
                    let trial = |seed| Trial { case: index, load, design, policy, seed };
                    trials.extend((0..self.seeds).map(trial));
                }
            }
        }
        trials
    }

    /// Names of the groups of figures, the group of all requests first.
    pub fn groups(&self) -> Vec<&str> {
        let parts = match self.by {
            GroupBy::All => &[][..],
            GroupBy::Class => &self.classes,
            GroupBy::Tenant => &self.tenants,
        };
        std::iter::once("all").chain(parts.iter().map(String::as_str)).collect()
    }

    /// Runs the trial. The figures are in the order of
    /// [`groups`](Self::groups).
    pub fn run(&self, trial: Trial) -> Vec<Figures> {
        let outcome = self.cases[trial.case].run(trial);
        let skipped = (outcome.records.len() as f64 * self.warmup) as usize;
        let records = &outcome.records[skipped..];
        let tenants = self.cases[trial.case].facts.policy.tenants.iter();
        let weights: Vec<f64> = tenants.map(|(_, _, tenant)| tenant.weight).collect();
        let prices = self.cases[trial.case].replicas.iter().map(|replica| replica.price);
        let cost = cost_per_thousand(&outcome, prices);
        let frame = |shares| FigureFrame {
            outcome: &outcome,
            goals: &self.goals,
            weights: &weights,
            shares,
            fairness: shares && self.fairness,
            graded: self.graded,
            cost,
        };
        let all =
            frame(self.by == GroupBy::Tenant || self.fairness).figures(&records.iter().collect::<Vec<_>>());
        let part = |index: usize| {
            let of: fn(&WorldRecord) -> u32 =
                if self.by == GroupBy::Class { |r| r.class } else { |r| r.tenant };
            let part: Vec<&WorldRecord> =
                records.iter().filter(|record| of(record) as usize == index).collect();
            frame(false).figures(&part)
        };
        std::iter::once(all).chain((0..self.groups().len() - 1).map(part)).collect()
    }
}
