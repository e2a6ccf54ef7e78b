//! Scenario plan: the worlds and trials of a scenario, and their runs.

use std::path::Path;
use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::rng::Rng;
use crate::sim::scenario::design::{Design, WorldFacts};
use crate::sim::scenario::figures::{FigureFrame, Figures, cost_per_thousand};
use crate::sim::scenario::file::{By, Scenario};
use crate::sim::scenario::make::Maker;
use crate::sim::scenario::scale::WorldScale;
use crate::sim::scenario::traffic::{TrafficStream, arrivals};
use crate::sim::world::autoscale::policy::ScalePolicy;
use crate::sim::world::gateway::Rack;
use crate::sim::world::record::{Objectives, WorldRecord};
use crate::sim::world::replica::ReplicaSetup;
use crate::sim::world::router::Router;
use crate::sim::world::run::{RunOutcome, Setup, run};

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
    by: By,
    classes: Vec<String>,
    tenants: Vec<String>,
}

/// One world of a plan.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name; empty when the plan has only one case.
    pub name: String,
    pub loads: Vec<f64>,
    pub designs: Vec<Design>,
    pub(super) replicas: Vec<ReplicaSetup>,
    pub(super) racks: Vec<Rack>,
    pub(super) capacity: f64,
    pub(super) streams: Vec<TrafficStream>,
    pub(super) gateways: u8,
    pub(super) scrape: Option<Duration>,
    pub(super) late: bool,
    pub(super) horizon: Option<Duration>,
    pub(super) clients: Option<usize>,
    /// Autoscaling; absent = all replicas are always there.
    pub(super) scale: Option<WorldScale>,
    pub(super) facts: WorldFacts,
}

/// One run: indices into [`ScenarioPlan::cases`] and into the case's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trial {
    /// Index of the case.
    pub case: usize,
    /// Index of the load.
    pub load: usize,
    /// Index of the design.
    pub design: usize,
    /// Index into [`Case::policies`].
    pub policy: usize,
    /// Number of the seed, from 0.
    pub seed: u64,
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
            case.facts.policy = maker.policy(&case.racks)?;
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
            by: scenario.by,
            classes: maker.classes.iter().map(|(name, _)| name.clone()).collect(),
            tenants: maker.tenants.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    /// Every run; runs of one row are adjacent.
    #[must_use]
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
    #[must_use]
    pub fn groups(&self) -> Vec<&str> {
        let parts = match self.by {
            By::All => &[][..],
            By::Class => &self.classes,
            By::Tenant => &self.tenants,
        };
        std::iter::once("all").chain(parts.iter().map(String::as_str)).collect()
    }

    /// Runs the trial. The figures are in the order of
    /// [`groups`](Self::groups).
    #[must_use]
    pub fn run(&self, trial: Trial) -> Vec<Figures> {
        let outcome = self.cases[trial.case].run(trial);
        let skipped = (outcome.records.len() as f64 * self.warmup) as usize;
        let records = &outcome.records[skipped..];
        let tenants = self.cases[trial.case].facts.policy.tenants.iter();
        let weights: Vec<f64> = tenants.map(|(_, _, tenant)| tenant.weight).collect();
        let prices = self.cases[trial.case].replicas.iter().map(|replica| replica.price);
        let cost = cost_per_thousand(&outcome, prices);
        let frame =
            |shares| FigureFrame { outcome: &outcome, goals: &self.goals, weights: &weights, shares, cost };
        let all = frame(self.by == By::Tenant).figures(&records.iter().collect::<Vec<_>>());
        let part = |index: usize| {
            let of: fn(&WorldRecord) -> u32 = if self.by == By::Class { |r| r.class } else { |r| r.tenant };
            let part: Vec<&WorldRecord> =
                records.iter().filter(|record| of(record) as usize == index).collect();
            frame(false).figures(&part)
        };
        std::iter::once(all).chain((0..self.groups().len() - 1).map(part)).collect()
    }
}

impl Case {
    /// Scale policies of the case; empty without autoscaling.
    #[must_use]
    pub fn policies(&self) -> &[ScalePolicy] {
        self.scale.as_ref().map_or(&[], |scale| &scale.policies)
    }

    /// Pairs of design and policy index.
    fn design_policy_pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let policies = self.policies().len().max(1);
        (0..self.designs.len()).flat_map(move |design| (0..policies).map(move |policy| (design, policy)))
    }

    #[must_use]
    pub fn run(&self, trial: Trial) -> RunOutcome {
        let (load, design) = (self.loads[trial.load], &self.designs[trial.design]);
        let arrivals = arrivals(&self.streams, load, self.capacity, trial.seed);
        let mut deal = Rng::new(trial.seed ^ 0x5EED);
        let gateway = |_: usize| deal.below(u64::from(self.gateways)) as u8;
        let setup = Setup {
            replicas: self.replicas.clone(),
            gateways: if self.gateways > 1 { (0..arrivals.len()).map(gateway).collect() } else { Vec::new() },
            arrivals,
            scrape: design.scrape().or(self.scrape),
            late: self.late,
            horizon: self.horizon,
            clients: self.clients,
            counted_from: Tick::ZERO,
            scaling: self.scale.as_ref().map(|scale| scale.scaling(trial.policy, trial.seed)),
        };
        let initial = setup.scaling.as_ref().map(|scaling| scaling.initial as usize);
        let seeds = (0..u64::from(self.gateways)).map(|index| trial.seed * 64 + index);
        let router = |seed| design.router(&self.facts, initial, seed);
        let mut routers: Vec<Box<dyn Router>> = seeds.map(router).collect();
        run(&setup, &mut routers)
    }
}
