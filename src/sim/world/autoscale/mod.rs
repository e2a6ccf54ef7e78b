//! Autoscaling of the world: KEDA and the HPA, or Knative's autoscaler, order
//! replicas by the figures that they can see. An ordered replica serves after
//! its start time. A replica that is to leave goes when its streams have ended.

pub(super) mod elastic;
pub mod hpa;
pub mod keda;
pub mod kpa;
pub mod policy;
pub(super) mod scaler;
pub(super) mod slots;
#[cfg(test)]
mod tests;

use std::time::Duration;

use self::hpa::Behavior;
use self::policy::ScalePolicy;
use crate::core::model::time::Tick;

/// How the replicas of a world come and go. Its engines are the most that can
/// be there.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// Who says how many.
    pub policy: ScalePolicy,
    /// From the order of a replica to its first request.
    pub start: Duration,
    /// Starts differ by up to this part of it in both directions, `0.0..=1.0`.
    pub spread: f64,
    /// Replicas that are always there.
    pub min: u32,
    /// The most that are ordered.
    pub max: u32,
    /// Replicas that are there from the beginning.
    pub initial: u32,
    /// Time between two polls of KEDA.
    pub poll: Duration,
    /// From the last activity that KEDA saw to no replica.
    pub cooldown: Duration,
    /// The HPA's; absent = the policy's usual one.
    pub behavior: Option<Behavior>,
    /// Of the spread.
    pub seed: u64,
}

/// What came of it. Times of replicas count from the order to the moment at
/// which the last stream has ended, as far as they lie before the last arrival.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scaled {
    /// Replicas times hours.
    pub replica_hours: f64,
    /// The most that were ordered at once, those that start included.
    pub peak: u32,
    /// Orders that went down after one that went up, or up after one that went
    /// down, in each hour.
    pub turns_per_hour: f64,
    /// Each number that was ordered, and when.
    pub orders: Vec<(Tick, u32)>,
    /// Each number that was ready, and since when.
    pub ready: Vec<(Tick, u32)>,
}
