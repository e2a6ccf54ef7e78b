//! Deadlines of waiting jobs: the latest start of a job, whether it can be kept, and what becomes of a
//! job that cannot keep it. It is demoted to a slower class, or else refused: `expire` at
//! its deadline, others before it.
//!
//! A job is demoted to the class in its own class's `demote_to`, if its tenant may use that class and
//! the new deadline is later. The new deadline is the arrival plus the new class's `max_wait`,
//! but never beyond the client's own deadline. Each step leads to a class that is served later, so
//! the steps end.

use std::time::Duration;

use crate::model::event::{Action, RejectReason};
use crate::model::ids::{ClassId, JobId};
use crate::model::job::JobSpec;
use crate::model::time::Tick;
use crate::queue::drain::{backlog_exceeds, wait_exceeds};
use crate::queue::lane_key::{LaneKey, LanePart};

use crate::scheduler::Scheduler;
use crate::scheduler::job::Job;

/// Delay of the turn of a late job, in TTFT objectives of its class, but at least
/// [`MIN_LATE_PENALTY`]. During the delay, jobs that can still be in time go first. After the delay
/// the late job goes before all later arrivals, as far as [`PATIENT_MAX_WAIT`] allows. Where
/// `max_wait` is shorter than the delay, late jobs are served only when no job in time waits.
const LATE_PENALTY_OBJECTIVES: u32 = 10;
/// Shortest delay of the turn of a late job. A shorter one makes everybody late while more arrives
/// than the replicas can do. With one of 30 s, jobs with a `max_wait` of 30 s run out of time.
const MIN_LATE_PENALTY: Duration = Duration::from_secs(22);

/// `max_wait` of a class from which late jobs may take every turn. With a shorter one they take a part
/// in proportion: who waits for 15 s at most has little use for a late answer, and each turn
/// of a late job makes another one late.
const PATIENT_MAX_WAIT: Duration = Duration::from_secs(240);
/// The least share of the turns for late jobs.
const MIN_LATE_SHARE: f64 = 1.0 / 16.0;

/// TTFT objectives until the deadline from which all jobs of the lane count in the check of the
/// wait, and not only those that go first.
const PATIENT_OBJECTIVES: u32 = 20;
/// The same, whatever the objective is: who waits so long should not be refused at the end.
const PATIENT_WAIT: Duration = Duration::from_secs(30);

/// Time after arrival at which the scheduler checks the wait of a job that came before the drain
/// rate was known.
pub(super) const WAIT_CHECK_AFTER: Duration = Duration::from_secs(5);

impl Scheduler {
    /// The latest moment at which the job may start: its deadline, or sooner if its client would
    /// leave during the prefill. The prefill time may be wrong, so it takes off at most half
    /// of the client's own time.
    pub(in crate::scheduler) fn latest_start(&self, spec: &JobSpec) -> Tick {
        if spec.client_deadline == Tick::NEVER {
            return spec.deadline;
        }
        let own = self.prefill_time(spec, spec.prompt_tokens);
        let allowed = spec.client_deadline.since(spec.arrived);
        spec.deadline.min(spec.client_deadline.earlier_by(own.min(allowed / 2)))
    }

    /// Whether a job that has just joined its lane surely cannot start before its deadline.
    ///
    /// The reasons: its tenant is paused for longer; its pools take longer to start; or the jobs
    /// before it in the lane take longer, even at a better rate than measured for its tenant
    /// and class. That rate includes the effect of other lanes that go first. When the deadline
    /// is far away, all other jobs of the lane count as before it: else those that
    /// are late would be refused only at the end of their wait.
    pub(in crate::scheduler) fn cannot_start_in_time(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        if let Some(until) = self.overrides.paused_until(job.spec.tenant) {
            return job.spec.deadline < until;
        }
        if let Some(too_late) = self.pool_start_exceeds_wait(id) {
            return too_late;
        }
        self.backlog_exceeds_wait(job)
    }

