//! Case: one run of a scenario.

use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::rng::Rng;
use crate::sim::world::autoscale::Scaling;
use crate::sim::world::autoscale::policy::ScalePolicy;
use crate::sim::world::gateway::ReplicaGroup;
use crate::sim::world::replica::ReplicaSetup;
use crate::sim::world::run::{RunOutcome, run};
use crate::sim::world::setup::Setup;
use crate::studies::scenario::design::{Design, WorldFacts};
use crate::studies::scenario::scale::WorldScale;
use crate::studies::scenario::traffic::{TrafficStream, arrivals};

/// One world of a plan.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name; empty when the plan has only one case.
    pub name: String,
    pub loads: Vec<f64>,
    pub designs: Vec<Design>,
    pub(super) replicas: Vec<ReplicaSetup>,
    pub(super) replica_groups: Vec<ReplicaGroup>,
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

impl Case {
    /// Scale policies of the case; empty without autoscaling.
    pub fn policies(&self) -> &[ScalePolicy] {
        self.scale.as_ref().map_or(&[], |scale| &scale.policies)
    }

    /// Pairs of design and policy index.
    pub(super) fn design_policy_pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let policies = self.policies().len().max(1);
        (0..self.designs.len()).flat_map(move |design| (0..policies).map(move |policy| (design, policy)))
    }

    pub fn run(&self, trial: Trial) -> RunOutcome {
        let mut scaling = self.scale.as_ref().map(|scale| scale.scaling(trial.policy, trial.seed));
        if let Some(scaling) = scaling.as_mut().filter(|scaling| scaling.policy.needs_demand()) {
            let ample = self.scale.as_ref().map(|scale| scale.ample(trial.seed));
            scaling.demand = demand(&self.run_with(trial, ample));
        }
        self.run_with(trial, scaling)
    }

    fn run_with(&self, trial: Trial, scaling: Option<Scaling>) -> RunOutcome {
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
            scaling,
        };
        let initial = setup.scaling.as_ref().map(|scaling| scaling.initial as usize);
        let seeds = (0..u64::from(self.gateways)).map(|index| trial.seed * 64 + index);
        let mut routers = design.routers(&self.facts, initial, seeds);
        run(&setup, &mut routers)
    }
}

/// KV tokens of the requests that run in each second: mean of the ten seconds
/// that end there.
fn demand(outcome: &RunOutcome) -> Vec<f64> {
    const MEAN: usize = 10;
    let mut changes = vec![0.0; outcome.ended.as_nanos() as usize / 1_000_000_000 + MEAN + 2];
    for record in outcome.records.iter().filter(|record| record.served()) {
        let second = |at: Tick| at.as_nanos() as usize / 1_000_000_000;
        let tokens = f64::from(record.prompt) + f64::from(record.output) / 2.0;
        let (from, to) = (second(record.arrived), second(record.ended.unwrap_or(record.arrived)) + 1);
        for (at, part) in [(from, tokens), (to, -tokens)] {
            (0..MEAN).for_each(|later| changes[at + later] += part / MEAN as f64);
        }
    }
    let mut level = 0.0;
    changes
        .iter()
        .map(|change| {
            level += change;
            level
        })
        .collect()
}

/// One run: indices into [`ScenarioPlan::cases`](crate::studies::scenario::plan::ScenarioPlan::cases) and into the case's lists.
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
