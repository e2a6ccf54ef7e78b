//! Scheduler: which job goes to which replica, when, and why.
//!
//! A job waits here and gets its replica only when the replica can start it at once (late binding).
//! Each event changes the state and dispatches what can start. The rules stand in these modules:
//!
//! * `admit`: what may wait, in which class, within which limits; pools that have to start first;
//! * `dispatch`: whose turn it is ([`crate::queue::order`]), which pool
//!   ([`crate::placement`]) and which replica (`place`, which asks
//!   [`Fleet::find`]); how full replicas may be; preemption; scavengers;
//! * `settle`: the ends of attempts and jobs, retries, bills;
//! * `health`: faults, stalls, probes and sleep of replicas;
//! * `demand`: facts for the observer that finds how many replicas are needed
//!   ([`crate::autoscale::observer`]);
//! * `operate`: overrides of operators, explanations, snapshots, the audit;
//! * `jobs`, `groups`, `timers`: the tables that all of these use.
//!
//! A decision costs O(classes × pool sets of the group) look-ups at roots plus O(log) searches. The cost
//! does not grow with tenants, replicas or waiting jobs. A new policy costs a comparison for each row,
//! and looks at what it changes.

mod admit;
mod demand;
mod dispatch;
mod groups;
mod health;
mod job;
mod jobs;
mod settle;
mod timers;

pub mod operate;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::billing::bill::IdleTime;
use crate::limits::LimitStatus;
use crate::limits::lease::LimitReports;
use crate::limits::rule::LimitId;
use crate::model::event::{Action, Event};
use crate::model::ids::{PoolId, ReplicaId};
use crate::model::invariant::Invariants;
use crate::model::job::{JobSpec, PromptPrefix};
use crate::model::overrides::Overrides;
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::{Placement, PreparedPolicy};
use crate::queue::bounds::has_space;
use crate::queue::fairness::service::ServiceReport;
use crate::queue::output_lengths::OutputLengths;
use crate::queue::{Queue, QueuedLoad};
use crate::replica::affinity::Affinity;
use crate::replica::fleet::Fleet;

use self::admit::limits::JobLimits;
use self::demand::record::DemandRecord;
use self::groups::PoolGroups;
use self::jobs::JobTable;
use self::timers::{Timers, Wake, WakeReason};

/// Longest delay with which the end of a prefill is noted while no job waits.
const IDLE_PREFILL_DELAY: Duration = Duration::from_millis(100);

/// The state and the decisions of one gateway.
///
/// The scheduler is deterministic: the same events at the same instants always lead to the same
/// actions.
#[derive(Debug)]
pub struct Scheduler {
    policy: Arc<Policy>,
    placement: Arc<Placement>,
    groups: PoolGroups,
    fleet: Fleet,
    queue: Queue,
    jobs: JobTable,
    lengths: OutputLengths,
    limits: JobLimits,
    affinity: Affinity,
    timers: Timers,
    demand: DemandRecord,
    overrides: Overrides,
    invariants: Invariants,
    /// Whether a replica was lost, or a job entered another lane or returned to its lane,
    /// since the last search for jobs that wait in vain.
    vain_waits_possible: bool,
    now: Tick,
    draining: bool,
}

impl Scheduler {
    /// A scheduler without jobs. Every replica of the policy counts as in service until it
    /// shows otherwise.
    pub fn new(policy: Arc<Policy>) -> Self {
        let PreparedPolicy { policy, placement } = PreparedPolicy::new(policy);
        let groups = PoolGroups::new(&policy, &placement, &[]);
        let mut fleet = Fleet::default();
        fleet.apply(&Policy::default(), &policy, Tick::ZERO);
        let mut limits = JobLimits::default();
        limits.apply(&policy.limits);
        let mut record = DemandRecord::default();
        record.apply(&policy, &placement, &groups, Tick::ZERO);
        Self {
            policy,
            placement,
            groups,
            fleet,
            queue: Queue::default(),
            jobs: JobTable::default(),
            lengths: OutputLengths::default(),
            limits,
            affinity: Affinity::default(),
            timers: Timers::default(),
            demand: record,
            overrides: Overrides::default(),
            invariants: Invariants::default(),
            vain_waits_possible: false,
            now: Tick::ZERO,
            draining: false,
        }
    }

