//! Admission: puts jobs into the queue and takes them out.

pub(super) mod check;
pub(super) mod demote;
pub(super) mod displace;
pub(super) mod fallback;
pub(super) mod limits;
pub(super) mod pool_start;
pub(super) mod quotas;

use std::time::Duration;

use smallvec::SmallVec;

use crate::autoscale::demand::work::work;
use crate::limits::LimitGrant;
use crate::limits::rule::LimitId;
use crate::model::event::{Action, JobAction, RejectReason, Rejection};
use crate::model::ids::{ClassId, GroupIndex, JobId, TenantId};
use crate::model::invariant::InvariantId;
use crate::model::job::{JobSpec, PromptPrefix};
use crate::model::time::Tick;
use crate::placement::choose_tier;
use crate::queue::admission;
use crate::queue::fit_tree::FitEntry;
use crate::queue::lane_key::{LaneAccounts, LaneKey, LanePosition, LaneSegment};
use crate::queue::order::{HeadEntry, HeadKey, HeadSet, LaneHead};
use crate::queue::quota::QuotaState;
use crate::replica::speed::ttft_model;

use super::Scheduler;
use super::job::{self, Job};

/// Delay of a job's turn in its lane, in multiples of its prefill time. Short prompts go first,
/// and a long prompt waits at most this much longer.
const PREFILL_DELAY_FACTOR: f64 = 10.0;

/// Delay of the turn of a late job, in TTFT objectives of its class, but at least
/// [`MIN_LATE_PENALTY`]. During the delay, jobs that can still be in time go first. After the delay
/// the late job goes before all later arrivals, as far as [`PATIENT_MAX_WAIT`] allows. A class
/// whose `max_wait` is shorter serves late jobs only when no job in time waits.
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

/// Time after arrival at which the scheduler checks the wait of a job that came before the drain
/// rate was known.
const WAIT_CHECK_AFTER: Duration = Duration::from_secs(5);

impl Scheduler {
    /// Admits or refuses a new job. Returns the limits in shadow mode that would have refused it.
    pub(super) fn admit_or_refuse(
        &mut self,
        spec: JobSpec,
        prefix: PromptPrefix,
        out: &mut Vec<Action>,
    ) -> SmallVec<[LimitId; 1]> {
        let id = spec.id;
        if self.jobs.contains_key(&id) {
            return SmallVec::new();
        }
        let spec = job::clamp_spec(spec, self.now);
        if let Some(reason) = self.reason_to_refuse(&spec) {
            out.push(Action::Job(JobAction::Reject { job: id, why: self.rejection(&spec, reason, None) }));
            return SmallVec::new();
        }
        let LimitGrant { reservation: hold, shadowed } =
            match self.limits.reserve(&spec, &self.policy, &self.fleet, self.now) {
                Ok(granted) => granted,
                Err(why) => {
                    let reason = RejectReason::Limited(why);
                    let why = Rejection { reason, queued: Duration::ZERO, retry_after: why.retry_after };
                    out.push(Action::Job(JobAction::Reject { job: id, why }));
                    return SmallVec::new();
                }
            };
        let context_group = self.placement.context_group(spec.model, spec.context);
        let spec = JobSpec { context_group, deadline: self.latest_start(&spec), ..spec };
        let mut job = Job::new(spec, prefix, self.jobs.next_seq());
        job.charges.reservation = hold;
        let now = self.now;
        job.faults.known_suspect = spec.fingerprint.is_some_and(|known| self.jobs.was_suspect(known, now));
        self.set_place(&mut job);
        let work = work(spec.prompt_tokens, self.lengths.expected(&spec));
        job.work = work;
        self.jobs.insert(id, job);
        if let Some(position) = self.lane_position(LaneKey::of(&spec)) {
            self.groups[position.group].arrived(position.class, spec.sequences, self.now);
            self.demand.note_arrival(&spec, position, work, self.now);
        }
        self.enqueue(id);
        self.start_or_queue(id, out);
        shadowed
    }

