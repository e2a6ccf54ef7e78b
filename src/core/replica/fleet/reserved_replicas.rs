//! Reserved replicas of a pool: how many there are, and which replicas they are.

use std::cmp::Reverse;
use std::time::Duration;

use crate::model::ids::{ClassId, PoolId, ReplicaId};
use crate::model::time::Tick;
use crate::replica::ledger::Booking;
use crate::replica::reserved_replicas::ReservedReplicaDemand;
use crate::replica::speed::ttft_model;

use super::Fleet;
use super::search::ReplicaRequirements;
use crate::replica::fleet::pool_state::PoolState;
use crate::replica::fleet::replica_state::ReplicaState;

/// Sequences of a replica within an objective before its ITL has been seen.
const UNSEEN_SEQS: u32 = 32;
/// Part of the TTFT objective that an urgent job may wait without asking for more reserved replicas.
const WAIT: f64 = 0.25;

impl Fleet {
    /// Updates the reserved replicas of the pool, when an update is due. `headroom` are the sequences to keep
    /// free for the urgent class over all replicas.
    pub fn update_reserved_replicas(&mut self, id: PoolId, headroom: u32, now: Tick) {
        let Some(pool) = self.pools.get(id.index()) else { return };
        let Some(class) = pool.objective.class.filter(|_| pool.objective.released.is_some()) else { return };
        if pool.reserved_replicas.get(&class).is_some_and(|reserved_replicas| !reserved_replicas.is_due(now))
        {
            return;
        }
        let demand = self.reserved_demand(pool, headroom);
        let Some(pool) = self.pools.get_mut(id.index()) else { return };
        let count = pool.reserved_replicas.entry(class).or_default().update(&demand, now);
        self.choose_reserved_replicas(id, count, now);
    }

    /// Notes an urgent job that goes to the replica after it waited for `queued`.
    pub fn note_urgent(&mut self, id: ReplicaId, booking: &Booking, queued: Duration, now: Tick) {
        let Some(node) = self.replicas.get(id.index()).and_then(Option::as_ref) else { return };
        let Some(pool) = self.pools.get_mut(node.pool.index()) else { return };
        if pool.objective.class != Some(booking.class) {
            return;
        }
        let beyond = !node.admission.reserved && pool.objective.released.is_some();
        let delayed = beyond || queued > pool.objective.latency.ttft.mul_f64(WAIT);
        pool.reserved_replicas.entry(booking.class).or_default().note_job(booking.weight, delayed, now);
    }

    /// Whether background classes may fill the replica; see [`crate::replica::reserved_replicas`].
    pub fn is_released(&self, id: ReplicaId) -> bool {
        let pool = |node: &ReplicaState| self.pools.get(node.pool.index());
        self.node(id).is_some_and(|node| pool(node).is_some_and(|pool| node.is_released(pool)))
    }

    /// Lets an urgent job start beyond the ITL limit of a replica that is over it only because of
    /// its background sequences. Of these, picks the replica with the least cost, and returns it.
    /// Looks at every replica of the pools.
    pub fn open_beyond_limit(
        &mut self,
        pools: &[PoolId],
        class: ClassId,
        required: &ReplicaRequirements<'_>,
        avoid: &dyn Fn(ReplicaId) -> bool,
        now: Tick,
    ) -> Option<ReplicaId> {
        let pools = self.pools(pools).filter(|pool| pool.objective.class == Some(class));
        let members = pools.flat_map(|pool| pool.members.iter().map(move |id| (pool, *id)));
        let open =
            members.filter(|(pool, id)| !avoid(*id) && self.fits_beyond_limit(pool, *id, required, now));
        let found = open.filter_map(|(_, id)| Some((self.cost(id, required)?, id)));
        let (_, id) = found.min()?;
        self.change(id, now, |node| node.admission.beyond_limit = true);
        Some(id)
    }

    /// Whether only background sequences keep the urgent job from the replica.
    fn fits_beyond_limit(
        &self,
        pool: &PoolState,
        id: ReplicaId,
        required: &ReplicaRequirements<'_>,
        now: Tick,
    ) -> bool {
        let Some(node) = self.node(id) else { return false };
        let urgent = node.urgent_seqs(pool);
        if urgent >= node.limits.itl.seqs() || urgent >= node.ledger.seqs {
            return false;
        }
        let mut opened = node.clone();
        opened.admission.beyond_limit = true;
        let room = opened.find_free_capacity(pool, now, &self.rules).urgent;
        room.is_some_and(|room| required.need_at(id).fits_in(room))
    }

    /// Sets whether the replica takes jobs that return beyond its ITL limit; see `search`.
    pub fn allow_overcommit(&mut self, id: ReplicaId, allowed: bool, now: Tick) {
        if self.node(id).is_some_and(|node| node.admission.allows_overcommit != allowed) {
            self.change(id, now, |node| node.admission.allows_overcommit = allowed);
        }
    }

    /// Ends the permission of [`Self::open_beyond_limit`].
    pub fn close_beyond_limit(&mut self, id: ReplicaId, now: Tick) {
        self.change(id, now, |node| node.admission.beyond_limit = false);
    }

    fn reserved_demand(&self, pool: &PoolState, headroom: u32) -> ReservedReplicaDemand {
        let nodes = || pool.members.iter().filter_map(|id| self.node(*id)).filter(|node| node.counts_as_up());
        let seqs = nodes().map(|node| node.urgent_seqs(pool)).sum();
        let each = nodes().map(|node| match node.limits.itl.mean() {
            Some(_) => node.limits.itl.seqs().min(node.full(pool)),
            None => UNSEEN_SEQS.min(node.full(pool)),
        });
        let up = pool.counts.up;
        let sum: u64 = each.map(u64::from).sum();
        let seqs_each = u32::try_from(sum / u64::from(up.max(1))).unwrap_or(u32::MAX);
        let seconds_per_token = ttft_model::prefill_time(1) as f64 * pool.speeds.median() / 1e9;
        ReservedReplicaDemand { up, seqs, headroom, seqs_each, seconds_per_token }
    }

    /// Reserves this many replicas of the pool: first those that are reserved, then those with least to
    /// drain. Of too many reserved replicas, those with fewest urgent sequences are released.
    fn choose_reserved_replicas(&mut self, id: PoolId, count: u32, now: Tick) {
        let Some(pool) = self.pools.get(id.index()) else { return };
        let nodes = pool.members.iter().filter_map(|id| Some((*id, self.node(*id)?)));
        let up = |node: &ReplicaState| node.counts_as_up();
        let reserved_replicas = nodes.clone().filter(|(_, node)| up(node) && node.admission.reserved).count();
        if reserved_replicas == count as usize {
            return;
        }
        let mut ranked: Vec<_> = nodes
            .filter(|(_, node)| up(node))
            .map(|(id, node)| {
                (!node.admission.reserved, Reverse(node.urgent_seqs(pool)), node.ledger.seqs, id)
            })
            .collect();
        ranked.sort_unstable();
        for (index, (_, _, _, id)) in ranked.into_iter().enumerate() {
            let reserved = index < count as usize;
            if self.node(id).is_some_and(|node| node.admission.reserved != reserved) {
                self.change(id, now, |node| node.admission.reserved = reserved);
            }
        }
    }
}
