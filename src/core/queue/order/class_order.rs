//! Class order: one class of a pool group, with its accounts and the heads of its lanes.

use std::time::Duration;

use crate::model::bit_set::BitSet;
use crate::model::ids::{ClassId, TenantId};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::GroupShape;
use crate::queue::drain::tenants::DrainRates;
use crate::queue::fairness::{FairCounters, GuaranteedShare, TenantWeights};
use crate::queue::headroom::Headroom;
use crate::queue::lane_key::LanePart;

use super::head_tree::HeadTree;
use super::heads::{HeadIndex, tree_index};

/// How long a class stays active after its last job has left or has stopped waiting. In a shorter
/// time, slower classes fill the replicas between the requests of a trickle, and each request waits
/// until they have drained.
pub(super) const ACTIVE_FOR: Duration = Duration::from_secs(60);

/// One class within a pool group.
#[derive(Debug, Clone)]
pub struct ClassOrder {
    pub id: ClassId,
    pub(super) min_share: f64,
    /// Virtual counter of each tenant in this class.
    pub counters: FairCounters,
    /// Drain rate of each tenant's jobs.
    pub drain_rates: DrainRates,
    pub(super) guaranteed_share: GuaranteedShare,
    /// Jobs of the class at replicas.
    pub(super) running: u64,
    /// When the class last had a job waiting or running.
    pub(super) last_active: Option<Tick>,
    pub(super) headroom: Headroom,
    /// Headroom of the class at other gateways, in sequences; `None` = it is active at none.
    pub(super) remote_headroom: Option<u32>,
    /// Whether the class may use each of the group's pools, by index of the pool in the group.
    pub(super) reach: Vec<bool>,
    pub(super) pool_sets: Vec<PoolSetQueue>,
    /// The largest counter of a tenant at a dispatch to each of the group's pools, by index of the
    /// pool in the group.
    pub(super) max_served: Vec<u128>,
    /// Pool sets with heads, by number of the search tree.
    pub(super) pool_sets_with_heads: [BitSet; 4],
    /// Fresh heads of each tenant, which a charge moves.
    pub(super) head_positions: HeadIndex,
    /// Waiting jobs of the class.
    pub(super) waiting: u64,
    /// Waiting jobs of the class that may use each of the group's pools.
    pub(super) waiting_by_pool: Vec<u64>,
}

impl ClassOrder {
    /// A class that takes over the accounts of `old`, if there is one.
    pub(super) fn new(
        id: ClassId,
        min_share: f64,
        old: Option<&Self>,
        policy: &Policy,
        shape: &GroupShape,
    ) -> Self {
        let is_known = |tenant: TenantId| policy.tenants.get(tenant).is_some();
        let mut counters = old.map(|old| old.counters.clone()).unwrap_or_default();
        counters.retain(is_known);
        counters.set_half_life(policy.classes.get(id).and_then(|row| row.usage_half_life));
        let max_served = old.and_then(|old| old.max_served.iter().copied().max()).unwrap_or(0);
        let own = shape.reach.get(&id);
        Self {
            id,
            min_share,
            counters,
            drain_rates: old.map(|old| old.drain_rates.without_waiting(is_known)).unwrap_or_default(),
            guaranteed_share: old.map(|old| old.guaranteed_share).unwrap_or_default(),
            running: old.map_or(0, |old| old.running),
            last_active: old.and_then(|old| old.last_active),
            headroom: old.map(|old| old.headroom).unwrap_or_default(),
            remote_headroom: old.and_then(|old| old.remote_headroom),
            reach: shape.pools.iter().map(|pool| own.is_some_and(|own| own.contains(pool))).collect(),
            pool_sets: vec![PoolSetQueue::default(); shape.pool_sets.len()],
            max_served: vec![max_served; shape.pools.len()],
            pool_sets_with_heads: Default::default(),
            head_positions: HeadIndex::default(),
            waiting: 0,
            waiting_by_pool: vec![0; shape.pools.len()],
        }
    }

    pub(super) fn waiting_at(&self, pool_index: Option<usize>) -> u64 {
        pool_index.map_or(0, |index| self.waiting_by_pool[index])
    }

    /// Charges a tenant and its groups for work that other gateways dispatched for it.
    pub(super) fn charge_remote(&mut self, who: &TenantWeights, tokens: i64, now: Tick) {
        let Self { counters, pool_sets, pool_sets_with_heads, max_served, .. } = self;
        counters.charge_remote(who, tokens, now, &|group| {
            least_counter(pool_sets, pool_sets_with_heads, max_served, group)
        });
    }

    /// Lets leads by service at other gateways fade; returns whose counters changed.
    pub(super) fn fade_remote_leads(&mut self, now: Tick) -> Vec<TenantId> {
        let Self { counters, pool_sets, pool_sets_with_heads, max_served, drain_rates, .. } = self;
        let waiting = |group| least_counter(pool_sets, pool_sets_with_heads, max_served, group);
        counters.fade_remote_leads(now, &waiting, &|tenant| drain_rates.waits(tenant))
    }

    /// Whether jobs of the class wait or run, here or at another gateway.
    pub(super) fn has_jobs(&self) -> bool {
        self.running > 0 || self.waiting > 0 || self.remote_headroom.is_some()
    }

    pub(super) fn is_active(&self, now: Tick) -> bool {
        self.last_active.is_some_and(|seen| now.since(seen) < ACTIVE_FOR)
    }
}

/// The least counter of those who wait in a group of tenants, whatever their pools. Of the outermost
/// level where nobody waits it is the largest one served.
fn least_counter(
    pool_sets: &[PoolSetQueue],
    with_heads: &[BitSet; 4],
    max_served: &[u128],
    group: Option<TenantId>,
) -> Option<u128> {
    let waiting = [false, true].into_iter().flat_map(|bound| {
        let tree = tree_index(LanePart::New, bound);
        let busy = &with_heads[tree];
        busy.intersection(busy)
            .filter_map(move |pool_set| pool_sets[pool_set].trees[tree].least_counter(group))
    });
    waiting.min().or_else(|| max_served.iter().copied().max().filter(|_| group.is_none()))
}

/// Waiting jobs of one class in one pool set.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolSetQueue {
    /// Search trees of the heads, numbered by `tree_index`: one for each part, bound and unbound.
    pub(super) trees: [HeadTree; 4],
    pub(super) waiting: u64,
    /// The tier of pools that the last job was dispatched to.
    pub(super) last_tier: Option<usize>,
}
