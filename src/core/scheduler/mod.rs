//! Scheduler: which job goes to which replica, when, and why.
//!
//! A job waits here and gets its replica only when the replica can start it at once (late binding).
//! Each event changes the state and dispatches what can start. The rules stand in these modules:
//!
//! * `admit`: what may wait, in which class, within which limits; pools that have to start first;
//! * `dispatch`: whose turn it is ([`crate::core::queue::order`]), which pool
//!   ([`crate::core::placement`]) and which replica ([`crate::core::replica::fleet`]); how full
//!   replicas may be; preemption; scavengers;
//! * `settle`: the ends of attempts and jobs, retries, bills;
//! * `health`: faults, stalls, probes and sleep of replicas;
//! * `demand`: how many replicas are needed ([`crate::core::autoscale`]);
//! * `operate`: overrides of operators, explanations, snapshots, the audit.
//!
//! A decision costs O(classes × pool sets of the group) look-ups at roots plus O(log) searches. The cost
//! does not grow with tenants, replicas or waiting jobs. Only a change of the policy looks at
//! everything.

mod admit;
mod demand;
mod dispatch;
mod health;
mod job;
mod settle;
mod timers;

pub mod operate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::autoscale::demand::Demand;
use crate::core::autoscale::desired::DesiredReplicas;
use crate::core::autoscale::pool_start::PoolStarts;
use crate::core::billing::bill::IdleTime;
use crate::core::limits::UsageLimits;
use crate::core::limits::expected_use::ExpectedUse;
use crate::core::limits::rule::LimitId;
use crate::core::model::event::{Action, Event};
use crate::core::model::ids::{JobId, PoolId, ReplicaId};
use crate::core::model::invariant::Invariants;
use crate::core::model::job::{JobSpec, PromptPrefix};
use crate::core::model::number_map::NumberMap;
use crate::core::model::overrides::Overrides;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::placement::Placement;
use crate::core::queue::admission::has_space;
use crate::core::queue::estimate::OutputLengths;
use crate::core::queue::lane_key::LaneKey;
use crate::core::queue::order::PoolGroup;
use crate::core::queue::{Queue, QueuedLoad};
use crate::core::replica::affinity::prefix_index::PrefixIndex;
use crate::core::replica::affinity::sessions::Sessions;
use crate::core::replica::fleet::Fleet;
use crate::core::replica::health::suspects::SuspectJobs;

use crate::core::scheduler::job::PreemptibleJob;
use job::Job;

/// The state and the decisions of one gateway.
///
/// The scheduler is deterministic: the same events at the same instants always lead to the same
/// actions.
#[derive(Debug)]
pub struct Scheduler {
    policy: Arc<Policy>,
    placement: Placement,
    groups: Vec<PoolGroup>,
    fleet: Fleet,
    queue: Queue,
    jobs: NumberMap<JobId, Job>,
    lengths: OutputLengths,
    limits: UsageLimits,
    expected_use: ExpectedUse,
    prefixes: PrefixIndex,
    sessions: Sessions,
    suspects: SuspectJobs,
    preemptible: BTreeMap<PoolId, BTreeSet<PreemptibleJob>>,
    deadlines: BTreeSet<(Tick, JobId)>,
    /// Jobs in prefill, by the instant at which their prompts may count as read.
    prefills: BTreeSet<(Tick, JobId)>,
    /// Waiting jobs that arrived before the drain rate was known, by the instant at which
    /// the scheduler checks their wait.
    unchecked_waits: BTreeSet<(Tick, JobId)>,
    /// Jobs held for a pool start whose hold ends before their deadline, by the end of the
    /// hold.
    held: BTreeSet<(Tick, JobId)>,
    starts: PoolStarts,
    demand: Demand,
    /// Desired replicas of each pool, for the scale signal.
    desired_replicas: BTreeMap<PoolId, DesiredReplicas>,
    /// Sleeping pools that a job has asked for since the last `wake_wanted`.
    wanted_asleep: BTreeSet<PoolId>,
    /// Lanes whose head starts or stops considering all of its pools, by the instant of the
    /// change.
    head_updates: BTreeSet<(Tick, LaneKey)>,
    overrides: Overrides,
    /// Replicas that drain or have left the policy, by the instant at which they are to be empty.
    departing: BTreeSet<(Tick, ReplicaId)>,
    invariants: Invariants,
    /// Whether a replica was lost, or a job entered another lane or returned to its lane,
    /// since the last search for jobs that wait in vain.
    vain_waits_possible: bool,
    /// Number of waiting jobs that another model may serve.
    waiting_with_fallback: u64,
    /// Pool groups in which something changed since their last dispatch.
    changed_groups: BTreeSet<usize>,
    /// Sequence number of the last arrival.
    arrivals: u64,
    now: Tick,
    draining: bool,
}

