//! The ledger of every replica, its state, and what it can still take.

mod adapters;
mod bottleneck;
mod contribution;
mod cost;
mod outage;
mod pool_state;
mod prefill;
mod replica_state;
mod search;
mod sleep;
mod stalls;
mod utilization;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::billing::meter::{MeteredStay, writing};
use crate::core::billing::pool_account::{PoolAccount, ReplicaPresence};
use crate::core::model::bit_set::BitSet;
use crate::core::model::event::{ItlSample, ReplicaReport};
use crate::core::model::ids::{ModelId, PoolId, ReplicaId};
use crate::core::model::number_map::NumberMap;
use crate::core::model::overrides::Closed;
use crate::core::model::policy::{HealthPolicy, Policy};
use crate::core::model::snapshot::{ReplicaSnapshot, SAMPLE_PROMPT};
use crate::core::model::time::Tick;
use crate::core::replica::health::ReplicaHealth;
use crate::core::replica::ledger::{Booking, Ledger};
use crate::core::replica::reconcile::{LedgerView, ReconcileFinding};
use crate::core::replica::speed::pool_best::PoolBest;
use crate::core::replica::speed::ttft_model::{self, TtftModel};

pub use self::search::{ReplicaMatch, ReplicaRequirements};
use crate::core::replica::fleet::contribution::PoolCounts;
pub use crate::core::replica::fleet::pool_state::ActiveObjective;
pub use crate::core::replica::fleet::prefill::PrefillMark;

use crate::core::replica::fleet::pool_state::{PoolState, PoolSummary};
use crate::core::replica::fleet::replica_state::ReplicaState;

/// What is known of a replica at the moment it is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaLoad {
    /// Outstanding work in tokens.
    pub work: u64,
    /// Sequences there.
    pub running: u32,
    /// Its sequence limit.
    pub limit: u32,
    /// See [`ReplicaHealth::epoch`].
    pub epoch: u32,
}

/// Who goes with a new policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Departures {
    /// No longer in the policy.
    pub left: Vec<ReplicaId>,
    /// About to go, since now.
    pub draining: Vec<ReplicaId>,
}

/// All replicas of the policy, and removed ones that still run something.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    rules: HealthPolicy,
    replicas: Vec<Option<ReplicaState>>,
    pools: Vec<PoolState>,
    shown: Vec<PoolSummary>,
    /// Pools with credit, of any kind.
    open: BitSet,
    /// How often a replica came into service or went out of it.
    turns: u64,
    /// By pool, those that are no longer in the policy included.
    accounts: Vec<PoolAccount>,
    timers: BTreeSet<(Tick, ReplicaId)>,
    chosen: u64,
    /// Replicas that have each adapter loaded.
    holders: NumberMap<ModelId, Vec<ReplicaId>>,
    /// Replicas that sleep and can be woken.
    can_wake: u32,
    /// A pool has gone to sleep or was scaled to zero since that was last asked.
    dormant_pools: bool,
    /// A pool has lost its last replica in service since that was last asked.
    empty_pools: bool,
    /// A pool has got its first one.
    risen_pools: bool,
}

/// What a report shows beside the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportResult {
    /// What the ledger does not explain.
    pub finding: ReconcileFinding,
    /// The replica fell asleep unasked.
    pub fell_asleep: bool,
}

impl Fleet {
    /// Takes over a policy: new replicas start slowly, but for those of the
    /// first policy; removed ones get no more work and are forgotten when they
    /// run nothing.
    pub fn apply(&mut self, policy: &Policy, now: Tick) -> Departures {
        let first = self.pools.is_empty();
        let mut departures = Departures::default();
        self.rules = policy.health;
        self.renew_pools(policy);
        self.open = BitSet::default();
        self.renew_accounts(policy, now);
        self.can_wake = 0;
        if self.replicas.len() < policy.replicas.capacity() {
            self.replicas.resize(policy.replicas.capacity(), None);
        }
        for index in 0..self.replicas.len() {
            let id = ReplicaId::from(index);
            let row = policy.replicas.get(id).filter(|row| policy.pools.get(row.pool).is_some());
            if let Some(node) = &mut self.replicas[index] {
                node.slots = [None; 3];
                (node.held, node.bin, node.contribution) = (false, None, PoolCounts::default());
                if row.is_none() && node.present {
                    departures.left.push(id);
                }
                node.present &= row.is_some();
            }
            if let Some(row) = row {
                let node = self.replicas[index].get_or_insert_with(|| ReplicaState::new(row.pool));
                if !node.present && !first {
                    node.join(now);
                }
                let leaving = policy.draining.contains(&id);
                if leaving && !node.leaving {
                    departures.draining.push(id);
                }
                if node.pool != row.pool {
                    let before = std::mem::take(&mut node.accounted);
                    self.accounts[node.pool.index()].recount(now, before, ReplicaPresence::default());
                }
                (node.present, node.leaving, node.pool) = (true, leaving, row.pool);
                (node.configured_seqs, node.configured_kv) = (row.max_seqs, row.kv_tokens);
                let pool = &mut self.pools[row.pool.index()];
                node.idle_after = pool.sleep.map(|sleep| sleep.after_idle);
                pool.members.push(id);
                node.rank_speed(&mut pool.speeds);
                self.configure_adapters(id, policy);
            }
            self.refresh(id, now);
        }
        departures
    }

