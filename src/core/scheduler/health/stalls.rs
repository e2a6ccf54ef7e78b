//! Stalls: the consequences for a replica that shows no sign of life, and for its jobs.
//!
//! A frozen engine must be left within seconds, and a working engine never. A single request that
//! takes long looks like a frozen engine, so one silent job ejects no replica:
//!
//! * streams that flowed and stopped eject the replica when there are at least two, or one beside a
//!   first token that is overdue. A lone stream does so only after [`LONE_STREAM`] or, where no gauge
//!   shows progress, [`LONE_STREAM_NO_GAUGE`]: engines hold a tool call back for seconds;
//! * a first token that is overdue ejects the replica only when one was missed there before, nothing
//!   has come since, and the job was sent after that. A job that missed its first token at another
//!   replica does not count;
//! * an overdue job that ejects no replica is moved to another replica with room for it;
//! * a job that met silence at two replicas is a suspect: it stays where it is, and neither its
//!   silence nor that of the same request, sent again, counts against a replica. A suspect that gets
//!   no first token in time is refused.
//!
//! At most the share `max_ejected` of a pool is ejected for silence. Requests whose clients have seen
//! nothing go to other replicas, and so do streams that another replica can continue.

use std::time::Duration;

use crate::model::event::{Action, EngineFault};
use crate::model::ids::{JobId, ReplicaId};
use crate::model::reason::PreemptReason;
use crate::model::time::Tick;
use crate::queue::lane_key::LaneKey;

use crate::scheduler::Scheduler;
use crate::scheduler::job::{Job, RunningAttempt};

/// How long a lone stream is silent in the middle until its engine is to blame.
const LONE_STREAM: Duration = Duration::from_secs(4);
/// The same at an engine of which no gauge shows progress.
const LONE_STREAM_NO_GAUGE: Duration = Duration::from_secs(10);

/// What speaks against a silent replica.
#[derive(Debug, Clone, Copy, Default)]
struct StallEvidence {
    /// Jobs that were under way and stopped.
    stopped: usize,
    /// Jobs whose first token is overdue, that missed none elsewhere.
    overdue: usize,
    /// Of these, those that were sent after another missed its own here.
    repeated: usize,
}

impl Scheduler {
    /// A replica owes something and has been silent for so long.
    pub(in crate::scheduler) fn check_stalled(
        &mut self,
        replica: ReplicaId,
        silence: Duration,
        out: &mut Vec<Action>,
    ) {
        let pool = self.fleet.pool_of(replica);
        let Some(group) = pool.and_then(|pool| self.placement.group_of(pool)) else { return };
        let up = self.fleet.count_up(&self.groups[group].shape.pools);
        if up == u64::from(self.fleet.is_up(replica)) {
            return;
        }
        let evidence = self.evidence(replica);
        if !self.fleet.is_ejected(replica) && !self.proves_stall(replica, &evidence, silence) {
            return self.move_overdue(replica, evidence.overdue > 0, out);
        }
        if !self.fleet.is_ejected(replica) && !self.fleet.may_eject(replica) {
            self.withhold_ejection(replica, EngineFault::Silent, out);
            return self.preempt_unseen(replica, out);
        }
        self.fleet.note_stall(replica, self.now);
        self.eject(replica, EngineFault::Silent, out);
        self.vacate_stalled(replica, out);
    }

    /// Moves the requests of a replica that is ejected for silence to others, as far as possible.
    pub(in crate::scheduler) fn vacate_stalled(&mut self, replica: ReplicaId, out: &mut Vec<Action>) {
        self.preempt_unseen(replica, out);
        self.migrate_streams(replica, PreemptReason::Stalled, out);
    }

