//! The scheduler: who goes where, when, and why.
//!
//! A job waits here and gets its replica only when that one can start it at
//! once (late binding). The rules, each beside its code:
//!
//! * order between classes, tenants and jobs: [`crate::core::order`] and
//!   [`crate::core::fairness`];
//! * what each tenant may hold: [`crate::core::quota`];
//! * which replica: [`crate::core::routing`]; how much it can take:
//!   [`crate::core::limits`] and [`crate::core::fleet`]; of which pool:
//!   [`crate::core::placement`];
//! * large jobs among small ones: `dispatch`;
//! * what a fault does to the job and to the replica: `settle`, `health`;
//! * what may wait: [`crate::core::admission`]; in which class: `demote`;
//!   who makes room: `displace`;
//! * jobs that need not wait for a model that is down: `fallback`;
//! * what operators set apart from the policy: `overrides`;
//! * jobs whose pools have to start first: [`crate::core::cold`], `cold`.
//!
//! A decision costs O(classes × routes of the group) root look-ups plus
//! O(log) searches; it does not grow with tenants, replicas or waiting jobs.
//! Only a change of policy looks at everything.

mod arrive;
mod audit;
mod cold;
mod demote;
mod depart;
mod dispatch;
mod displace;
mod explain;
mod fallback;
mod health;
mod job;
mod overrides;
mod place;
mod promise;
mod quotas;
mod recall;
mod reload;
mod settle;
mod timer;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::core::admission::has_space;
use crate::core::cold::Starts;
use crate::core::estimate::OutputLengths;
use crate::core::event::{Action, Event, Fault};
use crate::core::fleet::Fleet;
use crate::core::foreign::Finding;
use crate::core::ids::{JobId, PoolId, ReplicaId};
use crate::core::invariant::Invariants;
use crate::core::number_map::NumberMap;
use crate::core::order::Group;
use crate::core::overrides::Overrides;
use crate::core::placement::Placement;
use crate::core::policy::Policy;
use crate::core::prefix::PrefixIndex;
use crate::core::queue::{LaneKey, Load, Queue};
use crate::core::time::Tick;

use job::Job;
use recall::Movable;

/// All state and all decisions of one gateway.
///
/// The same events at the same instants always lead to the same actions.
#[derive(Debug)]
pub struct Scheduler {
    policy: Arc<Policy>,
    placement: Placement,
    groups: Vec<Group>,
    fleet: Fleet,
    queue: Queue,
    jobs: NumberMap<JobId, Job>,
    lengths: OutputLengths,
    prefixes: PrefixIndex,
    movable: BTreeSet<Movable>,
    deadlines: BTreeSet<(Tick, JobId)>,
    /// Jobs that are held for a pool's start, by when they are told to come back
    /// where that is before their deadline.
    held: BTreeSet<(Tick, JobId)>,
    starts: Starts,
    /// What [`Fleet::turns`] was when holds were last looked at.
    held_turns: u64,
    /// Lanes with a head that begins or ceases to look at all of its pools, by
    /// when.
    reseats: BTreeSet<(Tick, LaneKey)>,
    overrides: Overrides,
    /// Replicas that left the policy, by when they lose what nobody has seen.
    departed: BTreeSet<(Tick, ReplicaId)>,
    invariants: Invariants,
    /// Whether a replica was lost, or a job was put into another lane or back
    /// into one, since it was last looked for jobs that wait in vain.
    look_again: bool,
    /// Jobs that wait and that another model may serve.
    fallbacks: u64,
    /// Groups in which something changed since they were last looked at.
    touched: BTreeSet<usize>,
    /// Number of the last arrival.
    arrivals: u64,
    now: Tick,
    draining: bool,
}

