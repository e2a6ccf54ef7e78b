//! Admission: puts jobs into the queue and takes them out.

pub(super) mod check;
pub(super) mod deadline;
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
use crate::placement::choose_tier;
use crate::queue::bounds::exceeded_queue_bound;
use crate::queue::drain::retry_after;
use crate::queue::fit_tree::FitEntry;
use crate::queue::lane_key::{LaneAccounts, LaneKey, LanePart, LanePosition};
use crate::queue::order::{HeadEntry, HeadKey, HeadSet, LaneHead};
use crate::queue::quota::QuotaState;
use crate::replica::speed::ttft_model;

use super::Scheduler;
use super::job::{self, Job};

/// Delay of a job's turn in its lane, in multiples of its prefill time. Short prompts go first,
/// and a long prompt waits at most this much longer.
const PREFILL_DELAY_FACTOR: f64 = 10.0;

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
        let LimitGrant { reservation, shadowed } =
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
        job.charges.reservation = reservation;
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
        let refusal =
            exceeded_queue_bound(&self.policy, &self.queue, tenant).filter(|_| self.jobs.is_waiting(id));
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

    /// Sets the position of a fresh job in its lane and the instant from which it is late. Both
    /// follow from its prefill time and from the instant by which its first token should come: that of
    /// its class's TTFT objective, or sooner if its client leaves before. For its position, only the
    /// tokens count that no replica has cached. Whether it is late does not depend on a replica that
    /// may be full when its turn comes.
    pub(super) fn set_place(&self, job: &mut Job) {
        let objective = self.policy.classes.get(job.spec.class).map(|class| class.ttft_objective);
        let goal = (job.spec.arrived + objective.unwrap_or_default()).min(job.spec.client_deadline);
        let uncached = job.prompt().saturating_sub(self.affinity.prefixes.longest_match(&job.prefix));
        job.place.due = goal + self.prefill_time(&job.spec, uncached).mul_f64(PREFILL_DELAY_FACTOR);
        job.late_after = goal.earlier_by(self.prefill_time(&job.spec, job.prompt()));
    }

    /// Prefill time of `prompt` tokens, at the usual speed of the replicas that may serve the job.
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
            let retry_after = Some(retry_after::retry_after_pause(until, self.now, spec.id));
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
        if let Some(wait) = self.retry_after_pool_start(key, spec.id).filter(|_| known) {
            return Rejection { reason, queued, retry_after: Some(wait) };
        }
        let group = self.groups.get(self.placement.group_of_model(spec.model));
        let wait = match reason {
            RejectReason::NoPool | RejectReason::Withdrawn | RejectReason::TooManySequences { .. } => None,
            RejectReason::Draining => Some(retry_after::MIN_RETRY_AFTER),
            RejectReason::Unmeetable => {
                let waiting = self.queue.lane(key).map_or(0, |lane| lane.load().requests);
                Some(retry_after::retry_after(waiting, self.lane_rate(key)))
            }
            _ => group.map(|group| {
                retry_after::retry_after(group.waiting(), group.drain_rate.per_second(self.now))
            }),
        };
        let retry_after = wait.map(|wait| retry_after::spread(wait, spec.id));
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
        self.await_pool_start(id);
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
        self.timers.unchecked_waits.cancel(spec.arrived + deadline::WAIT_CHECK_AFTER, id);
        if let Some(position) = self.lane_position(key) {
            whole &=
                self.groups[position.group].left(position.class, position.pool_set, spec.tenant, self.now);
            self.groups[position.group].remove_multi_sequence(spec.sequences);
            self.groups.mark_changed(Some(position.group));
        }
        self.invariants.check(InvariantId::QueueConsistent, whole);
        self.end_pool_start_wait(id);
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
        here.any(|key| self.queue.lane(key).is_some_and(|lane| lane.head(LanePart::New).is_some()))
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
        for part in LanePart::ALL {
            let head = lane.head(part).filter(|_| quota_state != QuotaState::Parked);
            let job = head.and_then(|id| self.jobs.get_mut(&id));
            let mut bound = false;
            let entry: Option<HeadEntry> = job.map(|job| {
                job.output = self.lengths.expected(&job.spec);
                job.cached.at_best = self.affinity.prefixes.longest_match(&job.prefix);
                if waits {
                    let goal = job.spec.arrived + objective.unwrap_or_default();
                    let until;
                    (bound, until) = choose_tier::preferred_only_until(job.spec.arrived, goal, self.now);
                    update_at = update_at.into_iter().chain(until).min();
                }
                let counter =
                    if part == LanePart::New { group.counter(position.class, key.tenant) } else { 0 };
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
