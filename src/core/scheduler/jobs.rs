//! Job table: all jobs, the order in which running ones are preempted, and requests that were
//! suspects.

use std::collections::btree_map::Entry;
use std::collections::hash_map;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::{JobId, PoolId, ReplicaId};
use crate::model::number_map::NumberMap;
use crate::model::time::Tick;
use crate::queue::lane_key::LanePart;
use crate::replica::health::suspects::SuspectJobs;

use super::job::{Job, JobPhase, PoolEntry, PreemptibleJob, RunningAttempt};

/// All jobs that have not ended.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct JobTable {
    jobs: NumberMap<JobId, Job>,
    running: BTreeSet<RunningKey>,
    preemptible: BTreeMap<PoolId, BTreeSet<PreemptibleJob>>,
    suspects: SuspectJobs,
    /// Jobs that have become late in this step.
    newly_late: Vec<JobId>,
    /// Sequence number of the last arrival.
    arrivals: u64,
}

/// Place of a job among those that run. Order: by replica, and the oldest job of a replica first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RunningKey {
    replica: ReplicaId,
    /// Sequence number of the job's arrival.
    seq: u64,
    job: JobId,
}

impl RunningKey {
    const fn of(job: &Job, run: &RunningAttempt) -> Self {
        Self { replica: run.replica, seq: job.place.seq, job: job.spec.id }
    }
}

impl JobTable {
    /// Notes a job that has just become late.
    pub(in crate::scheduler) fn note_late(&mut self, id: JobId) {
        self.newly_late.push(id);
    }

    /// The last job that has become late in this step and was not yet taken.
    pub(in crate::scheduler) fn pop_late(&mut self) -> Option<JobId> {
        self.newly_late.pop()
    }

    pub(in crate::scheduler) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(in crate::scheduler) fn contains_key(&self, id: &JobId) -> bool {
        self.jobs.contains_key(id)
    }

    pub(in crate::scheduler) fn get(&self, id: &JobId) -> Option<&Job> {
        self.jobs.get(id)
    }

    pub(in crate::scheduler) fn get_mut(&mut self, id: &JobId) -> Option<&mut Job> {
        self.jobs.get_mut(id)
    }

    pub(in crate::scheduler) fn insert(&mut self, id: JobId, job: Job) -> Option<Job> {
        self.jobs.insert(id, job)
    }

    pub(in crate::scheduler) fn remove(&mut self, id: &JobId) -> Option<Job> {
        let job = self.jobs.remove(id)?;
        if let Some(run) = job.attempt() {
            self.running.remove(&RunningKey::of(&job, &run));
        }
        Some(job)
    }

