//! Into the queue and out of it.

pub(super) mod check;
pub(super) mod demote;
pub(super) mod displace;
pub(super) mod fallback;
pub(super) mod limits;
pub(super) mod pool_start;
pub(super) mod quotas;

use std::time::Duration;

use smallvec::SmallVec;

use crate::core::autoscale::desired::DesiredReplicas;
use crate::core::limits::LimitGrant;
use crate::core::limits::rule::LimitId;
use crate::core::model::event::{Action, JobAction, RejectReason, Rejection};
use crate::core::model::ids::{ClassId, JobId, TenantId};
use crate::core::model::invariant::InvariantId;
use crate::core::model::job::{JobSpec, PromptPrefix};
use crate::core::placement::choose;
use crate::core::queue::admission;
use crate::core::queue::fit_tree::FitEntry;
use crate::core::queue::order::{HeadEntry, HeadKey, LaneHead};
use crate::core::queue::quota::QuotaState;
use crate::core::queue::{LaneKey, LanePart};

use super::Scheduler;
use super::job::{self, Job};

/// How much later than its neighbours' a job's turn comes, in times that its
/// prompt takes to read. Short prompts go first, and a long one waits so much
/// longer at most.
const SHORT_FIRST: f64 = 10.0;

/// How much later a job that has missed the objective of its class has its turn, in
/// objectives. Until then those go first that can still be in time; from then on it
/// goes before all that arrive later. A class whose
/// `max_wait` is shorter serves late jobs only when nobody in time waits.
const LATE_TURN: u32 = 10;

/// How long a job that waits may be told at the latest that it waits in vain,
/// where how fast jobs go was not known when it came.
const JUDGED_AFTER: Duration = Duration::from_secs(5);

/// Where the accounts of a lane are: group, class by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneAccounts {
    pub(super) group: usize,
    pub(super) class: usize,
}

/// Where a lane stands in the order: group, class by place, pool set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LanePosition {
    pub(super) group: usize,
    pub(super) class: usize,
    pub(super) pool_set: usize,
}

impl Scheduler {
    /// Lets a job in. Returns the limits in shadow mode that would have refused it.
    pub(super) fn arrived(
        &mut self,
        spec: JobSpec,
        prefix: PromptPrefix,
        out: &mut Vec<Action>,
    ) -> SmallVec<[LimitId; 1]> {
        let id = spec.id;
        if self.jobs.contains_key(&id) {
            return SmallVec::new();
        }
        let spec = job::bounded(spec, self.now);
        if let Some(reason) = self.reason_to_refuse(&spec) {
            out.push(Action::Job(JobAction::Reject { job: id, why: self.rejection(&spec, reason, None) }));
            return SmallVec::new();
        }
        let LimitGrant { reservation: hold, shadowed } = match self.reserve(&spec) {
            Ok(granted) => granted,
            Err(why) => {
                let reason = RejectReason::Limited(why);
                let why = Rejection { reason, queued: Duration::ZERO, retry_after: why.retry_after };
                out.push(Action::Job(JobAction::Reject { job: id, why }));
                return SmallVec::new();
            }
        };
        self.arrivals += 1;
        let spec = JobSpec { context_group: self.placement.context_group(spec.model, spec.context), ..spec };
        let mut job = Job::new(spec, prefix, self.arrivals);
        job.reservation = hold;
        let now = self.now;
        job.known_suspect = spec.fingerprint.is_some_and(|known| self.suspects.contains(known, now));
        self.set_place(&mut job);
        self.set_work(&mut job);
        let work = job.work;
        self.jobs.insert(id, job);
        if let Some(spot) = self.lane_position(LaneKey::of(&spec)) {
            self.groups[spot.group].arrived(spot.class, spec.sequences, self.now);
            self.note_offered(&spec, spot, work);
        }
        self.enqueue(id);
        self.start_or_queue(id, out);
        shadowed
    }

