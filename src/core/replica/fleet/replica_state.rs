//! Replica state: the ledger, the learned limits and speed, and the free capacity of one
//! replica.

use std::time::Duration;

use smallvec::SmallVec;

use crate::billing::meter::ReplicaMeter;
use crate::billing::pool_account::ReplicaPresence;
use crate::model::ids::{ModelId, PoolId, ReplicaId};
use crate::model::overrides::Closed;
use crate::model::policy::HealthPolicy;
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;
use crate::queue::fit_tree::{FitEntry, FitSize};
use crate::replica::affinity::adapter_slots::{AdapterSlots, AdapterState};
use crate::replica::fleet::search::rank::ReplicaRank;
use crate::replica::health::ReplicaHealth;
use crate::replica::health::sleep::SleepState;
use crate::replica::health::stall_detector::WatchedGauges;
use crate::replica::ledger::{Booking, Ledger};
use crate::replica::reconcile::Reconciler;
use crate::replica::seq_limit::{full_seqs, ramped};
use crate::replica::speed::SpeedFactor;
use crate::replica::speed::step_time;
use crate::replica::speed::ttft_model::TtftModel;

use crate::replica::fleet::contribution::PoolCounts;
use crate::replica::fleet::pool_state::{LatencyObjective, PoolState};
use crate::replica::fleet::replica_parts::{
    FreeCapacity, IndexedReplica, LearnedLimits, ReplicaAdmission, ReplicaConfig, ReplicaSpeed,
    ReportedState, SentWork, StallWatch,
};

/// Additional patience for an answer that is not a stream, because only the engine's gauges show
/// its progress.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Multiple of the best ITL of the pool that stands for an ITL objective which no engine keeps.
const REACHABLE: u32 = 3;
/// Part of a replica's sequence limit that background jobs may fill: usually, and while they are about
/// to miss the objective of their own class. The headroom of the urgent class is halved then.
const BACKGROUND_SEQS: [f64; 2] = [0.8, 0.95];
/// Part of the KV cache up to which background jobs may be added.
const BACKGROUND_KV: f64 = 0.7;
/// Part of the ITL objective that a step may take for background jobs to be added: usually, and while
/// they are about to miss the objective of their own class.
const BACKGROUND_STEP: [f64; 2] = [0.5, 0.7];
/// Part of the TTFT objective by which a released replica counts as late for an urgent job.
const RELEASED_TTFT: f64 = 0.5;

/// State of one replica.
#[derive(Debug, Clone)]
pub(super) struct ReplicaState {
    pub(super) pool: PoolId,
    pub(super) config: ReplicaConfig,
    pub(super) admission: ReplicaAdmission,
    pub(super) ledger: Ledger,
    /// Sequences that run there, by class.
    pub(super) class_seqs: SmallVec<[u32; 4]>,
    pub(super) meter: ReplicaMeter,
    pub(super) sent: SentWork,
    pub(super) adapters: AdapterSlots,
    pub(super) health: ReplicaHealth,
    pub(super) stall: StallWatch,
    pub(super) sleep: SleepState,
    pub(super) reported: ReportedState,
    pub(super) limits: LearnedLimits,
    pub(super) speed: ReplicaSpeed,
    pub(super) indexed: IndexedReplica,
}

/// Sequences beyond an ITL limit for jobs that return to the replica: a part of the limit, and at
/// least so many.
const AFFINITY_OVERCOMMIT: (f64, u32) = (0.125, 8);

fn with_overcommit(itl: u32) -> u32 {
    itl.saturating_add(((f64::from(itl) * AFFINITY_OVERCOMMIT.0) as u32).max(AFFINITY_OVERCOMMIT.1))
}

