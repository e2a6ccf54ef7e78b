//! Sleep: puts idle replicas to sleep and wakes them when jobs want them.
//!
//! A replica sleeps when it has been idle for as long as its pool's rules say,
//! nothing waits that could go there, nobody else uses it, and enough others of
//! its pool are awake. It is woken when jobs wait that those awake do not take:
//! at once where none is awake, else after a moment, since jobs also wait for
//! prefills to end. As many are woken as take what waits. Each stays awake
//! for the idle time at least.
//!
//! A pool of which nothing is awake holds its jobs like one that has to start.

use std::time::Duration;

use crate::model::event::{Action, EngineFault, ReplicaAction, ReplicaReport};
use crate::model::ids::{GroupIndex, ReplicaId};
use crate::model::reason::PreemptReason;
use crate::queue::order::RoomIn;
use crate::replica::health::sleep::{SleepChange, SleepDue, SleepResult};
use crate::replica::reconcile::ReconcileFinding;

use crate::scheduler::Scheduler;

/// Wait after which a job wakes a further replica. A shorter wait may only be a wait for the end
/// of a prefill.
const WAKE_DELAY: Duration = Duration::from_millis(250);

impl Scheduler {
    /// A replica's own view arrived.
    pub(in crate::scheduler) fn reported(
        &mut self,
        replica: ReplicaId,
        report: ReplicaReport,
        out: &mut Vec<Action>,
    ) {
        let Some(seen) = self.fleet.report(replica, report, self.now) else { return };
        if seen.finding == ReconcileFinding::Restarted || seen.fell_asleep {
            self.affinity.prefixes.forget(replica);
            self.fleet.forget_adapters(replica, self.now);
        }
        if let Some(tokens) = report.kv_tokens {
            self.affinity.prefixes.resize(replica, tokens);
        }
        if let Some(cached) = report.cached_tokens {
            self.affinity.prefixes.learn_count(replica, cached);
            self.fleet.allow_overcommit(replica, self.affinity.prefixes.is_proven(replica), self.now);
        }
        if seen.fell_asleep {
            self.preempt_all(replica, PreemptReason::Asleep, out);
            if self.fleet.has_work_asleep(replica) {
                self.wake(replica, out);
            }
            self.vain_waits_possible = true;
        }
        self.mark_replica(replica);
    }

    /// What came of an order to sleep or to wake.
    pub(in crate::scheduler) fn sleep_answered(
        &mut self,
        replica: ReplicaId,
        sleep_result: SleepResult,
        out: &mut Vec<Action>,
    ) {
        let turn = self.fleet.sleep_answered(replica, sleep_result, self.now);
        self.follow_sleep(replica, turn, out);
    }

    /// A replica has been idle for long, or an order has gone without an answer.
    pub(in crate::scheduler) fn check_sleep(&mut self, replica: ReplicaId, out: &mut Vec<Action>) {
        match self.fleet.sleep_due(replica, self.now) {
            Some(SleepDue::Idle) if self.may_sleep(replica) => {
                self.fleet.order_sleep(replica, self.now);
                self.affinity.prefixes.forget(replica);
                out.push(Action::Replica(ReplicaAction::Sleep { replica }));
            }
            Some(SleepDue::Idle) => self.fleet.stay_awake(replica, self.now),
            Some(SleepDue::Unanswered) => {
                let turn = self.fleet.give_up_sleep(replica, self.now);
                self.follow_sleep(replica, turn, out);
            }
            None => {}
        }
    }

    /// Wakes what the group's jobs need that those awake do not take.
    pub(in crate::scheduler) fn wake_for(&mut self, group: GroupIndex, out: &mut Vec<Action>) {
        if !self.fleet.has_sleepers() || self.groups[group].waiting() == 0 {
            return;
        }
        let room = RoomIn::Matching(&|pools| self.fleet.can_wake(pools));
        let Some(first) = self.groups[group].first(room, &|_| false) else { return };
        let Some(job) = self.jobs.get(&first.head.job) else { return };
        let pools = self.groups[group].shape.pool_set(first.pool_set).pools.clone();
        let soon = self.fleet.count_up(&pools) > 0 && job.queued(self.now) < WAKE_DELAY;
        if soon || !self.allows(group, job.spec.tenant, job.spec.sequences) {
            return;
        }
        let waiting = pools.iter().map(|pool| self.groups[group].waiting_for(*pool)).max().unwrap_or(0);
        while self.fleet.waking_seqs(&pools) < waiting
            && let Some(replica) = self.fleet.sleeper(&pools)
        {
            self.wake(replica, out);
        }
    }

    /// Wakes pools that a job wanted which could not be held for as long as
    /// that takes.
    pub(in crate::scheduler) fn wake_wanted(&mut self, out: &mut Vec<Action>) {
        for pool in self.demand.starts.take_wake_wanted() {
            if self.fleet.is_dormant(pool)
                && self.fleet.waking_seqs(&[pool]) == 0
                && let Some(replica) = self.fleet.sleeper(&[pool])
            {
                self.wake(replica, out);
            }
        }
    }

    /// Follows pools that lost their last replica in service or got their first:
    /// what waits for those that have just gone to sleep is held, and so is what
    /// has joined those that start while a replica of theirs was there for a
    /// moment.
    pub(in crate::scheduler) fn follow_pools(&mut self, out: &mut Vec<Action>) {
        let (dormant, empty) = (self.fleet.take_dormant_pools(), self.fleet.take_empty_pools());
        if empty | self.fleet.take_revived_pools() {
            self.groups.mark_halted(&self.fleet, self.now);
        }
        if dormant || (empty && self.demand.starts.is_any_running()) {
            self.renew_pool_start_waits(out);
        }
    }

    fn may_sleep(&self, replica: ReplicaId) -> bool {
        let Some(pool) = self.fleet.pool_of(replica) else { return false };
        let Some(rules) = self.policy.pools.get(pool).and_then(|row| row.sleep) else { return false };
        let wanted = self.draining || self.waiting_for(pool) > 0 || self.demand.starts.is_running(pool);
        !wanted && self.fleet.may_sleep(replica, &rules, self.now)
    }

    fn wake(&mut self, replica: ReplicaId, out: &mut Vec<Action>) {
        let Some(pool) = self.fleet.pool_of(replica) else { return };
        let Some(rules) = self.policy.pools.get(pool).and_then(|row| row.sleep) else { return };
        self.fleet.order_wake(replica, &rules, self.now);
        self.demand.starts.note_wake_order(pool, self.now);
        out.push(Action::Replica(ReplicaAction::Wake { replica, waiting: self.waiting_for(pool) }));
    }

    fn follow_sleep(&mut self, replica: ReplicaId, turn: SleepChange, out: &mut Vec<Action>) {
        match (turn, self.fleet.pool_of(replica)) {
            (SleepChange::Woke(took), Some(pool)) => self.demand.starts.note_woken(pool, took),
            (SleepChange::Stuck, _) => self.eject(replica, EngineFault::Refused, out),
            (SleepChange::Nothing | SleepChange::Woke(_), _) => {}
        }
        self.mark_replica(replica);
    }
}
