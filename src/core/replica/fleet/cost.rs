//! Costs of replica time: prices, stays and pool accounts.

use std::time::Duration;

use crate::core::billing::bill::{IdleTime, StayBill};
use crate::core::billing::pool_account::{PoolAccount, PoolTimes};
use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;

use super::Fleet;
use crate::core::replica::fleet::replica_state::ReplicaState;

impl Fleet {
    /// Takes over the prices of a policy. Pool accounts are kept.
    pub(super) fn renew_accounts(&mut self, policy: &Policy, now: Tick) {
        let count = self.accounts.len().max(policy.pools.capacity());
        self.accounts.resize(count, PoolAccount::default());
        for (id, _, row) in policy.pools.iter() {
            self.accounts[id.index()].set_price(now, row.traits.price);
        }
    }

    /// Bill of a stay that took this part of a replica's time.
    pub fn charge(&mut self, pool: PoolId, replica: ReplicaId, time: Duration) -> StayBill {
        let account = self.accounts.get_mut(pool.index());
        let (price, money) = account.map_or((None, 0), |account| (account.price(), account.charge(time)));
        StayBill { pool, replica, time, price, money, waste: None }
    }

    /// Takes the idle time of each pool since the last call.
    pub fn take_idle(&mut self, now: Tick) -> impl Iterator<Item = IdleTime> {
        let accounts = self.accounts.iter_mut().enumerate();
        let idle = accounts.map(move |(index, account)| account.take_idle(now, PoolId::from(index)));
        idle.filter(|idle| !idle.time.is_zero())
    }

    /// Time for which the pool's replicas were present and worked, since the start of the gateway.
    #[must_use]
    pub fn times(&self, pool: PoolId, now: Tick) -> PoolTimes {
        self.accounts.get(pool.index()).map_or_else(PoolTimes::default, |account| account.replica_time(now))
    }

    /// Whether each replica's meter has the weight of its running jobs, and each pool's account has
    /// the pool's replicas. For tests of invariants.
    #[must_use]
    pub fn meters_are_consistent(&self, weight: impl Fn(ReplicaId) -> u64) -> bool {
        let nodes = || self.replicas.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)));
        let counts = |pool: usize| {
            let here = nodes().filter(|(_, node)| node.pool.index() == pool);
            here.map(|(_, node)| node.accounted).fold((0, 0), |(present, busy), next| {
                (present + u32::from(next.present), busy + u32::from(next.busy))
            })
        };
        let agrees = |id: usize, node: &ReplicaState| {
            let busy = node.ledger.jobs > 0;
            node.meter.weight() == weight(ReplicaId::from(id))
                && node.accounted.busy == busy
                && node.accounted.present >= busy
        };
        nodes().all(|(id, node)| agrees(id, node))
            && self.accounts.iter().enumerate().all(|(pool, account)| account.counts() == counts(pool))
    }
}
