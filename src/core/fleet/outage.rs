//! Replicas that are out of service, and pools of which nothing is there.

use crate::core::ids::{PoolId, ReplicaId};

use super::Fleet;

impl Fleet {
    /// Whether one more of the replica's pool may be ejected that answers, but
    /// badly. One always may.
    #[must_use]
    pub fn may_eject(&self, id: ReplicaId) -> bool {
        let pool = self.node(id).and_then(|node| self.pools.get(node.pool.index()));
        pool.is_some_and(|pool| {
            let share = pool.members.len() as u64 * u64::from(self.rules.max_ejected_permille) / 1000;
            u64::from(pool.out) < share.max(1)
        })
    }

    /// Whether the replica paused, and a job is on its way that will show whether
    /// it takes work again.
    #[must_use]
    pub fn is_tried(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.vitals.is_tried())
    }

    /// Whether the pool has a replica that gets work, or will in a moment.
    #[must_use]
    pub fn is_served(&self, pool: PoolId) -> bool {
        self.pools.get(pool.index()).is_some_and(|pool| pool.up + pool.busy > 0)
    }

    /// Whether the pool is scaled to zero: the policy says that its addresses stay
    /// while nothing runs there, and nothing answers at any.
    #[must_use]
    pub fn is_away(&self, pool: PoolId) -> bool {
        self.pools.get(pool.index()).is_some_and(super::pool::PoolState::is_away)
    }
}
