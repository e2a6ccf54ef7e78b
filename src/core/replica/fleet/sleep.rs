//! Replicas that sleep, and who may be told to.

use std::time::Duration;

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::time::Tick;
use crate::core::replica::health::sleep::{SleepChange, SleepDue, SleepPolicy, SleepResult};

use super::Fleet;

/// A report as old as this, or as the idle time that is asked for, is still
/// enough to say that nobody else uses the replica.
const REPORT_AGE: Duration = Duration::from_secs(30);
/// The shortest time until a replica is looked at again that has to stay awake.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Fleet {
    /// Whether what the pool has sleeps or wakes.
    #[must_use]
    pub fn is_dormant(&self, pool: PoolId) -> bool {
        self.pools
            .get(pool.index())
            .is_some_and(crate::core::replica::fleet::pool_state::PoolState::is_dormant)
    }

    /// Whether a pool has become dormant or was scaled to zero since this was last
    /// asked.
    pub const fn take_dormant_pools(&mut self) -> bool {
        std::mem::replace(&mut self.dormant_pools, false)
    }

    /// Whether a pool has lost its last replica in service since this was last
    /// asked.
    pub const fn take_empty_pools(&mut self) -> bool {
        std::mem::replace(&mut self.empty_pools, false)
    }

    /// Whether a pool has got its first replica in service since this was last
    /// asked.
    pub const fn take_risen_pools(&mut self) -> bool {
        std::mem::replace(&mut self.risen_pools, false)
    }

    /// Whether there is a replica that sleeps and can be woken.
    #[must_use]
    pub const fn has_sleepers(&self) -> bool {
        self.can_wake > 0
    }

    /// The first replica of the pools that sleeps and can be woken.
    #[must_use]
    pub fn sleeper(&self, pools: &[PoolId]) -> Option<ReplicaId> {
        let mut members =
            self.pools(pools).filter(|pool| pool.counts.can_wake > 0).flat_map(|pool| &pool.members);
        members.find(|id| self.node(**id).is_some_and(|node| node.counts_as_wakeable())).copied()
    }

    /// Whether a replica of the pools sleeps and can be woken.
    #[must_use]
    pub fn can_wake(&self, pools: &[PoolId]) -> bool {
        self.pools(pools).any(|pool| pool.counts.can_wake > 0)
    }

    /// Sequences that replicas of the pools take that were told to wake.
    #[must_use]
    pub fn waking(&self, pools: &[PoolId]) -> u64 {
        self.pools(pools).map(|pool| pool.counts.waking).sum()
    }

    /// Whether something runs at a replica that sleeps and can be woken.
    #[must_use]
    pub fn sleeps_on_work(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.counts_as_wakeable() && node.ledger.jobs > 0)
    }

    /// What is due of the replica's rest.
    #[must_use]
    pub fn sleep_due(&self, id: ReplicaId, now: Tick) -> Option<SleepDue> {
        self.node(id)?.sleep.due(now)
    }

    /// Whether an idle replica may sleep: nobody uses it as far as its reports
    /// tell, and enough others of its pool are awake.
    #[must_use]
    pub fn may_sleep(&self, id: ReplicaId, rules: &SleepPolicy, now: Tick) -> bool {
        let Some(node) = self.node(id) else { return false };
        let Some(pool) = self.pools.get(node.pool.index()) else { return false };
        let quiet = node.report.is_some_and(|(at, report)| {
            let known = now.since(at) <= rules.after_idle.max(REPORT_AGE);
            known && report.running.unwrap_or(0) == 0 && report.waiting.unwrap_or(0) == 0
        });
        quiet
            && node.counts_as_up()
            && node.ledger.jobs == 0
            && node.foreign_seqs == 0
            && pool.counts.up > rules.keep_awake
    }

    /// The replica stays awake; it is looked at again later.
    pub fn stay_awake(&mut self, id: ReplicaId, now: Tick) {
        self.change(id, now, |node| {
            let pause = node.idle_after.map_or(LOOK_AGAIN, |after| (after / 4).max(LOOK_AGAIN));
            node.sleep.postpone(now + pause);
        });
    }

    /// The replica is told to sleep.
    pub fn retire(&mut self, id: ReplicaId, now: Tick) {
        self.change(id, now, |node| node.sleep.retire(now));
    }

    /// The replica is told to wake.
    pub fn rouse(&mut self, id: ReplicaId, rules: &SleepPolicy, now: Tick) {
        self.change(id, now, |node| node.sleep.rouse(now, rules.wake_timeout));
    }

    /// What came of it.
    pub fn sleep_answered(&mut self, id: ReplicaId, rested: SleepResult, now: Tick) -> SleepChange {
        self.change(id, now, |node| node.sleep.answer(now, rested)).unwrap_or(SleepChange::Nothing)
    }

    /// Nothing came of it.
    pub fn give_up_sleep(&mut self, id: ReplicaId, now: Tick) -> SleepChange {
        self.change(id, now, |node| node.sleep.give_up(now)).unwrap_or(SleepChange::Nothing)
    }
}
