//! One replica: its ledger, what was learned of it, what it can still take.

use std::time::Duration;

use crate::core::adapters::{Fit, Slots};
use crate::core::best::Stretch;
use crate::core::board::Size;
use crate::core::cost::account::Presence;
use crate::core::cost::meter::Meter;
use crate::core::event::Report;
use crate::core::foreign::Foreign;
use crate::core::ids::{ModelId, PoolId, ReplicaId};
use crate::core::kv_shared::KvShared;
use crate::core::limits::{LearnedSeqs, full_seqs, ramped};
use crate::core::overrides::Closed;
use crate::core::pace::PaceLimit;
use crate::core::policy::Health;
use crate::core::predict::{self, Outlook};
use crate::core::reads::Reader;
use crate::core::rest::Rest;
use crate::core::routing::{Ledger, RouteKey};
use crate::core::snapshot::ReplicaState;
use crate::core::speed::{Bin, Speed, Speeds};
use crate::core::time::Tick;
use crate::core::vitals::Vitals;
use crate::core::watch::{Gauges, Watch};

use super::pool::PoolState;
use super::reading::Reading;

/// Part of a replica's sequence limit that guests may fill.
const GUEST_SEQS: f64 = 0.8;
/// Part of its KV cache that may be in use for a guest to come.
const GUEST_KV: f64 = 0.7;
/// Part of the promised time between tokens that a step with a guest may take.
const GUEST_STEP: f64 = 0.5;
/// What a replica can take now; absent where it can take nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rooms {
    /// Of the urgent class.
    pub(super) own: Option<Size>,
    /// Of classes less urgent than the one that the pool has made its promise
    /// to.
    pub(super) guest: Option<Size>,
    /// Of the urgent class, as soon as it has read its prompts.
    pub(super) soon: Option<Size>,
}

impl Rooms {
    /// What it can take now of guests, or of the urgent class.
    pub(super) const fn now(&self, guest: bool) -> Option<Size> {
        if guest { self.guest } else { self.own }
    }
}

/// What the replica's pool counts it among.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counted {
    pub(super) busy: bool,
    /// It is ejected.
    pub(super) out: bool,
    /// Nothing answers there, or it is about to go.
    pub(super) away: bool,
    /// It sleeps or wakes.
    pub(super) sleeps: bool,
    /// It sleeps and can be woken.
    pub(super) can_wake: bool,
    /// Sequences that it will take in a moment.
    pub(super) waking: u32,
}

/// One replica.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) pool: PoolId,
    pub(super) present: bool,
    /// Whether the policy says that it is about to go.
    pub(super) leaving: bool,
    pub(super) configured_seqs: Option<u32>,
    pub(super) configured_kv: Option<u64>,
    pub(super) ledger: Ledger,
    pub(super) meter: Meter,
    /// Weight of all prompts ever sent there.
    pub(super) weights: u64,
    /// How much of its time it spends on them.
    pub(super) reading: Reading,
    /// What its pool's account counts it as.
    pub(super) accounted: Presence,
    pub(super) adapters: Slots,
    pub(super) vitals: Vitals,
    /// How an operator has closed it to new work.
    pub(super) closed: Option<Closed>,
    pub(super) watch: Watch,
    /// Streams there that wait for their clients.
    pub(super) paused: u32,
    pub(super) gauges: Gauges,
    pub(super) rest: Rest,
    /// How long it is idle before it sleeps, if it ever does.
    pub(super) idle_after: Option<Duration>,
    pub(super) foreign: Foreign,
    /// Sequences that run there and are not ours, as of the last change.
    pub(super) others: u32,
    /// Sequences ever booked there.
    pub(super) sent: u64,
    pub(super) learned: LearnedSeqs,
    pub(super) kv_shared: KvShared,
    pub(super) pace: PaceLimit,
    pub(super) stretch: Stretch,
    pub(super) reader: Reader,
    pub(super) speed: Speed,
    /// What its predicted times are multiplied by, as of the last change.
    pub(super) factor: f64,
    /// Where its speed stands among those of its pool.
    pub(super) bin: Option<Bin>,
    pub(super) report: Option<(Tick, Report)>,
    pub(super) held: bool,
    pub(super) last_chosen: u64,
    pub(super) rooms: Rooms,
    /// Where it stands on the boards of its pool.
    pub(super) slots: [Option<usize>; 3],
    pub(super) wake: Option<Tick>,
    pub(super) up: bool,
    /// Whether its pool counts it among those that are busy, that sleep, and that
    /// can be woken.
    pub(super) counted: Counted,
    /// Whether its pool counts it among those that read guests' prompts.
    pub(super) reads_guest: bool,
    /// Its part in the capacity of its pool.
    pub(super) capacity: u32,
}