    /// The job runs from now on.
    pub(in crate::scheduler) fn begin_attempt(&mut self, id: JobId, run: RunningAttempt) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.phase = JobPhase::Running(run);
        self.running.insert(RunningKey::of(job, &run));
    }

    /// The job waits again, among the jobs that have run before.
    pub(in crate::scheduler) fn end_attempt(&mut self, id: JobId, now: Tick) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let Some(run) = job.attempt() {
            self.running.remove(&RunningKey::of(job, &run));
        }
        job.phase = JobPhase::Waiting { part: LanePart::Requeued, since: now };
    }

    pub(in crate::scheduler) fn keys(&self) -> hash_map::Keys<'_, JobId, Job> {
        self.jobs.keys()
    }

    pub(in crate::scheduler) fn values(&self) -> hash_map::Values<'_, JobId, Job> {
        self.jobs.values()
    }

    pub(in crate::scheduler) fn values_mut(&mut self) -> hash_map::ValuesMut<'_, JobId, Job> {
        self.jobs.values_mut()
    }

    pub(in crate::scheduler) fn iter(&self) -> hash_map::Iter<'_, JobId, Job> {
        self.jobs.iter()
    }

    /// The sequence number of a new arrival.
    pub(in crate::scheduler) const fn next_seq(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Whether the job is in a lane.
    pub(in crate::scheduler) fn is_waiting(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.part().is_some())
    }

    pub(in crate::scheduler) fn waiting(&self) -> impl Iterator<Item = (&JobId, &Job)> {
        self.jobs.iter().filter(|(_, job)| job.part().is_some())
    }

    /// The current attempt of a job that runs.
    pub(in crate::scheduler) fn attempt_mut(&mut self, id: JobId) -> Option<&mut RunningAttempt> {
        match self.jobs.get_mut(&id).map(|job| &mut job.phase) {
            Some(JobPhase::Running(run)) => Some(run),
            Some(JobPhase::Waiting { .. }) | None => None,
        }
    }

    /// Jobs that run at a replica and match `wanted`; the oldest first.
    pub(in crate::scheduler) fn running_at(
        &self,
        replica: ReplicaId,
        wanted: impl Fn(&Job, &RunningAttempt) -> bool,
    ) -> Vec<JobId> {
        self.attempts_at(replica).filter(|(job, run)| wanted(job, run)).map(|(job, _)| job.spec.id).collect()
    }

    /// Jobs that run at a replica, with their attempts; the oldest first.
    pub(in crate::scheduler) fn attempts_at(
        &self,
        replica: ReplicaId,
    ) -> impl Iterator<Item = (&Job, RunningAttempt)> {
        let first = RunningKey { replica, seq: u64::MIN, job: JobId::new(u64::MIN) };
        let last = RunningKey { replica, seq: u64::MAX, job: JobId::new(u64::MAX) };
        self.running.range(first..=last).filter_map(|key| self.attempt(key.job))
    }

    /// All jobs that run, with their attempts.
    pub(in crate::scheduler) fn attempts(&self) -> impl Iterator<Item = (&Job, RunningAttempt)> {
        self.running.iter().filter_map(|key| self.attempt(key.job))
    }

    fn attempt(&self, id: JobId) -> Option<(&Job, RunningAttempt)> {
        let job = self.jobs.get(&id)?;
        Some((job, job.attempt()?))
    }

    /// Whether the same request, sent before, was a suspect.
    pub(in crate::scheduler) fn was_suspect(&self, fingerprint: u64, now: Tick) -> bool {
        self.suspects.contains(fingerprint, now)
    }

    /// A replica was silent about the job, which has left it.
    pub(in crate::scheduler) fn note_stall(&mut self, id: JobId, now: Tick) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.faults.stalls = job.faults.stalls.saturating_add(1);
        if let Some(fingerprint) = job.spec.fingerprint.filter(|_| job.faults.has_stalled_often()) {
            self.suspects.note(fingerprint, now);
        }
    }

    /// The job's request, which was a suspect, was served without delay.
    pub(in crate::scheduler) fn clear_suspect(&mut self, id: JobId) {
        if let Some(fingerprint) = self.jobs.get(&id).and_then(|job| job.spec.fingerprint) {
            self.suspects.forget(fingerprint);
        }
    }

    /// Whether any job may be preempted.
    pub(in crate::scheduler) fn has_preemptible(&self) -> bool {
        !self.preemptible.is_empty()
    }

    /// Running jobs of the pool that may be preempted, in their order.
    pub(in crate::scheduler) fn preemptible_in(&self, pool: PoolId) -> impl Iterator<Item = &PreemptibleJob> {
        self.preemptible.get(&pool).into_iter().flatten()
    }

    /// Records a job that may be preempted while it runs in the pool.
    pub(in crate::scheduler) fn note_preemptible(&mut self, pool: PoolId, entry: PreemptibleJob) {
        self.preemptible.entry(pool).or_default().insert(entry);
        if let Some(job) = self.jobs.get_mut(&entry.job) {
            job.preemption.entry = Some(PoolEntry { pool, entry });
        }
    }

    /// Removes a job from the preemptible jobs of its pool.
    pub(in crate::scheduler) fn forget_preemptible(&mut self, id: JobId) {
        if let Some(PoolEntry { pool, entry }) =
            self.jobs.get_mut(&id).and_then(|job| job.preemption.entry.take())
            && let Entry::Occupied(mut here) = self.preemptible.entry(pool)
        {
            here.get_mut().remove(&entry);
            if here.get().is_empty() {
                here.remove();
            }
        }
    }

    /// Removes all jobs from the preemptible ones.
    pub(in crate::scheduler) fn clear_preemptible(&mut self) {
        self.preemptible.clear();
        self.jobs.values_mut().for_each(|job| job.preemption.entry = None);
    }
}
