//! Dispatch: picks the next job and its replica.
//!
//! The scheduler tries the heads of lanes in the order of service. A head that fits nowhere is
//! passed over, so that it blocks neither other lanes nor other replicas.

mod gateways;
pub(super) mod hold;
pub(super) mod objective;
pub(super) mod place;
pub(super) mod preempt;
pub(super) mod wait;
mod warm;

use std::cell::OnceCell;
use std::time::Duration;

use smallvec::SmallVec;

use crate::model::event::{Action, DispatchGrant, DispatchReason, JobAction, OrderReason, ReplicaAction};
use crate::model::ids::{GroupIndex, JobId, ModelId, PoolId, PoolSetIndex, ReplicaId};
use crate::model::invariant::InvariantId;
use crate::queue::fairness::cost;
use crate::queue::lane_key::{LaneAccounts, LaneOrderKey, LanePart, LanePosition};
use crate::queue::order::{Candidate, HeadSet, LaneHead, OpenRoom, RoomIn};
use crate::queue::quota::QuotaState;
use crate::replica::affinity::adapter_slots::AdapterState;
use crate::replica::ledger::Booking;

use self::place::ReplicaChoice;
use super::Scheduler;
use super::job::{FailedReplica, RunningAttempt};

/// Number of heads of one class, pool set and part that may fail to find a replica in one
/// decision. The other heads are then left for the next decision.
const MAX_FAILED_HEADS: usize = 32;

/// A job and its destination.
#[derive(Debug, Clone, Copy)]
struct DispatchPick {
    /// The job, with its place in the order.
    candidate: Candidate,
    place: ReplicaChoice,
    /// The pool of the replica.
    pool: PoolId,
    /// Whether the replica was held for the job.
    held: bool,
    /// Whether the job goes before the head of its lane; see [`warm`].
    warm: bool,
}

/// The pick whose turn it is, while warm jobs are looked for.
#[derive(Debug)]
struct DeferredPick {
    pick: DispatchPick,
    /// Heads that were looked at since, the first included.
    heads: usize,
}

/// An adapter that no replica of a pool set can load now, and the first job that waits for it.
struct BlockedAdapter {
    pool_set: PoolSetIndex,
    model: ModelId,
    job: JobId,
}

/// The adapters that one decision found blocked.
type BlockedAdapters = SmallVec<[BlockedAdapter; 4]>;

/// Heads that found no replica in one decision, and their number.
struct FailedHeads {
    heads: HeadSet,
    times: usize,
}

impl Scheduler {
    /// Dispatches every job that can start, in every pool group that changed.
    pub(super) fn dispatch(&mut self, out: &mut Vec<Action>) {
        while let Some(group) = self.groups.pop_changed() {
            self.groups.update_objective(group, &mut self.fleet, &self.policy, self.now);
            self.resize_quotas(group);
            self.groups[group].session_wait_until = None;
            let mut made_room = false;
            let mut opened: Option<ReplicaId> = None;
            loop {
                let Some(pick) = self.pick_held(group).or_else(|| self.pick(group)) else {
                    if !made_room {
                        made_room = true;
                        if self.preempt(group, out) {
                            continue;
                        }
                        opened = self.open_beyond_limit(group);
                        if opened.is_some() {
                            continue;
                        }
                    }
                    break;
                };
                let passed = if pick.warm { None } else { self.passed_by(group, &pick) };
                if self.dispatch_job(group, &pick, out).is_none() {
                    break;
                }
                if let Some(passed) = passed {
                    self.note_passed_over(group, pick.pool, passed);
                }
                if let Some(replica) = opened.take() {
                    self.fleet.close_beyond_limit(replica, self.now);
                }
            }
            if let Some(replica) = opened {
                self.fleet.close_beyond_limit(replica, self.now);
            }
            self.groups.clear_changed(group);
            self.wake_for(group, out);
            let here = &mut self.groups[group];
            let waiting = here.waiting() > 0;
            here.drain_rate.set_waiting(self.now, waiting);
        }
    }