impl Scheduler {
    /// A scheduler without jobs. Every replica of the policy counts as in service until it
    /// shows otherwise.
    #[must_use]
    pub fn new(policy: Arc<Policy>) -> Self {
        let placement = Placement::new(&policy);
        let groups = placement.groups().iter().map(|shape| PoolGroup::new(&policy, shape, &[])).collect();
        let mut fleet = Fleet::default();
        fleet.apply(&policy, Tick::ZERO);
        let mut budgets = UsageLimits::default();
        budgets.apply(&policy.limits);
        let mut scheduler = Self {
            policy,
            placement,
            groups,
            fleet,
            queue: Queue::default(),
            jobs: NumberMap::default(),
            lengths: OutputLengths::default(),
            limits: budgets,
            expected_use: ExpectedUse::default(),
            prefixes: PrefixIndex::default(),
            sessions: Sessions::default(),
            suspects: SuspectJobs::default(),
            preemptible: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            prefills: BTreeSet::new(),
            unchecked_waits: BTreeSet::new(),
            held: BTreeSet::new(),
            starts: PoolStarts::default(),
            demand: Demand::default(),
            desired_replicas: BTreeMap::new(),
            wanted_asleep: BTreeSet::new(),
            head_updates: BTreeSet::new(),
            overrides: Overrides::default(),
            departing: BTreeSet::new(),
            invariants: Invariants::default(),
            vain_waits_possible: false,
            waiting_with_fallback: 0,
            changed_groups: BTreeSet::new(),
            arrivals: 0,
            now: Tick::ZERO,
            draining: false,
        };
        scheduler.renew_demand();
        scheduler
    }

    /// Handles an event and appends the resulting actions to `out`.
    ///
    /// The scheduler first does everything that was due before `now`, so a late timer changes
    /// only the time of the actions. Time never goes back: an earlier `now` counts as the
    /// latest one seen. The scheduler ignores events of unknown jobs and replicas, and events
    /// of a phase that is over.
    ///
    /// A job ends exactly once: with `Action::Reject`, or with the event
    /// `Left`, `Finished(Done)`, or `Finished(Failed)` after its first token.
    /// `Finished(Failed)` before the first token, and `Finished(Interrupted)`,
    /// are always answered by `Requeue` or `Reject`.
    pub fn handle(&mut self, now: Tick, event: Event, out: &mut Vec<Action>) {
        let now = self.begin_step(now, out);
        match event {
            Event::Arrived(spec, prefix) => drop(self.arrived(spec, prefix, out)),
            Event::ItlSampled { replica, sample: pace } => {
                self.fleet.sample_itl(replica, &pace, now);
                self.mark_replica(replica);
            }
            Event::BytesReceived { replica } => self.fleet.bytes_received(replica, now),
            Event::StreamsPaused { replica, streams } => self.fleet.set_paused_streams(replica, streams, now),
            Event::ClientLeft { job, usage } => self.client_left(job, usage, out),
            Event::FirstToken { job } => self.first_token(job),
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
            Event::SleepAnswered { replica, result: rested } => self.sleep_answered(replica, rested, out),
            Event::Overridden(wanted) => self.set_override(wanted, out),
            Event::OverrideEnded(target) => self.end_override(target),
            Event::PeriodBegan { period, ends } => self.limits.start_period(period, ends),
            Event::UsageRestored { rule, amount } => self.limits.restore(rule, amount),
            Event::PolicyChanged(policy) => self.reload(policy, out),
            Event::Draining => self.draining = true,
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
        let shadowed = self.arrived(spec, prefix, out);
        self.end_step(out);
        shadowed
    }

    /// Idle time of the replicas since the last call, by pool.
    pub fn take_idle(&mut self, now: Tick) -> Vec<IdleTime> {
        self.now = self.now.max(now);
        self.fleet.take_idle(self.now).collect()
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
        self.wake_replicas(out);
        self.clear_departing(out);
        self.mark_due_groups();
        self.refresh_due_heads();
        now
    }

    fn end_step(&mut self, out: &mut Vec<Action>) {
        self.follow_pools(out);
        self.dispatch_and_refuse(out);
        while self.expire(true, out) {
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

    /// Whether the queue has space for one more request and the gateway does not drain. If
    /// not, the edge may refuse a request before reading its body.
    #[must_use]
    pub fn can_queue(&self) -> bool {
        !self.draining && has_space(&self.queue.total(), &self.policy.bounds)
    }

    /// Load of all waiting jobs.
    #[must_use]
    pub const fn waiting(&self) -> QueuedLoad {
        self.queue.total()
    }

    /// Number of jobs in any phase.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Whether a drain has begun.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Number of invariants found broken since the start.
    #[must_use]
    pub const fn broken_invariants(&self) -> u64 {
        self.invariants.broken()
    }

    fn mark_pool(&mut self, pool: PoolId) {
        self.changed_groups.extend(self.placement.group_of(pool));
    }

    fn mark_replica(&mut self, replica: ReplicaId) {
        if let Some(pool) = self.fleet.pool_of(replica) {
            self.mark_pool(pool);
        }
    }
}
