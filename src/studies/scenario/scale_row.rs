//! Scale row: the scaling rules of a scenario's pool, as written.

use serde::Deserialize;

use crate::config::syntax::units::Span;
use crate::sim::world::autoscale::hpa::Direction;

/// A world's `scale`. A setting that is absent comes from that of `world`, or
/// has its default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScaleRow {
    /// Scale policies to compare, such as `n` or `queue=10`; required.
    pub policies: Option<Vec<String>>,
    /// Time from the order of a replica to its first request; absent = 60 s.
    pub start: Option<Span>,
    /// Share by which start times vary in both directions, `0.0..=1.0`; absent
    /// = 0.
    pub spread: Option<f64>,
    /// Replicas that are always there; absent = 1.
    pub min: Option<u32>,
    /// Most replicas that are ordered; absent = 100.
    pub max: Option<u32>,
    /// Replicas at the beginning; absent = `min`.
    pub initial: Option<u32>,
    /// Time between two polls of KEDA; absent = 10 s.
    pub poll: Option<Span>,
    /// Time from the last activity to zero replicas; absent = 300 s.
    pub cooldown: Option<Span>,
    /// Time from which replica hours and turns are counted; absent = the
    /// beginning.
    pub counted_from: Option<Span>,
    /// The HPA's `behavior`; absent = for `n` the one that `penstock keda`
    /// writes, for others none.
    pub behavior: Option<BehaviorRow>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BehaviorRow {
    /// Rules for more replicas.
    pub up: DirectionRow,
    /// Rules for fewer replicas.
    pub down: DirectionRow,
}

/// Rules of one direction. An absent setting has Kubernetes' default. Where
/// `pods` or `percent` is written, only the written limits count.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DirectionRow {
    /// Proposals that differ by no more than this share are ignored; absent =
    /// 0.1.
    pub tolerance: Option<f64>,
    /// The stabilization window; absent = 0 up and 300 s down.
    pub window: Option<Span>,
    /// Most replicas that change in a period.
    pub pods: Option<u32>,
    /// Most replicas that change in a period, in per cent of the replicas.
    pub percent: Option<f64>,
    /// Period of the limits; absent = 15 s.
    pub period: Option<Span>,
}

impl ScaleRow {
    /// These settings, with absent ones taken from `base`.
    pub fn over(self, base: Self) -> Self {
        Self {
            policies: self.policies.or(base.policies),
            start: self.start.or(base.start),
            spread: self.spread.or(base.spread),
            min: self.min.or(base.min),
            max: self.max.or(base.max),
            initial: self.initial.or(base.initial),
            poll: self.poll.or(base.poll),
            cooldown: self.cooldown.or(base.cooldown),
            counted_from: self.counted_from.or(base.counted_from),
            behavior: self.behavior.or(base.behavior),
        }
    }
}

impl DirectionRow {
    pub(super) fn over(self, usual: Direction, field: &str) -> Result<Direction, String> {
        let mut direction = usual;
        direction.tolerance = part(&format!("{field}.tolerance"), self.tolerance, usual.tolerance)?;
        direction.window = self.window.map_or(usual.window, |span| span.0);
        direction.steps.period = self.period.map_or(usual.steps.period, |span| span.0);
        if self.pods.is_some() || self.percent.is_some() {
            (direction.steps.pods, direction.steps.percent) = (self.pods, self.percent);
        }
        if self.percent.is_some_and(|percent| !percent.is_finite() || percent < 0.0) {
            return Err(format!("{field}.percent: must be at least 0"));
        }
        Ok(direction)
    }
}

pub(super) fn part(field: &str, value: Option<f64>, usual: f64) -> Result<f64, String> {
    let value = value.unwrap_or(usual);
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{field}: must be from 0 to 1")) }
}