    /// The first job in the order that has a replica now.
    fn pick(&mut self, group: GroupIndex) -> Option<DispatchPick> {
        if self.groups[group].waiting() == 0 {
            return None;
        }
        let mut passed: Vec<JobId> = Vec::new();
        let mut blocked: BlockedAdapters = SmallVec::new();
        let mut tries: SmallVec<[FailedHeads; 4]> = SmallVec::new();
        let mut deferred: Option<DeferredPick> = None;
        let openings: [OnceCell<_>; 2] = Default::default();
        loop {
            let here = &self.groups[group];
            let find = |background| here.openings(self.fleet.free_pools(&here.pools, background));
            let rooms = OpenRoom {
                openings: &|background| openings[usize::from(background)].get_or_init(|| find(background)),
                preferred_tier: &|pool_set| self.preferred_tier(here.shape.pool_set(pool_set)),
                is_skipped: &|at| {
                    (at.part == LanePart::New && self.is_due_elsewhere(group, at.class))
                        || tries.iter().any(|tried| tried.heads == at && tried.times >= MAX_FAILED_HEADS)
                },
            };
            let skip = |head: &LaneHead| passed.contains(&head.job) || self.is_blocked(head, &blocked);
            let next = here.first(RoomIn::Pools(rooms), &skip);
            let Some(candidate) = next.filter(|next| self.may_precede(group, next, deferred.as_ref())) else {
                if deferred.is_none() {
                    self.hold_for_shut_out(group, &blocked);
                }
                return deferred.map(|deferred| deferred.pick);
            };
            if self.delay_if_late(&candidate.head) {
                continue;
            }
            let failed = passed.len() - deferred.as_ref().map_or(0, |deferred| deferred.heads);
            let pick = self.choose_replica(group, &candidate, failed).and_then(|place| {
                let pool = self.fleet.pool_of(place.replica)?;
                Some(DispatchPick { candidate, place, pool, held: false, warm: false })
            });
            if let Some(ahead) = self.pick_warm(group, &candidate, pick.as_ref(), &mut deferred) {
                return Some(ahead);
            }
            match pick {
                Some(pick) if deferred.is_none() => return Some(pick),
                Some(_) => passed.push(candidate.head.job),
                None => {
                    self.note_session(group, &candidate);
                    blocked.extend(self.blocked_by(group, &candidate));
                    passed.push(candidate.head.job);
                    let at = candidate.head_set();
                    match tries.iter_mut().find(|tried| tried.heads == at) {
                        Some(tried) => tried.times += 1,
                        None => tries.push(FailedHeads { heads: at, times: 1 }),
                    }
                }
            }
        }
    }

    /// The pool set and the adapter of a job, if no replica of the pool set can load the adapter
    /// now. Other jobs with the same adapter then need no try.
    fn blocked_by(&self, group: GroupIndex, candidate: &Candidate) -> Option<BlockedAdapter> {
        let (pools, model) =
            (&self.groups[group].shape.pool_set(candidate.pool_set).pools, candidate.head.lane.model);
        let blocked = BlockedAdapter { pool_set: candidate.pool_set, model, job: candidate.head.job };
        self.fleet.is_adapter_blocked(pools, model).then_some(blocked)
    }

    fn is_blocked(&self, head: &LaneHead, blocked: &BlockedAdapters) -> bool {
        let is_for = |blocked: &BlockedAdapter| {
            let route = || self.placement.route(head.lane);
            head.lane.model == blocked.model
                && route().is_some_and(|route| route.pool_set == blocked.pool_set)
        };
        blocked.iter().any(is_for)
    }

    /// Moves a head that has just become late to its later turn, so that others of its lane may
    /// go first. Returns whether the head was moved.
    fn delay_if_late(&mut self, head: &LaneHead) -> bool {
        let now = self.now;
        let later = self.late_penalty(head.lane.class);
        let Some(job) = self.jobs.get_mut(&head.job) else { return false };
        if head.part != LanePart::New || job.place.late || now <= job.late_after {
            return false;
        }
        let place = LaneOrderKey { late: true, due: job.place.due + later, ..job.place };
        let whole = self.queue.make_late(head.lane, head.job, job.place, place);
        job.place = place;
        self.invariants.check(InvariantId::QueueConsistent, whole);
        self.refresh_lane(head.lane);
        self.jobs.note_late(head.job);
        true
    }

    /// Counts the turn of a head that goes to a replica.
    fn note_turn(&mut self, head: &LaneHead) {
        let share = self.late_share(head.lane.class);
        if let Some(job) = self.jobs.get(&head.job).filter(|_| head.part == LanePart::New) {
            self.queue.note_turn(head.lane, job.place, share);
        }
    }

