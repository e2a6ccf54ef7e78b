//! Fleet: every replica with its ledger, its state and its free capacity.

mod adapters;
mod bottleneck;
mod contribution;
mod outage;
mod pool_state;
mod prefill;
mod replica_parts;
mod replica_state;
mod reserved_replicas;
mod search;
mod sleep;
mod utilization;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::billing::meter::{MeteredAttempt, decode_weight};
use crate::billing::pool_account::{PoolAccounts, ReplicaPresence};
use crate::model::bit_set::BitSet;
use crate::model::event::ReplicaReport;
use crate::model::ids::{ModelId, PoolId, ReplicaId};
use crate::model::number_map::NumberMap;
use crate::model::overrides::Closed;
use crate::model::policy::{HealthPolicy, Policy, Replica};
use crate::model::time::Tick;
use crate::replica::health::ReplicaHealth;
use crate::replica::ledger::{Booking, Ledger};
use crate::replica::reconcile::{LedgerView, ReconcileFinding};
use crate::replica::speed::pool_best::PoolBest;
use crate::replica::speed::step_time;
use crate::replica::speed::ttft_model::TtftModel;

use crate::replica::fleet::contribution::PoolCounts;
pub use crate::replica::fleet::pool_state::{ActiveObjective, LatencyObjective};
pub use crate::replica::fleet::prefill::load::PrefillMark;
pub use crate::replica::fleet::search::requirements::{ReplicaMatch, ReplicaRequirements, SessionReplica};

use crate::replica::fleet::pool_state::{PoolState, PoolSummary};
use crate::replica::fleet::replica_state::ReplicaState;

/// Load of a replica at the moment of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaLoad {
    /// Outstanding work in tokens.
    pub work: u64,
    /// Sequences that run there.
    pub running: u32,
    pub limit: u32,
    /// See [`ReplicaHealth::epoch`].
    pub epoch: u32,
}

/// What a new policy does to replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaChanges {
    /// Replicas that are no longer in the policy.
    pub left: Vec<ReplicaId>,
    /// Replicas that the new policy starts to drain.
    pub draining: Vec<ReplicaId>,
    /// Whether a replica went from one pool to another.
    pub moved: bool,
}

/// The replica's row in the policy, if the policy has its pool, too.
fn served(policy: &Policy, id: ReplicaId) -> Option<&Replica> {
    policy.replicas.get(id).filter(|row| policy.pools.get(row.pool).is_some())
}

/// All replicas of the policy, and removed ones that still run jobs.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    rules: HealthPolicy,
    replicas: Vec<Option<ReplicaState>>,
    pools: Vec<PoolState>,
    summaries: Vec<PoolSummary>,
    /// Pools with a replica that can take a job, urgent or background.
    open: BitSet,
    /// Number of times that a replica came into service or left it.
    service_changes: u64,
    pub accounts: PoolAccounts,
    timers: BTreeSet<(Tick, ReplicaId)>,
    chosen: u64,
    /// Replicas that have each adapter loaded.
    holders: NumberMap<ModelId, Vec<ReplicaId>>,
    /// Replicas that sleep and can be woken.
    can_wake: u32,
    /// True when a pool has become dormant or was scaled to zero since the last call of
    /// [`Self::take_dormant_pools`].
    dormant_pools: bool,
    /// True when a pool has lost its last replica in service since the last call of
    /// [`Self::take_empty_pools`].
    empty_pools: bool,
    /// True when a pool has got its first replica in service since the last call of
    /// [`Self::take_revived_pools`].
    revived_pools: bool,
    /// Replicas of which everything derived was updated.
    #[cfg(test)]
    refreshes: u64,
}

/// Findings from a replica's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportResult {
    /// Difference between the report and the ledger.
    pub finding: ReconcileFinding,
    /// True when the engine fell asleep without an order.
    pub fell_asleep: bool,
}

