//! World scaler: turns a policy's metric into a number of replicas.

use crate::world::autoscale::Scaling;
use crate::world::autoscale::hpa::{Behavior, Hpa};
use crate::world::autoscale::keda::Keda;
use crate::world::autoscale::kpa::Kpa;
use crate::world::autoscale::policy::ScalePolicy;
use penstock_core::autoscale::replica_demand::ReplicaDemand;
use penstock_core::model::time::Tick;

/// Figures of a world that an autoscaler can see.
#[derive(Debug, Clone, Copy)]
pub(in crate::world) struct VisibleWorld {
    /// Requests that wait, at the router or in an engine.
    pub(in crate::world) queued: usize,
    /// Requests that an engine computes.
    pub(in crate::world) running: usize,
    /// Ready replicas.
    pub(in crate::world) ready: u32,
    /// The router's own demand; absent = the router reports none.
    pub(in crate::world) demand: Option<ReplicaDemand>,
    /// The world's demand in KV tokens, for policies that know or see it.
    pub(in crate::world) tokens: f64,
}

impl VisibleWorld {
    fn open(&self) -> f64 {
        (self.queued + self.running) as f64
    }
}

/// One autoscaler at work.
#[derive(Debug)]
pub(in crate::world) struct WorldScaler {
    policy: ScalePolicy,
    keda: Keda,
    hpa: Hpa,
    kpa: Kpa,
    min: u32,
    max: u32,
}

impl WorldScaler {
    pub(in crate::world) fn new(scaling: &Scaling) -> Self {
        let usual = match scaling.policy {
            ScalePolicy::Need => Some(Behavior::exact(scaling.max)),
            ScalePolicy::Known(_) | ScalePolicy::Seen(_) => Some(Behavior::free(scaling.max)),
            _ => None,
        };
        let concurrency = if let ScalePolicy::Kpa(target) = scaling.policy { target } else { 1.0 };
        Self {
            policy: scaling.policy,
            keda: Keda::new(scaling.min, scaling.cooldown),
            hpa: Hpa::new(scaling.min, scaling.max, scaling.behavior.or(usual)),
            kpa: Kpa::new(concurrency),
            min: scaling.min,
            max: scaling.max,
        }
    }

    /// The metric's value and target. Absent = there is no metric, and KEDA and
    /// the HPA keep the current replicas.
    fn metric(&self, seen: &VisibleWorld) -> Option<(f64, f64)> {
        match self.policy {
            ScalePolicy::Need => Some((f64::from(seen.demand?.desired?), 1.0)),
            ScalePolicy::Queue(target) => Some((seen.queued as f64, target)),
            ScalePolicy::Concurrency(target) => Some((seen.open(), target)),
            ScalePolicy::Known(target) | ScalePolicy::Seen(target) => Some((seen.tokens, target)),
            ScalePolicy::Kpa(_) | ScalePolicy::Fixed(_) => None,
        }
    }

    /// KEDA's poll or push: the desired replicas instead of `current`.
    pub(in crate::world) fn poll(&mut self, now: Tick, current: u32, seen: &VisibleWorld) -> u32 {
        let active = match self.policy {
            ScalePolicy::Need => match seen.demand {
                Some(need) => need.is_busy() || need.keep_above_zero || need.desired.is_none(),
                None => return current,
            },
            ScalePolicy::Queue(_) => seen.queued > 0,
            ScalePolicy::Concurrency(_) => seen.queued + seen.running > 0,
            ScalePolicy::Kpa(_) => return current.max(u32::from(seen.queued > 0)),
            ScalePolicy::Fixed(_) | ScalePolicy::Known(_) | ScalePolicy::Seen(_) => return current,
        };
        self.keda.poll(now, current, active)
    }

    /// The HPA's sync: the desired replicas instead of `current`.
    pub(in crate::world) fn sync(&mut self, now: Tick, current: u32, seen: &VisibleWorld) -> u32 {
        self.metric(seen).map_or(current, |(value, target)| self.hpa.sync(now, current, value, target))
    }

    /// A sample for Knative's autoscaler: the desired replicas instead of
    /// `current`.
    pub(in crate::world) fn sample(&mut self, now: Tick, current: u32, seen: &VisibleWorld) -> u32 {
        let decided = self.kpa.sample(now, seen.open(), seen.ready);
        decided.map_or(current, |count| count.clamp(self.min, self.max))
    }
}