    /// Replicas that the job must not go to: those in service that failed the job, as long as
    /// another replica is in service. A replica readmitted since then has a new epoch and is not
    /// avoided.
    pub(super) fn avoided_replicas(&self, job: JobId, pools: &[PoolId]) -> SmallVec<[ReplicaId; 2]> {
        let Some(job) = self.jobs.get(&job).filter(|job| !job.faults.failed_at.is_empty()) else {
            return SmallVec::new();
        };
        let here = |&FailedReplica { replica, epoch }: &FailedReplica| {
            let same = self.fleet.is_up(replica) && self.fleet.epoch(replica) == Some(epoch);
            let ours = same && self.fleet.pool_of(replica).is_some_and(|pool| pools.contains(&pool));
            ours.then_some(replica)
        };
        let tried: SmallVec<[ReplicaId; 2]> = job.faults.failed_at.iter().filter_map(here).collect();
        if self.fleet.count_up(pools) > tried.len() as u64 { tried } else { SmallVec::new() }
    }

    /// The first job in the order of the group, whether it fits a replica or not.
    pub(super) fn first_in_order(&self, group: GroupIndex) -> Option<Candidate> {
        self.groups[group].first(RoomIn::Anywhere, &|_| false)
    }

    /// Books the job at the replica and emits `JobAction::Dispatch`. Returns `None` when the job
    /// or the replica is unknown.
    fn dispatch_job(&mut self, group: GroupIndex, pick: &DispatchPick, out: &mut Vec<Action>) -> Option<()> {
        let now = self.now;
        let id = pick.candidate.head.job;
        let ReplicaChoice { replica, cached, .. } = pick.place;
        let (why, epoch) = self.reasons(group, pick)?;
        let job = self.jobs.get(&id)?;
        let adapter = why.adapter.map(|_| job.spec.model);
        let booking = Booking { adapter, ..job.booking(cached, pick.candidate.background) };
        let uncached = booking.prompt.saturating_sub(cached);
        let (spec, work, unpaid, share) =
            (job.spec, job.work, job.charges.fair_share.is_none(), job.time_weight(uncached));
        let price = cost(spec.prompt_tokens, job.output);

        let cached = [(replica, cached)];
        let required = job.requirements(&cached, pick.candidate.background, &self.policy);
        let fits = self.fleet.fits_or_returns(replica, &required, true, now);
        let lead = self.fleet.prefill_lead(replica, booking.weight);
        let raw =
            self.fleet.reference_ttft_model(replica).map_or(0, |ttft_model| ttft_model.ttft(booking.weight));
        self.invariants.check(InvariantId::CreditKept, fits);
        self.groups[group].book_dispatch(&pick.candidate, pick.pool, price);
        self.groups.note_class_work(group, pick.candidate.class, pick.pool, price);
        self.groups[group].class_mut(pick.candidate.class).drain_rates.note_dispatch(spec.tenant, now);
        self.note_turn(&pick.candidate.head);
        let lane = self.take_from_lane(id)?;
        if unpaid {
            let who = self.weights(group, spec.tenant);
            self.groups[group].class_mut(pick.candidate.class).counters.charge(&who, price, now);
            let account = LaneAccounts { group, class: pick.candidate.class };
            self.groups.note_charge(account, spec.tenant, 0, price);
            self.refresh_counter(account, lane);
        } else {
            self.refresh_lane(lane);
        }
        self.queue.drop_empty(lane);
        self.fleet.note_urgent(replica, &booking, why.queued, now);
        let metered = self.fleet.book(replica, &booking, share, now);
        self.take_quota(group, spec.tenant, booking.seqs);
        self.groups[group].started(pick.candidate.class);
        let at = LanePosition { group, class: pick.candidate.class, pool_set: pick.candidate.pool_set };
        self.demand.note_dispatch(&spec, at, pick.pool, work, &why, now);
        self.note_dispatched(group, pick, &why);
        let run = RunningAttempt {
            replica,
            epoch,
            booking,
            metered,
            uncached,
            predicted_cached: 0,
            since: now,
            prefill_due_at: None,
            prefill_mark: self.fleet.prefill_mark(replica),
            proven: self.fleet.is_proven(replica),
            expected_ttft: why.expected,
            reference_ttft_ns: raw,
            loads_adapter: why.adapter.is_some_and(AdapterState::needs_load),
        };
        self.set_running(id, run, &why, price);
        self.await_prefill(id, self.prefill_done_at(why.expected, lead));
        out.push(Action::Job(JobAction::Dispatch(DispatchGrant { job: id, pool: pick.pool, replica, why })));
        self.ask_for_report(replica, out);
        Some(())
    }