impl Fleet {
    /// Takes over a policy, where `before` was in force. New replicas get a slow start, except those
    /// of the first policy. Removed replicas get no more jobs and are forgotten when they run
    /// nothing. A replica that the policy does not change costs a comparison.
    pub fn apply(&mut self, before: &Policy, policy: &Policy, now: Tick) -> ReplicaChanges {
        let first = self.pools.is_empty();
        let all = std::mem::replace(&mut self.rules, policy.health) != policy.health;
        let pools = self.renew_pools(before, policy);
        self.accounts.apply(policy, now);
        if self.replicas.len() < policy.replicas.capacity() {
            self.replicas.resize(policy.replicas.capacity(), None);
        }
        let mut changes = ReplicaChanges::default();
        for index in 0..self.replicas.len() {
            let id = ReplicaId::from(index);
            let (row, drains) = (served(policy, id), policy.draining.contains(&id));
            if let Some(row) = row {
                self.pools[row.pool.index()].members.push(id);
            }
            let pool = row.map(|row| row.pool).or_else(|| self.pool_of(id));
            let is_changed = first
                || all
                || pool.is_some_and(|pool| pools.contains(pool.index()))
                || (row, drains) != (served(before, id), before.draining.contains(&id));
            if !is_changed {
                continue;
            }
            match row {
                Some(row) => {
                    self.configure(id, row, first, now, &mut changes);
                    self.configure_adapters(id, policy);
                    let node = self.replicas[index].as_mut();
                    let starts =
                        node.is_some_and(|node| !std::mem::replace(&mut node.config.leaving, drains));
                    changes.draining.extend((drains && starts).then_some(id));
                }
                None => self.remove(id, &mut changes),
            }
            self.refresh(id, now);
        }
        changes
    }

    /// Takes over a replica's row in the policy.
    fn configure(
        &mut self,
        id: ReplicaId,
        row: &Replica,
        first: bool,
        now: Tick,
        changes: &mut ReplicaChanges,
    ) {
        if self.pool_of(id).is_some_and(|pool| pool != row.pool) {
            changes.moved = true;
            self.leave_pool(id, now);
        }
        let node = self.replicas[id.index()].get_or_insert_with(|| ReplicaState::new(row.pool));
        if !node.config.present && !first {
            node.join(now);
        }
        (node.config.present, node.pool) = (true, row.pool);
        (node.config.seqs, node.config.kv_tokens) = (row.max_seqs, row.kv_tokens);
        let pool = &mut self.pools[row.pool.index()];
        node.config.idle_after = pool.sleep.map(|rules| rules.after_idle);
        node.speed.rank(&mut pool.speeds);
    }

    /// Takes note that the policy no longer has the replica.
    fn remove(&mut self, id: ReplicaId, changes: &mut ReplicaChanges) {
        let Some(node) = self.replicas[id.index()].as_mut().filter(|node| node.config.present) else {
            return;
        };
        node.config.present = false;
        changes.left.push(id);
        if let Some(pool) = self.pools.get_mut(node.pool.index()) {
            pool.speeds.move_replica(node.speed.bin.take(), None);
        }
    }