    fn evidence(&self, replica: ReplicaId) -> StallEvidence {
        let (missed, sign) = (self.fleet.missed_at(replica), self.fleet.last_sign(replica));
        let patience = self.fleet.patience(replica, self.now);
        let mut evidence = StallEvidence::default();
        for (job, run) in self.jobs.attempts_at(replica).filter(|(job, _)| job.faults.is_watched()) {
            if is_under_way(job, &run, sign) {
                evidence.stopped += 1;
            } else if job.faults.stalls == 0 && self.is_overdue(&run, patience) {
                evidence.overdue += 1;
                evidence.repeated += usize::from(missed.is_some_and(|missed| run.since >= missed));
            }
        }
        evidence.stopped = evidence.stopped.saturating_sub(self.fleet.paused_streams(replica) as usize);
        evidence
    }

    fn is_overdue(&self, run: &RunningAttempt, patience: Duration) -> bool {
        run.since + patience <= self.now
    }

    fn proves_stall(&self, replica: ReplicaId, evidence: &StallEvidence, silence: Duration) -> bool {
        let lone = if self.fleet.shows_progress(replica) { LONE_STREAM } else { LONE_STREAM_NO_GAUGE };
        match evidence.stopped {
            0 => evidence.repeated > 0,
            1 => evidence.overdue > 0 || silence >= lone,
            _ => true,
        }
    }

    /// Moves overdue jobs to replicas that have room for them, once or twice each.
    fn move_overdue(&mut self, replica: ReplicaId, missed: bool, out: &mut Vec<Action>) {
        let patience = self.fleet.patience(replica, self.now);
        let sign = self.fleet.last_sign(replica);
        let overdue = |job: &Job, run: &RunningAttempt| {
            let waits = job.faults.is_watched() && !is_under_way(job, run, sign);
            waits && self.is_overdue(run, patience) && self.fits_elsewhere(job, replica)
        };
        for id in self.jobs.running_at(replica, overdue) {
            // The room may have gone to the one before.
            if self.jobs.get(&id).is_some_and(|job| self.fits_elsewhere(job, replica)) {
                self.preempt_stalled(id, out);
                self.dispatch(out);
            }
        }
        if missed {
            self.fleet.note_missed_token(replica, self.now);
        }
    }

    fn fits_elsewhere(&self, job: &Job, replica: ReplicaId) -> bool {
        let Some(pool_set) = self.placement.pool_set(LaneKey::of(&job.spec)) else { return false };
        let required = job.requirements(&[], false, &self.policy);
        let here = u32::from(self.fleet.fits(replica, &required, false, self.now));
        self.fleet.count_fitting(&pool_set.pools, &required) > here
    }

    /// Takes back the requests of an ejected replica whose clients have seen nothing.
    fn preempt_unseen(&mut self, replica: ReplicaId, out: &mut Vec<Action>) {
        let wanted = |job: &Job, _: &RunningAttempt| {
            job.is_unseen() && !job.faults.has_stalled_often() && self.has_replica_up(job)
        };
        for id in self.jobs.running_at(replica, wanted) {
            self.preempt_stalled(id, out);
        }
    }

    fn preempt_stalled(&mut self, id: JobId, out: &mut Vec<Action>) {
        let Some((lane, run)) =
            self.jobs.get(&id).and_then(|job| Some((LaneKey::of(&job.spec), job.attempt()?)))
        else {
            return;
        };
        // One that never worked would take the same jobs again and again.
        if run.proven || self.take_retry(lane) {
            self.take_back(id, PreemptReason::Stalled, out);
        }
    }

    /// The first token of a job has come. A request that was a suspect and is
    /// served without delay is none.
    pub(in crate::scheduler) fn clear_suspect(&mut self, id: JobId, run: &RunningAttempt) {
        if !self.jobs.get(&id).is_some_and(|job| job.faults.known_suspect) {
            return;
        }
        if self.now.since(run.since) < self.fleet.patience(run.replica, self.now) {
            self.jobs.clear_suspect(id);
        }
    }
}

/// Whether tokens have come for the job. Nobody sees that of an answer that is
/// not a stream: it counts as under way when its engine has shown life after its
/// first token was due.
fn is_under_way(job: &Job, run: &RunningAttempt, sign: Tick) -> bool {
    match job.spec.streams {
        true => run.booking.started,
        false => run.since + Duration::from_nanos(run.reference_ttft_ns) < sign,
    }
}
