//! Simulated gateway: Penstock's scheduler as a router of the world.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::world::arrival::{Arrival, PREFIX_BLOCK};
use crate::world::router::{Input, JobIndex, MemberState, Router, RouterCommand};
use penstock_core::autoscale::demand_report::PeerDemand;
use penstock_core::autoscale::observer::DemandObserver;
use penstock_core::autoscale::replica_demand::ReplicaDemand;
use penstock_core::model::event::{
    Action, AttemptOutcome, DispatchGrant, EngineFault, Event, JobAction, ReplicaAction,
};
use penstock_core::model::id_table::IdTable;
use penstock_core::model::ids::{ClassId, JobId, ModelId, ReplicaId, TenantId};
use penstock_core::model::job::{JobSpec, JobUsage, PromptPrefix, TokenCounts};
use penstock_core::model::policy::{Class, Model, Policy, Pool, Replica, Tenant};
use penstock_core::model::time::Tick;
use penstock_core::placement::rules::PoolTraits;
use penstock_core::scheduler::Scheduler;

#[derive(Debug)]
pub struct SimGateway {
    scheduler: Scheduler,
    demand: DemandObserver,
    max_waits: Vec<Duration>,
    /// Jobs by the number of their arrival; empty = jobs are made of their arrivals.
    specs: Vec<JobSpec>,
    /// Sizes of the jobs seen so far.
    sizes: Vec<JobSize>,
    actions: Vec<Action>,
    log: Option<EventTrace>,
    /// With autoscaling: the policy with every replica that can exist.
    whole: Option<Policy>,
}

/// Tokens of a job; the output over all of its sequences.
#[derive(Debug, Clone, Copy, Default)]
struct JobSize {
    prompt: u32,
    output: u32,
}

/// The scheduler's events with the actions that each caused, from the first
/// event on.
pub type EventTrace = Arc<Mutex<Vec<TracedStep>>>;

/// An event, and the actions that it caused.
#[derive(Debug)]
pub struct TracedStep {
    pub at: Tick,
    pub event: Event,
    pub actions: Vec<Action>,
}

impl SimGateway {
    /// A gateway under the policy. Arrivals name tenants, classes and models by
    /// their ids.
    pub fn new(policy: Policy) -> Self {
        let max_waits = policy.classes.iter().map(|(_, _, class)| class.max_wait).collect();
        let mut scheduler = Scheduler::new(Arc::new(policy));
        scheduler.record_demand();
        Self {
            scheduler,
            demand: DemandObserver::default(),
            max_waits,
            specs: Vec::new(),
            sizes: Vec::new(),
            actions: Vec::new(),
            log: None,
            whole: None,
        }
    }

    /// A gateway under the policy with only the first `initial` replicas there.
    /// [`Input::Members`] announces the others.
    pub fn elastic(policy: &Policy, initial: usize) -> Self {
        let members: Vec<MemberState> = (0..policy.replicas.capacity())
            .map(|index| if index < initial { MemberState::Serving } else { MemberState::Absent })
            .collect();
        Self { whole: Some(policy.clone()), ..Self::new(with_members(policy, &members, policy.generation)) }
    }

    fn joined(&self, members: &[MemberState]) -> Event {
        let Some(whole) = &self.whole else { return Event::Timer };
        let generation = self.scheduler.policy().generation + 1;
        Event::PolicyChanged(Arc::new(with_members(whole, members, generation)))
    }

    /// Records every event and its actions. Memory grows with every event.
    pub fn recorded(self, log: &EventTrace) -> Self {
        Self { log: Some(Arc::clone(log)), ..self }
    }

