//! Bottleneck of a replica: its use of sequences, KV cache and prefill, the fullest first. The rules
//! are in [`ReplicaState::find_free_capacity`].

use crate::autoscale::demand::utilization::ReplicasInUse;
use crate::model::policy::HealthPolicy;
use crate::model::time::Tick;
use crate::queue::fit_tree::FitSize;
use crate::replica::bottleneck::{Bottleneck, BottleneckSlots, SlotCounts};
use crate::replica::seq_limit::max_request_seqs;

use crate::replica::fleet::pool_state::PoolState;
use crate::replica::fleet::replica_state::ReplicaState;

/// Largest best ITL, as a part of the target. Above this part, the position of the ITL between the
/// best and the target says nothing.
const MOST_BARE: f64 = 0.7;

impl ReplicaState {
    /// Bottleneck of the replica for a job of the urgent class. `None` where nothing keeps the job
    /// away, and where the replica is not in service.
    pub(super) fn bottleneck(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> Option<Bottleneck> {
        if !self.is_up(now, rules) {
            return None;
        }
        if let Some(room) = self.indexed.free_capacity.urgent {
            return self.is_short_of_kv(room.kv).then_some(Bottleneck::Kv);
        }
        let limit = self.limit(pool, now, rules);
        Some(match () {
            () if self.admission.held => Bottleneck::Held,
            () if self.health.is_on_trial() => Bottleneck::Trial,
            () if self.ledger.seqs < limit && self.is_released(pool) => Bottleneck::Released,
            () if self.ledger.seqs >= limit => self.limit_by(pool, now, rules),
            () if self.is_short_of_kv(self.free_kv(1.0)) => Bottleneck::Kv,
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
        if let Some(room) = self.indexed.free_capacity.released {
            return self.is_short_of_kv(room.kv).then_some(Bottleneck::Kv);
        }
        if let Some(room) = self.indexed.free_capacity.background {
            let why = if pool.takes_background() { Bottleneck::Kv } else { Bottleneck::BackgroundPrefill };
            return (!pool.takes_background() || self.is_short_of_kv(room.kv)).then_some(why);
        }
        let limit = self.limit(pool, now, rules);
        let full = self.admission.held || self.health.is_on_trial() || self.ledger.seqs >= limit;
        Some(match () {
            () if full => self.bottleneck(pool, now, rules).unwrap_or(Bottleneck::Slots),
            () if self.is_released(pool) && self.is_short_of_kv(self.free_kv(1.0)) => Bottleneck::Kv,
            () if self.is_released(pool) => Bottleneck::Prefill,
            () if self.is_prefilling() => Bottleneck::Prefill,
            () if self.is_slow_for_background(pool) => Bottleneck::Itl,
            () if self.ledger.seqs >= Self::background_share(pool, limit) => Bottleneck::BackgroundShare,
            () => Bottleneck::Headroom,
        })
    }

    /// Bottleneck of the replica for one job with this need; `None` where the job fits. `background`
    /// tells whether the job counts as background where the most urgent class comes.
    pub(super) fn bottleneck_of_job(
        &self,
        need: FitSize,
        background: bool,
        pool: &PoolState,
        now: Tick,
        rules: &HealthPolicy,
    ) -> Option<Bottleneck> {
        let Some(room) = self.indexed.free_capacity.now(pool, background) else {
            return match pool.is_background(background) {
                true => self.background_bottleneck(pool, now, rules),
                false => self.bottleneck(pool, now, rules),
            };
        };
        let limit = self.limit(pool, now, rules);
        let seqs = self.ledger.seqs.saturating_add(need.seqs);
        match () {
            () if need.fits_in(room) => None,
            () if need.kv > room.kv => Some(Bottleneck::Kv),
            () if need.prefill > room.prefill => Some(Bottleneck::Prefill),
            () if seqs > limit => Some(self.limit_by(pool, now, rules)),
            () if seqs > Self::background_share(pool, limit) => Some(Bottleneck::BackgroundShare),
            () => Some(Bottleneck::Headroom),
        }
    }

    /// Whether so many free KV tokens are fewer than a usual job of the replica holds.
    fn is_short_of_kv(&self, free: u64) -> bool {
        self.ledger.jobs > 0 && free < self.ledger.kv / u64::from(self.ledger.jobs)
    }

    /// Bottleneck that sets the replica's limit.
    fn limit_by(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> Bottleneck {
        let ours = self.full(pool).saturating_sub(self.reported.external_seqs).max(1);
        if self.health.eighths(now, rules) < 8 {
            Bottleneck::SlowStart
        } else if self.itl_seqs(pool).max(pool.objective.max_sequences) < ours {
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
            above_limit: (above > 0)
                .then(|| BottleneckSlots { bottleneck: self.limit_by(pool, now, rules), slots: above }),
            withheld: kept.map(|bottleneck| BottleneckSlots { bottleneck, slots: open }),
            out_of_service: 0,
        }
    }

    /// Most sequences that one request may ask for here.
    pub(super) fn most(&self, pool: &PoolState) -> u32 {
        max_request_seqs(self.config.seqs, self.reported.slots(), pool.slots.buffer)
    }

    /// Used part of the replica: of its sequences, of its KV cache, of the prompts that it can
    /// prefill at once, and of the ITL between the best one of the pool and the target.
    pub(super) fn used(&self, pool: &PoolState, shared: bool) -> ReplicasInUse {
        let ours = self
            .full(pool)
            .saturating_sub(self.reported.external_seqs)
            .max(1)
            .min(self.itl_seqs(pool).max(1));
        let (seqs, itl_share) = if shared {
            (ours.saturating_add(self.reported.external_seqs), self.own_share())
        } else {
            (ours, 1.0)
        };
        let part = |of: u64, whole: u64| of as f64 / whole.max(1) as f64;
        [
            part(u64::from(self.ledger.seqs), u64::from(seqs)),
            part(self.kv_held(), self.kv()),
            part(self.ledger.prefill, self.prefill_at_once(pool)),
            self.used_of_itl(pool) * itl_share,
        ]
    }

    /// This gateway's part of the sequences that run there.
    pub(super) fn own_share(&self) -> f64 {
        let ours = f64::from(self.ledger.seqs);
        ours / (ours + f64::from(self.reported.external_seqs)).max(1.0)
    }

    fn used_of_itl(&self, pool: &PoolState) -> f64 {
        let aim = self.limits.itl.target(self.objective(pool).itl);
        let best = pool.bests.best().gap.map_or(f64::INFINITY, |gap| gap.as_nanos() as f64);
        match self.limits.itl.mean().filter(|_| self.ledger.streams > 0 && best < aim * MOST_BARE) {
            Some(mean) => ((mean - best) / (aim - best)).max(0.0),
            None => 0.0,
        }
    }
}
