//! Sleep in the fleet: sleeping replicas, and the replicas that may be ordered to sleep or wake.

use std::time::Duration;

use crate::model::ids::{PoolId, ReplicaId};
use crate::model::time::Tick;
use crate::replica::health::sleep::{SleepChange, SleepDue, SleepPolicy, SleepResult};

use super::Fleet;
use crate::replica::fleet::replica_parts::LatestReport;

/// Age up to which a report shows that no other client uses the replica; the configured idle time,
/// where longer.
const REPORT_AGE: Duration = Duration::from_secs(30);
/// Shortest time until the next look at a replica that has to stay awake.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Fleet {
    /// Whether the pool has no replica in service or busy, and some replica sleeps or wakes.
    pub fn is_dormant(&self, pool: PoolId) -> bool {
        self.pools.get(pool.index()).is_some_and(crate::replica::fleet::pool_state::PoolState::is_dormant)
    }

    /// Whether a pool has become dormant or was scaled to zero since the last call.
    pub const fn take_dormant_pools(&mut self) -> bool {
        std::mem::replace(&mut self.dormant_pools, false)
    }

    /// Whether a pool has lost its last replica in service since the last call.
    pub const fn take_empty_pools(&mut self) -> bool {
        std::mem::replace(&mut self.empty_pools, false)
    }

    /// Whether a pool has got its first replica in service since the last call.
    pub const fn take_revived_pools(&mut self) -> bool {
        std::mem::replace(&mut self.revived_pools, false)
    }

    /// Whether some replica sleeps and can be woken.
    pub const fn has_sleepers(&self) -> bool {
        self.can_wake > 0
    }

    /// First replica of the pools that sleeps and can be woken.
    pub fn sleeper(&self, pools: &[PoolId]) -> Option<ReplicaId> {
        let mut members =
            self.pools(pools).filter(|pool| pool.counts.can_wake > 0).flat_map(|pool| &pool.members);
        members.find(|id| self.node(**id).is_some_and(|node| node.counts_as_wakeable())).copied()
    }

    /// Whether a replica of the pools sleeps and can be woken.
    pub fn can_wake(&self, pools: &[PoolId]) -> bool {
        self.pools(pools).any(|pool| pool.counts.can_wake > 0)
    }

    /// Sequences that the waking replicas of the pools take at full size.
    pub fn waking_seqs(&self, pools: &[PoolId]) -> u64 {
        self.pools(pools).map(|pool| pool.counts.waking).sum()
    }

    /// Whether jobs run at a replica that sleeps and can be woken.
    pub fn has_work_asleep(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.counts_as_wakeable() && node.ledger.jobs > 0)
    }

    /// Step of the replica's sleep that is due.
    pub fn sleep_due(&self, id: ReplicaId, now: Tick) -> Option<SleepDue> {
        self.node(id)?.sleep.due(now)
    }

    /// Whether an idle replica may sleep: no other client uses it as far as its reports show, and
    /// enough other replicas of its pool are awake.
    pub fn may_sleep(&self, id: ReplicaId, rules: &SleepPolicy, now: Tick) -> bool {
        let Some(node) = self.node(id) else { return false };
        let Some(pool) = self.pools.get(node.pool.index()) else { return false };
        let quiet = node.reported.latest.is_some_and(|LatestReport { at, report }| {
            let known = now.since(at) <= rules.after_idle.max(REPORT_AGE);
            known && report.running.unwrap_or(0) == 0 && report.waiting.unwrap_or(0) == 0
        });
        quiet
            && node.counts_as_up()
            && node.ledger.jobs == 0
            && node.reported.external_seqs == 0
            && pool.counts.up > rules.keep_awake
    }

    /// Keeps the replica awake and looks again later.
    pub fn stay_awake(&mut self, id: ReplicaId, now: Tick) {
        self.change(id, now, |node| {
            let pause = node.config.idle_after.map_or(LOOK_AGAIN, |after| (after / 4).max(LOOK_AGAIN));
            node.sleep.postpone(now + pause);
        });
    }

    /// Notes that the replica is ordered to sleep.
    pub fn order_sleep(&mut self, id: ReplicaId, now: Tick) {
        self.change(id, now, |node| node.sleep.order_sleep(now));
    }

    /// Notes that the replica is ordered to wake.
    pub fn order_wake(&mut self, id: ReplicaId, rules: &SleepPolicy, now: Tick) {
        self.change(id, now, |node| node.sleep.order_wake(now, rules.wake_timeout));
    }

    /// Takes over the result of an order to sleep or to wake.
    pub fn sleep_answered(&mut self, id: ReplicaId, sleep_result: SleepResult, now: Tick) -> SleepChange {
        self.change(id, now, |node| node.sleep.answer(now, sleep_result)).unwrap_or(SleepChange::Nothing)
    }

    /// Gives up an order that got no answer.
    pub fn give_up_sleep(&mut self, id: ReplicaId, now: Tick) -> SleepChange {
        self.change(id, now, |node| node.sleep.give_up(now)).unwrap_or(SleepChange::Nothing)
    }
}