impl ReplicaState {
    pub(super) fn new(pool: PoolId) -> Self {
        Self {
            pool,
            config: ReplicaConfig::default(),
            admission: ReplicaAdmission::default(),
            ledger: Ledger::default(),
            class_seqs: SmallVec::new(),
            meter: ReplicaMeter::default(),
            sent: SentWork::default(),
            adapters: AdapterSlots::default(),
            health: ReplicaHealth::default(),
            stall: StallWatch::default(),
            sleep: SleepState::default(),
            reported: ReportedState::default(),
            limits: LearnedLimits::default(),
            speed: ReplicaSpeed::default(),
            indexed: IndexedReplica::default(),
        }
    }

    pub(super) fn state(&self, now: Tick, rules: &HealthPolicy) -> ReplicaStatus {
        let state = self.health.state(now, rules);
        match self.admission.closed {
            _ if !self.config.present => ReplicaStatus::Removed,
            _ if matches!(state, ReplicaStatus::Ejected | ReplicaStatus::Gone) => state,
            Some(Closed::Drained | Closed::SpotNotice) => ReplicaStatus::Draining,
            _ if self.config.leaving => ReplicaStatus::Draining,
            Some(Closed::Cordoned) => ReplicaStatus::Cordoned,
            None => self.sleep.state().unwrap_or(state),
        }
    }