impl Scheduler {
    /// A scheduler with nothing in it; every replica of the policy is taken to
    /// be in service until it shows otherwise.
    #[must_use]
    pub fn new(policy: Arc<Policy>) -> Self {
        let placement = Placement::new(&policy);
        let groups = placement.groups().iter().map(|shape| Group::new(&policy, shape, &[])).collect();
        let mut fleet = Fleet::default();
        fleet.apply(&policy, Tick::ZERO);
        Self {
            policy,
            placement,
            groups,
            fleet,
            queue: Queue::default(),
            jobs: NumberMap::default(),
            lengths: OutputLengths::default(),
            prefixes: PrefixIndex::default(),
            movable: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            held: BTreeSet::new(),
            starts: Starts::default(),
            held_turns: 0,
            reseats: BTreeSet::new(),
            overrides: Overrides::default(),
            departed: BTreeSet::new(),
            invariants: Invariants::default(),
            look_again: false,
            fallbacks: 0,
            touched: BTreeSet::new(),
            arrivals: 0,
            now: Tick::ZERO,
            draining: false,
        }
    }

    /// Takes note of an event and appends what is to be done about it.
    ///
    /// What was due before `now` is done first, so that a late timer changes
    /// nothing but the moment. Time never goes back: an earlier `now` counts
    /// as the latest one seen. Events of unknown jobs and replicas, and of
    /// phases that are over, are ignored.
    ///
    /// A job ends exactly once: with `Action::Reject`, or with the event
    /// `Left`, `Finished(Done)`, or `Finished(Failed)` after its first token.
    /// `Finished(Failed)` before the first token, and `Finished(Interrupted)`,
    /// are always answered by `Requeue` or `Reject`.
    pub fn handle(&mut self, now: Tick, event: Event, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        let now = self.now;
        self.expire_overrides(out);
        self.expire(false, out);
        self.wake_replicas(out);
        self.clear_departed(out);
        self.release_urgent();
        self.reseat_heads();
        match event {
            Event::Arrived(spec, prefix) => self.arrived(spec, prefix, out),
            Event::Paced { replica, pace } => {
                self.fleet.pace(replica, &pace, now);
                self.touch_replica(replica);
            }
            Event::Left { job, usage } => self.left(job, usage),
            Event::FirstToken { job } => self.first_token(job),
            Event::Finished { job, outcome } => self.finished(job, outcome, out),
            Event::ReplicaReported { replica, report } => {
                if self.fleet.report(replica, report, now) == Some(Finding::Restarted) {
                    self.prefixes.forget(replica);
                }
                if let Some(tokens) = report.kv_tokens {
                    self.prefixes.resize(replica, tokens);
                }
                self.touch_replica(replica);
            }
            Event::ReplicaLost { replica } => self.lost(replica, Fault::Refused, out),
            Event::ReplicaFound { replica } => self.found(replica, out),
            Event::Overridden(wanted) => self.set_override(wanted, out),
            Event::Restored(lever) => self.end_override(lever),
            Event::PolicyChanged(policy) => self.reload(policy, out),
            Event::Draining => self.draining = true,
            Event::Timer => {}
        }
        self.serve(out);
        while self.expire(true, out) {
            self.serve(out);
        }
    }

    /// Sends what can be sent, and refuses what waits in vain.
    fn serve(&mut self, out: &mut Vec<Action>) {
        self.hold_anew(out);
        self.dispatch(out);
        while self.refuse_vain_waits(out) {
            self.dispatch(out);
        }
        self.report_starts(out);
    }

    /// Whether one more request could wait or run; the edge may refuse it
    /// before reading its body when not.
    #[must_use]
    pub fn can_queue(&self) -> bool {
        !self.draining && has_space(&self.queue.total(), &self.policy.bounds)
    }

    /// What waits in all.
    #[must_use]
    pub const fn waiting(&self) -> Load {
        self.queue.total()
    }

    /// Jobs in any phase.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Whether a drain has begun.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    /// The policy in force.
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Invariants found broken since the start.
    #[must_use]
    pub const fn broken_invariants(&self) -> u64 {
        self.invariants.broken()
    }

    fn touch_pool(&mut self, pool: PoolId) {
        self.touched.extend(self.placement.group_of(pool));
    }

    fn touch_replica(&mut self, replica: ReplicaId) {
        if let Some(pool) = self.fleet.pool_of(replica) {
            self.touch_pool(pool);
        }
    }
}