    /// Takes jobs, by the number of their arrival, in place of what arrivals say of them. Their times
    /// are those of the world.
    pub fn with_jobs(self, specs: Vec<JobSpec>) -> Self {
        Self { specs, ..self }
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(crate) fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    fn spec(&self, now: Tick, job: JobIndex, arrival: &Arrival) -> JobSpec {
        if let Some(spec) = self.specs.get(job) {
            return JobSpec { id: JobId::new(job as u64), ..*spec };
        }
        let max_wait = self.max_waits.get(arrival.class as usize).copied().unwrap_or_default();
        JobSpec {
            id: JobId::new(job as u64),
            tenant: TenantId::new(arrival.tenant),
            key: None,
            class: ClassId::new(arrival.class),
            model: ModelId::new(arrival.model),
            prompt_tokens: u64::from(arrival.prompt),
            max_output_tokens: u64::from(arrival.max_output),
            sequences: arrival.n.max(1),
            bytes: 4 * u64::from(arrival.prompt),
            streams: arrival.streams,
            arrived: now,
            deadline: now + arrival.patience.map_or(max_wait, |patience| patience.min(max_wait)),
            client_deadline: arrival.patience.map_or(Tick::NEVER, |patience| now + patience),
            has_fallback: false,
            resumable: false,
            context: u64::from(arrival.prompt) + u64::from(arrival.output),
            context_group: 0,
            fingerprint: None,
            session: None,
        }
    }

    fn event(&mut self, now: Tick, input: Input<'_>) -> Event {
        match input {
            Input::Arrived { job, arrival } => {
                if self.sizes.len() <= job {
                    self.sizes.resize(job + 1, JobSize::default());
                }
                let output = arrival.output.saturating_mul(arrival.n.max(1));
                self.sizes[job] = JobSize { prompt: arrival.prompt, output };
                let prefix = PromptPrefix { blocks: Arc::clone(&arrival.prefix), block_tokens: PREFIX_BLOCK };
                Event::Arrived(self.spec(now, job, arrival), prefix)
            }
            Input::FirstToken { job, .. } => Event::FirstToken { job: JobId::new(job as u64) },
            Input::Finished { job, cached, .. } => {
                let size = self.sizes[job];
                let tokens = TokenCounts {
                    input: u64::from(size.prompt),
                    cached: cached.map(u64::from),
                    output: u64::from(size.output),
                };
                Event::Finished {
                    job: JobId::new(job as u64),
                    outcome: AttemptOutcome::Done(JobUsage::Exact(tokens)),
                }
            }
            Input::ClientLeft { job } => {
                Event::Abandoned { job: JobId::new(job as u64), usage: JobUsage::Unknown }
            }
            Input::Failed { job, refused, .. } => {
                let fault = if refused { EngineFault::Refused } else { EngineFault::Reset };
                let outcome = AttemptOutcome::Failed { fault, usage: JobUsage::Unknown };
                Event::Finished { job: JobId::new(job as u64), outcome }
            }
            Input::ItlSampled { replica, sample } => {
                Event::ItlSampled { replica: ReplicaId::from(replica), sample }
            }
            Input::BytesReceived { replica } => Event::BytesReceived { replica: ReplicaId::from(replica) },
            Input::StreamsPaused { replica, streams } => {
                Event::StreamsPaused { replica: ReplicaId::from(replica), streams }
            }
            Input::Reported { replica, report } => {
                Event::ReplicaReported { replica: ReplicaId::from(replica), report }
            }
            Input::Probed { replica, alive: true } => {
                Event::ProbeSucceeded { replica: ReplicaId::from(replica) }
            }
            Input::Probed { replica, alive: false } => {
                Event::ReplicaLost { replica: ReplicaId::from(replica), answers: true }
            }
            Input::Members { members } => self.joined(members),
            // This router never polls.
            Input::Polled { .. } | Input::Wake => Event::Timer,
        }
    }
}

impl Router for SimGateway {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        let event = self.event(now, input);
        self.step(now, event, out);
    }

    fn next_wake(&self) -> Option<Tick> {
        self.scheduler.next_deadline()
    }

    fn replica_demand(&mut self, now: Tick, out: &mut Vec<RouterCommand>) -> Vec<ReplicaDemand> {
        let inputs = self.scheduler.demand_inputs(&mut self.demand, now, false);
        let demands = self.demand.replica_demand(&inputs, &PeerDemand::default());
        if let Some(growth) = self.demand.take_growth() {
            self.step(now, growth, out);
        }
        demands
    }

    fn broken_invariants(&self) -> u64 {
        self.scheduler.broken_invariants()
    }
}