    /// Handles an event and appends the resulting actions to `out`.
    ///
    /// The scheduler first does everything that was due before `now`, so a late timer changes
    /// only the time of the actions. Time never goes back: an earlier `now` counts as the
    /// latest one seen. The scheduler ignores events of unknown jobs and replicas, and events
    /// of a phase that is over.
    ///
    /// A job ends exactly once: with `JobAction::Reject`, or with the event
    /// `Abandoned`, `Finished(Done)`, or `Finished(Failed)` after its first token.
    /// `Finished(Failed)` before the first token, and `Finished(Interrupted)`,
    /// are always answered by `Requeue` or `Reject`.
    pub fn handle(&mut self, now: Tick, event: Event, out: &mut Vec<Action>) {
        let now = self.begin_step(now, out);
        match event {
            Event::Arrived(spec, prefix) => drop(self.admit_or_refuse(spec, prefix, out)),
            Event::ItlSampled { replica, sample } => {
                self.fleet.sample_itl(replica, &sample, now);
                self.mark_replica(replica);
            }
            Event::BytesReceived { replica } => self.fleet.bytes_received(replica, now),
            Event::StreamsPaused { replica, streams } => self.fleet.set_paused_streams(replica, streams, now),
            Event::Abandoned { job, usage } => self.cancel_job(job, usage, out),
            Event::FirstToken { job } => self.first_token(job, out),
            Event::Finished { job, outcome } => self.finished(job, outcome, out),
            Event::ReplicaReported { replica, report } => {
                self.reported(replica, report, out);
            }
            Event::AdaptersReported { replica, slots, running } => {
                self.fleet.report_adapters(replica, slots, &running, now);
                self.mark_replica(replica);
            }
            Event::ReplicaLost { replica, answers } => self.replica_lost(replica, answers, out),
            Event::ProbeSucceeded { replica } => self.probe_succeeded(replica, out),
            Event::SleepAnswered { replica, result } => self.sleep_answered(replica, result, out),
            Event::Overridden(wanted) => self.set_override(wanted, out),
            Event::OverrideEnded(target) => self.end_override(target),
            Event::PeriodBegan { period, ends } => self.limits.start_period(period, ends),
            Event::UsageRestored { rule, amount } => self.limits.restore(rule, amount),
            Event::PromptDenied { subject, tokens } => self.limits.prompt_denied(&subject, tokens, now),
            Event::StartsRestored(starts) => self.demand.restore_starts(&starts),
            Event::LimitsLeased { grants, until } => self.limits.shared_mut().lease(&grants, until),
            Event::ServedElsewhere(reports) => self.served_elsewhere(&reports),
            Event::UsedBeforeStart(reports) => self.used_before_start(&reports),
            Event::HeldElsewhere(held) => self.held_elsewhere(held),
            Event::LoadElsewhere(loads) => self.load_elsewhere(&loads),
            Event::PolicyChanged(policy) => drop(self.reload(PreparedPolicy::new(policy), out)),
            Event::GrowthExpected(pools) => self.demand.set_growth(&pools, &self.policy),
            Event::Draining => {
                self.draining = true;
                self.limits.shared_mut().leave();
            }
            Event::Timer => {}
        }
        self.end_step(out);
    }

    /// [`Self::handle`] of an `Event::Arrived`. Returns the limits in shadow mode that
    /// would have refused the job.
    pub fn arrive(
        &mut self,
        now: Tick,
        spec: JobSpec,
        prefix: PromptPrefix,
        out: &mut Vec<Action>,
    ) -> SmallVec<[LimitId; 1]> {
        self.begin_step(now, out);
        let shadowed = self.admit_or_refuse(spec, prefix, out);
        self.end_step(out);
        shadowed
    }

    /// Idle time of the replicas since the last call, by pool.
    pub fn take_idle(&mut self, now: Tick) -> Vec<IdleTime> {
        self.now = self.now.max(now);
        self.fleet.accounts.take_idle(self.now).collect()
    }

    /// Does everything that was due before `now`. Returns the time of the step: never
    /// earlier than that of the last step.
    fn begin_step(&mut self, now: Tick, out: &mut Vec<Action>) -> Tick {
        self.now = self.now.max(now);
        let now = self.now;
        self.expire_overrides(out);
        self.expire(false, out);
        self.end_prefills();
        self.refuse_late_waits(out);
        self.run_replica_timers(out);
        self.clear_departing(out);
        self.groups.mark_due(now);
        self.groups.fade_remote_leads(now);
        self.refresh_due_heads();
        now
    }

