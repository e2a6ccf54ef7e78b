//! Test world: a small policy and an edge to drive the scheduler.

mod affinity;
mod basics;
mod bills;
mod bottlenecks;
mod cold;
mod demand;
mod demotion;
mod departures;
mod displacement;
mod edge;
mod entries;
mod fallbacks;
mod faults;
mod fleet_fairness;
mod gateways;
mod hierarchy;
mod interruptions;
mod migration;
mod needs;
mod overrides;
mod placing;
mod preemption;
mod properties;
mod quotas;
mod reloads;
mod reserved_replicas;
mod scale;
mod scavengers;
mod shares;
mod shedding;
mod sleeping;
mod stalls;
mod storm;
mod worlds;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use crate::autoscale::demand_report::PeerDemand;
use crate::autoscale::observer::DemandObserver;
use crate::autoscale::replica_demand::ReplicaDemand;
use crate::billing::bill::AttemptBill;
use crate::model::event::{
    Action, AttemptOutcome, DispatchReason, EngineFault, Event, JobAction, Rejection, ReplicaAction,
};
use crate::model::id_table::IdTable;
use crate::model::ids::{ClassId, JobId, PoolId, ReplicaId, TenantId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix, TokenCounts};
use crate::model::policy::{Class, Model, Policy, Pool, QueueBounds, Quota, Replica, Tenant};
use crate::model::reason::PreemptReason;
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;
use crate::scheduler::Scheduler;

fn class(rank: u32, min_share: f64) -> Class {
    Class {
        rank,
        min_share,
        usage_half_life: None,
        max_wait: Duration::from_secs(60),
        ttft_objective: Duration::from_secs(1),
        itl_objective: Duration::from_millis(50),
        cold_start_tolerance: None,
        demote_to: None,
        scavenger: false,
        placement: Default::default(),
    }
}

fn tenant(weight: f64) -> Tenant {
    let default_class = ClassId::new(0);
    Tenant {
        weight,
        parent: None,
        default_class,
        classes: BTreeSet::from([default_class]),
        models: None,
        bounds: QueueBounds::default(),
        quota: Quota::default(),
        placement: Default::default(),
    }
}

/// `pools` holds, for each pool, the sequence limits of its replicas; `models`
/// the pools of each model. Two classes (ranks 0 and 1), four tenants.
fn policy(pools: &[&[u32]], models: &[&[u32]]) -> Policy {
    let mut policy = Policy::default();
    for (rank, name) in ["first", "second"].into_iter().enumerate() {
        policy.classes.insert(name, class(rank as u32, 0.0));
    }
    for name in ["a", "b", "c", "d"] {
        policy.tenants.insert(name, tenant(1.0));
    }
    for (index, limits) in pools.iter().enumerate() {
        let pool = PoolId::from(index);
        let add = |(number, limit): (usize, &u32)| {
            let row = Replica { pool, max_seqs: Some(*limit), kv_tokens: None };
            policy.replicas.insert(&format!("p{index}/r{number}"), row)
        };
        let replicas = limits.iter().enumerate().map(add).collect();
        let row = Pool { replicas, ..Pool::default() };
        policy.pools.insert(&format!("p{index}"), row);
    }
    for (index, pools) in models.iter().enumerate() {
        let pools = pools.iter().copied().map(PoolId::new).collect();
        policy.models.insert(&format!("m{index}"), Model { pools, max_model_len: None });
    }
    policy
}

/// A job that may wait for a minute.
fn spec(id: u64) -> JobSpec {
    JobSpec { deadline: Tick::from_millis(60_000), ..JobSpec::example(id) }
}

fn of_tenant(id: u64, tenant: u32) -> JobSpec {
    JobSpec { tenant: TenantId::new(tenant), ..spec(id) }
}

fn used(input: u64, output: u64) -> JobUsage {
    JobUsage::Exact(TokenCounts { input, cached: None, output })
}

/// A scheduler, and the observer of its demand.
#[derive(Debug)]
struct ObservedScheduler {
    scheduler: Scheduler,
    observer: DemandObserver,
}

impl ObservedScheduler {
    fn new(policy: Arc<Policy>) -> Self {
        let mut scheduler = Scheduler::new(policy);
        scheduler.record_demand();
        Self { scheduler, observer: DemandObserver::default() }
    }

    /// What the observer says, asked twice.
    fn replica_demand(&mut self, now: Tick, others: &PeerDemand) -> Vec<ReplicaDemand> {
        let mut ask = || {
            let inputs = self.scheduler.demand_inputs(&mut self.observer, now, others.expected);
            self.observer.replica_demand(&inputs, others)
        };
        let demands = ask();
        assert_eq!(demands, ask(), "asked twice");
        demands
    }
}

impl Deref for ObservedScheduler {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        &self.scheduler
    }
}

impl DerefMut for ObservedScheduler {
    fn deref_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }
}

struct World {
    scheduler: ObservedScheduler,
    now: Tick,
    /// Bills of attempts, with their jobs.
    bills: Vec<(u64, AttemptBill)>,
    /// Events from one audit to the next.
    audit_every: u64,
    events: u64,
}

impl World {
    fn new(policy: Policy) -> Self {
        let scheduler = ObservedScheduler::new(Arc::new(policy));
        Self { scheduler, now: Tick::ZERO, bills: Vec::new(), audit_every: 1, events: 0 }
    }