    /// Starts a job that has just joined its lane, lets it wait, or refuses it. A job waits only
    /// if no replica takes it at once, so the bounds of the queue are checked after a dispatch.
    fn start_or_queue(&mut self, id: JobId, out: &mut Vec<Action>) {
        self.dispatch(out);
        let Some(spec) = self.jobs.get(&id).filter(|job| job.part().is_some()).map(|job| job.spec) else {
            return;
        };
        let tenant = spec.tenant;
        if self.is_scavenger(spec.class) {
            return self.reject(id, RejectReason::NoRoom, out);
        }
        if self.waits_in_vain(id) {
            return self.reject(id, RejectReason::NoReplica, out);
        }
        if self.cannot_start_in_time(id) {
            if !self.demote(id) {
                return self.reject(id, self.wait_reason(id, RejectReason::Unmeetable), out);
            }
            self.dispatch(out);
        } else {
            self.check_wait_later(id);
        }
        let refusal = admission::exceeded_queue_bound(&self.policy, &self.queue, tenant)
            .filter(|_| self.jobs.is_waiting(id));
        let Some(reason) = refusal else { return };
        let other = match reason {
            RejectReason::QueueFull(_) => {
                displace::displaceable(&self.queue, &self.jobs, &self.policy, tenant)
            }
            _ => None,
        };
        match other {
            Some(other) => self.reject(other, RejectReason::Displaced, out),
            None => self.reject(id, reason, out),
        }
    }

    /// Whether a job that has just joined its lane surely cannot start before its deadline.
    ///
    /// The reasons: its tenant is paused for longer; its pools take longer to start; or the jobs
    /// before it in the lane take longer, even at a better rate than measured for its tenant
    /// and class. That rate includes the effect of other lanes that go first. When the deadline
    /// is far beyond the objective, all other jobs of the lane count as before it: else those that
    /// are late would be refused only at the end of their wait.
    pub(super) fn cannot_start_in_time(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        if let Some(until) = self.overrides.paused_until(job.spec.tenant) {
            return job.spec.deadline < until;
        }
        if let Some(too_late) = self.starts_too_late(id) {
            return too_late;
        }
        self.has_too_long_wait(job)
    }

    /// Whether the jobs before a job in its lane take longer than the time to its deadline.
    fn has_too_long_wait(&self, job: &Job) -> bool {
        let (id, key) = (job.spec.id, LaneKey::of(&job.spec));
        let lane = self.queue.lane(key).filter(|_| job.part() == Some(LaneSegment::New));
        let left = job.spec.deadline.since(self.now);
        let objective = self.policy.classes.get(key.class).map(|class| class.ttft_objective);
        if left < objective.unwrap_or_default() * PATIENT_OBJECTIVES {
            let before = lane.map_or(0, |lane| lane.jobs_before(job.place, id));
            return admission::cannot_start_in_time(before, self.lane_rate(key), left);
        }
        let before = lane.map_or(0, |lane| lane.load().requests.saturating_sub(1));
        self.expected_wait(key, before).is_some_and(|wait| admission::starts_too_late(wait, left))
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
    fn check_wait_later(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.part() == Some(LaneSegment::New)) else { return };
        let at = job.spec.arrived + WAIT_CHECK_AFTER;
        if at > self.now && self.expected_wait(LaneKey::of(&job.spec), 1).is_none() {
            self.timers.unchecked_waits.add(at, id);
        }
    }

    /// Checks the jobs whose later check is due, and demotes or refuses those that cannot start
    /// in time. The latest arrival is checked first, which leaves more room for the others.
    pub(super) fn refuse_late_waits(&mut self, out: &mut Vec<Action>) {
        let due: Vec<JobId> = std::iter::from_fn(|| self.timers.unchecked_waits.pop_due(self.now)).collect();
        for id in due.into_iter().rev() {
            let Some(job) = self.jobs.get(&id) else { continue };
            let kept =
                self.overrides.paused_until(job.spec.tenant).is_some() || self.starts_too_late(id).is_some();
            if !kept && self.has_too_long_wait(job) && !self.demote(id) {
                self.reject(id, self.wait_reason(id, RejectReason::Unmeetable), out);
            }
        }
    }

