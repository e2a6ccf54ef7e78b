//! Autoscaling of the world: KEDA and the HPA, or Knative's autoscaler, order
//! replicas by the figures that they can see. An ordered replica serves after
//! its start time. A replica that is to leave goes when its streams have ended.

mod elastic;
pub mod hpa;
pub mod keda;
pub mod kpa;
pub mod policy;
pub(super) mod scaler;
pub(super) mod slots;
pub(super) mod state;
#[cfg(test)]
mod tests;

use std::time::Duration;

use self::hpa::{Behavior, ReplicasAt};
use self::policy::ScalePolicy;
use penstock_core::model::time::Tick;

/// Autoscaling of a world. The world's engines are the most that can exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    pub policy: ScalePolicy,
    /// Time from the order of a replica to its first request.
    pub start: Duration,
    /// Starts are up to this share shorter or longer, `0.0..=1.0`.
    pub spread: f64,
    /// Replicas that are always there.
    pub min: u32,
    /// Most replicas that are ordered.
    pub max: u32,
    /// Replicas at the beginning.
    pub initial: u32,
    /// Time between two polls of KEDA.
    pub poll: Duration,
    /// Time from the last activity that KEDA saw to zero replicas.
    pub cooldown: Duration,
    /// The HPA's behavior; absent = the policy's usual one.
    pub behavior: Option<Behavior>,
    /// Time from which replica hours and turns are counted.
    pub counted_from: Duration,
    /// Seed of the spread of start times.
    pub seed: u64,
    /// KV tokens of the requests that run in each second on a fleet that is
    /// never full, for policies that know or see the demand itself.
    pub demand: Vec<f64>,
}

impl Scaling {
    /// The most that `demand` reaches while a replica that is ordered at `now`
    /// starts, or over as long before `now`.
    fn highest_demand(&self, now: Tick, known: bool) -> f64 {
        let now = (now.as_nanos() / 1_000_000_000) as usize;
        let span = (self.start.mul_f64(1.0 + self.spread) + hpa::SYNC).as_secs() as usize;
        let (from, to) = if known { (now, now + span) } else { (now.saturating_sub(span), now) };
        let last = self.demand.len();
        self.demand[from.min(last)..to.min(last)].iter().copied().fold(0.0, f64::max)
    }
}

/// Outcome of autoscaling. A replica's time counts from its order to the end of
/// its last stream, as far as it lies before the last arrival.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScalingOutcome {
    pub replica_hours: f64,
    /// Most replicas ordered at once, starting ones included.
    pub peak: u32,
    /// Changes of direction per hour: orders down after an order up, or the
    /// reverse.
    pub turns_per_hour: f64,
    /// Each ordered number of replicas.
    pub orders: Vec<ReplicasAt>,
    /// Each number of ready replicas, from its first time on.
    pub ready: Vec<ReplicasAt>,
}