    /// Whether the jobs before a job in its lane take longer than the time to its deadline.
    fn backlog_exceeds_wait(&self, job: &Job) -> bool {
        let (id, key) = (job.spec.id, LaneKey::of(&job.spec));
        let lane = self.queue.lane(key).filter(|_| job.part() == Some(LanePart::New));
        let left = job.spec.deadline.since(self.now);
        let objective = self.policy.classes.get(key.class).map(|class| class.ttft_objective);
        if left < (objective.unwrap_or_default() * PATIENT_OBJECTIVES).min(PATIENT_WAIT) {
            let before = lane.map_or(0, |lane| lane.jobs_certainly_before(job.place, id));
            return backlog_exceeds(before, self.lane_rate(key), left);
        }
        let before = lane.map_or(0, |lane| lane.load().requests.saturating_sub(1));
        self.expected_wait(key, before).is_some_and(|wait| wait_exceeds(wait, left))
    }

    /// Expected time until `before` jobs of the lane have started. It uses the measured rate of
    /// the tenant, or else of all tenants; `None` when neither is known. Replicas that are
    /// demanded and expected count as if they were in service.
    pub(in crate::scheduler) fn expected_wait(&self, key: LaneKey, before: u64) -> Option<Duration> {
        let position = self.lane_position(key)?;
        let here = &self.groups[position.group];
        let wait = here.drain_rates(position.class).wait(key.tenant, before, self.now)?;
        let pools = here.shape.pool_set(position.pool_set).pools.iter();
        Some(wait.div_f64(self.demand.growth(pools)))
    }