impl Node {
    pub(super) fn new(pool: PoolId) -> Self {
        Self {
            pool,
            present: false,
            leaving: false,
            configured_seqs: None,
            configured_kv: None,
            ledger: Ledger::default(),
            meter: Meter::default(),
            weights: 0,
            reading: Reading::default(),
            accounted: Presence::default(),
            adapters: Slots::default(),
            vitals: Vitals::default(),
            closed: None,
            watch: Watch::default(),
            paused: 0,
            gauges: Gauges::default(),
            rest: Rest::default(),
            idle_after: None,
            foreign: Foreign::default(),
            others: 0,
            sent: 0,
            learned: LearnedSeqs::default(),
            kv_shared: KvShared::default(),
            pace: PaceLimit::default(),
            stretch: Stretch::default(),
            reader: Reader::default(),
            speed: Speed::default(),
            factor: 1.0,
            bin: None,
            report: None,
            held: false,
            last_chosen: 0,
            rooms: Rooms::default(),
            slots: [None; 3],
            wake: None,
            up: false,
            counted: Counted::default(),
            reads_guest: false,
            capacity: 0,
        }
    }

    pub(super) fn state(&self, now: Tick, rules: &Health) -> ReplicaState {
        let state = self.vitals.state(now, rules);
        match self.closed {
            _ if !self.present => ReplicaState::Removed,
            _ if matches!(state, ReplicaState::Ejected | ReplicaState::Gone) => state,
            Some(Closed::Drained | Closed::SpotNotice) => ReplicaState::Draining,
            _ if self.leaving => ReplicaState::Draining,
            Some(Closed::Cordoned) => ReplicaState::Cordoned,
            None => self.rest.state().unwrap_or(state),
        }
    }

    /// What its pool is to count it among.
    pub(super) fn count(&self, pool: &PoolState, now: Tick, rules: &Health) -> Counted {
        let state = self.state(now, rules);
        Counted {
            busy: state == ReplicaState::Busy,
            out: self.vitals.is_out(),
            away: self.leaving || self.vitals.is_silent(),
            sleeps: matches!(state, ReplicaState::Asleep | ReplicaState::Waking),
            can_wake: state == ReplicaState::Asleep && self.rest.can_wake() && pool.sleep.is_some(),
            waking: if state == ReplicaState::Waking { self.full(pool) } else { 0 },
        }
    }

    /// What it counts as in its pool's time.
    pub(super) fn presence(&self, now: Tick, rules: &Health) -> Presence {
        let busy = self.ledger.jobs > 0;
        let away = matches!(
            self.state(now, rules),
            ReplicaState::Asleep | ReplicaState::Gone | ReplicaState::Removed
        );
        Presence { present: busy || !away, busy }
    }

    pub(super) fn is_up(&self, now: Tick, rules: &Health) -> bool {
        matches!(self.state(now, rules), ReplicaState::Serving | ReplicaState::SlowStart)
    }

    /// When something is due.
    pub(super) fn next_wake(&self, now: Tick, rules: &Health) -> Option<Tick> {
        let wake = self.vitals.next_wake(now, rules);
        let others = [self.watch.check_at(), self.rest.next_wake()];
        wake.into_iter().chain(others.into_iter().flatten()).min().filter(|_| self.present)
    }

    /// Sequences that it runs at full size, whatever its pace.
    pub(super) fn full(&self, pool: &PoolState) -> u32 {
        let reported = self.report.and_then(|(_, report)| report.slots);
        full_seqs(self.configured_seqs, reported, self.learned, pool.buffer)
    }

    pub(super) fn limit(&self, pool: &PoolState, now: Tick, rules: &Health) -> u32 {
        let ours = self.full(pool).saturating_sub(self.others).max(1);
        let full = ours.min(self.pace.seqs().max(pool.promise.widest));
        ramped(full, self.vitals.eighths(now, rules))
    }

    /// Its KV tokens; no bound where nothing is known of them.
    pub(super) fn kv(&self) -> u64 {
        let reported = self.report.and_then(|(_, report)| report.kv_tokens);
        self.configured_kv.or(reported).unwrap_or(u64::MAX)
    }

