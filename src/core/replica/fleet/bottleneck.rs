//! What keeps each replica from taking more; see
//! [`ReplicaState::find_rooms`](crate::core::replica::fleet::replica_state::ReplicaState::find_rooms) for the rules.

use crate::core::model::policy::HealthPolicy;
use crate::core::model::time::Tick;
use crate::core::replica::bottleneck::{Bottleneck, SlotCounts};

use crate::core::replica::fleet::pool_state::PoolState;
use crate::core::replica::fleet::replica_state::ReplicaState;

impl ReplicaState {
    /// What keeps the replica from a job of the urgent class; `None` where
    /// nothing does, and where it is not in service.
    pub(super) fn bottleneck(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> Option<Bottleneck> {
        if !self.is_up(now, rules) || self.rooms.own.is_some() {
            return None;
        }
        let limit = self.limit(pool, now, rules);
        Some(match () {
            () if self.held => Bottleneck::Held,
            () if self.vitals.is_tried() => Bottleneck::Trial,
            () if self.ledger.seqs >= limit => self.limit_by(pool, now, rules),
            () if self.kv_left(1.0) == 0 => Bottleneck::Kv,
            () => Bottleneck::Reading,
        })
    }

    /// The same for a job of a less urgent class.
    pub(super) fn guest_bottleneck(
        &self,
        pool: &PoolState,
        now: Tick,
        rules: &HealthPolicy,
    ) -> Option<Bottleneck> {
        if !self.is_up(now, rules) || self.ledger.jobs == 0 {
            return self.bottleneck(pool, now, rules);
        }
        if self.rooms.guest.is_some() {
            return (!pool.takes_guests()).then_some(Bottleneck::GuestReaders);
        }
        let limit = self.limit(pool, now, rules);
        let full = self.held || self.vitals.is_tried() || self.ledger.seqs >= limit;
        Some(match () {
            () if full => self.bottleneck(pool, now, rules).unwrap_or(Bottleneck::Slots),
            () if self.ledger.prefill > self.on_the_way() => Bottleneck::Reading,
            () if self.is_slow_for_guests(pool) => Bottleneck::Pace,
            () if self.ledger.seqs >= Self::guest_share(limit) => Bottleneck::GuestShare,
            () => Bottleneck::Reserve,
        })
    }

    /// What sets the replica's limit.
    fn limit_by(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> Bottleneck {
        let ours = self.full(pool).saturating_sub(self.others).max(1);
        if self.vitals.eighths(now, rules) < 8 {
            Bottleneck::SlowStart
        } else if self.pace.seqs().max(pool.promise.widest) < ours {
            Bottleneck::Pace
        } else {
            Bottleneck::Slots
        }
    }

    /// What its places are used for.
    pub(super) fn seats(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> SlotCounts {
        let running = self.ledger.seqs;
        let places = self.full(pool).max(running);
        let left = places - running;
        if !self.is_up(now, rules) {
            return SlotCounts { running, out: left, ..SlotCounts::default() };
        }
        let limit = self.limit(pool, now, rules).clamp(running, places);
        let above = places - limit;
        let open = limit - running;
        let kept = self.bottleneck(pool, now, rules).filter(|_| open > 0);
        SlotCounts {
            running,
            free: if kept.is_some() { 0 } else { open },
            above_limit: (above > 0).then(|| (self.limit_by(pool, now, rules), above)),
            kept: kept.map(|why| (why, open)),
            out: 0,
        }
    }
}
