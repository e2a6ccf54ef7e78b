//! Pool starts: the waits of jobs for pools that have no replica in service yet.
//!
//! A pool is cold when the policy gives it no replica, and stays cold until a replica is in
//! service. A pool whose replicas all fail is not cold. Exception: the policy says that the
//! pool's addresses stay while it is scaled to zero, and nothing answers at any of them. A pool
//! whose replicas sleep is like a cold pool that starts when they are woken.
//!
//! When all pools of a job are cold, the job waits for its class's `cold_start_tolerance`,
//! counted from the start of this wait, and never beyond its deadline. When the known start time
//! of its pools is longer than that, the job is refused at once.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::autoscale::pool_start::StartStep;
use crate::model::event::{Action, RejectReason, ReplicaAction};
use crate::model::ids::{JobId, PoolId};
use crate::model::snapshot::{PoolSnapshot, PoolStatus, ReplicaSnapshot};
use crate::model::time::Tick;
use crate::queue::drain::retry_after;
use crate::queue::lane_key::LaneKey;

use crate::scheduler::Scheduler;
use crate::scheduler::job::RunningAttempt;

/// The pool start that a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scheduler) enum AwaitedPoolStart {
    /// It waits for none.
    None,
    /// Nobody knows how long the start takes.
    Unknown,
    /// A replica is expected in this time; zero when it is overdue, or has just come.
    In(Duration),
}

impl AwaitedPoolStart {
    /// The time left, if it is known.
    pub(in crate::scheduler) const fn left(self) -> Option<Duration> {
        match self {
            Self::In(left) => Some(left),
            Self::None | Self::Unknown => None,
        }
    }
}

