//! How much of its replicas a pool uses.

use crate::core::demand::rate::{Used, WAYS};
use crate::core::ids::PoolId;

use super::Fleet;
use super::node::Node;
use super::pool::PoolState;

impl Fleet {
    /// How many replicas' worth of the pool is in use just now, in each of the ways
    /// in which one can be full. One that can take nothing more counts as full in
    /// all of them when jobs wait for the pool.
    #[must_use]
    pub fn used(&self, pool: PoolId, contended: bool) -> Used {
        let mut sum = Used::default();
        let Some(state) = self.pools.get(pool.index()) else { return sum };
        for node in state.members.iter().filter_map(|id| self.node(*id)).filter(|node| node.ledger.jobs > 0) {
            let full = contended && node.rooms.own.is_none();
            let parts = if full { [1.0; WAYS] } else { node.used(state) };
            sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part.min(1.0));
        }
        sum
    }
}

impl Node {
    /// The part of it that is in use: of its sequences, of its KV cache, of the
    /// prompts that it can read at once, and of the time between tokens that lies
    /// between the best that was seen and what is promised.
    fn used(&self, pool: &PoolState) -> Used {
        let seqs = self.full(pool).saturating_sub(self.others).max(1).min(self.pace.seqs().max(1));
        let part = |of: u64, whole: u64| of as f64 / whole.max(1) as f64;
        [
            part(u64::from(self.ledger.seqs), u64::from(seqs)),
            part(self.ledger.kv, self.kv()),
            part(self.ledger.prefill, self.prefill_at_once(pool)),
            self.used_pace(pool),
        ]
    }

    fn used_pace(&self, pool: &PoolState) -> f64 {
        let aim = self.pace.aim(pool.promise.itl);
        let best = pool.bests.all().gap.map_or(f64::INFINITY, |gap| gap.as_nanos() as f64);
        match self.pace.mean().filter(|_| self.ledger.streams > 0 && best < aim * MOST_BARE) {
            Some(mean) => ((mean - best) / (aim - best)).max(0.0),
            None => 0.0,
        }
    }
}

/// Where the best time between tokens is more than this part of what is
/// promised, how much lies between the two says nothing.
const MOST_BARE: f64 = 0.7;
