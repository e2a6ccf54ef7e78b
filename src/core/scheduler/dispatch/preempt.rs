//! Preemption and migration: jobs leave an engine that stalls (see `health::stalls`) or drains, or
//! slots that a more urgent class needs.
//!
//! A job is preempted only while its client has received nothing. A stream that has produced
//! output leaves only an engine that has stalled or is about to be cut off. It then migrates to
//! another engine, where one can continue it. Only the edge knows how far the stream has come, so
//! the scheduler asks the edge ([`JobAction::Migrate`]), and the job keeps its booking until the
//! edge answers.
//!
//! A job is preempted for other jobs at most [`MAX_PREEMPTIONS`] times, and only for a more
//! urgent class. No two jobs can therefore preempt each other.

use std::cmp::Reverse;
use std::time::Duration;

use crate::model::event::{Action, JobAction};
use crate::model::ids::{ClassIndex, GroupIndex, JobId, PoolId, ReplicaId};
use crate::model::job::JobUsage;
use crate::model::reason::PreemptReason;
use crate::queue::lane_key::LaneKey;
use crate::queue::order::Candidate;

use crate::scheduler::Scheduler;
use crate::scheduler::job::{Job, PreemptibleJob, RunningAttempt};
use crate::scheduler::settle::charge::WastedUse;

/// Number of times that a job may be preempted for other jobs.
pub(in crate::scheduler) const MAX_PREEMPTIONS: u32 = 2;

/// Time between two searches of all replicas for one to open beyond its ITL limit.
const OPEN_PERIOD: Duration = Duration::from_millis(50);
/// Preemptible jobs of a pool that one search looks at.
const MAX_LOOKED_AT: usize = 64;

