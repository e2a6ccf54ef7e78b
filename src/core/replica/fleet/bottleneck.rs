//! Bottleneck of each replica; see [`ReplicaState::find_free_capacity`] for the rules.

use crate::core::model::policy::HealthPolicy;
use crate::core::model::time::Tick;
use crate::core::replica::bottleneck::{Bottleneck, SlotCounts};

use crate::core::replica::fleet::pool_state::PoolState;
use crate::core::replica::fleet::replica_state::ReplicaState;

impl ReplicaState {
    /// Bottleneck of the replica for a job of the urgent class. `None` where nothing keeps the job
    /// away, and where the replica is not in service.
    pub(super) fn bottleneck(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> Option<Bottleneck> {
        if !self.is_up(now, rules) || self.free_capacity.urgent.is_some() {
            return None;
        }
        let limit = self.limit(pool, now, rules);
        Some(match () {
            () if self.held => Bottleneck::Held,
            () if self.health.is_on_trial() => Bottleneck::Trial,
            () if self.ledger.seqs < limit && self.is_released(pool) => Bottleneck::Released,
            () if self.ledger.seqs >= limit => self.limit_by(pool, now, rules),
            () if self.free_kv(1.0) == 0 => Bottleneck::Kv,
            () => Bottleneck::Prefill,
        })
    }

    /// Bottleneck of the replica for a job of a background class.
    pub(super) fn background_bottleneck(
        &self,
        pool: &PoolState,
        now: Tick,
        rules: &HealthPolicy,
    ) -> Option<Bottleneck> {
        if !self.is_up(now, rules) || self.ledger.jobs == 0 {
            return self.bottleneck(pool, now, rules);
        }
        if self.free_capacity.released.is_some() {
            return None;
        }
        if self.free_capacity.background.is_some() {
            return (!pool.takes_background()).then_some(Bottleneck::BackgroundPrefill);
        }
        let limit = self.limit(pool, now, rules);
        let full = self.held || self.health.is_on_trial() || self.ledger.seqs >= limit;
        Some(match () {
            () if full => self.bottleneck(pool, now, rules).unwrap_or(Bottleneck::Slots),
            () if self.is_released(pool) && self.free_kv(1.0) == 0 => Bottleneck::Kv,
            () if self.is_released(pool) => Bottleneck::Prefill,
            () if self.ledger.prefill > self.delay_weight() => Bottleneck::Prefill,
            () if self.is_slow_for_background(pool) => Bottleneck::Itl,
            () if self.ledger.seqs >= Self::background_share(limit) => Bottleneck::BackgroundShare,
            () => Bottleneck::Headroom,
        })
    }

    /// Bottleneck that sets the replica's limit.
    fn limit_by(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> Bottleneck {
        let ours = self.full(pool).saturating_sub(self.foreign_seqs).max(1);
        if self.health.eighths(now, rules) < 8 {
            Bottleneck::SlowStart
        } else if self.itl_seqs(pool).max(pool.objective.widest) < ours {
            Bottleneck::Itl
        } else {
            Bottleneck::Slots
        }
    }

    /// Slots of the replica by use.
    pub(super) fn slot_counts(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> SlotCounts {
        let running = self.ledger.seqs;
        let places = self.full(pool).max(running);
        let left = places - running;
        if !self.is_up(now, rules) {
            return SlotCounts { running, out_of_service: left, ..SlotCounts::default() };
        }
        let limit = self.limit(pool, now, rules).clamp(running, places);
        let above = places - limit;
        let open = limit - running;
        let kept = self.bottleneck(pool, now, rules).filter(|_| open > 0);
        SlotCounts {
            running,
            free: if kept.is_some() { 0 } else { open },
            above_limit: (above > 0).then(|| (self.limit_by(pool, now, rules), above)),
            withheld: kept.map(|why| (why, open)),
            out_of_service: 0,
        }
    }
}
