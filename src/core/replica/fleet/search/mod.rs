//! Replica search: of the replicas that can take a job, the one where it costs least.
//!
//! A job returns to a replica that has its prompt cached. When that replica runs as many sequences
//! as its ITL limit allows, the job would go elsewhere, and the other replica would prefill the
//! prompt anew. That stalls the streams there for far longer than one more sequence slows those here.
//! For such a job the replica is therefore overcommitted: it takes a few sequences beyond its ITL
//! limit. Where no other replica is free, the job waits like all others. Only replicas that report
//! that they find prompts in their caches are overcommitted.

mod least_cost;
pub(super) mod rank;
pub(super) mod requirements;
mod scores;

use crate::model::bit_set::BitSet;
use crate::model::ids::{PoolId, ReplicaId};
use crate::model::time::Tick;
use crate::queue::fit_tree::FitSize;
use crate::replica::affinity::adapter_slots::AdapterState;
use crate::replica::bottleneck::Bottleneck;
use crate::replica::fleet::search::least_cost::ReplicaSearch;
use crate::replica::fleet::search::rank::{ReplicaCost, RoutingDemand, WORTH_WAITING, worth_waiting};
use crate::replica::speed::ttft_model::TtftModel;

use super::Fleet;
use crate::replica::fleet::pool_state::PoolState;
use crate::replica::fleet::replica_parts::FreeCapacity;
pub(super) use crate::replica::fleet::search::requirements::{ReplicaMatch, ReplicaRequirements};

/// Fewest cached tokens of a prompt for which the replica that has them is overcommitted.
const MIN_OVERCOMMIT_SAVES: u64 = 1_024;

impl Fleet {
    /// Pools that have a replica with free capacity, each with the largest free capacity in each
    /// dimension.
    pub fn free_pools(&self, pools: &BitSet, background: bool) -> impl Iterator<Item = (PoolId, FitSize)> {
        self.open.intersection(pools).filter_map(move |index| {
            let trees = self.pools.get(index)?.trees(background).filter(|tree| !tree.is_empty());
            let size = trees.map(|tree| tree.least_size().complement()).reduce(FitSize::max_each)?;
            Some((PoolId::from(index), size))
        })
    }

    /// Finds the replica that can take the job at the least cost ([`Self::cost`]).
    pub fn find(
        &self,
        pools: &[PoolId],
        required: &ReplicaRequirements<'_>,
        avoid: &dyn Fn(ReplicaId) -> bool,
    ) -> Option<ReplicaMatch> {
        ReplicaSearch { fleet: self, pools, required, avoid }.select()
    }

    /// Further nanoseconds for which a job that leaves a free replica to others does so for its
    /// session's sake.
    pub fn session_wait(
        &self,
        pools: &[PoolId],
        required: &ReplicaRequirements<'_>,
        avoid: &dyn Fn(ReplicaId) -> bool,
    ) -> Option<u64> {
        let session = required.session?;
        let bare = ReplicaRequirements { session: None, ..*required };
        let free = self.find(pools, &bare, avoid)?.replica;
        let (free, own) = (self.cost(free, &bare)?, self.cost(session.replica, &bare)?);
        let enough = (free as f64 * WORTH_WAITING).ceil() as u64;
        Some(session.max_delay.saturating_sub(own.saturating_sub(enough)))
    }