    /// For long runs: the state is looked at after one event of `count`.
    fn audited_every(self, count: u64) -> Self {
        Self { audit_every: count, ..self }
    }

    /// Hands in an event; the state must be sound afterwards. Bills are put
    /// aside.
    fn event(&mut self, event: Event) -> Vec<Action> {
        let mut out = self.whole_event(event);
        let bills = out.extract_if(.., |action| matches!(action, Action::Job(JobAction::Billed { .. })));
        let row = |action| match action {
            Action::Job(JobAction::Billed { job, bill }) => Some((job.index() as u64, bill)),
            _ => None,
        };
        self.bills.extend(bills.filter_map(row));
        out
    }

    /// The same with all actions in their order.
    fn whole_event(&mut self, event: Event) -> Vec<Action> {
        if let Event::FirstToken { job } = event {
            let job = self.scheduler.jobs.get(&job);
            assert!(job.is_none_or(|job| job.spec.streams), "a plain answer shows no first token");
        }
        let mut out = Vec::new();
        self.scheduler.handle(self.now, event, &mut out);
        self.events += 1;
        if self.events.is_multiple_of(self.audit_every) {
            assert_eq!(self.scheduler.audit(), []);
        }
        out
    }

    fn arrive(&mut self, spec: JobSpec) -> Vec<Action> {
        self.event(Event::Arrived(spec, PromptPrefix::default()))
    }

    fn done(&mut self, job: u64) -> Vec<Action> {
        self.finish(job, AttemptOutcome::Done(used(10, 10)))
    }

    fn fail(&mut self, job: u64, fault: EngineFault) -> Vec<Action> {
        self.finish(job, AttemptOutcome::Failed { fault, usage: JobUsage::Unknown })
    }

    /// The engine breaks a stream off of which the client has so many tokens.
    fn interrupt(&mut self, job: u64, fault: EngineFault, output: u64) -> Vec<Action> {
        self.finish(job, AttemptOutcome::Interrupted { fault, usage: JobUsage::Unknown, output })
    }

    fn finish(&mut self, job: u64, outcome: AttemptOutcome) -> Vec<Action> {
        self.event(Event::Finished { job: JobId::new(job), outcome })
    }

    fn at(&mut self, millis: u64) -> Vec<Action> {
        self.now = Tick::from_millis(millis);
        self.event(Event::Timer)
    }

    fn state(&self, replica: u32) -> Option<ReplicaStatus> {
        let views = self.scheduler.snapshot(self.now).replicas;
        views.into_iter().find(|view| view.replica == ReplicaId::new(replica)).map(|view| view.state)
    }
}

/// `(job, replica)` of the dispatches among the actions.
fn sent(actions: &[Action]) -> Vec<(u64, u32)> {
    let pair = |action: &Action| match action {
        Action::Job(JobAction::Dispatch(grant)) => {
            Some((grant.job.index() as u64, grant.replica.index() as u32))
        }
        _ => None,
    };
    actions.iter().filter_map(pair).collect()
}

fn placed(actions: &[Action]) -> DispatchReason {
    let why = actions.iter().find_map(|action| match action {
        Action::Job(JobAction::Dispatch(grant)) => Some(grant.why),
        _ => None,
    });
    why.expect("a dispatch")
}

fn rejected(actions: &[Action]) -> Vec<(u64, Rejection)> {
    let pair = |action: &Action| match action {
        Action::Job(JobAction::Reject { job, why }) => Some((job.index() as u64, *why)),
        _ => None,
    };
    actions.iter().filter_map(pair).collect()
}

fn ejected(actions: &[Action]) -> Vec<u32> {
    let id = |action: &Action| match action {
        Action::Replica(ReplicaAction::Eject { replica, .. }) => Some(replica.index() as u32),
        _ => None,
    };
    actions.iter().filter_map(id).collect()
}

/// `(job, replica)` of the recalls among the actions, with their reasons.
fn recalled(actions: &[Action]) -> Vec<(u64, u32, PreemptReason)> {
    let row = |action: &Action| match action {
        Action::Job(JobAction::Preempt { job, replica, why }) => {
            Some((job.index() as u64, replica.index() as u32, *why))
        }
        _ => None,
    };
    actions.iter().filter_map(row).collect()
}

/// `(job, replica)` of the streams that are to be handed over, with the reasons.
fn handed_over(actions: &[Action]) -> Vec<(u64, u32, PreemptReason)> {
    let row = |action: &Action| match action {
        Action::Job(JobAction::Migrate { job, replica, why }) => {
            Some((job.index() as u64, replica.index() as u32, *why))
        }
        _ => None,
    };
    actions.iter().filter_map(row).collect()
}

/// A new policy that differs by `change`.
fn reload(world: &mut World, change: impl FnOnce(&mut Policy)) -> Vec<Action> {
    let mut next = (**world.scheduler.policy()).clone();
    next.generation += 1;
    change(&mut next);
    world.event(Event::PolicyChanged(Arc::new(next)))
}

/// The table without one row.
fn without<I: Copy + From<usize> + Into<usize> + PartialEq, T: Clone>(
    table: &IdTable<I, T>,
    gone: I,
) -> IdTable<I, T> {
    let mut next = IdTable::successor(table);
    for (id, name, row) in table.iter().filter(|(id, ..)| *id != gone) {
        assert!(next.insert(name, row.clone()) == id);
    }
    next
}