    /// Asks for a report of a replica whose learned number of slots is used up.
    pub(super) fn ask_for_report(&mut self, replica: ReplicaId, out: &mut Vec<Action>) {
        if self.fleet.wants_report(replica, self.now) {
            out.push(Action::Replica(ReplicaAction::Scrape { replica }));
        }
    }

    /// Counts a dispatch in the drain rate and the retry budget of its group, and in the figures
    /// of its pool.
    fn note_dispatched(&mut self, group: GroupIndex, pick: &DispatchPick, why: &DispatchReason) {
        let now = self.now;
        if !pick.candidate.background {
            let waiting = self.groups[group].class_waiting_for(pick.candidate.class, pick.pool);
            self.fleet.note_waiting(pick.pool, waiting);
        }
        self.groups[group].drain_rate.add_dispatch(now);
        if why.attempt == 1 {
            self.groups[group].retries.note_first_attempt(now);
        }
    }

    /// Sets the job's phase to running. Its replica now counts as having the start of its prompt
    /// and its session.
    fn set_running(&mut self, id: JobId, run: RunningAttempt, why: &DispatchReason, price: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.wait.before = why.queued;
        job.attempts = why.attempt;
        job.wait.passed_over = 0;
        job.charges.fair_share.get_or_insert(price);
        let predicted_cached = self.affinity.prefixes.note(run.replica, &job.prefix);
        if let (Some(rule), Some(session)) = (&self.policy.sessions, job.spec.session)
            && self.affinity.sessions.note(session, run.replica, rule.max_sessions)
        {
            // A job of another group may wait for the replica of this session.
            self.groups.mark_session_waits();
        }
        let run = RunningAttempt { predicted_cached, ..run };
        self.jobs.begin_attempt(id, run);
        self.note_preemptible(id, &run);
    }

    /// The reasons of a dispatch, for the log and the trail, and the replica's epoch; computed before the
    /// booking.
    fn reasons(&self, group: GroupIndex, pick: &DispatchPick) -> Option<(DispatchReason, u32)> {
        let candidate = &pick.candidate;
        let ReplicaChoice { replica, cached: cached_tokens, choice } = pick.place;
        let job = self.jobs.get(&candidate.head.job)?;
        let here = &self.groups[group];
        let standing = self.fleet.load(replica, self.now)?;
        let pools = &here.shape.pool_set(candidate.pool_set).pools;
        let avoided = self.avoided_replicas(candidate.head.job, pools);
        let cached = [(replica, cached_tokens)];
        let required = job.requirements(&cached, candidate.background, &self.policy);
        let refused = avoided.iter().filter(|id| self.fleet.fits(**id, &required, false, self.now)).count();
        let fitting = self.fleet.count_fitting(pools, &required);
        let turn = if candidate.head.part == LanePart::Requeued {
            OrderReason::Requeued
        } else if here.waiting_for(pick.pool) <= 1 {
            OrderReason::Alone
        } else if candidate.guaranteed
            && !pick.held
            && here.has_more_urgent_waiting(candidate.class, pick.pool)
        {
            OrderReason::GuaranteedShare
        } else if candidate.quota_state == QuotaState::Guaranteed {
            OrderReason::OwnQuota
        } else {
            OrderReason::Fair
        };
        let why = DispatchReason {
            queued: job.queued(self.now),
            attempt: job.attempts.saturating_add(1),
            behind: here.waiting().saturating_sub(1),
            candidates: fitting.saturating_sub(u32::try_from(refused).unwrap_or(u32::MAX)),
            outstanding_tokens: standing.work,
            cached_tokens,
            expected: Duration::from_nanos(self.fleet.ttft(replica, &required)),
            running: standing.running,
            limit: standing.limit,
            order: turn,
            placement: choice,
            passed_over: self.passed_over(here.shape.pool_set(candidate.pool_set), pick.pool, &required),
            scores: self.scores(job, candidate.background, pools, &pick.place, pick.held, &avoided),
            adapter: self.fleet.adapter_fit(replica, required.model),
            class: job.spec.class,
            demoted_from: job.demoted_from,
        };
        Some((why, standing.epoch))
    }
}