    /// Starts a job that has just joined its lane, or lets it wait if it may. It may
    /// wait only if no replica takes it at once, so the queue's bounds are looked at
    /// after that was tried.
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
        if self.is_hopeless(id) {
            if !self.demote(id) {
                return self.reject(id, self.reason_of_wait(id, RejectReason::Unmeetable), out);
            }
            self.dispatch(out);
        } else {
            self.check_wait_later(id);
        }
        let refusal = admission::refusal(&self.policy, &self.queue, tenant).filter(|_| self.waits(id));
        let Some(reason) = refusal else { return };
        let other = match reason {
            RejectReason::QueueFull(_) => self.displaceable(tenant),
            _ => None,
        };
        match other {
            Some(other) => self.reject(other, RejectReason::Displaced, out),
            None => self.reject(id, reason, out),
        }
    }

    fn waits(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.part().is_some())
    }

    /// Whether a job that has just joined its lane surely cannot start before
    /// its deadline: its tenant is paused for longer, its pools take longer to
    /// start, or those before it in the lane take longer, even at a better rate than what was measured of its
    /// tenant and class. Others that may go first are in that rate. Where the
    /// deadline is far beyond the turn of late jobs, all that waits in the lane goes
    /// before it.
    pub(super) fn is_hopeless(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        if let Some(until) = self.overrides.paused_until(job.spec.tenant) {
            return job.spec.deadline < until;
        }
        if let Some(too_late) = self.starts_too_late(id) {
            return too_late;
        }
        self.has_too_much_before(job)
    }

    /// Whether what goes before a job in its lane takes longer than it may wait.
    fn has_too_much_before(&self, job: &Job) -> bool {
        let (id, key) = (job.spec.id, LaneKey::of(&job.spec));
        let lane = self.queue.lane(key).filter(|_| job.part() == Some(LanePart::Fresh));
        let left = job.spec.deadline.since(self.now);
        if left < 2 * self.late_penalty(key.class) {
            let before = lane.map_or(0, |lane| lane.before(job.place, id));
            return admission::is_hopeless(before, self.lane_rate(key), left);
        }
        let before = lane.map_or(0, |lane| lane.load().requests.saturating_sub(1));
        self.expected_wait(key, before).is_some_and(|wait| admission::is_beyond(wait, left))
    }

    /// The time in which so many jobs of a lane go, by what was measured of its
    /// tenant, or else of all tenants; `None` when neither is known. Replicas that
    /// are called for and may be expected count as if they were there.
    fn expected_wait(&self, key: LaneKey, before: u64) -> Option<Duration> {
        let spot = self.lane_position(key)?;
        let here = &self.groups[spot.group];
        let wait = here.backlogs(spot.class).wait(key.tenant, before, self.now)?;
        let pools = here.shape.pool_sets[spot.pool_set].pools.iter();
        let growth = pools
            .filter_map(|pool| self.desired_replicas.get(pool))
            .map(DesiredReplicas::growth)
            .fold(1.0, f64::max);
        Some(wait.div_f64(growth))
    }

    /// Looks again at a job that was let in while nobody knew how fast jobs go.
    fn check_wait_later(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.part() == Some(LanePart::Fresh)) else { return };
        let at = job.spec.arrived + JUDGED_AFTER;
        if at > self.now && self.expected_wait(LaneKey::of(&job.spec), 1).is_none() {
            self.unchecked_waits.insert((at, id));
        }
    }

    /// Tells those jobs that they wait in vain of which that is known now; the
    /// last that came first, which leaves the more room for the others.
    pub(super) fn refuse_late_waits(&mut self, out: &mut Vec<Action>) {
        let later = self.unchecked_waits.split_off(&(self.now + Duration::from_nanos(1), JobId::new(0)));
        let due = std::mem::replace(&mut self.unchecked_waits, later);
        for (_, id) in due.into_iter().rev() {
            let Some(job) = self.jobs.get(&id) else { continue };
            let kept =
                self.overrides.paused_until(job.spec.tenant).is_some() || self.starts_too_late(id).is_some();
            if !kept && self.has_too_much_before(job) && !self.demote(id) {
                self.reject(id, self.reason_of_wait(id, RejectReason::Unmeetable), out);
            }
        }
    }

    /// How much later than in time a late job of the class has its turn.
    pub(super) fn late_penalty(&self, class: ClassId) -> Duration {
        self.policy.classes.get(class).map(|row| row.ttft_objective).unwrap_or_default() * LATE_TURN
    }

    /// How many jobs a second go of those that wait for the lane's tenant in its
    /// class.
    fn lane_rate(&self, key: LaneKey) -> Option<f64> {
        let spot = self.lane_position(key)?;
        self.groups[spot.group].drain_of(spot.class, key.tenant, self.now)
    }

    /// Where a fresh job stands in its lane, and how long it is in time: by
    /// the objective of its class, its prompt read at the usual speed.
    pub(super) fn set_place(&self, job: &mut Job) {
        let objective = self.policy.classes.get(job.spec.class).map(|class| class.ttft_objective);
        let pools = self.placement.pool_set(LaneKey::of(&job.spec)).map(|pool_set| &*pool_set.pools);
        let own = self.fleet.per_token(pools.unwrap_or_default()) * job.weight() as f64;
        let goal = job.spec.arrived + objective.unwrap_or_default();
        job.place.due = goal + Duration::from_nanos((own * SHORT_FIRST) as u64);
        job.late_after = goal.before(Duration::from_nanos(own as u64));
    }

    /// The words for a refusal. `job` is absent when it never waited.
    pub(super) fn rejection(&self, spec: &JobSpec, reason: RejectReason, job: Option<&Job>) -> Rejection {
        let queued = job.map(|job| job.queued(self.now)).unwrap_or_default();
        if reason == RejectReason::Paused {
            let until = self.overrides.paused_until(spec.tenant).unwrap_or(self.now);
            let retry_after = Some(admission::after_pause(until, self.now, spec.id));
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
        let group = self.placement.group_of_model(spec.model).and_then(|group| self.groups.get(group));
        let retry_after = match reason {
            RejectReason::NoPool | RejectReason::Withdrawn | RejectReason::TooManySequences { .. } => None,
            RejectReason::Draining => Some(admission::MIN_RETRY_AFTER),
            RejectReason::Unmeetable => {
                let waiting = self.queue.lane(key).map_or(0, |lane| lane.load().requests);
                Some(admission::retry_after(waiting, self.lane_rate(key)))
            }
            _ => group.map(|group| admission::retry_after(group.waiting(), group.drain.per_second(self.now))),
        };
        let retry_after = retry_after.map(|wait| admission::spread(wait, spec.id));
        Rejection { reason, queued, retry_after }
    }

    /// Puts a job that is in phase `Waiting` into its lane.
    pub(super) fn enqueue(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (spec, Some(part)) = (job.spec, job.part()) else { return };
        let place = job.place_in(part);
        let Some(spot) = self.lane_position(LaneKey::of(&spec)) else { return };
        if !self.waits_in(spot, spec.class, spec.tenant) {
            let lifted = self.groups[spot.group].lift(spot.class, spot.pool_set, spec.tenant);
            if lifted {
                self.refresh_counter(
                    LaneAccounts { group: spot.group, class: spot.class },
                    LaneKey::of(&spec),
                );
            }
        }
        self.queue.push(&spec, part, place, self.weight(spec.tenant));
        self.groups[spot.group].joined(spot.class, spot.pool_set, spec.tenant, self.now);
        self.groups[spot.group].note_wide(spec.sequences);
        self.fallbacks += u64::from(spec.has_fallback);
        self.deadlines.insert((spec.deadline, id));
        self.hold_for_pool_start(id);
        self.refresh_lane(LaneKey::of(&spec));
        self.changed_groups.insert(spot.group);
    }

    /// Takes a waiting job out of its lane.
    pub(super) fn dequeue(&mut self, id: JobId) {
        if let Some(key) = self.take_from_lane(id) {
            self.refresh_lane(key);
            self.queue.drop_empty(key);
        }
    }

    /// The same before the lane's heads are looked at again.
    pub(super) fn take_from_lane(&mut self, id: JobId) -> Option<LaneKey> {
        let job = self.jobs.get(&id)?;
        let (spec, part) = (job.spec, job.part()?);
        let place = job.place_in(part);
        let key = LaneKey::of(&spec);
        let mut whole = self.queue.remove(&spec, part, place);
        whole &= self.deadlines.remove(&(spec.deadline, id));
        self.unchecked_waits.remove(&(spec.arrived + JUDGED_AFTER, id));
        self.fallbacks = self.fallbacks.saturating_sub(u64::from(spec.has_fallback));
        if let Some(spot) = self.lane_position(key) {
            whole &= self.groups[spot.group].left(spot.class, spot.pool_set, spec.tenant, self.now);
            self.groups[spot.group].forget_wide(spec.sequences);
            self.changed_groups.insert(spot.group);
        }
        self.invariants.check(InvariantId::QueueConsistent, whole);
        self.end_hold(id);
        Some(key)
    }

    /// Where the lane stands; `None` when the policy no longer has a place.
    pub(super) fn lane_position(&self, lane: LaneKey) -> Option<LanePosition> {
        let route = self.placement.route(lane)?;
        let class = self.groups[route.group].class(lane.class)?;
        Some(LanePosition { group: route.group, class, pool_set: route.pool_set })
    }

    /// Where the accounts of a lane are, which may have no place to wait any
    /// more.
    pub(super) fn lane_accounts(&self, lane: LaneKey) -> Option<LaneAccounts> {
        let group = self.placement.group_of_model(lane.model)?;
        Some(LaneAccounts { group, class: self.groups[group].class(lane.class)? })
    }

    /// Whether fresh jobs of the tenant wait in the pool set already.
    fn waits_in(&self, spot: LanePosition, class: ClassId, tenant: TenantId) -> bool {
        let mut here = self.queue.keys_of(class, tenant).filter(|key| self.lane_position(*key) == Some(spot));
        here.any(|key| self.queue.lane(key).is_some_and(|lane| lane.head(LanePart::Fresh).is_some()))
    }

    /// Brings the places of a tenant's lanes up to date after its counter moved
    /// by what happened in one of them. There, and in those of the same model,
    /// more may be known of the output to come: their heads are priced anew.
    pub(super) fn refresh_counter(&mut self, account: LaneAccounts, lane: LaneKey) {
        self.groups[account.group].follow_counter(account.class, lane.tenant);
        let alike = self.queue.keys_of(lane.class, lane.tenant).filter(|key| key.model == lane.model);
        for key in alike.collect::<SmallVec<[LaneKey; 2]>>() {
            self.refresh_lane(key);
        }
    }

    /// Brings the places of a tenant's lanes of a class up to date after its
    /// standing changed.
    pub(super) fn refresh_tenant(&mut self, group: usize, class: ClassId, tenant: TenantId) {
        let here = |key: &LaneKey| self.placement.group_of_model(key.model) == Some(group);
        for key in self.queue.keys_of(class, tenant).filter(here).collect::<SmallVec<[LaneKey; 8]>>() {
            self.refresh_lane(key);
        }
    }

    /// Brings the places of a lane's two heads up to date; a lane whose tenant is
    /// parked has none. This is when a head is priced: with what is known now of
    /// the output it will have.
    pub(super) fn refresh_lane(&mut self, key: LaneKey) {
        let Some(spot) = self.lane_position(key) else { return };
        let standing = self.quota_state(spot.group, key.tenant);
        let objective = self.policy.classes.get(key.class).map(|class| class.ttft_objective);
        let group = &mut self.groups[spot.group];
        let waits = group.shape.pool_sets[spot.pool_set].can_wait();
        let Some(lane) = self.queue.lane_mut(key) else { return };
        let mut reseat_at = None;
        for part in LanePart::ALL {
            let head = lane.head(part).filter(|_| standing != QuotaState::Parked);
            let job = head.and_then(|id| self.jobs.get_mut(&id));
            let mut bound = false;
            let entry: Option<HeadEntry> = job.map(|job| {
                job.output = self.lengths.expect(&job.spec);
                job.reach = self.prefixes.matches(&job.prefix).first().map_or(0, |(_, tokens)| *tokens);
                if waits {
                    let goal = job.spec.arrived + objective.unwrap_or_default();
                    let until;
                    (bound, until) = choose::bound(job.spec.arrived, goal, self.now);
                    reseat_at = reseat_at.into_iter().chain(until).min();
                }
                let counter = if part == LanePart::Fresh { group.counter(spot.class, key.tenant) } else { 0 };
                let value = LaneHead { job: job.spec.id, lane: key, part };
                let key = HeadKey::new(standing, counter, job.place_in(part));
                FitEntry { key, size: job.size(), value }
            });
            let seat = &mut lane.head_positions[part as usize];
            *seat = group.put((spot.class, spot.pool_set, part), *seat, bound, entry);
        }
        if lane.refresh_at != reseat_at {
            let before = std::mem::replace(&mut lane.refresh_at, reseat_at);
            before.iter().for_each(|at| _ = self.head_updates.remove(&(*at, key)));
            self.head_updates.extend(reseat_at.map(|at| (at, key)));
        }
    }
}
