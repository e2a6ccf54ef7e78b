//! Utilization: the used part of a pool's capacity, and the size of that capacity.

use crate::core::autoscale::demand::utilization::{DIMENSIONS, ReplicasInUse};
use crate::core::model::ids::PoolId;
use crate::core::replica::seq_limit::max_request_seqs;
use crate::core::replica::speed::pool_best::PoolTypical;

use super::Fleet;
use crate::core::replica::fleet::pool_state::PoolState;
use crate::core::replica::fleet::replica_state::ReplicaState;

impl Fleet {
    /// Replicas of the pool in use now, in each of the ways in which a replica can be full. When
    /// jobs wait for the pool (`contended`), a replica that can take nothing more counts as full in
    /// all ways. When other gateways count their own part (`shared`), only this gateway's part of
    /// each replica counts.
    #[must_use]
    pub fn used(&self, pool: PoolId, contended: bool, shared: bool) -> ReplicasInUse {
        let mut sum = ReplicasInUse::default();
        let Some(state) = self.pools.get(pool.index()) else { return sum };
        for node in state.members.iter().filter_map(|id| self.node(*id)).filter(|node| node.ledger.jobs > 0) {
            let full = contended && node.free_capacity.urgent.is_none();
            let parts = match (full, shared) {
                (true, false) => [1.0; DIMENSIONS],
                (true, true) => [node.own_share(); DIMENSIONS],
                (false, _) => node.used(state, shared),
            };
            sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part.min(1.0));
        }
        sum
    }

    /// Usual prefill rate and ITL of the pool.
    #[must_use]
    pub fn typical(&self, pool: PoolId) -> PoolTypical {
        self.pools.get(pool.index()).map_or_else(PoolTypical::default, |pool| pool.bests.typical())
    }

    /// Replicas of the pool in service, the median sequence limit of a replica, and the fewest KV
    /// tokens of a replica; `None` where nothing is known.
    #[must_use]
    pub fn sizes(&self, pool: PoolId) -> (u32, Option<u32>, Option<u64>) {
        let Some(state) = self.pools.get(pool.index()) else { return (0, None, None) };
        let nodes = || state.members.iter().filter_map(|id| self.node(*id));
        let mut seqs: Vec<u32> = nodes().map(|node| node.full(state)).collect();
        seqs.sort_unstable();
        let kv = nodes().map(ReplicaState::kv).filter(|kv| *kv < u64::MAX).min();
        (state.counts.up, seqs.get(seqs.len() / 2).copied(), kv)
    }

    /// Number of the pool's replicas that have a job of this gateway.
    #[must_use]
    pub fn active(&self, pool: PoolId) -> u32 {
        let members = self.pools.get(pool.index()).into_iter().flat_map(|state| &state.members);
        let active = members.filter_map(|id| self.node(*id)).filter(|node| node.ledger.jobs > 0);
        u32::try_from(active.count()).unwrap_or(u32::MAX)
    }
}

impl Fleet {
    /// Whether some replica of the pools runs this many sequences at once, when it has nothing else
    /// to do. Pools without a replica may get one that does.
    #[must_use]
    pub fn runs(&self, pools: &[PoolId], sequences: u32) -> bool {
        let mut most = self.most_of(pools);
        most.any(|most| sequences <= most)
    }

    /// Most sequences that a replica of the pools runs at once.
    #[must_use]
    pub fn most_sequences(&self, pools: &[PoolId]) -> u32 {
        self.most_of(pools).max().unwrap_or(1)
    }

    fn most_of<'a>(&'a self, pools: &'a [PoolId]) -> impl Iterator<Item = u32> + 'a {
        self.pools(pools).flat_map(|pool| {
            let none = pool.members.is_empty().then(|| max_request_seqs(None, None, pool.buffer));
            let members = pool.members.iter().filter_map(|id| self.node(*id));
            members.map(|node| node.most(pool)).chain(none)
        })
    }
}

impl ReplicaState {
    /// Most sequences that one request may ask for here.
    fn most(&self, pool: &PoolState) -> u32 {
        let reported = self.report.and_then(|(_, report)| report.slots);
        max_request_seqs(self.configured_seqs, reported, pool.buffer)
    }

    /// Used part of the replica: of its sequences, of its KV cache, of the prompts that it can read
    /// at once, and of the ITL between the best one of the pool and the target.
    fn used(&self, pool: &PoolState, shared: bool) -> ReplicasInUse {
        let ours = self.full(pool).saturating_sub(self.foreign_seqs).max(1).min(self.itl_seqs(pool).max(1));
        let (seqs, paced) =
            if shared { (ours.saturating_add(self.foreign_seqs), self.own_share()) } else { (ours, 1.0) };
        let part = |of: u64, whole: u64| of as f64 / whole.max(1) as f64;
        [
            part(u64::from(self.ledger.seqs), u64::from(seqs)),
            part(self.kv_held(), self.kv()),
            part(self.ledger.prefill, self.prefill_at_once(pool)),
            self.used_of_itl(pool) * paced,
        ]
    }

    /// This gateway's part of the sequences that run there.
    fn own_share(&self) -> f64 {
        let ours = f64::from(self.ledger.seqs);
        ours / (ours + f64::from(self.foreign_seqs)).max(1.0)
    }

    fn used_of_itl(&self, pool: &PoolState) -> f64 {
        let aim = self.itl_limit.target(self.objective(pool).itl);
        let best = pool.bests.best().gap.map_or(f64::INFINITY, |gap| gap.as_nanos() as f64);
        match self.itl_limit.mean().filter(|_| self.ledger.streams > 0 && best < aim * MOST_BARE) {
            Some(mean) => ((mean - best) / (aim - best)).max(0.0),
            None => 0.0,
        }
    }
}

/// Largest best ITL, as a part of the target. Above this part, the position of the ITL between the
/// best and the target says nothing.
const MOST_BARE: f64 = 0.7;