impl SimGateway {
    /// Passes an event to the scheduler and its actions to the world.
    pub fn step(&mut self, now: Tick, event: Event, out: &mut Vec<RouterCommand>) {
        let copy = self.log.is_some().then(|| event.clone());
        self.scheduler.handle(now, event, &mut self.actions);
        if let (Some(log), Some(event)) = (&self.log, copy) {
            log.lock().push(TracedStep { at: now, event, actions: self.actions.clone() });
        }
        for action in self.actions.drain(..) {
            out.extend(match action {
                Action::Job(JobAction::Dispatch(DispatchGrant { job, replica, .. })) => {
                    Some(RouterCommand::Send { job: job.index(), replica: replica.index(), priority: 0 })
                }
                Action::Job(JobAction::Reject { job, why }) => {
                    Some(RouterCommand::Refuse { job: job.index(), retry_after: why.retry_after })
                }
                Action::Job(JobAction::Preempt { job, .. }) => {
                    Some(RouterCommand::Preempt { job: job.index() })
                }
                Action::Replica(ReplicaAction::Probe { replica }) => {
                    Some(RouterCommand::Probe { replica: replica.index() })
                }
                Action::Replica(ReplicaAction::Scrape { replica }) => {
                    Some(RouterCommand::Scrape { replica: replica.index() })
                }
                // The simulated gateway does not continue broken streams.
                Action::Job(
                    JobAction::Requeue { .. } | JobAction::Billed { .. } | JobAction::Migrate { .. },
                )
                | Action::Replica(_) => None,
            });
        }
        if self.scheduler.must_flush_demand_facts() {
            self.scheduler.flush_demand_facts(&mut self.demand);
            self.demand.observe();
        }
    }
}

/// The policy with only the replicas that are there, as discovery makes it. The
/// ids stay the same.
fn with_members(whole: &Policy, members: &[MemberState], generation: u64) -> Policy {
    let mut policy = Policy { generation, replicas: IdTable::successor(&whole.replicas), ..whole.clone() };
    let is_there =
        |id: &ReplicaId| members.get(id.index()).is_some_and(|member| *member != MemberState::Absent);
    for (id, name, row) in whole.replicas.iter().filter(|(id, ..)| is_there(id)) {
        policy.replicas.insert(name, row.clone());
        if members[id.index()] == MemberState::Leaving {
            policy.draining.insert(id);
        }
    }
    for (_, name, row) in whole.pools.iter() {
        let replicas = row.replicas.iter().copied().filter(is_there).collect();
        policy.pools.insert(name, Pool { replicas, ..row.clone() });
    }
    policy
}

/// Replicas that are alike, of which only the pool's traits are configured.
/// Groups of the same pool may differ in speed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaGroup {
    /// Name of the pool.
    pub pool: String,
    /// Traits of the pool; those of the pool's first group count.
    pub supply: PoolTraits,
    /// Models that the pool serves, by number.
    pub models: Vec<u32>,
    /// Number of replicas.
    pub replicas: usize,
}

impl ReplicaGroup {
    /// Replicas of one pool without a price.
    pub fn plain(replicas: usize) -> Self {
        Self { pool: "pool".to_owned(), supply: PoolTraits::default(), models: vec![0], replicas }
    }
}

/// A policy of these replicas in their order, the models that their pools serve,
/// and the given classes and tenants. The name of a class, tenant or model is its
/// number. Pools get their ids in the order in which they first appear.
pub fn policy(replica_groups: &[ReplicaGroup], classes: &[Class], tenants: &[Tenant]) -> Policy {
    let mut policy = Policy { generation: 1, ..Policy::default() };
    for (index, class) in classes.iter().enumerate() {
        policy.classes.insert(&index.to_string(), class.clone());
    }
    for (index, tenant) in tenants.iter().enumerate() {
        policy.tenants.insert(&index.to_string(), tenant.clone());
    }
    let models: BTreeSet<u32> =
        replica_groups.iter().flat_map(|replica_group| &replica_group.models).copied().collect();
    models.iter().for_each(|model| _ = policy.models.id_or_new(&model.to_string()));
    for replica_group in replica_groups {
        let pool = policy.pools.id_or_new(&replica_group.pool);
        let fresh = || Pool { traits: replica_group.supply, ..Pool::default() };
        let mut row = policy.pools.get(pool).cloned().unwrap_or_else(fresh);
        let served = replica_group.models.iter().map(|model| policy.models.id_or_new(&model.to_string()));
        row.models.extend(served.collect::<Vec<_>>());
        for _ in 0..replica_group.replicas {
            let name = format!("{}/{}", replica_group.pool, policy.replicas.capacity());
            let replica = Replica { pool, max_seqs: None, kv_tokens: None };
            row.replicas.push(policy.replicas.insert(&name, replica));
        }
        policy.pools.insert(&replica_group.pool, row);
    }
    for model in models {
        let name = model.to_string();
        let id = policy.models.id_or_new(&name);
        let serving = policy.pools.iter().filter(|(_, _, row)| row.models.contains(&id));
        let pools = serving.map(|(pool, ..)| pool).collect();
        policy.models.insert(&name, Model { pools, max_model_len: None });
    }
    policy
}