    /// Its limits, whatever runs there.
    pub(super) fn whole(&self, pool: &PoolState, now: Tick, rules: &Health) -> Size {
        Size { seqs: self.limit(pool, now, rules), kv: self.kv(), prefill: u64::MAX }
    }

    /// What it can take. An empty one takes any one job, however large, since
    /// no other could do better.
    pub(super) fn find_rooms(&self, pool: &PoolState, now: Tick, rules: &Health) -> Rooms {
        if self.held || self.vitals.is_tried() || !self.is_up(now, rules) {
            return Rooms::default();
        }
        if self.ledger.jobs == 0 {
            return Rooms { own: Some(Size::MAX), guest: Some(Size::MAX), soon: Some(Size::MAX) };
        }
        let limit = self.limit(pool, now, rules);
        let seqs = limit.saturating_sub(self.ledger.seqs);
        let soon = (seqs > 0).then_some(Size { seqs, kv: self.kv_left(1.0), prefill: u64::MAX });
        let prefill = self.prefill_left(pool);
        let own = soon.filter(|_| prefill > 0).map(|size| Size { prefill, ..size });
        let guest = self.guest_seqs(pool, limit);
        let guest = guest.map(|seqs| Size { seqs, kv: self.kv_left(GUEST_KV), prefill: u64::MAX });
        Rooms { own, guest, soon }
    }

    /// Sequences for guests: only while it reads no prompt, and only as many as
    /// leave its steps short enough.
    fn guest_seqs(&self, pool: &PoolState, limit: u32) -> Option<u32> {
        let slow = self.is_slow_for_guests(pool);
        let seqs =
            Self::guest_share(limit).saturating_sub(pool.promise.reserve).saturating_sub(self.ledger.seqs);
        (self.ledger.prefill <= self.on_the_way() && !slow && seqs > 0).then_some(seqs)
    }

    /// Sequences of a limit that guests may fill.
    pub(super) fn guest_share(limit: u32) -> u32 {
        (f64::from(limit) * GUEST_SEQS) as u32
    }

    /// Whether its steps are too long for guests to come.
    pub(super) fn is_slow_for_guests(&self, pool: &PoolState) -> bool {
        let aim = pool.promise.itl.as_nanos() as f64 * GUEST_STEP;
        self.decode_step() > aim || self.pace.mean().is_some_and(|mean| mean > aim)
    }

    pub(super) fn kv_left(&self, part: f64) -> u64 {
        match self.kv() {
            u64::MAX => u64::MAX,
            kv => ((kv as f64 * part) as u64).saturating_sub(self.kv_held()),
        }
    }

    /// KV tokens that its jobs hold or will hold: what prompts share counts once.
    pub(super) fn kv_held(&self) -> u64 {
        self.ledger.kv.saturating_sub(self.kv_shared.saved(self.ledger.kv_prompts))
    }

    /// Nanoseconds of a step in which each of its sequences gets a token.
    pub(super) fn decode_step(&self) -> f64 {
        predict::decode_step(&self.ledger) as f64 * self.factor
    }

    pub(super) fn outlook(&self) -> Outlook {
        predict::outlook(&self.ledger).slowed(self.factor)
    }

    pub(super) fn key(&self, pool: &PoolState, replica: ReplicaId) -> RouteKey {
        let none = pool.adapters.is_empty();
        let miss = if none { 0 } else { pool.load.cost(self.adapters.fit_of_other()) };
        RouteKey { outlook: self.outlook(), miss, last_chosen: self.last_chosen, replica }
    }

    /// How the model stands to it, if it is an adapter there.
    pub(super) fn adapter_fit(&self, pool: &PoolState, model: ModelId) -> Option<Fit> {
        pool.adapters.contains(&model).then(|| self.adapters.fit(model))
    }

    /// Puts its speed where it belongs among those of its pool.
    pub(super) fn rank_speed(&mut self, speeds: &mut Speeds) {
        let bin = self.speed.is_known().then(|| Speeds::bin(self.speed.factor()));
        if bin != self.bin {
            speeds.shift(self.bin, bin);
            self.bin = bin;
        }
    }

    /// It is new in the policy, or was taken out of it and put back: a new
    /// start.
    pub(super) fn join(&mut self, now: Tick) {
        self.vitals.join(now);
        (self.speed, self.pace, self.learned) =
            (Speed::default(), PaceLimit::default(), LearnedSeqs::default());
        self.kv_shared = KvShared::default();
        (self.foreign, self.rest, self.gauges) = (Foreign::default(), Rest::default(), Gauges::default());
    }
}