    /// The pool of a replica that is known.
    #[must_use]
    pub fn pool_of(&self, id: ReplicaId) -> Option<PoolId> {
        self.node(id).map(|node| node.pool)
    }

    /// How the replica stands.
    #[must_use]
    pub fn standing(&self, id: ReplicaId, now: Tick) -> Option<ReplicaLoad> {
        let node = self.node(id)?;
        let (work, running) = (node.ledger.work(), node.ledger.seqs);
        let limit = node.limit(self.pools.get(node.pool.index())?, now, &self.rules);
        Some(ReplicaLoad { work, running, limit, epoch: node.health.epoch() })
    }

    /// How often the replica came back; see [`ReplicaHealth::epoch`].
    #[must_use]
    pub fn epoch(&self, id: ReplicaId) -> Option<u32> {
        self.node(id).map(|node| node.health.epoch())
    }

    /// Sequences that the replicas of the pools that may get work can have.
    #[must_use]
    pub fn capacity(&self, pools: &[PoolId]) -> u64 {
        self.pools(pools).map(|pool| pool.counts.capacity).sum()
    }

    /// Holds a replica for one job, or lets it go.
    pub fn hold(&mut self, id: ReplicaId, held: bool, now: Tick) {
        self.change(id, now, |node| node.held = held);
    }

    /// Closes a replica to new work, or opens it again, slowly at first.
    pub fn close(&mut self, id: ReplicaId, closed: Option<Closed>, now: Tick) {
        self.change(id, now, |node| {
            if node.closed.is_some() && closed.is_none() {
                node.health.slow_start(now);
            }
            node.closed = closed;
        });
    }

    /// How an operator has closed the replica.
    #[must_use]
    pub fn closed(&self, id: ReplicaId) -> Option<Closed> {
        self.node(id)?.closed
    }

    /// Books a job that goes there, where it has this weight in the replica's
    /// time.
    pub fn book(&mut self, id: ReplicaId, booking: &Booking, weight: u64, now: Tick) -> MeteredStay {
        self.chosen += 1;
        let chosen = self.chosen;
        self.take_adapter(id, booking);
        self.refresh_one_more(id, now);
        let stay = self.change(id, now, |node| {
            node.ledger.add(booking);
            node.health.sent(now);
            node.sent += u64::from(booking.seqs);
            node.weights = node.weights.wrapping_add(booking.weight);
            node.last_chosen = chosen;
            node.meter.enter(now, weight)
        });
        stay.unwrap_or_default()
    }

    /// The job's first token came. False when its booking is not there.
    pub fn start(&mut self, id: ReplicaId, booking: &mut Booking, stay: &mut MeteredStay, now: Tick) -> bool {
        let whole = self.change(id, now, |node| {
            // The weight of a plain answer is that of its whole stay.
            if booking.streams {
                node.meter.reweigh(now, stay, writing(booking.seqs));
            }
            let whole = node.ledger.take(booking);
            node.stall_detector.sign(now);
            node.health.answered(now);
            node.health.note_proof();
            (booking.started, booking.read, booking.due) = (true, true, true);
            if whole {
                node.ledger.add(booking);
            }
            whole
        });
        whole.unwrap_or(false)
    }

    /// Its engine was done with a job, which shows that it works. What is derived
    /// of the replica follows when the job is released.
    pub fn proved(&mut self, id: ReplicaId, now: Tick) {
        let node = self.replicas.get_mut(id.index()).and_then(Option::as_mut);
        if let Some(node) = node.filter(|node| node.present) {
            node.health.answered(now);
            node.health.note_proof();
        }
    }

    /// The job is gone from there; with its part of the replica's time. False
    /// when its booking is not there.
    pub fn release(
        &mut self,
        id: ReplicaId,
        booking: &Booking,
        stay: &MeteredStay,
        now: Tick,
    ) -> (bool, Duration) {
        let slots = self.give_back_adapter(id, booking);
        let gone = self.change(id, now, |node| (node.ledger.take(booking), node.meter.leave(now, stay)));
        let (whole, time) = gone.unwrap_or_default();
        (whole && slots, time)
    }