    fn end_step(&mut self, out: &mut Vec<Action>) {
        self.follow_pools(out);
        self.dispatch_and_refuse(out);
        while self.expire(true, out) || self.refuse_newly_late(out) {
            self.dispatch_and_refuse(out);
        }
    }

    /// Dispatches every job that can start, and refuses jobs that wait in vain.
    fn dispatch_and_refuse(&mut self, out: &mut Vec<Action>) {
        self.dispatch(out);
        while self.refuse_vain_waits(out) {
            self.dispatch(out);
        }
        self.wake_wanted(out);
        self.report_pool_starts(out);
    }

    /// The latest instant at which the scheduler needs an `Event::Timer`: the earliest of all its
    /// timers. While no job waits, nobody needs the room of a prompt that is prefilled, and its end
    /// may be noted `IDLE_PREFILL_DELAY` late.
    pub fn next_deadline(&self) -> Option<Tick> {
        self.wakes().min().map(|wake| wake.at)
    }

    /// The next timer of each kind, whoever keeps it.
    fn wakes(&self) -> impl Iterator<Item = Wake> {
        let has_waiting = self.queue.total().requests > 0;
        let earliest_prefill = if has_waiting { self.now } else { self.now + IDLE_PREFILL_DELAY };
        let kept_elsewhere = [
            WakeReason::ReplicaCheck.at(self.fleet.next_wake()),
            WakeReason::UrgentClassIdle.at(self.groups.next_release()),
            WakeReason::SessionWait.at(self.groups.next_session_end()),
            WakeReason::OverrideEnd.at(self.overrides.next_end()),
            WakeReason::RemoteLeadFade.at(self.groups.next_fade()),
        ];
        self.timers.wakes(earliest_prefill).into_iter().chain(kept_elsewhere).flatten()
    }

    /// Whether the queue has space for one more request and the gateway does not drain. If
    /// not, the edge may refuse a request before reading its body.
    pub fn can_queue(&self) -> bool {
        !self.draining && has_space(&self.queue.total(), &self.policy.bounds)
    }

    /// Number of jobs in any phase.
    pub fn unfinished(&self) -> u64 {
        self.jobs.len() as u64
    }

    /// Load of all waiting jobs.
    pub const fn waiting(&self) -> QueuedLoad {
        self.queue.total()
    }

    /// Status of the limits that apply to a job like this one. The tightest limit may refuse
    /// the job.
    pub fn limits_of(&mut self, spec: &JobSpec, now: Tick) -> SmallVec<[LimitStatus; 4]> {
        self.limits.status_for(spec, self.now.max(now))
    }

    /// State of all limits, in a fixed order.
    pub fn limits(&mut self, now: Tick) -> Vec<LimitStatus> {
        self.limits.statuses(self.now.max(now))
    }

    /// Whether a report of limits to the other gateways cannot wait for its time.
    pub fn wants_lease(&self) -> bool {
        self.limits.shared().wants_lease()
    }

    /// A part of what this gateway has used of its limits, for the other gateways: see
    /// [`crate::limits::UsageLimits::take_use`].
    pub fn take_limit_use(&mut self, wanted: &[LimitId], most: usize, now: Tick) -> LimitReports {
        self.limits.shared_mut().take_use(wanted, most, self.now.max(now))
    }

    /// Records the work of tenants and classes from now on, for [`Self::take_service_reports`].
    pub const fn record_service(&mut self) {
        self.groups.service.start();
    }

    /// Takes the work that tenants and classes got here since it was last taken: at most `most` accounts
    /// that changed, in turn. Without [`Self::record_service`] there is none.
    pub fn take_service_reports(&mut self, most: usize) -> Vec<ServiceReport> {
        self.groups.service.take(most)
    }

    /// Whether a drain has begun.
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Number of invariants found broken since the start.
    pub const fn broken_invariants(&self) -> u64 {
        self.invariants.broken()
    }

    fn mark_pool(&mut self, pool: PoolId) {
        self.groups.mark_changed(self.placement.group_of(pool));
    }

    fn mark_replica(&mut self, replica: ReplicaId) {
        if let Some(pool) = self.fleet.pool_of(replica) {
            self.mark_pool(pool);
        }
    }
}