    /// Takes a replica out of everything that its pool holds of it.
    fn leave_pool(&mut self, id: ReplicaId, now: Tick) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let accounted = std::mem::take(&mut node.indexed.accounted);
        self.accounts.change_presence(node.pool, now, accounted, ReplicaPresence::default());
        let Some(pool) = self.pools.get_mut(node.pool.index()) else { return };
        let counted = std::mem::take(&mut node.indexed.contribution);
        pool.counts.replace(counted, PoolCounts::default());
        pool.speeds.move_replica(node.speed.bin.take(), None);
        for (tree, slot) in pool.trees_mut().into_iter().zip(&mut node.indexed.slots) {
            *slot = tree.put(*slot, None);
        }
        self.can_wake -= counted.can_wake;
        self.empty_pools |= counted.up > 0 && pool.counts.up == 0;
        self.open.set(node.pool.index(), pool.is_open());
        self.summaries[node.pool.index()] = pool.summary();
    }

    /// Pool of a known replica.
    pub fn pool_of(&self, id: ReplicaId) -> Option<PoolId> {
        self.node(id).map(|node| node.pool)
    }

    pub fn load(&self, id: ReplicaId, now: Tick) -> Option<ReplicaLoad> {
        let node = self.node(id)?;
        let (work, running) = (node.ledger.work(), node.ledger.seqs);
        let limit = node.limit(self.pools.get(node.pool.index())?, now, &self.rules);
        Some(ReplicaLoad { work, running, limit, epoch: node.health.epoch() })
    }

    /// Number of times that the replica came back; see [`ReplicaHealth::epoch`].
    pub fn epoch(&self, id: ReplicaId) -> Option<u32> {
        self.node(id).map(|node| node.health.epoch())
    }

    /// Sequences that the replicas in service of these pools may have.
    pub fn capacity(&self, pools: &[PoolId]) -> u64 {
        self.pools(pools).map(|pool| pool.counts.capacity).sum()
    }

    /// Holds a replica for one job, or releases it.
    pub fn set_held(&mut self, id: ReplicaId, held: bool, now: Tick) {
        self.change(id, now, |node| node.admission.held = held);
    }

    /// Closes a replica to new jobs, or opens it again with a slow start.
    pub fn set_closed(&mut self, id: ReplicaId, closed: Option<Closed>, now: Tick) {
        self.change(id, now, |node| {
            if node.admission.closed.is_some() && closed.is_none() {
                node.health.slow_start(now);
            }
            node.admission.closed = closed;
        });
    }

    /// Operator's override that closes the replica, if any.
    pub fn closed(&self, id: ReplicaId) -> Option<Closed> {
        self.node(id)?.admission.closed
    }

    /// Books a job that is dispatched to the replica. `weight` is the job's weight in the replica's
    /// time.
    pub fn book(&mut self, id: ReplicaId, booking: &Booking, weight: u64, now: Tick) -> MeteredAttempt {
        self.chosen += 1;
        let chosen = self.chosen;
        self.take_adapter(id, booking);
        self.refresh_one_more(id, now);
        let metered = self.change(id, now, |node| {
            node.ledger.add(booking);
            node.count_class(booking, true);
            node.health.sent(now);
            node.sent.add(booking, chosen);
            node.meter.enter(now, weight)
        });
        metered.unwrap_or_default()
    }

    /// Notes the job's first token. Returns false when the job's booking is not there.
    pub fn start(
        &mut self,
        id: ReplicaId,
        booking: &mut Booking,
        metered: &mut MeteredAttempt,
        now: Tick,
    ) -> bool {
        let whole = self.change(id, now, |node| {
            // The weight of a plain answer is that of its whole attempt.
            if booking.streams {
                node.meter.reweigh(now, metered, decode_weight(booking.seqs));
            }
            let whole = node.ledger.remove(booking);
            node.stall.detector.note_sign(now);
            node.health.answered(now);
            node.health.note_proof();
            (booking.started, booking.prefilled, booking.due) = (true, true, true);
            if whole {
                node.ledger.add(booking);
            }
            whole
        });
        whole.unwrap_or(false)
    }

    /// Notes that the engine finished a job, which proves that it works. The derived state of the
    /// replica is updated when the job is released.
    pub fn note_proof(&mut self, id: ReplicaId, now: Tick) {
        let node = self.replicas.get_mut(id.index()).and_then(Option::as_mut);
        if let Some(node) = node.filter(|node| node.config.present) {
            node.health.answered(now);
            node.health.note_proof();
        }
    }

    /// Releases the job. Returns whether its booking was there, and the job's part of the replica's
    /// time.
    pub fn release(
        &mut self,
        id: ReplicaId,
        booking: &Booking,
        metered: &MeteredAttempt,
        now: Tick,
    ) -> (bool, Duration) {
        let slots = self.give_back_adapter(id, booking);
        let gone = self.change(id, now, |node| {
            node.count_class(booking, false);
            (node.ledger.remove(booking), node.meter.leave(now, metered))
        });
        let (whole, time) = gone.unwrap_or_default();
        (whole && slots, time)
    }

    /// Changes the replica's health; `None` when the replica is unknown or no longer in the policy.
    pub fn change_health<T>(
        &mut self,
        id: ReplicaId,
        now: Tick,
        act: impl FnOnce(&mut ReplicaHealth, &HealthPolicy) -> T,
    ) -> Option<T> {
        self.node(id).filter(|node| node.config.present)?;
        let rules = self.rules;
        self.change(id, now, |node| act(&mut node.health, &rules))
    }

    /// Takes over an engine's own report.
    pub fn report(&mut self, id: ReplicaId, report: ReplicaReport, now: Tick) -> Option<ReportResult> {
        let index = self.node(id)?.pool.index();
        let slots = self.pools.get(index).map(|pool| pool.slots).unwrap_or_default();
        let result = self.change(id, now, |node| {
            slots.shown.into_iter().for_each(|shown| node.limits.seqs.start_with(shown, &report));
            node.limits.seqs.learn(&report, &node.ledger, node.reported.remote_seqs, slots.buffer);
            node.limits.shared_kv.learn(&report, node.kv(), node.ledger.kv_prompts);
            if node.stall.gauges.update(&report) {
                node.stall.detector.note_sign(now);
            }
            node.reported.note(report, now);
            node.sleep.note_progress(node.ledger.jobs, node.sent.seqs, report.progress);
            let fell_asleep = report.asleep.is_some_and(|asleep| node.sleep.report(now, asleep));
            let own = LedgerView {
                seqs: node.ledger.seqs,
                sent: node.sent.seqs,
                elsewhere: node.reported.remote_seqs,
            };
            ReportResult { finding: node.reported.reconciler.report(now, &report, own), fell_asleep }
        });
        let shown = self.node(id).and_then(|node| node.limits.seqs.shown());
        if let Some(pool) = self.pools.get_mut(index) {
            pool.slots.shown = shown.or(pool.slots.shown);
        }
        result
    }

    /// Nanoseconds per token of a prompt's weight, at a replica of median speed in the fastest of
    /// the pools.
    pub fn per_token(&self, pools: &[PoolId]) -> f64 {
        let each = self.summary(pools).map(|pool| pool.slowness);
        let fastest = each.min_by(f64::total_cmp).unwrap_or(1.0);
        step_time::ttft_model(&Ledger::default()).slowed(fastest).per_token as f64
    }

    /// Best TTFT, ITL and prefill rate that the pool has shown.
    pub fn best(&self, pool: PoolId) -> PoolBest {
        self.pools.get(pool.index()).map_or_else(PoolBest::default, |pool| pool.bests.best())
    }

    /// TTFT model of a replica of speed factor 1 with this replica's ledger.
    pub fn reference_ttft_model(&self, id: ReplicaId) -> Option<TtftModel> {
        self.node(id).map(|node| step_time::ttft_model(&node.ledger))
    }

    /// Sets the objective of the most urgent class that uses the pool.
    pub fn set_objective(&mut self, pool: PoolId, promise: ActiveObjective, now: Tick) {
        let Some(state) = self.pools.get_mut(pool.index()).filter(|state| state.objective != promise) else {
            return;
        };
        state.objective = promise;
        for member in state.members.clone() {
            self.refresh(member, now);
        }
    }

    /// Replica whose timer is due, if there is one.
    pub fn due(&mut self, now: Tick) -> Option<ReplicaId> {
        let &(at, id) = self.timers.first()?;
        (at <= now).then_some(id)
    }

    /// Time of the next timer.
    pub fn next_wake(&self) -> Option<Tick> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Nodes of the search trees that were visited.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        self.pools.iter().map(|pool| pool.visits()).sum()
    }

    /// Number of updates of replicas.
    #[cfg(test)]
    pub(crate) const fn refreshes(&self) -> u64 {
        self.refreshes
    }

    fn node(&self, id: ReplicaId) -> Option<&ReplicaState> {
        self.replicas.get(id.index())?.as_ref()
    }

    fn pools<'a>(&'a self, pools: &'a [PoolId]) -> impl Iterator<Item = &'a PoolState> {
        pools.iter().filter_map(|pool| self.pools.get(pool.index()))
    }

    fn summary<'a>(&'a self, pools: &'a [PoolId]) -> impl Iterator<Item = &'a PoolSummary> {
        pools.iter().filter_map(|pool| self.summaries.get(pool.index()))
    }

    /// Whether the summary of each pool is up to date.
    pub fn summary_is_consistent(&self) -> bool {
        self.pools.iter().map(PoolState::summary).eq(self.summaries.iter().copied())
    }

    fn change<T>(&mut self, id: ReplicaId, now: Tick, act: impl FnOnce(&mut ReplicaState) -> T) -> Option<T> {
        let result = act(self.replicas.get_mut(id.index())?.as_mut()?);
        self.refresh(id, now);
        Some(result)
    }

    /// Updates one other replica of the pool, each in turn. The predictions of a replica depend on
    /// what others have shown, and on time.
    fn refresh_one_more(&mut self, id: ReplicaId, now: Tick) {
        let turn = self.chosen as usize;
        let members = self.pool_of(id).and_then(|pool| self.pools.get(pool.index()));
        let next = members.and_then(|pool| pool.members.get(turn % pool.members.len().max(1)).copied());
        next.into_iter().filter(|next| *next != id).for_each(|next| self.refresh(next, now));
    }

    /// Updates everything that is derived from a replica.
    fn refresh(&mut self, id: ReplicaId, now: Tick) {
        #[cfg(test)]
        {
            self.refreshes += 1;
        }
        let rules = self.rules;
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        node.reported.external_seqs =
            node.reported.remote_seqs.saturating_add(node.reported.reconciler.external_seqs(now));
        if let Some(pool) = self.pools.get_mut(node.pool.index()) {
            let (before, was_absent) =
                (node.indexed.contribution, pool.is_dormant() || pool.is_scaled_to_zero());
            node.rank_in(pool, id, now, &rules);
            node.indexed.contribution = node.contribute(pool, now, &rules);
            pool.counts.replace(before, node.indexed.contribution);
            let after = node.indexed.contribution;
            self.open.set(node.pool.index(), pool.is_open());
            self.service_changes += u64::from(after.up != before.up);
            self.empty_pools |= before.up > after.up && pool.counts.up == 0;
            self.revived_pools |= after.up > before.up && pool.counts.up == 1;
            self.can_wake = self.can_wake + after.can_wake - before.can_wake;
            self.dormant_pools |= (pool.is_dormant() || pool.is_scaled_to_zero()) && !was_absent;
            self.summaries[node.pool.index()] = pool.summary();
            node.arm(now);
        }
        let presence = node.presence(now, &rules);
        let before = node.indexed.accounted;
        if before != presence && self.accounts.change_presence(node.pool, now, before, presence) {
            node.indexed.accounted = presence;
        }
        let wake = node.next_wake(now, &rules);
        if node.indexed.next_timer != wake {
            if let Some(before) = node.indexed.next_timer {
                self.timers.remove(&(before, id));
            }
            self.timers.extend(wake.map(|at| (at, id)));
            node.indexed.next_timer = wake;
        }
        if !node.config.present && node.ledger.jobs == 0 {
            self.drop_adapters(id);
            self.replicas[id.index()] = None;
        }
    }
}
