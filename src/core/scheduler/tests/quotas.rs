//! Tests of tenants' quotas.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};

use crate::model::event::{Action, AttemptOutcome, Event, OrderReason};
use crate::model::ids::{JobId, PoolId, ReplicaId, TenantId};
use crate::model::job::JobSpec;
use crate::model::policy::{Policy, Quota, Replica, Tenant};
use crate::model::time::Tick;
use crate::scheduler::tests::{World, of_tenant, placed, policy, rejected, sent, spec, tenant, used};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn with_quotas(limits: &[u32], quotas: &[Quota]) -> Policy {
    let mut rules = policy(&[limits], &[&[0]]);
    for (name, quota) in NAMES.into_iter().zip(quotas) {
        rules.tenants.insert(name, Tenant { quota: *quota, ..tenant(1.0) });
    }
    rules
}

fn quota(guarantee: f64, borrow: f64, lend: f64) -> Quota {
    Quota { guarantee, borrow, lend }
}

/// Keeps some jobs of every tenant waiting, and checks each dispatch against
/// the quotas.
struct Cohort {
    world: World,
    quotas: Vec<Quota>,
    capacity: u64,
    running: Vec<JobSpec>,
    waiting: BTreeMap<TenantId, u64>,
    specs: BTreeMap<JobId, JobSpec>,
    next: u64,
}

impl Cohort {
    fn new(limits: &[u32], quotas: Vec<Quota>) -> Self {
        let capacity = limits.iter().map(|limit| u64::from(*limit)).sum();
        let world = World::new(with_quotas(limits, &quotas));
        let (waiting, specs) = (BTreeMap::new(), BTreeMap::new());
        Self { world, quotas, capacity, running: Vec::new(), waiting, specs, next: 0 }
    }

    fn held(&self, tenant: TenantId) -> u64 {
        let own = self.running.iter().filter(|spec| spec.tenant == tenant);
        own.map(|spec| u64::from(spec.sequences)).sum()
    }

    fn quota(&self, tenant: TenantId) -> Quota {
        self.quotas.get(tenant.index()).copied().unwrap_or_default()
    }

    fn part(&self, fraction: f64) -> f64 {
        fraction * self.capacity as f64
    }

    fn is_below_guarantee(&self, tenant: TenantId) -> bool {
        let guarantee = self.quota(tenant).guarantee;
        let own = (self.part(guarantee) + 1e-6).floor().max(1.0);
        guarantee > 0.0 && (self.held(tenant) as f64) < own
    }

    fn kept(&self) -> u64 {
        let each = (0..self.quotas.len()).map(|index| {
            let own = self.quotas[index];
            let unlent = self.part((own.guarantee - own.lend).max(0.0)) + 1e-6;
            (unlent as u64).saturating_sub(self.held(TenantId::from(index)))
        });
        each.sum()
    }

    fn add(&mut self, tenant: u32, sequences: u32) {
        self.next += 1;
        let spec = JobSpec { sequences, deadline: Tick::NEVER, ..of_tenant(self.next, tenant) };
        *self.waiting.entry(spec.tenant).or_default() += 1;
        self.specs.insert(spec.id, spec);
        let actions = self.world.arrive(spec);
        self.take(&actions);
    }

    fn take(&mut self, actions: &[Action]) {
        assert_eq!(rejected(actions), []);
        for (job, _) in sent(actions) {
            let spec = self.specs[&JobId::new(job)];
            self.check(&spec);
            *self.waiting.entry(spec.tenant).or_default() -= 1;
            self.running.push(spec);
        }
    }

    /// Whether the job could go, before it counts as held.
    fn check(&self, spec: &JobSpec) {
        let own = self.quota(spec.tenant);
        let ceiling = (self.part(own.guarantee + own.borrow) + 1e-6).floor().max(1.0);
        let unlimited = own.guarantee + own.borrow >= 1.0;
        assert!(unlimited || (self.held(spec.tenant) as f64) < ceiling, "above its ceiling");
        if self.is_below_guarantee(spec.tenant) {
            return;
        }
        if self.specs.values().all(|spec| spec.sequences == 1) {
            let waits = |tenant: &TenantId| self.waiting.get(tenant).is_some_and(|count| *count > 0);
            let owed: Vec<_> = (0..4)
                .map(TenantId::new)
                .filter(|tenant| waits(tenant) && self.is_below_guarantee(*tenant))
                .collect();
            assert_eq!(owed, [], "it borrowed while others waited for their own");
        }
        let held: u64 = self.running.iter().map(|spec| u64::from(spec.sequences)).sum();
        let free = self.capacity.saturating_sub(held);
        let kept = self.kept();
        assert!(
            kept == 0 || free >= kept + u64::from(spec.sequences),
            "what others keep back: {kept} of {free}"
        );
    }