    /// Replicas to which the job returns: those where a prompt is cached of which `elsewhere` would
    /// have to prefill at least [`MIN_OVERCOMMIT_SAVES`] tokens anew.
    fn prefix_replicas<'a>(
        &self,
        required: &'a ReplicaRequirements<'_>,
        elsewhere: ReplicaId,
    ) -> impl Iterator<Item = ReplicaId> + 'a {
        let there = required.cached_at(elsewhere);
        let returns =
            move |tokens: u64| !required.background && tokens.saturating_sub(there) >= MIN_OVERCOMMIT_SAVES;
        required.cached.iter().filter(move |(_, tokens)| returns(*tokens)).map(|(id, _)| *id)
    }

    /// Replicas that may serve the job sooner than their rank says: they have a prefix of its
    /// prompt, its adapter, or its session.
    fn affinity_candidates<'a>(
        &'a self,
        pools: &[PoolId],
        required: &'a ReplicaRequirements<'_>,
    ) -> impl Iterator<Item = ReplicaId> {
        let cached = required.cached.iter().map(|(id, _)| *id);
        let session = required.session.map(|session| session.replica);
        cached.chain(self.holders(pools, required.model).iter().copied()).chain(session)
    }

    /// Cost of the job at a replica, counting its cached prefix, adapter and session there; `None`
    /// if the replica has no room.
    fn cost_if_room(
        &self,
        id: ReplicaId,
        pools: &[PoolId],
        required: &ReplicaRequirements<'_>,
        room: fn(&FreeCapacity, &PoolState, bool) -> Option<FitSize>,
    ) -> Option<ReplicaCost> {
        let node = self.node(id).filter(|node| pools.contains(&node.pool))?;
        let pool = self.pools.get(node.pool.index())?;
        let fits = room(&node.indexed.free_capacity, pool, required.background)
            .is_some_and(|room| required.need_at(id).fits_in(room));
        let cost = self.cost(id, required).filter(|_| fits)?;
        Some(ReplicaCost { nanos: cost, last_chosen: node.sent.last_chosen, replica: id })
    }

    /// Cost of the job at the replica, in nanoseconds, for comparison; `None` where its adapter
    /// cannot be loaded.
    pub fn cost(&self, id: ReplicaId, required: &ReplicaRequirements<'_>) -> Option<u64> {
        let node = self.node(id)?;
        let pool = self.pools.get(node.pool.index())?;
        let fit = node.adapter_fit(pool, required.model);
        if fit == Some(AdapterState::Full) {
            return None;
        }
        let miss = fit.map_or(0, |fit| pool.load.cost(fit));
        let ttft_model = match pool.is_background(required.background) {
            true => node.indexed.ttft_model,
            false => node.indexed.urgent_model,
        };
        let cost = ttft_model.cost(required.weight_at(id), required.output).saturating_add(miss);
        let session = required.session.filter(|session| session.replica == id);
        Some(session.map_or(cost, |session| cost.saturating_sub(session.max_delay)))
    }

    /// Predicted TTFT of the job at the replica, in nanoseconds.
    pub fn ttft(&self, id: ReplicaId, required: &ReplicaRequirements<'_>) -> u64 {
        let load = self.adapter_fit(id, required.model).filter(|fit| fit.needs_load());
        let load = load.map_or(0, |_| self.load_nanos(id));
        self.ttft_model(id)
            .map_or(u64::MAX, |ttft_model| ttft_model.ttft(required.weight_at(id)).saturating_add(load))
    }

    /// Whether some replica can take the job once that replica's prefills have ended.
    pub fn fits_soon(&self, pools: &[PoolId], required: &ReplicaRequirements<'_>) -> bool {
        let need = required.size.complement();
        let fits = |pool: &PoolState| {
            let ask = RoutingDemand {
                weight: 0,
                output: 0,
                wait_tolerance: 0,
                needs_load: pool.adapters.contains(&required.model),
            };
            pool.soon.first(ask, need, &|_| false).is_some_and(|(_, entry)| entry.key.can_load(ask))
        };
        let bare =
            ReplicaRequirements { size: FitSize { prefill: 0, ..required.size }, prompt: 0, ..*required };
        let holders = self.holders(pools, required.model).iter();
        self.pools(pools).any(fits)
            || holders
                .clone()
                .any(|id| self.cost_if_room(*id, pools, &bare, |rooms, _, _| rooms.soon).is_some())
    }

    /// Number of replicas of the pools that can take the job now.
    pub fn count_fitting(&self, pools: &[PoolId], required: &ReplicaRequirements<'_>) -> u32 {
        let trees = self.pools(pools).flat_map(|pool| pool.trees(required.background));
        trees.map(|tree| tree.count(required.size.complement())).sum()
    }

    /// Whether the replica can take the job now. A held replica counts when `even_held` is set.
    pub fn fits(
        &self,
        id: ReplicaId,
        required: &ReplicaRequirements<'_>,
        even_held: bool,
        now: Tick,
    ) -> bool {
        self.fits_in(id, required, even_held, now, &|rooms, pool| rooms.now(pool, required.background))
    }

    /// The same, also beyond the ITL limit if the job returns to the replica.
    pub fn fits_or_returns(
        &self,
        id: ReplicaId,
        required: &ReplicaRequirements<'_>,
        even_held: bool,
        now: Tick,
    ) -> bool {
        let returns = !required.background && required.cached_at(id) >= MIN_OVERCOMMIT_SAVES;
        self.fits_in(id, required, even_held, now, &|rooms, pool| {
            rooms.now(pool, required.background).or_else(|| rooms.overcommit_now().filter(|_| returns))
        })
    }

    fn fits_in(
        &self,
        id: ReplicaId,
        required: &ReplicaRequirements<'_>,
        even_held: bool,
        now: Tick,
        room: &dyn Fn(&FreeCapacity, &PoolState) -> Option<FitSize>,
    ) -> bool {
        let Some(node) = self.node(id) else { return false };
        let Some(pool) = self.pools.get(node.pool.index()) else { return false };
        let rooms = match node.admission.held && even_held {
            true => {
                let mut unheld = node.clone();
                unheld.admission.held = false;
                unheld.find_free_capacity(pool, now, &self.rules)
            }
            false => node.indexed.free_capacity,
        };
        let comes_in = node.adapter_fit(pool, required.model) != Some(AdapterState::Full);
        comes_in && room(&rooms, pool).is_some_and(|room| required.need_at(id).fits_in(room))
    }

    /// What keeps the job from the replica; `None` where the replica has room for it, and where it is
    /// not in service.
    pub fn bottleneck(
        &self,
        id: ReplicaId,
        required: &ReplicaRequirements<'_>,
        now: Tick,
    ) -> Option<Bottleneck> {
        let (node, need) = (self.node(id)?, required.need_at(id));
        let pool = self.pools.get(node.pool.index())?;
        node.bottleneck_of_job(need, required.background, pool, now, &self.rules)
    }

    /// Another replica that predicts the job's first token so much sooner than this one that the job
    /// waits for it. Looks at every replica of the pools.
    pub fn worth_waiting_for(
        &self,
        id: ReplicaId,
        pools: &[PoolId],
        required: &ReplicaRequirements<'_>,
    ) -> Option<ReplicaId> {
        let promised = |id: ReplicaId| self.cost(id, required).unwrap_or(u64::MAX);
        let others = self.pools(pools).flat_map(|pool| &pool.members);
        let soon = others.filter(|other| {
            let returns = self.prefix_replicas(required, id).any(|own| own == **other);
            let room =
                |rooms: &FreeCapacity| rooms.soon.or_else(|| rooms.overcommit_soon().filter(|_| returns));
            let room = self.node(**other).and_then(|node| room(&node.indexed.free_capacity));
            room.is_some_and(|room| FitSize { prefill: 0, ..required.size }.fits_in(room))
        });
        let (cost, soonest) = soon.map(|other| (promised(*other), *other)).min()?;
        (!required.background && worth_waiting(promised(id), cost)).then_some(soonest)
    }

    pub fn ttft_model(&self, id: ReplicaId) -> Option<TtftModel> {
        self.node(id).map(|node| node.indexed.ttft_model)
    }

    /// Replica to hold for `need`: of the pool's replicas that are large enough as a whole, else of
    /// all, the one with the least outstanding work. Looks at every replica of the pool.
    pub fn find_to_hold(
        &self,
        pool: PoolId,
        need: FitSize,
        now: Tick,
        avoid: &dyn Fn(ReplicaId) -> bool,
    ) -> Option<ReplicaId> {
        let pool = self.pools.get(pool.index())?;
        let members = pool.members.iter().copied().filter(|id| !avoid(*id));
        let ranked = members.filter_map(|id| {
            let node = self.node(id).filter(|node| node.counts_as_up() && !node.admission.held)?;
            let whole = node.full_size(pool, now, &self.rules);
            Some((!need.fits_in(whole), node.ledger.work(), id))
        });
        ranked.min().map(|(_, _, id)| id)
    }
}
