//! Adapters in the fleet: the replicas that have each adapter loaded, and the time of a load.

use std::time::Duration;

use crate::model::bit_set::BitSet;
use crate::model::ids::{ModelId, PoolId, ReplicaId};
use crate::model::policy::{Policy, Pool};
use crate::model::time::Tick;
use crate::queue::fit_tree::FitSize;
use crate::replica::affinity::adapter_slots::{AdapterSlots, AdapterState, EvictedAdapters};
use crate::replica::fleet::search::rank::RoutingDemand;
use crate::replica::ledger::Booking;

use super::Fleet;
use crate::replica::fleet::pool_state::PoolState;

/// Most holders that are kept for one adapter. Further replicas count as if they did not have the
/// adapter loaded.
const MAX_HOLDERS: usize = 128;

impl Fleet {
    /// Takes over the pools of a new policy, where `before` was in force. What was learned stays, as
    /// long as the pool does. Returns the pools whose replicas have to be looked at.
    pub(super) fn renew_pools(&mut self, before: &Policy, policy: &Policy) -> BitSet {
        let count = self.pools.len().max(policy.pools.capacity());
        self.pools.resize_with(count, PoolState::default);
        self.summaries = self.pools.iter().map(PoolState::summary).collect();
        let mut changed = BitSet::default();
        for (index, pool) in self.pools.iter_mut().enumerate() {
            pool.members.clear();
            let rows = [before, policy].map(|policy| policy.pools.get(PoolId::from(index)));
            let of_replicas = |row: &Pool| {
                (row.engine_buffer, row.sleep, row.scales_to_zero, row.adapter_slots, row.adapter_load)
            };
            let [old, new] = rows.map(|row| row.map(|row| (of_replicas(row), &row.adapters)));
            if old == new {
                continue;
            }
            changed.set(index, true);
            if old.is_none() || new.is_none() {
                pool.forget();
            }
            let Pool { engine_buffer, sleep, scales_to_zero, adapters, adapter_load, .. } =
                rows[1].cloned().unwrap_or_default();
            (pool.slots.buffer, pool.sleep, pool.may_scale_to_zero) = (engine_buffer, sleep, scales_to_zero);
            (pool.adapters, pool.load.configured) = (adapters, adapter_load);
        }
        changed
    }

    /// Takes over the adapter slots that a new policy configures for a replica.
    pub(super) fn configure_adapters(&mut self, id: ReplicaId, policy: &Policy) {
        let Some(pool) = self.node(id).and_then(|node| policy.pools.get(node.pool)) else { return };
        self.change_adapters(id, |slots| slots.configure(pool.adapter_slots));
    }

    /// State of the model at the replica, if the model is an adapter there.
    pub fn adapter_fit(&self, id: ReplicaId, model: ModelId) -> Option<AdapterState> {
        let node = self.node(id)?;
        node.adapter_fit(self.pools.get(node.pool.index())?, model)
    }

    /// Whether the model is an adapter in the pool.
    pub fn is_adapter(&self, pool: PoolId, model: ModelId) -> bool {
        self.pools.get(pool.index()).is_some_and(|pool| pool.adapters.contains(&model))
    }

    /// Time that the replica takes to load an adapter, in nanoseconds.
    pub(super) fn load_nanos(&self, id: ReplicaId) -> u64 {
        let pool = self.node(id).and_then(|node| self.pools.get(node.pool.index()));
        pool.map_or(0, |pool| pool.load.nanos())
    }

    /// Replicas that have the adapter loaded; none if the model is not an adapter in any of these
    /// pools.
    pub(super) fn holders(&self, pools: &[PoolId], model: ModelId) -> &[ReplicaId] {
        let is_one = self.pools(pools).any(|pool| pool.adapters.contains(&model));
        let holders = is_one.then(|| self.holders.get(&model)).flatten();
        holders.map_or(&[], Vec::as_slice)
    }

