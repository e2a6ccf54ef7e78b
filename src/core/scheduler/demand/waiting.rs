//! Waiting demand: the work of the jobs that wait.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::autoscale::demand::FlowKey;
use crate::core::model::ids::PoolId;

/// Waiting load, summed over the lanes.
#[derive(Debug, Default)]
pub(in crate::core::scheduler) struct WaitingDemand {
    /// Tokens, prompts and asked output, by pool that may serve them.
    pub(in crate::core::scheduler) tokens: BTreeMap<PoolId, u64>,
    /// How long the oldest job of a class has waited in a pool set.
    pub(super) oldest: BTreeMap<FlowKey, Duration>,
    /// The same for lanes whose tenants' quotas allow more sequences.
    pub(super) oldest_allowed: BTreeMap<FlowKey, Duration>,
    /// Jobs of a class in a pool set whose tenants are paused: replicas are no help to
    /// them.
    pub(in crate::core::scheduler) parked: BTreeMap<FlowKey, u64>,
}

impl WaitingDemand {
    /// Jobs of paused tenants in a pool set.
    pub(super) fn parked_in(&self, group: usize, pool_set: usize) -> u64 {
        let here = self.parked.iter().filter(|((one, _, two), _)| (*one, *two) == (group, pool_set));
        here.map(|(_, jobs)| jobs).sum()
    }
}
