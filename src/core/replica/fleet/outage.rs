//! Outages: replicas in and out of service, pools without any replica in service, and stalls.

use crate::model::ids::{PoolId, ReplicaId};
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;
use crate::replica::health::stall_detector::StallVerdict;
use std::time::Duration;

use super::Fleet;
use crate::replica::fleet::replica_state::ReplicaState;

impl Fleet {
    /// Whether the replica has answered since it joined or came back.
    pub fn is_proven(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.health.is_proven())
    }

    /// Whether the replica has changed since that epoch: it is ejected, came back, or left the
    /// policy.
    pub fn has_changed_since(&self, id: ReplicaId, epoch: u32) -> bool {
        let stands = |node: &&ReplicaState| {
            node.config.present && !node.health.is_ejected() && node.health.epoch() == epoch
        };
        self.node(id).filter(stands).is_none()
    }

    /// Whether a job runs there that failed elsewhere and has no first token yet.
    pub fn has_failed_job(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.ledger.failed_jobs > 0)
    }

    /// Whether the replica is ejected.
    pub fn is_ejected(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.health.is_ejected())
    }

    /// Whether the replica is in service, with or without free capacity.
    pub fn is_up(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.counts_as_up())
    }

    /// Number of replicas of the pools that are in service.
    pub fn count_up(&self, pools: &[PoolId]) -> u64 {
        self.summary(pools).map(|pool| u64::from(pool.up)).sum()
    }

    /// Number of times that a replica came into service or left it.
    pub const fn service_changes(&self) -> u64 {
        self.service_changes
    }

    /// Whether the policy gives the pool no replica except those that are about to leave.
    pub fn is_vacant(&self, pool: PoolId) -> bool {
        let members = self.pools.get(pool.index()).map(|pool| &*pool.members);
        members.unwrap_or_default().iter().filter_map(|id| self.node(*id)).all(|node| node.config.leaving)
    }

    /// Whether no replica of the pools is in service, not even a busy one.
    pub fn is_down(&self, pools: &[PoolId], now: Tick) -> bool {
        let mut members = self.pools(pools).flat_map(|pool| &pool.members).filter_map(|id| self.node(*id));
        self.count_up(pools) == 0 && members.all(|node| node.state(now, &self.rules) != ReplicaStatus::Busy)
    }

    /// Whether one more replica of the pool that answers, but badly, may be ejected. One always
    /// may.
    pub fn may_eject(&self, id: ReplicaId) -> bool {
        let pool = self.node(id).and_then(|node| self.pools.get(node.pool.index()));
        pool.is_some_and(|pool| {
            let share = pool.members.len() as u64 * u64::from(self.rules.max_ejected_permille) / 1000;
            u64::from(pool.counts.out) < share.max(1)
        })
    }

    /// Whether the replica paused, and a job is under way that will show whether the replica takes
    /// jobs again.
    pub fn is_on_trial(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.health.is_on_trial())
    }

    /// Whether the pool has a replica that is in service, or busy for a moment.
    pub fn is_served(&self, pool: PoolId) -> bool {
        self.pools.get(pool.index()).is_some_and(|pool| pool.counts.up + pool.counts.busy > 0)
    }

    /// Whether the pool is scaled to zero: the policy keeps its addresses while nothing runs there,
    /// and nothing answers at any of them.
    pub fn is_scaled_to_zero(&self, pool: PoolId) -> bool {
        self.pools
            .get(pool.index())
            .is_some_and(crate::replica::fleet::pool_state::PoolState::is_scaled_to_zero)
    }

    /// Notes that bytes came from the replica's engine. The derived state is not updated, because
    /// the stall detector looks for signs of life when its check is due.
    pub fn bytes_received(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall.detector.note_sign(now);
        }
    }

    /// Sets the number of the replica's streams that wait for their clients.
    pub fn set_paused_streams(&mut self, id: ReplicaId, streams: u32, now: Tick) {
        self.change(id, now, |node| node.stall.paused = streams);
    }

    /// Streams of the replica that wait for their clients.
    pub fn paused_streams(&self, id: ReplicaId) -> u32 {
        self.node(id).map_or(0, |node| node.stall.paused)
    }

    /// Runs the stall check of the replica when it is due.
    pub fn check_stall(&mut self, id: ReplicaId, now: Tick) -> StallVerdict {
        let patience = self.patience(id, now);
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else {
            return StallVerdict::Alive;
        };
        let look = node.stall.detector.check(now, patience);
        self.refresh(id, now);
        look
    }

    /// Patience: how long the replica's engine may be silent now.
    pub fn patience(&self, id: ReplicaId, now: Tick) -> Duration {
        self.node(id).map_or(Duration::MAX, |node| node.patience(now))
    }

    /// Whether the replica's engine has shown a sign of life after `since`, and within its
    /// patience.
    pub fn is_alive(&self, id: ReplicaId, since: Tick, now: Tick) -> bool {
        self.node(id).is_some_and(|node| node.stall.detector.is_alive(since, now, self.patience(id, now)))
    }

    /// Last sign of life of the replica's engine.
    pub fn last_sign(&self, id: ReplicaId) -> Tick {
        self.node(id).map_or(Tick::ZERO, |node| node.stall.detector.last_sign())
    }

    /// Whether the replica's reports show whether its engine makes progress.
    pub fn shows_progress(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.stall.gauges.show_progress())
    }

    /// Notes the length of the stall for which the replica is ejected. The ejection may be a
    /// mistake, so the engine gets more patience later.
    pub fn note_stall(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall.detector.note_stall(now);
        }
    }

    /// Notes that a first token did not come in time.
    pub fn note_missed_token(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall.detector.note_missed_token(now);
        }
    }

    /// When a first token was first missed at the replica since its last sign of life.
    pub fn missed_at(&self, id: ReplicaId) -> Option<Tick> {
        self.node(id)?.stall.detector.missed_at()
    }
}
