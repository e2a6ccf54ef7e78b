//! Autoscaling of a scenario: the `scale` settings under which replicas come
//! and go.

use std::time::Duration;

use crate::core::model::policy::{Policy, Pool};
use crate::sim::world::autoscale::Scaling;
use crate::sim::world::autoscale::hpa::Behavior;
use crate::sim::world::autoscale::policy::ScalePolicy;
use crate::studies::scenario::design::Design;
use crate::studies::scenario::file::WorldSection;
use crate::studies::scenario::scale_row::part;
pub use crate::studies::scenario::scale_row::{BehaviorRow, DirectionRow, ScaleRow};

/// Most replicas of one world.
const MAX_REPLICAS: u32 = 2_000;

/// Replicas of a fleet that is never full, for policies that know the demand.
const AMPLE: u32 = 60;

/// A world's checked autoscaling.
#[derive(Debug, Clone)]
pub(super) struct WorldScale {
    pub(super) policies: Vec<ScalePolicy>,
    /// Engines of the world: the most that any policy orders, and room for as
    /// many that are leaving.
    pub(super) max_engines: u32,
    /// Settings that all policies share.
    usual: Scaling,
}

impl WorldScale {
    pub(super) fn new(row: &ScaleRow, shape: &WorldSection) -> Result<Self, String> {
        let texts = row.policies.as_deref().unwrap_or_default();
        let policies: Result<Vec<ScalePolicy>, String> = texts.iter().map(|text| text.parse()).collect();
        let policies = policies.map_err(|what| format!("scale.policies: {what}"))?;
        let first = policies.first().copied();
        let policy = first.ok_or("scale.policies: needs one, such as n or queue=10")?;
        if shape.fleet.as_ref().is_some_and(|rows| rows.len() != 1 || rows[0].count.is_some()) {
            return Err("fleet: with scale it is one row without count".to_owned());
        }
        if shape.gateways.is_some_and(|count| count > 1) {
            return Err("gateways: with scale there is one".to_owned());
        }
        let (min, max) = (row.min.unwrap_or(1), row.max.unwrap_or(100));
        let initial = row.initial.unwrap_or(min);
        if !(1..=MAX_REPLICAS).contains(&max) {
            return Err(format!("scale.max: must be from 1 to {MAX_REPLICAS}"));
        }
        if min > max || !(min..=max).contains(&initial) {
            return Err("scale.min: min, initial and max must be in this order".to_owned());
        }
        let poll = row.poll.map_or(Duration::from_secs(10), |span| span.0);
        if poll < Duration::from_secs(1) {
            return Err("scale.poll: must be at least 1 s".to_owned());
        }
        let fixed =
            policies.iter().map(|policy| if let ScalePolicy::Fixed(count) = policy { *count } else { 0 });
        Ok(Self {
            max_engines: fixed.max().unwrap_or(0).max(2 * max).min(2 * MAX_REPLICAS),
            usual: Scaling {
                policy,
                start: row.start.map_or(Duration::from_secs(60), |span| span.0),
                spread: part("scale.spread", row.spread, 0.0)?,
                min,
                max,
                initial,
                poll,
                cooldown: row.cooldown.map_or(Duration::from_secs(300), |span| span.0),
                counted_from: row.counted_from.map_or(Duration::ZERO, |span| span.0),
                behavior: row.behavior.map(behavior).transpose()?,
                seed: 0,
                demand: Vec::new(),
            },
            policies,
        })
    }

    /// Checks that these designs work with autoscaling.
    ///
    /// # Errors
    ///
    /// When a design has no number for `n`, or cannot hold requests while no
    /// replica is there.
    pub(super) fn check(&self, designs: &[Design]) -> Result<(), String> {
        let Some(other) = designs.iter().find(|design| !design.is_penstock()) else { return Ok(()) };
        if self.policies.contains(&ScalePolicy::Need) {
            return Err(format!("scale.policies: `{other}` has no n: only penstock says it"));
        }
        if self.usual.min == 0 {
            return Err(format!("scale.min: must be at least 1: `{other}` holds no requests for a start"));
        }
        Ok(())
    }

    /// Sets the cold start of every pool in the gateway's policy, as an
    /// operator would.
    pub(super) fn set_cold_starts(&self, policy: &mut Policy) {
        let rows: Vec<(String, Pool)> =
            policy.pools.iter().map(|(_, name, row)| (name.to_owned(), row.clone())).collect();
        for (name, row) in rows {
            policy.pools.insert(&name, Pool { cold_start: Some(self.usual.start), ..row });
        }
    }

    /// A fleet that is never full.
    pub(super) fn ample(&self, seed: u64) -> Scaling {
        let count = AMPLE.min(self.max_engines);
        Scaling {
            policy: ScalePolicy::Fixed(count),
            seed,
            min: count,
            max: count,
            initial: count,
            ..self.usual.clone()
        }
    }

    /// Autoscaling under one policy.
    pub(super) fn scaling(&self, policy: usize, seed: u64) -> Scaling {
        let policy = self.policies.get(policy).copied().unwrap_or(self.usual.policy);
        let mut scaling = Scaling { policy, seed, ..self.usual.clone() };
        if let ScalePolicy::Fixed(count) = policy {
            (scaling.min, scaling.max, scaling.initial) = (count, count, count);
        }
        scaling
    }
}

fn behavior(row: BehaviorRow) -> Result<Behavior, String> {
    let usual = Behavior::default();
    Ok(Behavior {
        up: row.up.over(usual.up, "scale.behavior.up")?,
        down: row.down.over(usual.down, "scale.behavior.down")?,
    })
}