    /// Present contribution to the counts of its pool.
    pub(super) fn contribute(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> PoolCounts {
        let state = self.state(now, rules);
        let up = self.is_up(now, rules);
        let wakes = state == ReplicaStatus::Asleep && self.sleep.can_wake() && pool.sleep.is_some();
        let is_dormant = matches!(state, ReplicaStatus::Asleep | ReplicaStatus::Waking);
        PoolCounts {
            up: u32::from(up),
            busy: u32::from(state == ReplicaStatus::Busy),
            out: u32::from(self.health.is_ejected()),
            away: u32::from(self.config.leaving || self.health.is_silent()),
            sleepers: u32::from(is_dormant),
            can_wake: u32::from(wakes),
            released: u32::from(up && self.is_released(pool)),
            background_prefills: u32::from(self.prefills_long_background(pool) && !self.is_released(pool)),
            capacity: if up { u64::from(self.limit(pool, now, rules)) } else { 0 },
            waking: if state == ReplicaStatus::Waking { u64::from(self.full(pool)) } else { 0 },
        }
    }

    /// Whether its pool counts it as in service.
    pub(super) const fn counts_as_up(&self) -> bool {
        self.indexed.contribution.up > 0
    }

    /// Whether its pool counts it as asleep and able to wake.
    pub(super) const fn counts_as_wakeable(&self) -> bool {
        self.indexed.contribution.can_wake > 0
    }

    /// Presence with which its pool's account counts it now.
    pub(super) fn presence(&self, now: Tick, rules: &HealthPolicy) -> ReplicaPresence {
        let busy = self.ledger.jobs > 0;
        let away = matches!(
            self.state(now, rules),
            ReplicaStatus::Asleep | ReplicaStatus::Gone | ReplicaStatus::Removed
        );
        ReplicaPresence { present: busy || !away, busy }
    }

    pub(super) fn is_up(&self, now: Tick, rules: &HealthPolicy) -> bool {
        matches!(self.state(now, rules), ReplicaStatus::Serving | ReplicaStatus::SlowStart)
    }

    /// Sets the timers of its stall detector and of its sleep.
    pub(super) fn arm(&mut self, now: Tick) {
        let (owes, patience) = (self.stall.owes(&self.ledger), self.patience(now));
        self.stall.detector.arm(now, owes, patience);
        let is_idle = self.counts_as_up() && self.ledger.jobs == 0;
        self.sleep.arm(now, is_idle, self.config.idle_after);
    }

    /// Patience: how long the engine may be silent now. A prompt that counts as prefilled before its first
    /// token is due may still be in prefill.
    pub(super) fn patience(&self, now: Tick) -> Duration {
        let gap = self.limits.itl.mean().map_or(0, |mean| mean as u64);
        let gap = self.speed.learned.is_known().then_some(gap);
        let model = self.indexed.ttft_model;
        let ahead = self.ledger.awaited.saturating_sub(self.ledger.prefill);
        let expected = model.wait.saturating_add(model.per_token.saturating_mul(ahead));
        let patience = self.stall.detector.patience(expected, gap, now);
        let owes_streams = self.stall.owes_streams(&self.ledger);
        if owes_streams { patience } else { patience.saturating_add(ANSWER_PATIENCE) }
    }

    /// Time of its next timer.
    pub(super) fn next_wake(&self, now: Tick, rules: &HealthPolicy) -> Option<Tick> {
        let wake = self.health.next_wake(now, rules);
        let others = [self.stall.detector.check_at(), self.sleep.next_wake()];
        wake.into_iter().chain(others.into_iter().flatten()).min().filter(|_| self.config.present)
    }

    /// Sequences that it runs at full size, whatever its ITL.
    pub(super) fn full(&self, pool: &PoolState) -> u32 {
        full_seqs(self.config.seqs, self.reported.slots(), self.limits.seqs, pool.slots.buffer)
    }

    /// Whether other gateways have filled it.
    fn is_full_elsewhere(&self, pool: &PoolState) -> bool {
        self.full(pool) <= self.reported.remote_seqs
    }

    /// Sequences that it may run now.
    pub(super) fn limit(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> u32 {
        self.limit_within(self.itl_seqs(pool), pool, now, rules)
    }

    /// Sequences that it may run within its ITL objective.
    pub(super) fn itl_seqs(&self, pool: &PoolState) -> u32 {
        if self.is_released(pool) { self.limits.itl.released_seqs() } else { self.limits.itl.seqs() }
    }

    fn limit_within(&self, itl: u32, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> u32 {
        let ours = self.full(pool).saturating_sub(self.reported.external_seqs).max(1);
        if self.is_full_elsewhere(pool) {
            return 0;
        }
        let full = ours.min(itl.max(pool.objective.max_sequences));
        ramped(full, self.health.eighths(now, rules))
    }

    /// Sequences of the urgent class that run there.
    pub(super) fn urgent_seqs(&self, pool: &PoolState) -> u32 {
        let class = pool.objective.class;
        class.and_then(|class| self.class_seqs.get(class.index()).copied()).unwrap_or(0)
    }

    /// Whether background classes may fill it: it is no reserved replica, and runs nothing of the urgent
    /// class.
    pub(super) fn is_released(&self, pool: &PoolState) -> bool {
        !self.admission.reserved && pool.objective.released.is_some() && self.urgent_seqs(pool) == 0
    }

    /// Latency objective that it keeps now.
    pub(super) fn objective(&self, pool: &PoolState) -> LatencyObjective {
        let released = pool.objective.released.filter(|_| self.is_released(pool));
        released.unwrap_or(pool.objective.latency)
    }

    /// Counts a job's sequences in or out.
    pub(super) fn count_class(&mut self, booking: &Booking, enters: bool) {
        let index = booking.class.index();
        if self.class_seqs.len() <= index {
            self.class_seqs.resize(index + 1, 0);
        }
        let seqs = &mut self.class_seqs[index];
        *seqs = if enters { seqs.saturating_add(booking.seqs) } else { seqs.saturating_sub(booking.seqs) };
    }

    /// KV cache in tokens; `u64::MAX` where the size is not known.
    pub(super) fn kv(&self) -> u64 {
        self.config.kv_tokens.or_else(|| self.reported.kv_tokens()).unwrap_or(u64::MAX)
    }

    /// Its limits, whatever runs there.
    pub(super) fn full_size(&self, pool: &PoolState, now: Tick, rules: &HealthPolicy) -> FitSize {
        FitSize { seqs: self.limit(pool, now, rules), kv: self.kv(), prefill: u64::MAX }
    }

    /// Finds its free capacity. An empty replica takes any one job, however large, since no other
    /// replica could do better.
    pub(super) fn find_free_capacity(
        &self,
        pool: &PoolState,
        now: Tick,
        rules: &HealthPolicy,
    ) -> FreeCapacity {
        if self.admission.held || self.health.is_on_trial() || !self.is_up(now, rules) {
            return FreeCapacity::default();
        }
        if self.ledger.jobs == 0 && !self.is_full_elsewhere(pool) {
            let (all, released) = (Some(FitSize::MAX), self.is_released(pool));
            return FreeCapacity {
                urgent: all,
                background: all.filter(|_| !released),
                released: all.filter(|_| released),
                soon: all,
                affinity_overcommit: all,
            };
        }
        let room = |limit: u32| {
            let seqs = limit.saturating_sub(self.ledger.seqs);
            (seqs > 0).then_some(FitSize { seqs, kv: self.free_kv(1.0), prefill: u64::MAX })
        };
        let prefill = self.prefill_left(pool);
        let with_prefill = |size: FitSize| (prefill > 0).then_some(FitSize { prefill, ..size });
        let itl = if self.admission.beyond_limit { u32::MAX } else { self.limits.itl.seqs() };
        let limit = self.limit_within(itl, pool, now, rules);
        let soon = room(limit);
        let urgent = soon.and_then(with_prefill);
        let overcommitted = self
            .admission
            .allows_overcommit
            .then(|| self.limit_within(with_overcommit(itl), pool, now, rules));
        let affinity_overcommit = overcommitted.and_then(room).map(|size| FitSize { prefill, ..size });
        if self.is_released(pool) {
            let released = room(self.limit(pool, now, rules)).and_then(with_prefill);
            return FreeCapacity { urgent, background: None, released, soon, affinity_overcommit };
        }
        let background = self.background_seqs(pool, limit);
        let background =
            background.map(|seqs| FitSize { seqs, kv: self.free_kv(BACKGROUND_KV), prefill: u64::MAX });
        FreeCapacity { urgent, background, released: None, soon, affinity_overcommit }
    }

    /// Free sequences for background jobs: only while it prefills no prompt, and only while its steps
    /// are short enough.
    fn background_seqs(&self, pool: &PoolState, limit: u32) -> Option<u32> {
        let slow = self.is_slow_for_background(pool);
        let headroom = pool.objective.headroom / if pool.objective.background_delayed { 2 } else { 1 };
        let seqs =
            Self::background_share(pool, limit).saturating_sub(headroom).saturating_sub(self.ledger.seqs);
        (!self.is_prefilling() && !slow && seqs > 0).then_some(seqs)
    }

    /// Part of a sequence limit that background jobs may fill.
    pub(super) fn background_share(pool: &PoolState, limit: u32) -> u32 {
        (f64::from(limit) * BACKGROUND_SEQS[usize::from(pool.objective.background_delayed)]) as u32
    }

    /// Whether its steps are too long for background jobs.
    pub(super) fn is_slow_for_background(&self, pool: &PoolState) -> bool {
        let part = BACKGROUND_STEP[usize::from(pool.objective.background_delayed)];
        let best = pool.bests.best().gap.filter(|_| self.limits.itl.is_out_of_reach());
        let objective = best.map_or(Duration::ZERO, |best| best * REACHABLE).max(pool.objective.latency.itl);
        let aim = objective.as_nanos() as f64 * part;
        self.decode_step() > aim || self.limits.itl.mean().is_some_and(|mean| mean > aim)
    }

    pub(super) fn free_kv(&self, part: f64) -> u64 {
        match self.kv() {
            u64::MAX => u64::MAX,
            kv => ((kv as f64 * part) as u64).saturating_sub(self.kv_held()),
        }
    }

    /// KV tokens that its jobs hold, or hold at a usual moment. The parts that prompts share count
    /// once.
    pub(super) fn kv_held(&self) -> u64 {
        let to_come = (self.ledger.kv_output as f64 * (1.0 - self.limits.held_output)) as u64;
        let shared = self.limits.shared_kv.saved(self.ledger.kv_prompts);
        self.ledger.kv.saturating_sub(shared.saturating_add(to_come))
    }

    /// Nanoseconds of a step in which each of its sequences gets a token.
    ///
    /// The speed factor comes from first tokens. Where an engine or the way to it adds a fixed time
    /// to each of them, the factor is too large for a step, so that measured gaps between tokens count
    /// as well: `docs/decisions/087-step-times-from-gaps.md`.
    pub(super) fn decode_step(&self) -> f64 {
        let factor = self.limits.itl.slowness().map_or(self.speed.factor, |slow| slow.min(self.speed.factor));
        step_time::decode_step(&self.ledger) as f64 * factor
    }

    pub(super) fn ttft_model(&self) -> TtftModel {
        step_time::ttft_model(&self.ledger).slowed(self.speed.factor)
    }

    /// Gives the replica its place among those of the pool that can take something.
    pub(super) fn rank_in(&mut self, pool: &mut PoolState, id: ReplicaId, now: Tick, rules: &HealthPolicy) {
        self.speed.factor = pool.speeds.applied(&self.speed.learned, now);
        self.indexed.ttft_model = self.ttft_model();
        self.indexed.urgent_model = self.urgent_model(pool);
        let key = self.key(pool, id, self.indexed.ttft_model);
        let urgent = self.key(pool, id, self.indexed.urgent_model);
        self.limits.held_output = pool.output_progress.part(self.ledger.jobs);
        self.indexed.free_capacity = self.find_free_capacity(pool, now, rules);
        let free = self.indexed.free_capacity;
        let entries =
            [(free.urgent, urgent), (free.background, key), (free.released, key), (free.soon, urgent)];
        let trees = pool.trees_mut().into_iter().zip(entries);
        for ((tree, (free, key)), slot) in trees.zip(&mut self.indexed.slots) {
            let entry = free.map(|free| FitEntry { key, size: free.complement(), value: id });
            *slot = tree.put(*slot, entry);
        }
    }

    /// TTFT model by which an urgent job compares replicas. A released replica counts as late by a
    /// part of the objective, and as slow as the objective allows: a job goes there only when the
    /// reserved replicas are worse.
    fn urgent_model(&self, pool: &PoolState) -> TtftModel {
        let model = self.indexed.ttft_model;
        if self.admission.reserved || pool.objective.released.is_none() {
            return model;
        }
        let LatencyObjective { ttft, itl } = pool.objective.latency;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        TtftModel {
            wait: model.wait.saturating_add(nanos(ttft.mul_f64(RELEASED_TTFT))),
            per_step: model.per_step.saturating_add(nanos(itl)),
            ..model
        }
    }

    fn key(&self, pool: &PoolState, replica: ReplicaId, ttft_model: TtftModel) -> ReplicaRank {
        let none = pool.adapters.is_empty();
        let miss = if none { 0 } else { pool.load.cost(self.adapters.state_of_unloaded()) };
        ReplicaRank { ttft_model, adapter_cost: miss, last_chosen: self.sent.last_chosen, replica }
    }

    /// State of the model here, if the model is an adapter in its pool.
    pub(super) fn adapter_fit(&self, pool: &PoolState, model: ModelId) -> Option<AdapterState> {
        pool.adapters.contains(&model).then(|| self.adapters.state(model))
    }

    /// Resets what was learned, because it is new in the policy, or was removed from it and put
    /// back.
    pub(super) fn join(&mut self, now: Tick) {
        self.health.join(now);
        (self.speed.learned, self.limits) = (SpeedFactor::default(), LearnedLimits::default());
        (self.reported.reconciler, self.sleep, self.stall.gauges) =
            (Reconciler::default(), SleepState::default(), WatchedGauges::default());
    }
}