impl Scheduler {
    /// Begins the wait for a pool start of a job that has just joined its lane, if all of its pools are cold. When a replica
    /// of a starting pool fails the job, the job's earlier wait goes on.
    pub(in crate::scheduler) fn await_pool_start(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (spec, earlier) = (job.spec, job.wait.pool_start_until);
        if self.is_scavenger(spec.class) {
            return;
        }
        let key = LaneKey::of(&spec);
        let goes_on = earlier.filter(|_| self.is_starting(key));
        let cold = self.cold_pools(key);
        if cold.is_none() && goes_on.is_none() {
            return;
        }
        for pool in cold.unwrap_or_default() {
            let dormant = self.fleet.is_dormant(pool);
            if dormant {
                let parked = self.overrides.paused_until(spec.tenant).is_some();
                if !parked {
                    self.demand.starts.note_wake_wanted(pool);
                }
            } else {
                self.demand.starts.note_wanted(pool, self.configured_start(pool), self.now);
            }
            self.demand.starts.note_waiting(pool, dormant, self.now);
        }
        let tolerance = self.policy.classes.get(spec.class).and_then(|class| class.cold_start_tolerance);
        let fresh = tolerance.map_or(Tick::NEVER, |tolerance| self.now + tolerance);
        let until = goes_on.unwrap_or(fresh).min(spec.deadline);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.wait.pool_start_until = Some(until);
        }
        if until < spec.deadline {
            self.timers.pool_start_waits.add(until, id);
        }
    }

    /// Whether the job waits for a pool that has to start.
    pub fn waits_for_pool_start(&self, id: JobId) -> bool {
        let job = self.jobs.get(&id).filter(|job| job.part().is_some());
        job.is_some_and(|job| self.cold_pools(LaneKey::of(&job.spec)).is_some())
    }

    /// Ends the job's wait for a pool start. When no other job waits for a pool, its pool start is given up.
    pub(in crate::scheduler) fn end_pool_start_wait(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let Some(until) = job.wait.pool_start_until else { return };
        let key = LaneKey::of(&job.spec);
        self.timers.pool_start_waits.cancel(until, id);
        let group = self.placement.group_of_model(key.model);
        let (Some(group), Some(pools)) = (group, self.cold_pools(key)) else { return };
        for pool in pools {
            if self.groups[group].waiting_for(pool) == 0 {
                self.give_up_start(pool);
            }
        }
    }

    /// The pool start that the lane's jobs wait for, the soonest if there are several.
    pub(in crate::scheduler) fn awaited_pool_start(&self, key: LaneKey) -> AwaitedPoolStart {
        let Some(pool_set) = self.placement.pool_set(key) else { return AwaitedPoolStart::None };
        if self.fleet.count_up(&pool_set.pools) > 0 {
            return match self.is_starting(key) {
                true => AwaitedPoolStart::In(Duration::ZERO),
                false => AwaitedPoolStart::None,
            };
        }
        let left = |pool: PoolId| match self.fleet.is_dormant(pool) {
            true => self.demand.starts.wake_left(pool, self.now),
            false => self.demand.starts.start_left(pool, self.configured_start(pool), self.now),
        };
        let Some(cold) = self.cold_pools(key) else { return AwaitedPoolStart::None };
        cold.into_iter().filter_map(left).min().map_or(AwaitedPoolStart::Unknown, AwaitedPoolStart::In)
    }

    /// Whether the pool start surely takes longer than the job can wait; `None` while the job
    /// waits for no start.
    pub(in crate::scheduler) fn pool_start_exceeds_wait(&self, id: JobId) -> Option<bool> {
        let job = self.jobs.get(&id)?;
        let until = job.wait.pool_start_until.unwrap_or(job.spec.deadline);
        match self.awaited_pool_start(LaneKey::of(&job.spec)) {
            AwaitedPoolStart::None => None,
            AwaitedPoolStart::Unknown => Some(false),
            AwaitedPoolStart::In(left) => Some(left > until.since(self.now)),
        }
    }

    /// `Retry-After` of a job that waits for a pool start; `None` while it waits for none.
    pub(in crate::scheduler) fn retry_after_pool_start(&self, key: LaneKey, id: JobId) -> Option<Duration> {
        match self.awaited_pool_start(key) {
            AwaitedPoolStart::None => None,
            AwaitedPoolStart::Unknown => Some(retry_after::MAX_RETRY_AFTER),
            AwaitedPoolStart::In(left) => Some(retry_after::retry_after_start(left, id)),
        }
    }

    /// The reason of a refusal after a wait in vain: a cold start or a pause if there is one, else
    /// `usual`.
    pub(in crate::scheduler) fn wait_reason(&self, id: JobId, usual: RejectReason) -> RejectReason {
        let Some(job) = self.jobs.get(&id) else { return usual };
        let cold = self.cold_pools(LaneKey::of(&job.spec)).is_some();
        self.reason_for(job.spec.tenant, if cold { RejectReason::ColdStart } else { usual })
    }

    /// Forgets the wait of a job for a pool start, at its end, unless the job's pools are still cold. Returns whether
    /// they are.
    pub(in crate::scheduler) fn end_pool_start_wait_unless_cold(&mut self, until: Tick, id: JobId) -> bool {
        let key = self.jobs.get(&id).map(|job| LaneKey::of(&job.spec));
        let cold = key.is_some_and(|key| self.cold_pools(key).is_some());
        if !cold {
            self.timers.pool_start_waits.cancel(until, id);
        }
        cold
    }

    /// Ends the pool start under way when a first token comes. The drain rate restarts: the
    /// rate while no replica was in service says nothing about the rate from now on.
    pub(in crate::scheduler) fn note_pool_start(&mut self, run: &RunningAttempt) {
        let Some(pool) = self.fleet.pool_of(run.replica) else { return };
        if self.demand.starts.note_first_token(pool, run.since, self.now)
            && let Some(group) = self.placement.group_of(pool)
        {
            self.groups[group].forget_drain_rates(self.now);
            // Its replica may be closed or gone again.
            self.vain_waits_possible = true;
        }
    }

    /// Gives up the pool start when a running job was abandoned and no other job waits for the pool:
    /// nobody knows when the next one comes.
    pub(in crate::scheduler) fn note_abandoned(&mut self, run: &RunningAttempt) {
        let Some(pool) = self.fleet.pool_of(run.replica) else { return };
        if self.demand.starts.is_running(pool) && self.waiting_for(pool) == 0 {
            self.give_up_start(pool);
        }
    }

    /// Renews all waits for pool starts, after a reload or a change of the pools in service. Jobs whose pools
    /// have gone cold wait for a start from now on, or are refused at once.
    pub(in crate::scheduler) fn renew_pool_start_waits(&mut self, out: &mut Vec<Action>) {
        let policy = &self.policy;
        self.demand.starts.retain(|pool| policy.pools.get(pool).is_some());
        self.timers.pool_start_waits.clear();
        let starts = |pool| self.is_cold(pool) || self.demand.starts.is_running(pool);
        let waiting: Vec<JobId> = if self.policy.pools.iter().any(|(pool, ..)| starts(pool)) {
            self.timers.deadlines.iter().map(|(_, id)| id).collect()
        } else {
            Vec::new()
        };
        for id in waiting {
            let before = self.jobs.get(&id).and_then(|job| job.wait.pool_start_until);
            self.await_pool_start(id);
            let newly = before.is_none() && self.pool_start_exceeds_wait(id) == Some(true);
            if newly && !self.demote(id) {
                self.reject(id, self.wait_reason(id, RejectReason::ColdStart), out);
            }
        }
        let pools = self.policy.pools.iter().map(|(pool, ..)| pool);
        let idle: Vec<PoolId> = pools.filter(|pool| self.waiting_for(*pool) == 0).collect();
        idle.into_iter().for_each(|pool| self.give_up_start(pool));
    }

    /// Gives up the start of a pool for which no job waits. If the pool is then no longer cold,
    /// jobs with a fallback model are refused instead of waiting for it.
    fn give_up_start(&mut self, pool: PoolId) {
        self.vain_waits_possible |= self.demand.starts.give_up(pool);
    }

    /// Emits an action for each pool start that began or ended.
    pub(in crate::scheduler) fn report_pool_starts(&mut self, out: &mut Vec<Action>) {
        for step in self.demand.starts.take_steps() {
            out.push(match step {
                StartStep::Wanted(pool) => {
                    let expected = self.demand.starts.start_left(pool, self.configured_start(pool), self.now);
                    Action::Replica(ReplicaAction::PoolWanted { pool, expected })
                }
                StartStep::Started(pool, took) => Action::Replica(ReplicaAction::PoolStarted { pool, took }),
            });
        }
    }

    /// One row for each pool.
    pub(in crate::scheduler) fn pool_snapshots(
        &self,
        replicas: &[ReplicaSnapshot],
        now: Tick,
    ) -> Vec<PoolSnapshot> {
        let leaves = |view: &&ReplicaSnapshot| view.running > 0 && !self.fleet.is_up(view.replica);
        let left = replicas.iter().filter(leaves).filter_map(|view| self.fleet.pool_of(view.replica));
        let left: BTreeSet<PoolId> = left.collect();
        let view = |pool: PoolId| PoolSnapshot {
            pool,
            state: self.pool_state(pool, left.contains(&pool)),
            waiting: self.waiting_for(pool),
            cold_start: self.demand.starts.measured(pool),
            wake: self.demand.starts.wake(pool),
            best: self.fleet.best(pool),
            times: self.fleet.accounts.times(pool, now),
        };
        self.policy.pools.iter().map(|(pool, ..)| view(pool)).collect()
    }

    /// Status of a pool. `busy`: replicas that get no new work still run jobs.
    fn pool_state(&self, pool: PoolId, busy: bool) -> PoolStatus {
        if self.demand.starts.is_running(pool) {
            PoolStatus::Starting
        } else if self.fleet.count_up(&[pool]) > 0 {
            PoolStatus::Ready
        } else if self.fleet.is_dormant(pool) {
            PoolStatus::Asleep
        } else if !self.fleet.is_vacant(pool) && !self.fleet.is_scaled_to_zero(pool) {
            PoolStatus::Down
        } else if busy {
            PoolStatus::Draining
        } else {
            PoolStatus::Cold
        }
    }

    /// Invariant: each job that waits for a pool start has such a wait, and no other job has its
    /// timer.
    pub(in crate::scheduler) fn pool_start_waits_are_consistent(&self) -> bool {
        let waits = |id: &JobId| self.jobs.get(id).filter(|job| job.part().is_some());
        let timed =
            |(at, id): (Tick, JobId)| waits(&id).is_some_and(|job| job.wait.pool_start_until == Some(at));
        let mut waiting = self.timers.deadlines.iter().filter_map(|(_, id)| Some((id, waits(&id)?)));
        let watched = waiting.all(|(id, job)| {
            let until = job.wait.pool_start_until.unwrap_or(Tick::NEVER);
            self.is_scavenger(job.spec.class)
                || self.cold_pools(LaneKey::of(&job.spec)).is_none()
                || (job.wait.pool_start_until.is_some()
                    && (until >= job.spec.deadline || self.timers.pool_start_waits.contains(until, id)))
        });
        watched && self.timers.pool_start_waits.iter().all(timed)
    }

    pub(in crate::scheduler) fn waiting_for(&self, pool: PoolId) -> u64 {
        self.groups.waiting_for(&self.placement, pool)
    }

    /// The pools of the lane, if all of them are cold.
    pub(in crate::scheduler) fn cold_pools(&self, key: LaneKey) -> Option<Vec<PoolId>> {
        let pools = &self.placement.pool_set(key)?.pools;
        pools.iter().all(|pool| self.is_cold(*pool)).then(|| pools.clone())
    }

    fn is_cold(&self, pool: PoolId) -> bool {
        self.fleet.count_up(&[pool]) == 0
            && (self.fleet.is_vacant(pool)
                || self.fleet.is_dormant(pool)
                || self.fleet.is_scaled_to_zero(pool)
                || self.demand.starts.is_running(pool))
    }

    /// Whether a start of a pool of the lane is under way: a start lasts until its first token.
    fn is_starting(&self, key: LaneKey) -> bool {
        let pools = self.placement.pool_set(key).map(|pool_set| &*pool_set.pools).unwrap_or_default();
        pools.iter().any(|pool| self.demand.starts.is_running(*pool))
    }

    fn configured_start(&self, pool: PoolId) -> Option<Duration> {
        self.policy.pools.get(pool)?.cold_start
    }
}