    /// The replica's health, to change it; `None` when it is unknown or no
    /// longer in the policy.
    pub fn change_health<T>(
        &mut self,
        id: ReplicaId,
        now: Tick,
        act: impl FnOnce(&mut ReplicaHealth, &HealthPolicy) -> T,
    ) -> Option<T> {
        self.node(id).filter(|node| node.present)?;
        let rules = self.rules;
        self.change(id, now, |node| act(&mut node.health, &rules))
    }

    /// The replica's own view arrived.
    pub fn report(&mut self, id: ReplicaId, report: ReplicaReport, now: Tick) -> Option<ReportResult> {
        let buffer = self.node(id).and_then(|node| self.pools.get(node.pool.index())).map_or(0, |p| p.buffer);
        self.change(id, now, |node| {
            node.learned_seqs.learn(&report, (node.ledger.seqs, node.ledger.unread), buffer);
            node.shared_kv.learn(&report, node.kv(), node.ledger.kv_prompts);
            if node.gauges.moved(&report) {
                node.stall_detector.sign(now);
            }
            node.report = Some((now, report));
            node.sleep.worked(node.ledger.jobs, node.sent, report.progress);
            let fell_asleep = report.asleep.is_some_and(|asleep| node.sleep.report(now, asleep));
            let own = LedgerView { seqs: node.ledger.seqs, sent: node.sent };
            ReportResult { finding: node.reconciler.report(now, &report, own), fell_asleep }
        })
    }