impl Scheduler {
    /// Asks the edge to migrate the streams of a replica that others in service can continue. At
    /// a stalled replica this includes streams that cannot be continued: they are to end sooner
    /// than they would at a live engine.
    pub(in crate::scheduler) fn migrate_streams(
        &mut self,
        replica: ReplicaId,
        why: PreemptReason,
        out: &mut Vec<Action>,
    ) {
        let movable = |job: &Job, run: &RunningAttempt| {
            let streams = job.spec.streams && run.booking.started;
            let wanted = job.spec.resumable || why == PreemptReason::Stalled;
            streams
                && wanted
                && !job.faults.has_stalled_often()
                && job.preemption.migration_asked.is_none()
                && self.has_replica_up(job)
        };
        for id in self.jobs.running_at(replica, movable) {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.preemption.migration_asked = Some(why);
                out.push(Action::Job(JobAction::Migrate { job: id, replica, why }));
            }
        }
    }

    /// Preempts the jobs that a replica out of service has not begun to answer and that others in
    /// service can take. The progress of a plain answer is unknown: it counts as begun when its
    /// first token was due.
    pub(in crate::scheduler) fn preempt_all(
        &mut self,
        replica: ReplicaId,
        why: PreemptReason,
        out: &mut Vec<Action>,
    ) {
        if self.fleet.is_up(replica) {
            return;
        }
        let now = self.now;
        let jobs = self.jobs.running_at(replica, |job, run| {
            let begun = !job.spec.streams && run.since + Duration::from_nanos(run.reference_ttft_ns) <= now;
            job.is_unseen() && !begun && self.has_replica_up(job)
        });
        for job in jobs {
            self.take_back(job, why, out);
        }
    }

    /// Whether a replica in service may serve the job.
    pub(in crate::scheduler) fn has_replica_up(&self, job: &Job) -> bool {
        let pool_set = self.placement.pool_set(LaneKey::of(&job.spec));
        pool_set.is_some_and(|pool_set| self.fleet.count_up(&pool_set.pools) > 0)
    }

    /// Preempts a job of a slower class for the first job in the order. A scavenger is preempted
    /// at once, another job when the first has waited for half of its TTFT objective. Returns
    /// whether a job was preempted.
    pub(in crate::scheduler) fn preempt(&mut self, group: GroupIndex, out: &mut Vec<Action>) -> bool {
        if self.groups[group].waiting() == 0 || !self.jobs.has_preemptible() {
            return false;
        }
        let Some(first) = self.first_in_order(group) else { return false };
        if self.is_due_elsewhere(group, first.class) {
            return false;
        }
        let pools = &self.groups[group].shape.pool_set(first.pool_set).pools;
        let next = pools.iter().filter_map(|pool| self.first_preemptible(*pool));
        let Some(victim) = next.filter(|entry| entry.class.0 > first.class).min() else { return false };
        let is_spare = self.is_scavenger(self.groups[group].class_id(victim.class.0));
        if !is_spare && !self.has_waited_too_long(&first) {
            return false;
        }
        self.take_back(victim.job, PreemptReason::Preempted { by: first.head.job }, out);
        true
    }

    /// Lets the first job in the order start at a replica that only background jobs keep over its
    /// ITL limit, when the job has waited for half of its TTFT objective: they take long to end.
    /// Returns the replica.
    pub(in crate::scheduler) fn open_beyond_limit(&mut self, group: GroupIndex) -> Option<ReplicaId> {
        let now = self.now;
        if now < self.groups[group].open_at || self.groups[group].waiting() == 0 {
            return None;
        }
        let first = self.first_in_order(group)?;
        let is_due_elsewhere = self.is_due_elsewhere(group, first.class);
        if first.background || is_due_elsewhere || !self.has_waited_too_long(&first) {
            return None;
        }
        let pools = &self.groups[group].shape.pool_set(first.pool_set).pools;
        let avoided = self.avoided_replicas(first.head.job, pools);
        let job = self.jobs.get(&first.head.job)?;
        let required = job.requirements(&[], false, &self.policy);
        let opened =
            self.fleet.open_beyond_limit(pools, job.spec.class, &required, &|id| avoided.contains(&id), now);
        if opened.is_none() {
            self.groups[group].open_at = now + OPEN_PERIOD;
        }
        opened
    }

    /// The first job of the pool to preempt. A released replica is too full for one job less to
    /// make room there.
    fn first_preemptible(&self, pool: PoolId) -> Option<PreemptibleJob> {
        let mut first = self.jobs.preemptible_in(pool).take(MAX_LOOKED_AT);
        let is_at_reserved = |entry: &&PreemptibleJob| {
            let run = self.jobs.get(&entry.job).and_then(Job::attempt);
            run.is_some_and(|run| !self.fleet.is_released(run.replica))
        };
        first.find(is_at_reserved).copied()
    }

    /// Whether a job has waited for half of its TTFT objective and needs another job's slot. Jobs
    /// need not make room where the end of a prefill is enough.
    fn has_waited_too_long(&self, first: &Candidate) -> bool {
        let Some(job) = self.jobs.get(&first.head.job) else { return false };
        let class = self.policy.classes.get(job.spec.class);
        let pools = self.placement.pool_set(first.head.lane).map(|pool_set| &*pool_set.pools);
        class.is_some_and(|class| job.queued(self.now) >= class.ttft_objective / 2)
            && !self.fleet.fits_soon(pools.unwrap_or_default(), &job.requirements(&[], false, &self.policy))
    }

    /// Takes a job back into its lane. A preempted job may wait as long as a new one, within its
    /// client's patience: the lost attempt is not the job's fault.
    pub(in crate::scheduler) fn take_back(&mut self, id: JobId, why: PreemptReason, out: &mut Vec<Action>) {
        let Some(run) = self.jobs.get(&id).and_then(Job::attempt) else { return };
        self.release(id, &run, Some(WastedUse { why: why.into(), usage: JobUsage::Unknown }), out);
        self.jobs.end_attempt(id, self.now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let max_wait = self.policy.classes.get(job.spec.class).map_or(Duration::ZERO, |class| class.max_wait);
        job.spec.deadline = job.spec.deadline.max((self.now + max_wait).min(job.spec.client_deadline));
        match why {
            PreemptReason::Stalled => job.faults.note_failed_at(&run),
            PreemptReason::Preempted { .. } => job.preemption.count += 1,
            PreemptReason::Drained | PreemptReason::SpotNotice | PreemptReason::Asleep => {}
        }
        let lane = LaneKey::of(&job.spec);
        if why == PreemptReason::Stalled {
            self.jobs.note_stall(id, self.now);
        }
        if let Some(account) = self.lane_accounts(lane) {
            let here = &mut self.groups[account.group];
            here.drain_rate.undo_dispatch(self.now);
            here.class_mut(account.class).drain_rates.undo_dispatch(lane.tenant, self.now);
        }
        out.push(Action::Job(JobAction::Preempt { job: id, replica: run.replica, why }));
        self.vain_waits_possible = true;
        match self.reason_to_withdraw(lane) {
            Some(reason) => self.refuse_returned(id, reason, out),
            None => self.enqueue(id),
        }
    }

    /// Records a running job that may be preempted. A job whose client has seen part of its answer
    /// is never recorded.
    pub(in crate::scheduler) fn note_preemptible(&mut self, id: JobId, run: &RunningAttempt) {
        let gives_way = |job: &&Job| job.preemption.count < MAX_PREEMPTIONS && job.continued_output == 0;
        let Some(job) = self.jobs.get(&id).filter(gives_way) else { return };
        let (Some(pool), Some(account)) =
            (self.fleet.pool_of(run.replica), self.lane_accounts(LaneKey::of(&job.spec)))
        else {
            return;
        };
        if account.class > ClassIndex::new(0) {
            let (class, dispatched) = (Reverse(account.class), Reverse(run.since));
            self.jobs.note_preemptible(pool, PreemptibleJob { class, dispatched, job: id });
        }
    }

    /// Rebuilds the preemptible jobs after a change of the classes' order of service.
    pub(in crate::scheduler) fn renew_preemptible(&mut self) {
        self.jobs.clear_preemptible();
        let unseen = self.jobs.iter().filter(|(_, job)| job.is_unseen());
        let runs: Vec<(JobId, RunningAttempt)> =
            unseen.filter_map(|(id, job)| Some((*id, job.attempt()?))).collect();
        runs.into_iter().for_each(|(id, run)| self.note_preemptible(id, &run));
    }
}
