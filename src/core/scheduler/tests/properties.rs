//! Random events in random worlds.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::core::event::Report;
use crate::core::policy::{Health, Retry};
use crate::core::table::Table;

/// The names that every policy of a run gives the same ids.
const NAMES: [&str; 9] = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];

/// Sequences and KV tokens, where configured.
type Limits = (Option<u32>, Option<u64>);

#[derive(Debug, Clone)]
struct Rules {
    classes: Vec<Option<(u32, u8)>>,
    tenants: Vec<Option<(u8, u64)>>,
    /// Limits, by pool, of up to three replicas each.
    replicas: Vec<Vec<Option<Limits>>>,
    models: Vec<Option<u8>>,
    bound: u64,
    attempts: u32,
    slow_start: u64,
    buffer: u32,
}

fn rules() -> impl Strategy<Value = Rules> {
    let replica = prop::option::weighted(0.8, (prop::option::of(1u32..5), prop::option::of(30u64..300)));
    (
        vec(prop::option::weighted(0.9, (0u32..3, 0u8..40)), 1..4),
        vec(prop::option::weighted(0.9, (1u8..5, 0u64..12)), 1..5),
        vec(vec(replica, 0..4), 1..4),
        vec(prop::option::weighted(0.9, 1u8..8), 1..4),
        (0u64..40, 1u32..5, 0u64..4000, 0u32..2),
    )
        .prop_map(|(classes, tenants, replicas, models, (bound, attempts, slow_start, buffer))| Rules {
            classes,
            tenants,
            replicas,
            models,
            bound,
            attempts,
            slow_start,
            buffer,
        })
}

fn table<I: Copy + From<usize> + Into<usize>, T>() -> Table<I, T> {
    let mut table = Table::default();
    for name in NAMES {
        table.reserve(name);
    }
    table
}

fn build(rules: &Rules) -> Arc<Policy> {
    let mut policy = Policy {
        generation: 1,
        classes: table(),
        tenants: table(),
        models: table(),
        pools: table(),
        replicas: table(),
        bounds: Bounds { requests: rules.bound, ..Bounds::default() },
        retry: Retry { max_attempts: rules.attempts },
        health: Health { slow_start: Duration::from_millis(rules.slow_start), ..Health::default() },
    };
    for (index, row) in rules.classes.iter().enumerate() {
        if let Some((rank, share)) = row {
            policy.classes.insert(NAMES[index], class(*rank, f64::from(*share) / 100.0));
        }
    }
    for (index, row) in rules.tenants.iter().enumerate() {
        if let Some((weight, requests)) = row {
            let bounds = Bounds { requests: *requests, ..Bounds::default() };
            policy.tenants.insert(NAMES[index], Tenant { bounds, ..tenant(f64::from(*weight)) });
        }
    }
    for (pool, members) in rules.replicas.iter().enumerate() {
        let mut replicas = Vec::new();
        for (index, row) in members.iter().enumerate() {
            if let Some((max_seqs, kv_tokens)) = row {
                let row = Replica { pool: PoolId::from(pool), max_seqs: *max_seqs, kv_tokens: *kv_tokens };
                replicas.push(policy.replicas.insert(NAMES[pool * 3 + index], row));
            }
        }
        let row = Pool { replicas, models: BTreeSet::new(), engine_buffer: rules.buffer };
        policy.pools.insert(NAMES[pool], row);
    }
    for (index, mask) in rules.models.iter().enumerate() {
        if let Some(mask) = mask {
            let pools = (0..3usize).filter(|pool| mask & (1 << pool) != 0).map(PoolId::from).collect();
            policy.models.insert(NAMES[index], Model { pools, max_model_len: None });
        }
    }
    Arc::new(policy)
}

#[derive(Debug, Clone)]
enum Op {
    Arrive { tenant: u32, class: u32, model: u32, prompt: u64, output: u64, sequences: u32, patience: u64 },
    FirstToken(usize),
    Done(usize, Usage),
    Fail(usize, Fault),
    Left(usize),
    Pass(u64),
    Report(u32, Report),
    Answer(bool),
    Lost(u32),
    Stray(u64),
    Reload(usize),
    Drain,
}