    /// Schedules a later check of a job that was admitted before the drain rate was known.
    pub(in crate::scheduler) fn check_wait_later(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.part() == Some(LanePart::New)) else { return };
        let at = job.spec.arrived + WAIT_CHECK_AFTER;
        if at > self.now && self.expected_wait(LaneKey::of(&job.spec), 1).is_none() {
            self.timers.unchecked_waits.add(at, id);
        }
    }

    /// Checks the jobs whose later check is due, and demotes or refuses those that cannot start
    /// in time. The latest arrival is checked first, which leaves more room for the others.
    pub(in crate::scheduler) fn refuse_late_waits(&mut self, out: &mut Vec<Action>) {
        let due: Vec<JobId> = std::iter::from_fn(|| self.timers.unchecked_waits.pop_due(self.now)).collect();
        for id in due.into_iter().rev() {
            let Some(job) = self.jobs.get(&id) else { continue };
            let kept = self.overrides.paused_until(job.spec.tenant).is_some()
                || self.pool_start_exceeds_wait(id).is_some();
            if !kept && self.backlog_exceeds_wait(job) && !self.demote(id) {
                self.reject(id, self.wait_reason(id, RejectReason::Unmeetable), out);
            }
        }
    }

    /// Demotes or refuses the jobs that have become late in this step and will not start in time,
    /// since late jobs get only a part of the turns. Returns whether there were such jobs.
    pub(in crate::scheduler) fn refuse_newly_late(&mut self, out: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some(id) = self.jobs.pop_late() {
            if self.late_share_exceeds_wait(id) {
                any = true;
                if !self.demote(id) {
                    self.reject(id, self.wait_reason(id, RejectReason::Unmeetable), out);
                }
            }
        }
        any
    }

    /// Whether a late job will not start before its deadline. False where late jobs may take every
    /// turn, while more replicas are expected, and when the rate is not known.
    fn late_share_exceeds_wait(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id).filter(|job| job.part() == Some(LanePart::New)) else {
            return false;
        };
        let key = LaneKey::of(&job.spec);
        let (Some(lane), Some(pool_set)) = (self.queue.lane(key), self.placement.pool_set(key)) else {
            return false;
        };
        let share = self.late_share_of(job);
        if share >= 1.0 || self.demand.growth(pool_set.pools.iter()) > 1.0 {
            return false;
        }
        let left = job.spec.deadline.since(self.now);
        let wait = self.expected_wait(key, lane.late_jobs().saturating_sub(1));
        wait.is_some_and(|wait| wait_exceeds(wait.div_f64(lane.late_part(share)), left))
    }

    /// Delay of the turn of a late job of the class.
    pub(in crate::scheduler) fn late_penalty(&self, class: ClassId) -> Duration {
        let objective = self.policy.classes.get(class).map(|row| row.ttft_objective).unwrap_or_default();
        (objective * LATE_PENALTY_OBJECTIVES).max(MIN_LATE_PENALTY)
    }

    /// The largest part of a lane's turns for late jobs while jobs in time wait.
    pub(in crate::scheduler) fn late_share(&self, class: ClassId) -> f64 {
        let max_wait = self.policy.classes.get(class).map(|row| row.max_wait).unwrap_or_default();
        (max_wait.as_secs_f64() / PATIENT_MAX_WAIT.as_secs_f64()).clamp(MIN_LATE_SHARE, 1.0)
    }

    /// The same for one late job. If its delayed turn comes after its deadline, it gets only the least
    /// share.
    pub(in crate::scheduler) fn late_share_of(&self, job: &Job) -> f64 {
        let class = job.spec.class;
        let turn = job.late_after + self.late_penalty(class);
        if job.spec.deadline < turn { MIN_LATE_SHARE } else { self.late_share(class) }
    }

    /// Drain rate of the lane's tenant in its class, in jobs per second; `None` if unknown.
    pub(in crate::scheduler) fn lane_rate(&self, key: LaneKey) -> Option<f64> {
        let position = self.lane_position(key)?;
        self.groups[position.group].drain_rate_of(position.class, key.tenant, self.now)
    }

    /// Ends the wait of jobs whose deadline lies before `now`, or is `now` if `even_now`. A job
    /// goes on in a slower class where there is one; otherwise the scheduler refuses it.
    /// Returns whether there were such jobs.
    pub(in crate::scheduler) fn expire(&mut self, even_now: bool, out: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some((at, job)) = self.timers.next_wait_end() {
            if at > self.now || (at == self.now && !even_now) {
                break;
            }
            if self.timers.pool_start_waits.contains(at, job)
                && !self.end_pool_start_wait_unless_cold(at, job)
            {
                continue;
            }
            if !self.demote(job) {
                self.reject(job, self.wait_reason(job, RejectReason::DeadlineExceeded), out);
            }
            any = true;
        }
        any
    }

    /// Moves a waiting job to the nearest slower class in which it can start in time. Returns
    /// false when there is none; the job may then be left in any of the slower classes.
    pub(in crate::scheduler) fn demote(&mut self, id: JobId) -> bool {
        while let Some((class, deadline)) = self.jobs.get(&id).and_then(|job| self.slower_class(&job.spec)) {
            self.move_to_class(id, class, deadline);
            if !self.cannot_start_in_time(id) {
                return true;
            }
        }
        false
    }

    /// The next slower class of a job, and the job's deadline there.
    fn slower_class(&self, spec: &JobSpec) -> Option<(ClassId, Tick)> {
        let next = self.policy.classes.get(spec.class)?.demote_to?;
        let allowed = self.policy.tenants.get(spec.tenant)?.classes.contains(&next);
        let here = self.lane_position(LaneKey::of(spec))?;
        let there = self.lane_position(LaneKey { class: next, ..LaneKey::of(spec) })?;
        let deadline = spec.arrived + self.policy.classes.get(next)?.max_wait;
        let deadline = self.latest_start(&JobSpec { class: next, deadline, ..*spec });
        let wins = deadline > spec.deadline && deadline > self.now;
        (allowed && wins && there.class > here.class).then_some((next, deadline))
    }

    /// Moves a job to another class. The job keeps its age. The tenant gets back the charge in
    /// the class that the job leaves: a job is charged in the class that serves it.
    fn move_to_class(&mut self, id: JobId, class: ClassId, deadline: Tick) {
        self.dequeue(id);
        let Some(job) = self.jobs.get(&id) else { return };
        let before = job.spec;
        let mut job = Job {
            spec: JobSpec { class, deadline, ..before },
            demoted_from: job.demoted_from.or(Some(before.class)),
            ..job.clone()
        };
        (job.place.late, job.wait.pool_start_until, job.charges.fair_share) = (false, None, None);
        self.set_place(&mut job);
        self.demand.note_moved(before.class, class, self.now);
        let paid = self.jobs.insert(id, job).and_then(|job| job.charges.fair_share);
        if let (Some(paid), Some(account)) = (paid, self.lane_accounts(LaneKey::of(&before))) {
            self.recharge(account, LaneKey::of(&before), paid, 0);
        }
        self.enqueue(id);
        self.vain_waits_possible = true;
    }
}