    /// The replica's streams showed their pace.
    pub fn sample_itl(&mut self, id: ReplicaId, pace: &ItlSample, now: Tick) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let Some(pool) = self.pools.get(node.pool.index()) else { return };
        node.stall_detector.sign(now);
        node.reading.note(node.weights, now);
        node.itl_limit.learn(pace, &node.conditions(pool));
        let (stretch, pool) = (node.stretch.add(pace), node.pool);
        if let (Some(stretch), Some(pool)) = (stretch, self.pools.get_mut(pool.index())) {
            pool.bests.stretch(&stretch, now);
        }
        self.refresh(id, now);
    }

    /// Nanoseconds per token of a prompt's weight, at a replica of usual speed in
    /// the fastest of the pools.
    #[must_use]
    pub fn per_token(&self, pools: &[PoolId]) -> f64 {
        let each = self.summary(pools).map(|pool| pool.slowness);
        let fastest = each.min_by(f64::total_cmp).unwrap_or(1.0);
        ttft_model::outlook(&Ledger::default()).slowed(fastest).per_token as f64
    }

    /// The best that the pool has shown.
    #[must_use]
    pub fn best(&self, pool: PoolId) -> PoolBest {
        self.pools.get(pool.index()).map_or_else(PoolBest::default, |pool| pool.bests.all())
    }

    /// What a replica of speed 1 with this one's ledger would promise.
    #[must_use]
    pub fn raw_outlook(&self, id: ReplicaId) -> Option<TtftModel> {
        self.node(id).map(|node| ttft_model::outlook(&node.ledger))
    }

    /// What the pool owes from now on.
    pub fn set_objective(&mut self, pool: PoolId, promise: ActiveObjective, now: Tick) {
        let Some(state) = self.pools.get_mut(pool.index()).filter(|state| state.objective != promise) else {
            return;
        };
        state.objective = promise;
        for member in state.members.clone() {
            self.refresh(member, now);
        }
    }

    /// The next replica for which something is due, if any is.
    pub fn due(&mut self, now: Tick) -> Option<ReplicaId> {
        let &(at, id) = self.timers.first()?;
        (at <= now).then_some(id)
    }

    /// When something is due next.
    #[must_use]
    pub fn next_wake(&self) -> Option<Tick> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// One row per replica.
    pub fn views(&self, now: Tick) -> impl Iterator<Item = ReplicaSnapshot> {
        let nodes = self.replicas.iter().enumerate();
        nodes.filter_map(move |(index, node)| {
            let node = node.as_ref()?;
            let pool = self.pools.get(node.pool.index())?;
            let sample = ttft_model::weight(SAMPLE_PROMPT, 0);
            Some(ReplicaSnapshot {
                replica: ReplicaId::from(index),
                state: node.state(now, &self.rules),
                running: node.ledger.seqs,
                limit: node.limit(pool, now, &self.rules),
                prefill_tokens: node.ledger.prefill.saturating_add(node.ledger.ahead),
                kv_tokens: node.ledger.kv,
                speed_factor: node.factor,
                expected: Duration::from_nanos(node.outlook().ttft(sample)),
                report_age: node.report.map(|(at, _)| now.since(at)),
                bottleneck: node.bottleneck(pool, now, &self.rules),
                background_bottleneck: node.background_bottleneck(pool, now, &self.rules),
                slots: node.slot_counts(pool, now, &self.rules),
            })
        })
    }

    /// The ledgers of all known replicas.
    pub fn ledgers(&self) -> impl Iterator<Item = (ReplicaId, Ledger)> {
        let nodes = self.replicas.iter().enumerate();
        nodes.filter_map(|(index, node)| Some((ReplicaId::from(index), node.as_ref()?.ledger)))
    }

    /// Whether each replica that waits for a moment has a timer for it, and no
    /// other has one.
    #[must_use]
    pub fn timers_are_consistent(&self, now: Tick) -> bool {
        let nodes = self.replicas.iter().enumerate();
        let wanted: BTreeSet<(Tick, ReplicaId)> = nodes
            .filter_map(|(index, node)| {
                let node = node.as_ref().filter(|node| node.present)?;
                Some((node.next_wake(now, &self.rules)?, ReplicaId::from(index)))
            })
            .collect();
        wanted == self.timers
    }

    /// Nodes of search trees that were looked at.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        self.pools.iter().map(|pool| pool.visits()).sum()
    }

    fn node(&self, id: ReplicaId) -> Option<&ReplicaState> {
        self.replicas.get(id.index())?.as_ref()
    }

    fn pools<'a>(&'a self, pools: &'a [PoolId]) -> impl Iterator<Item = &'a PoolState> {
        pools.iter().filter_map(|pool| self.pools.get(pool.index()))
    }

    fn summary<'a>(&'a self, pools: &'a [PoolId]) -> impl Iterator<Item = &'a PoolSummary> {
        pools.iter().filter_map(|pool| self.shown.get(pool.index()))
    }

    /// Whether each pool shows what it is.
    #[must_use]
    pub fn summary_is_consistent(&self) -> bool {
        self.pools.iter().map(PoolState::shown).eq(self.shown.iter().copied())
    }

    fn change<T>(&mut self, id: ReplicaId, now: Tick, act: impl FnOnce(&mut ReplicaState) -> T) -> Option<T> {
        let result = act(self.replicas.get_mut(id.index())?.as_mut()?);
        self.refresh(id, now);
        Some(result)
    }

    /// Brings another replica of the pool up to date, each in its turn: what it is
    /// expected to do depends on what others have shown, and on time.
    fn refresh_one_more(&mut self, id: ReplicaId, now: Tick) {
        let turn = self.chosen as usize;
        let members = self.pool_of(id).and_then(|pool| self.pools.get(pool.index()));
        let next = members.and_then(|pool| pool.members.get(turn % pool.members.len().max(1)).copied());
        next.into_iter().filter(|next| *next != id).for_each(|next| self.refresh(next, now));
    }

    /// Brings everything that is derived from a replica up to date.
    fn refresh(&mut self, id: ReplicaId, now: Tick) {
        let rules = self.rules;
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        node.foreign_seqs = node.reconciler.seqs(now);
        if let Some(pool) = self.pools.get_mut(node.pool.index()) {
            let (before, was_absent) = (node.contribution, pool.is_dormant() || pool.is_away());
            pool.rank(id, node, now, &rules);
            node.contribution = node.contribute(pool, now, &rules);
            pool.counts.replace(before, node.contribution);
            let after = node.contribution;
            self.open.set(node.pool.index(), !pool.free.is_empty() || !pool.background.is_empty());
            self.turns += u64::from(after.up != before.up);
            self.empty_pools |= before.up > after.up && pool.counts.up == 0;
            self.risen_pools |= after.up > before.up && pool.counts.up == 1;
            self.can_wake = self.can_wake + after.can_wake - before.can_wake;
            self.dormant_pools |= (pool.is_dormant() || pool.is_away()) && !was_absent;
            self.shown[node.pool.index()] = pool.shown();
            node.arm(now);
        }
        let presence = node.presence(now, &rules);
        if let Some(account) = self.accounts.get_mut(node.pool.index()).filter(|_| node.accounted != presence)
        {
            account.recount(now, node.accounted, presence);
            node.accounted = presence;
        }
        let wake = node.next_wake(now, &rules);
        if node.next_timer != wake {
            if let Some(before) = node.next_timer {
                self.timers.remove(&(before, id));
            }
            self.timers.extend(wake.map(|at| (at, id)));
            node.next_timer = wake;
        }
        if !node.present && node.ledger.jobs == 0 {
            self.drop_adapters(id);
            self.replicas[id.index()] = None;
        }
    }
}