    fn done(&mut self, pick: usize) {
        if self.running.is_empty() {
            return;
        }
        let spec = self.running.remove(pick % self.running.len());
        let actions =
            self.world.event(Event::Finished { job: spec.id, outcome: AttemptOutcome::Done(used(10, 10)) });
        self.take(&actions);
    }
}

fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    let part = || prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    vec((0.0..0.33, part(), part()), 1..4).prop_map(|rows| {
        rows.into_iter().map(|(guarantee, borrow, lend)| quota(guarantee, borrow, lend)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Who waits with less than its guarantee goes before all who borrow, from
    /// the next end of a job on; nobody is above its ceiling; what is not lent
    /// stays free. The audit in every step says that no other credit is idle.
    #[test]
    fn every_dispatch_keeps_the_quotas(
        limits in vec(1u32..9, 1..5),
        quotas in quotas(),
        ops in vec((0u32..8, 0usize..64), 1..200),
    ) {
        let mut cohort = Cohort::new(&limits, quotas);
        for (kind, pick) in ops {
            match kind {
                0..4 => cohort.add(kind, 1),
                _ => cohort.done(pick),
            }
        }
        while !cohort.running.is_empty() {
            cohort.done(0);
        }
        assert_eq!(cohort.world.scheduler.unfinished(), 0, "everybody gets at least one sequence");
    }

    /// The same with large jobs among the small ones: a ceiling is passed by the
    /// last job only.
    #[test]
    fn large_jobs_keep_the_quotas_too(
        limits in vec(2u32..9, 1..4),
        quotas in quotas(),
        ops in vec((0u32..8, 0usize..64, 1u32..5), 1..150),
    ) {
        let mut cohort = Cohort::new(&limits, quotas);
        let max_sequences = limits.iter().copied().max().unwrap_or_default();
        for (kind, pick, sequences) in ops {
            match kind {
                0..4 => cohort.add(kind, sequences.min(max_sequences)),
                _ => cohort.done(pick),
            }
        }
    }
}

#[test]
fn a_guarantee_goes_before_a_smaller_counter() {
    let mut world = World::new(with_quotas(&[2], &[quota(0.5, 1.0, 1.0)]));
    world.arrive(of_tenant(1, 1));
    world.arrive(of_tenant(2, 1));
    for id in 10..13 {
        world.arrive(JobSpec { max_output_tokens: 200, ..spec(id) });
        world.arrive(of_tenant(id + 10, 1));
    }
    let actions = world.done(1);
    assert_eq!((sent(&actions), placed(&actions).order), (vec![(10, 0)], OrderReason::OwnQuota));
    assert_eq!(sent(&world.done(2)), [(20, 0)], "from there on the counters decide");
    let actions = world.done(10);
    assert_eq!((sent(&actions), placed(&actions).order), (vec![(11, 0)], OrderReason::OwnQuota));
    let idle = world.done(20);
    let owed = "its counter is the smaller one, for it was owed something when it came";
    assert_eq!((sent(&idle), placed(&idle).order), (vec![(12, 0)], OrderReason::Fair), "{owed}");
}

#[test]
fn a_parked_tenant_comes_back_by_its_own_end_or_by_capacity() {
    let mut world = World::new(with_quotas(&[2, 2], &[quota(0.0, 0.5, 1.0)]));
    for id in 0..6 {
        world.arrive(spec(id));
    }
    assert_eq!(world.scheduler.waiting().requests, 4, "two of four");
    assert_eq!(sent(&world.done(0)).len(), 1);
    assert_eq!(world.arrive(of_tenant(50, 1)).len(), 1, "others go past");
    let mut next = (**world.scheduler.policy()).clone();
    let larger = Replica { pool: PoolId::new(0), max_seqs: Some(4), kv_tokens: None };
    next.replicas.insert("p0/r0", larger);
    assert_eq!(sent(&world.event(Event::PolicyChanged(Arc::new(next)))).len(), 1, "three of six");
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: true });
    assert_eq!(sent(&world.done(1)), [], "one of two is less than it has");
}

#[test]
fn what_is_not_lent_is_there_at_once() {
    let mut world = World::new(with_quotas(&[4], &[quota(0.5, 1.0, 0.0)]));
    for id in 0..6 {
        world.arrive(of_tenant(id, 1));
    }
    assert_eq!(world.scheduler.waiting().requests, 4, "two of four stay free");
    assert_eq!(sent(&world.arrive(spec(10))).len(), 1);
    assert_eq!(sent(&world.arrive(spec(11))).len(), 1);
    assert_eq!(sent(&world.arrive(spec(12))), []);
    assert_eq!(sent(&world.done(10)), [(12, 0)], "its own, though others have waited longer");
    assert_eq!(sent(&world.done(0)).len(), 1);
}