fn usage() -> impl Strategy<Value = Usage> {
    prop_oneof![
        3 => (0u64..100, 0u64..60).prop_map(|(input, output)| used(input, output)),
        1 => (0u64..100, 0u64..60)
            .prop_map(|(input, output)| Usage::Partial(Tokens { input, cached: 0, output })),
        1 => Just(Usage::Unknown),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Refused),
        Just(Fault::Reset),
        Just(Fault::ServerError),
        Just(Fault::Draining),
        Just(Fault::Aborted),
        Just(Fault::ErrorEvent),
        Just(Fault::Malformed),
        Just(Fault::Silent),
        prop::option::of(0u64..60_000)
            .prop_map(|ms| Fault::Busy { retry_after: ms.map(Duration::from_millis) }),
    ]
}

fn report() -> impl Strategy<Value = Report> {
    let count = || prop::option::of(0u64..8);
    (count(), count(), prop::option::of(0u32..6), prop::option::of(20u64..300)).prop_map(
        |(running, waiting, slots, kv_tokens)| Report {
            running,
            waiting,
            slots,
            kv_tokens,
            ..Report::default()
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let sequences = prop_oneof![6 => Just(1u32), 1 => 0u32..7];
    let arrive = (0u32..5, 0u32..3, 0u32..3, 0u64..120, 0u64..60, sequences, 0u64..3000).prop_map(
        |(tenant, class, model, prompt, output, sequences, patience)| Op::Arrive {
            tenant,
            class,
            model,
            prompt,
            output,
            sequences,
            patience,
        },
    );
    prop_oneof![
        24 => arrive,
        6 => (0usize..64).prop_map(Op::FirstToken),
        10 => (0usize..64, usage()).prop_map(|(which, usage)| Op::Done(which, usage)),
        6 => (0usize..64, fault()).prop_map(|(which, fault)| Op::Fail(which, fault)),
        3 => (0usize..64).prop_map(Op::Left),
        8 => (0u64..1500).prop_map(Op::Pass),
        3 => (0u32..9, report()).prop_map(|(replica, report)| Op::Report(replica, report)),
        8 => any::<bool>().prop_map(Op::Answer),
        1 => (0u32..9).prop_map(Op::Lost),
        1 => (0u64..100).prop_map(Op::Stray),
        1 => (0usize..3).prop_map(Op::Reload),
    ]
}

/// What the edge knows of a job.
#[derive(Debug, Clone, Default)]
struct Seen {
    at: Option<ReplicaId>,
    started: bool,
    tried: BTreeSet<ReplicaId>,
    /// Its replica came back while it ran there.
    outlived: bool,
    ends: u32,
}

/// An edge that believes nothing.
struct Edge {
    scheduler: Scheduler,
    policies: Vec<Arc<Policy>>,
    policy: Arc<Policy>,
    now: Tick,
    specs: BTreeMap<JobId, JobSpec>,
    jobs: BTreeMap<JobId, Seen>,
    out_of_service: BTreeSet<ReplicaId>,
    probes: BTreeMap<ReplicaId, Tick>,
    log: Vec<(Tick, Action)>,
}

impl Edge {
    fn new(policies: &[Rules]) -> Self {
        let policies: Vec<_> = policies.iter().map(build).collect();
        Self {
            scheduler: Scheduler::new(Arc::clone(&policies[0])),
            policy: Arc::clone(&policies[0]),
            policies,
            now: Tick::ZERO,
            specs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            out_of_service: BTreeSet::new(),
            probes: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.scheduler.handle(self.now, event, &mut out);
        for action in out {
            self.obey(&action);
            self.log.push((self.now, action));
        }
        assert_eq!(self.scheduler.audit(), [], "after {:?}", self.log.last());
        assert!(self.scheduler.next_deadline().is_none_or(|at| at > self.now), "something is overdue");
        let waiting = self.jobs.values().filter(|seen| seen.ends == 0 && seen.at.is_none()).count();
        assert_eq!(self.scheduler.waiting().requests, waiting as u64);
        let live = self.jobs.values().filter(|seen| seen.ends == 0).count();
        assert_eq!(self.scheduler.jobs(), live);
    }

    fn obey(&mut self, action: &Action) {
        match *action {
            Action::Dispatch { job, replica, why } => {
                let spec = self.specs[&job];
                let pool = self.policy.replicas.get(replica).expect("a replica of the policy").pool;
                let model = self.policy.models.get(spec.model).expect("a model of the policy");
                assert!(model.pools.contains(&pool));
                assert!(!self.out_of_service.contains(&replica));
                let room = why.running + spec.sequences.max(1) <= why.limit || why.running == 0;
                assert!(room, "beyond its credit: {why:?}");
                assert!(why.candidates >= 1);
                let seen = self.jobs.get_mut(&job).expect("a job that arrived");
                assert!(seen.ends == 0 && seen.at.is_none());
                seen.at = Some(replica);
                seen.outlived = false;
            }
            Action::Reject { job, .. } => {
                let seen = self.jobs.get_mut(&job).expect("a job that arrived");
                seen.ends += 1;
                assert_eq!(seen.ends, 1);
                seen.at = None;
            }
            Action::Requeue { job, replica, why } => {
                let seen = self.jobs.get_mut(&job).expect("a job that arrived");
                assert_eq!(seen.at.take(), Some(replica));
                if why.counts_as_attempt() && !seen.outlived {
                    seen.tried.insert(replica);
                }
            }
            Action::Eject { replica, .. } => assert!(self.out_of_service.insert(replica)),
            Action::Readmit { replica, .. } => {
                assert!(self.out_of_service.remove(&replica));
                self.probes.remove(&replica);
                for seen in self.jobs.values_mut() {
                    seen.tried.remove(&replica);
                    seen.outlived |= seen.at == Some(replica);
                }
            }
            Action::Probe { replica } => {
                assert!(self.out_of_service.contains(&replica));
                let before = self.probes.insert(replica, self.now);
                let lost = |at| self.now.since(at) >= Duration::from_secs(10);
                assert!(before.is_none_or(lost), "one probe at a time");
            }
        }
    }

    fn running(&self, which: usize) -> Option<JobId> {
        let jobs: Vec<_> =
            self.jobs.iter().filter(|(_, seen)| seen.at.is_some()).map(|(id, _)| *id).collect();
        (!jobs.is_empty()).then(|| jobs[which % jobs.len()])
    }

    fn end(&mut self, job: JobId) {
        let seen = self.jobs.get_mut(&job).expect("a job that arrived");
        (seen.at, seen.ends) = (None, seen.ends + 1);
    }

    /// Lets time pass, with every timer on the way.
    fn pass(&mut self, millis: u64) {
        let goal = self.now + Duration::from_millis(millis);
        while let Some(next) = self.scheduler.next_deadline().filter(|at| *at <= goal) {
            self.now = next;
            self.event(Event::Timer);
        }
        self.now = goal;
    }

    fn arrive(&mut self, spec: JobSpec) {
        self.specs.insert(spec.id, spec);
        self.jobs.insert(spec.id, Seen::default());
        self.event(Event::Arrived(spec));
    }

    fn fail(&mut self, job: JobId, fault: Fault) {
        if self.jobs[&job].started {
            self.end(job);
        }
        self.event(Event::Finished { job, outcome: Outcome::Failed { fault, usage: Usage::Unknown } });
    }

    fn reload(&mut self, which: usize) {
        self.policy = Arc::clone(&self.policies[which % self.policies.len()]);
        let present = |id: &ReplicaId| {
            self.policy.replicas.get(*id).is_some_and(|row| self.policy.pools.get(row.pool).is_some())
        };
        self.out_of_service.retain(present);
        self.probes.retain(|id, _| present(id));
        self.event(Event::PolicyChanged(Arc::clone(&self.policy)));
    }

    fn answer(&mut self, found: bool) {
        let Some((&replica, _)) = self.probes.first_key_value() else { return };
        self.probes.remove(&replica);
        let event = if found { Event::ReplicaFound { replica } } else { Event::ReplicaLost { replica } };
        self.event(event);
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Arrive { tenant, class, model, prompt, output, sequences, patience } => {
                let id = JobId::new(1000 + self.jobs.len() as u64);
                self.arrive(JobSpec {
                    id,
                    tenant: TenantId::new(tenant),
                    class: ClassId::new(class),
                    model: ModelId::new(model),
                    prompt_tokens: prompt,
                    max_output_tokens: output,
                    sequences,
                    bytes: 4 * prompt,
                    deadline: self.now + Duration::from_millis(patience),
                });
            }
            Op::FirstToken(which) => {
                if let Some(job) = self.running(which) {
                    self.jobs.get_mut(&job).expect("a job").started = true;
                    self.event(Event::FirstToken { job });
                }
            }
            Op::Done(which, usage) => {
                if let Some(job) = self.running(which) {
                    self.end(job);
                    self.event(Event::Finished { job, outcome: Outcome::Done(usage) });
                }
            }
            Op::Fail(which, fault) => {
                if let Some(job) = self.running(which) {
                    self.fail(job, fault);
                }
            }
            Op::Left(which) => {
                let live: Vec<_> =
                    self.jobs.iter().filter(|(_, seen)| seen.ends == 0).map(|(id, _)| *id).collect();
                if !live.is_empty() {
                    let job = live[which % live.len()];
                    self.end(job);
                    self.event(Event::Left { job, usage: Usage::Unknown });
                }
            }
            Op::Pass(millis) => self.pass(millis),
            Op::Report(replica, report) => {
                self.event(Event::ReplicaReported { replica: ReplicaId::new(replica), report });
            }
            Op::Answer(found) => self.answer(found),
            Op::Lost(replica) => {
                self.probes.remove(&ReplicaId::new(replica));
                self.event(Event::ReplicaLost { replica: ReplicaId::new(replica) });
            }
            Op::Stray(number) => {
                let job = JobId::new(number);
                self.event(Event::FirstToken { job });
                self.event(Event::Finished { job, outcome: Outcome::Done(Usage::Unknown) });
                self.event(Event::Left { job, usage: Usage::Unknown });
            }
            Op::Reload(which) => self.reload(which),
            Op::Drain => self.event(Event::Draining),
        }
    }

    /// Everything answers until nothing is left.
    fn run_out(&mut self) {
        for _ in 0..2_000 {
            if self.scheduler.jobs() == 0 {
                break;
            }
            while !self.probes.is_empty() {
                self.answer(true);
            }
            if let Some(job) = self.running(0) {
                self.end(job);
                self.event(Event::Finished { job, outcome: Outcome::Done(used(5, 5)) });
            } else {
                self.pass(100);
            }
        }
        assert!(self.jobs.values().all(|seen| seen.ends == 1), "each job ends exactly once");
        let picture = self.scheduler.snapshot(self.now);
        assert_eq!((picture.jobs, picture.queues.len(), picture.broken_invariants), (0, 0, 0));
        for view in picture.replicas {
            assert_eq!((view.running, view.prefill_tokens, view.kv_tokens), (0, 0, 0));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_job_ends_once_and_no_credit_idles(
        worlds in vec(rules(), 1..4),
        ops in vec(op(), 1..160),
        drain in prop::option::weighted(0.1, 0usize..160),
    ) {
        let mut edge = Edge::new(&worlds);
        for (index, op) in ops.into_iter().enumerate() {
            if drain == Some(index) {
                edge.apply(&Op::Drain);
            }
            edge.apply(&op);
        }
        edge.run_out();
    }

    #[test]
    fn the_same_events_lead_to_the_same_actions(worlds in vec(rules(), 1..3), ops in vec(op(), 1..120)) {
        let run = || {
            let mut edge = Edge::new(&worlds);
            for op in &ops {
                edge.apply(op);
            }
            edge.run_out();
            edge.log
        };
        prop_assert_eq!(run(), run());
    }

    /// One pool that never changes: a job comes back to a replica that failed
    /// it only when every other one in service failed it too, or when it was
    /// ejected in between.
    #[test]
    fn retries_go_to_untried_replicas_first(
        limits in vec(1u32..4, 1..4),
        ops in vec(op().prop_filter("a fixed policy", |op| !matches!(op, Op::Reload(_))), 1..160),
    ) {
        let members = limits.iter().map(|limit| Some((Some(*limit), None))).collect();
        let only = Rules {
            classes: vec![Some((0, 10)), Some((1, 10)), Some((1, 0))],
            tenants: vec![Some((1, 1000)); 5],
            replicas: vec![members],
            models: vec![Some(1); 3],
            bound: 1000,
            attempts: 4,
            slow_start: 500,
            buffer: 0,
        };
        let mut edge = Edge::new(&[only]);
        let mut read = 0;
        for op in ops {
            edge.apply(&op);
            for (_, action) in &edge.log[read..] {
                let Action::Dispatch { job, replica, .. } = action else { continue };
                let tried = &edge.jobs[job].tried;
                if tried.contains(replica) {
                    let views = edge.scheduler.snapshot(edge.now).replicas;
                    let up = |state| matches!(state, ReplicaState::Serving | ReplicaState::SlowStart);
                    let untried = views.iter().any(|v| up(v.state) && !tried.contains(&v.replica));
                    prop_assert!(!untried, "{:?} was tried, others were not: {:?}", replica, views);
                }
            }
            read = edge.log.len();
        }
        edge.run_out();
    }
}