    /// Whether the model is an adapter in one of the pools and no replica of the pools can load it,
    /// however much other capacity is free.
    pub fn is_adapter_blocked(&self, pools: &[PoolId], model: ModelId) -> bool {
        let takes_in = |pool: &PoolState| {
            let ask = RoutingDemand {
                weight: 0,
                output: 0,
                wait_tolerance: 0,
                needs_load: pool.adapters.contains(&model),
            };
            let least = pool.soon.first(ask, FitSize::ZERO.complement(), &|_| false);
            least.is_some_and(|(_, entry)| entry.key.can_load(ask))
        };
        let holders = self.holders(pools, model);
        let has_room =
            |id: &ReplicaId| self.node(*id).is_some_and(|node| node.indexed.free_capacity.soon.is_some());
        self.pools(pools).any(|pool| pool.adapters.contains(&model))
            && !self.pools(pools).any(takes_in)
            && !holders.iter().any(has_room)
    }

    pub(super) fn take_adapter(&mut self, id: ReplicaId, booking: &Booking) {
        if let Some(model) = booking.adapter {
            self.change_adapters(id, |slots| slots.take(model));
            self.hold_adapter(id, model);
        }
    }

    /// Returns false when the job's adapter is not booked there.
    pub(super) fn give_back_adapter(&mut self, id: ReplicaId, booking: &Booking) -> bool {
        let Some(model) = booking.adapter else { return true };
        self.replicas
            .get_mut(id.index())
            .and_then(Option::as_mut)
            .is_some_and(|node| node.adapters.give_back(model))
    }

    /// Takes over an engine's report of its adapters: its number of slots, and the adapters with
    /// which it runs requests.
    pub fn report_adapters(&mut self, id: ReplicaId, slots: Option<u32>, running: &[ModelId], now: Tick) {
        self.change_adapters(id, |own| own.report(slots, running));
        let held: Vec<ModelId> = self.adapters_at(id).map(|(model, _)| model).collect();
        held.into_iter().for_each(|model| self.hold_adapter(id, model));
        self.refresh(id, now);
    }

    /// Drops the replica's idle adapters, because its engine restarted or may have restarted.
    pub fn forget_adapters(&mut self, id: ReplicaId, now: Tick) {
        self.change_adapters(id, AdapterSlots::forget);
        self.refresh(id, now);
    }

    /// Learns the load time from a first token that came `observed` after the dispatch, of a job
    /// whose adapter had to be loaded. `raw` nanoseconds were predicted for a replica of speed
    /// factor 1 that has the adapter loaded.
    pub fn learn_adapter_load(&mut self, id: ReplicaId, observed: Duration, raw: u64) {
        let Some(node) = self.replicas.get(id.index()).and_then(Option::as_ref) else { return };
        let Some(pool) = self.pools.get_mut(node.pool.index()) else { return };
        let due = (raw as f64 * node.speed.factor) as u64;
        let observed = u64::try_from(observed.as_nanos()).unwrap_or(u64::MAX);
        pool.load.learn(observed.saturating_sub(due));
    }

    /// Adapters in the replica's slots, each with the number of jobs that run with it.
    pub fn adapters_at(&self, id: ReplicaId) -> impl Iterator<Item = (ModelId, u32)> {
        self.node(id).into_iter().flat_map(|node| node.adapters.held())
    }

    fn change_adapters(&mut self, id: ReplicaId, act: impl FnOnce(&mut AdapterSlots) -> EvictedAdapters) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        for model in act(&mut node.adapters) {
            if let Some(holders) = self.holders.get_mut(&model) {
                holders.retain(|other| *other != id);
                if holders.is_empty() {
                    self.holders.remove(&model);
                }
            }
        }
    }

    fn hold_adapter(&mut self, id: ReplicaId, model: ModelId) {
        let holders = self.holders.entry(model).or_default();
        if holders.len() < MAX_HOLDERS && !holders.contains(&id) {
            holders.push(id);
        }
    }

    /// Drops the adapters of a replica that is no longer known.
    pub(super) fn drop_adapters(&mut self, id: ReplicaId) {
        let held: Vec<ModelId> = self.adapters_at(id).map(|(model, _)| model).collect();
        for model in held {
            self.change_adapters(id, |_| EvictedAdapters::from_slice(&[model]));
        }
    }
}