    /// Demotes or refuses the jobs that have become late in this step and will not start in time,
    /// since late jobs get only a part of the turns. Returns whether there were such jobs.
    pub(super) fn refuse_newly_late(&mut self, out: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some(id) = self.jobs.pop_late() {
            if self.is_too_late(id) {
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
    fn is_too_late(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id).filter(|job| job.part() == Some(LaneSegment::New)) else {
            return false;
        };
        let key = LaneKey::of(&job.spec);
        let (Some(lane), Some(pool_set)) = (self.queue.lane(key), self.placement.pool_set(key)) else {
            return false;
        };
        let share = self.late_share(key.class);
        if share >= 1.0 || self.demand.growth(pool_set.pools.iter()) > 1.0 {
            return false;
        }
        let left = job.spec.deadline.since(self.now);
        let wait = self.expected_wait(key, lane.late_jobs().saturating_sub(1));
        wait.is_some_and(|wait| admission::starts_too_late(wait.div_f64(lane.late_part(share)), left))
    }

    /// Delay of the turn of a late job of the class.
    pub(super) fn late_penalty(&self, class: ClassId) -> Duration {
        let objective = self.policy.classes.get(class).map(|row| row.ttft_objective).unwrap_or_default();
        (objective * LATE_PENALTY_OBJECTIVES).max(MIN_LATE_PENALTY)
    }

    /// The largest part of a lane's turns for late jobs while jobs in time wait.
    pub(super) fn late_share(&self, class: ClassId) -> f64 {
        let max_wait = self.policy.classes.get(class).map(|row| row.max_wait).unwrap_or_default();
        (max_wait.as_secs_f64() / PATIENT_MAX_WAIT.as_secs_f64()).clamp(MIN_LATE_SHARE, 1.0)
    }

    /// Drain rate of the lane's tenant in its class, in jobs per second; `None` if unknown.
    fn lane_rate(&self, key: LaneKey) -> Option<f64> {
        let position = self.lane_position(key)?;
        self.groups[position.group].drain_rate_of(position.class, key.tenant, self.now)
    }

    /// Sets the position of a fresh job in its lane and the instant from which it is late. Both
    /// follow from its prefill time at the usual speed and from the instant by which its first token
    /// should come: that of its class's TTFT objective, or sooner if its client leaves before.
    pub(super) fn set_place(&self, job: &mut Job) {
        let objective = self.policy.classes.get(job.spec.class).map(|class| class.ttft_objective);
        let own = self.prefill_time(&job.spec, job.prompt());
        let goal = (job.spec.arrived + objective.unwrap_or_default()).min(job.spec.patience);
        job.place.due = goal + own.mul_f64(PREFILL_DELAY_FACTOR);
        job.late_after = goal.earlier_by(own);
    }

    /// The latest moment at which the job may start: its deadline, or sooner if its client would
    /// leave during the prefill. The prefill time may be wrong, so it takes off at most half
    /// of the client's patience.
    pub(super) fn latest_start(&self, spec: &JobSpec) -> Tick {
        if spec.patience == Tick::NEVER {
            return spec.deadline;
        }
        let own = self.prefill_time(spec, spec.prompt_tokens);
        spec.deadline.min(spec.patience.earlier_by(own.min(spec.patience.since(spec.arrived) / 2)))
    }

    /// Prefill time of `prompt` tokens of which nothing is cached, at the usual speed of the
    /// replicas that may serve the job.
    fn prefill_time(&self, spec: &JobSpec, prompt: u64) -> Duration {
        let pools = self.placement.pool_set(LaneKey::of(spec)).map(|pool_set| &*pool_set.pools);
        let each = self.fleet.per_token(pools.unwrap_or_default());
        Duration::from_nanos((each * ttft_model::weight(prompt, 0) as f64) as u64)
    }

    /// The rejection with its time in the queue and its `Retry-After`. `job` is `None` when the
    /// job never waited.
    pub(super) fn rejection(&self, spec: &JobSpec, reason: RejectReason, job: Option<&Job>) -> Rejection {
        let queued = job.map(|job| job.queued(self.now)).unwrap_or_default();
        if reason == RejectReason::Paused {
            let until = self.overrides.paused_until(spec.tenant).unwrap_or(self.now);
            let retry_after = Some(admission::retry_after_pause(until, self.now, spec.id));
            return Rejection { reason, queued, retry_after };
        }
        let key = LaneKey::of(spec);
        let known = !matches!(
            reason,
            RejectReason::NoPool
                | RejectReason::Withdrawn
                | RejectReason::Draining
                | RejectReason::TooManySequences { .. }
        );
        if let Some(wait) = self.retry_after_start(key, spec.id).filter(|_| known) {
            return Rejection { reason, queued, retry_after: Some(wait) };
        }
        let group = self.groups.get(self.placement.group_of_model(spec.model));
        let retry_after = match reason {
            RejectReason::NoPool | RejectReason::Withdrawn | RejectReason::TooManySequences { .. } => None,
            RejectReason::Draining => Some(admission::MIN_RETRY_AFTER),
            RejectReason::Unmeetable => {
                let waiting = self.queue.lane(key).map_or(0, |lane| lane.load().requests);
                Some(admission::retry_after(waiting, self.lane_rate(key)))
            }
            _ => group
                .map(|group| admission::retry_after(group.waiting(), group.drain_rate.per_second(self.now))),
        };
        let retry_after = retry_after.map(|wait| admission::spread(wait, spec.id));
        Rejection { reason, queued, retry_after }
    }

    /// Puts a job in phase `Waiting` into its lane.
    pub(super) fn enqueue(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (spec, Some(part)) = (job.spec, job.part()) else { return };
        let place = job.position_in(part);
        let Some(position) = self.lane_position(LaneKey::of(&spec)) else { return };
        if !self.waits_in(position, spec.class, spec.tenant) {
            let lifted = self.groups[position.group].lift(position.class, position.pool_set, spec.tenant);
            if lifted {
                self.refresh_counter(position.accounts(), LaneKey::of(&spec));
            }
        }
        self.queue.push(&spec, part, place, self.weight(spec.tenant));
        self.groups[position.group].joined(position.class, position.pool_set, spec.tenant, 1, self.now);
        self.groups[position.group].add_multi_sequence(spec.sequences);
        self.timers.deadlines.add(spec.deadline, id);
        self.hold_for_pool_start(id);
        self.refresh_lane(LaneKey::of(&spec));
        self.groups.mark_changed(Some(position.group));
    }

    /// Takes a waiting job out of its lane.
    pub(super) fn dequeue(&mut self, id: JobId) {
        if let Some(key) = self.take_from_lane(id) {
            self.refresh_lane(key);
            self.queue.drop_empty(key);
        }
    }

    /// Takes a waiting job out of its lane, and leaves the update of the lane's heads to the
    /// caller.
    pub(super) fn take_from_lane(&mut self, id: JobId) -> Option<LaneKey> {
        let job = self.jobs.get(&id)?;
        let (spec, part) = (job.spec, job.part()?);
        let place = job.position_in(part);
        let key = LaneKey::of(&spec);
        let mut whole = self.queue.remove(&spec, part, place);
        whole &= self.timers.deadlines.cancel(spec.deadline, id);
        self.timers.unchecked_waits.cancel(spec.arrived + WAIT_CHECK_AFTER, id);
        if let Some(position) = self.lane_position(key) {
            whole &=
                self.groups[position.group].left(position.class, position.pool_set, spec.tenant, self.now);
            self.groups[position.group].remove_multi_sequence(spec.sequences);
            self.groups.mark_changed(Some(position.group));
        }
        self.invariants.check(InvariantId::QueueConsistent, whole);
        self.end_hold(id);
        Some(key)
    }

    /// Position of the lane; `None` when the policy in force has none for it.
    pub(super) fn lane_position(&self, lane: LaneKey) -> Option<LanePosition> {
        self.groups.position(&self.placement, lane)
    }

    /// Indexes of the lane's accounts. They may exist although the lane has no position any more.
    pub(super) fn lane_accounts(&self, lane: LaneKey) -> Option<LaneAccounts> {
        self.groups.accounts(&self.placement, lane)
    }

    /// Whether fresh jobs of the tenant and class wait at this position.
    fn waits_in(&self, position: LanePosition, class: ClassId, tenant: TenantId) -> bool {
        let mut here =
            self.queue.lane_keys_of(class, tenant).filter(|key| self.lane_position(*key) == Some(position));
        here.any(|key| self.queue.lane(key).is_some_and(|lane| lane.head(LaneSegment::New).is_some()))
    }

    /// Updates the head positions of a tenant's lanes after a charge in one of them. In that
    /// lane and in others of the same model the expected output may have changed, so their heads
    /// are priced again.
    pub(super) fn refresh_counter(&mut self, account: LaneAccounts, lane: LaneKey) {
        self.groups[account.group].follow_counter(account.class, lane.tenant);
        let alike = self.queue.lane_keys_of(lane.class, lane.tenant).filter(|key| key.model == lane.model);
        for key in alike.collect::<SmallVec<[LaneKey; 2]>>() {
            self.refresh_lane(key);
        }
    }

    /// Updates the head positions of a tenant's lanes of a class after its quota state changed.
    pub(super) fn refresh_tenant(&mut self, group: GroupIndex, class: ClassId, tenant: TenantId) {
        let here = |key: &LaneKey| self.placement.group_of_model(key.model) == Some(group);
        for key in self.queue.lane_keys_of(class, tenant).filter(here).collect::<SmallVec<[LaneKey; 8]>>() {
            self.refresh_lane(key);
        }
    }

    /// Updates the positions of a lane's two heads; a lane whose tenant is parked has none. Each
    /// head is priced here, with its output as expected now.
    pub(super) fn refresh_lane(&mut self, key: LaneKey) {
        let Some(position) = self.lane_position(key) else { return };
        let quota_state = self.quota_state(position.group, key.tenant);
        let objective = self.policy.classes.get(key.class).map(|class| class.ttft_objective);
        let group = &mut self.groups[position.group];
        let waits = group.shape.pool_set(position.pool_set).can_wait();
        let Some(lane) = self.queue.lane_mut(key) else { return };
        let mut update_at = None;
        for part in LaneSegment::ALL {
            let head = lane.head(part).filter(|_| quota_state != QuotaState::Parked);
            let job = head.and_then(|id| self.jobs.get_mut(&id));
            let mut bound = false;
            let entry: Option<HeadEntry> = job.map(|job| {
                job.output = self.lengths.expected(&job.spec);
                job.cached.at_best =
                    self.affinity.prefixes.matches(&job.prefix).first().map_or(0, |(_, tokens)| *tokens);
                if waits {
                    let goal = job.spec.arrived + objective.unwrap_or_default();
                    let until;
                    (bound, until) = choose_tier::preferred_only_until(job.spec.arrived, goal, self.now);
                    update_at = update_at.into_iter().chain(until).min();
                }
                let counter =
                    if part == LaneSegment::New { group.counter(position.class, key.tenant) } else { 0 };
                let value = LaneHead { job: job.spec.id, lane: key, part };
                let place = HeadKey::new(quota_state, counter, job.position_in(part));
                FitEntry { key: place, size: job.size(), value }
            });
            let heads = HeadSet { class: position.class, pool_set: position.pool_set, part };
            let head_position = &mut lane.head_positions[part as usize];
            *head_position = group.put_head(heads, key.tenant, *head_position, bound, entry);
        }
        if lane.refresh_at != update_at {
            let before = std::mem::replace(&mut lane.refresh_at, update_at);
            before.iter().for_each(|at| _ = self.timers.head_updates.cancel(*at, key));
            update_at.iter().for_each(|at| self.timers.head_updates.add(*at, key));
        }
    }
}
