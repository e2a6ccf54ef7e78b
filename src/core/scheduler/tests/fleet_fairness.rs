//! Tests of fair shares over several gateways: each hears every 200 ms what the others have dispatched.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assume, proptest};

use crate::model::event::Event;
use crate::model::ids::{ClassId, JobId, PoolId, TenantId};
use crate::model::job::JobSpec;
use crate::model::policy::{Class, Policy, Quota, Tenant};
use crate::queue::fairness::service::{HeldSequences, ServiceAccount, ServiceReport};
use crate::scheduler::tests::shares::Flood;
use crate::scheduler::tests::{World, class, of_tenant, policy, reload, sent, spec, tenant};

const EXCHANGE: Duration = Duration::from_millis(200);

/// Gateways with a replica each, under one policy.
struct Gateways {
    floods: Vec<Flood>,
    /// The backlogs of each gateway.
    specs: Vec<Vec<JobSpec>>,
    is_shared: bool,
    steps: usize,
}

impl Gateways {
    /// One gateway for each list of backlogs.
    fn new(policy: &Policy, specs: Vec<Vec<JobSpec>>, is_shared: bool) -> Self {
        let floods = specs.iter().map(|specs| {
            let mut flood = Flood::empty(policy.clone(), specs.clone());
            if is_shared {
                flood.world.scheduler.record_service();
            }
            (0..specs.len()).for_each(|which| flood.begin(which));
            flood
        });
        Self { floods: floods.collect(), specs, is_shared, steps: 0 }
    }

    /// Time in which each gateway ends so many jobs, and then an exchange.
    fn round(&mut self, ended: &[usize]) {
        for (flood, ended) in self.floods.iter_mut().zip(ended) {
            flood.world.now += EXCHANGE;
            for _ in 0..*ended {
                self.steps += 1;
                flood.step(self.steps);
            }
        }
        let take = |flood: &mut Flood| flood.world.scheduler.take_service_reports(usize::MAX);
        let reports: Vec<Vec<ServiceReport>> = self.floods.iter_mut().map(take).collect();
        for (from, reports) in reports.iter().enumerate().filter(|_| self.is_shared) {
            let others = self.floods.iter_mut().enumerate().filter(|(to, _)| *to != from);
            others.for_each(|(_, flood)| tell(flood, reports.clone()));
        }
    }

    /// Work that tenants and classes got at all gateways.
    fn served(&self) -> BTreeMap<(TenantId, ClassId), u64> {
        let mut sums = BTreeMap::new();
        for (flood, specs) in self.floods.iter().zip(&self.specs) {
            for (spec, served) in specs.iter().zip(&flood.served) {
                *sums.entry((spec.tenant, spec.class)).or_default() += served;
            }
        }
        sums
    }

    fn audit(&self) -> usize {
        self.floods.iter().map(|flood| flood.world.scheduler.audit().len()).sum()
    }
}

/// A gateway that joins serves a tenant that has used nothing lately first, as the one that knows it does.
#[test]
fn a_gateway_that_starts_takes_over_what_tenants_have_used() {
    let mut rules = policy(&[&[4]], &[&[0]]);
    let half_life = Some(Duration::from_secs(3_600));
    rules.classes.insert("first", Class { usage_half_life: half_life, ..class(0, 0.0) });
    let specs = vec![of_tenant(0, 0), of_tenant(0, 1)];
    let mut old = Flood::empty(rules.clone(), specs.clone());
    old.begin(0);
    (0..200).for_each(|step| old.step(step));
    let told = old.world.scheduler.past_use(usize::MAX, old.world.now);
    assert!(told.len() == 1 && told[0].tokens > 1_000, "{told:?}");
    assert_eq!(old.world.scheduler.past_use(0, old.world.now), []);
    let share = |told: Vec<ServiceReport>| {
        let mut new = Flood::empty(rules.clone(), specs.clone());
        let mut out = Vec::new();
        new.world.scheduler.handle(new.world.now, Event::UsedBeforeStart(told), &mut out);
        [0, 1].into_iter().for_each(|which| new.begin(which));
        (0..100).for_each(|step| new.step(step));
        assert_eq!(new.world.scheduler.audit(), []);
        new.served[1] as f64 / new.served.iter().sum::<u64>() as f64
    };
    let unknown = PoolId::new(99);
    let nowhere = ServiceReport {
        account: ServiceAccount::Tenant { pool: unknown, class: ClassId::new(0), tenant: TenantId::new(0) },
        tokens: i64::MAX,
    };
    let (knows, does_not) = (share(told), share(vec![nowhere]));
    assert!((0.45..0.55).contains(&does_not) && knows > 0.75, "{knows} {does_not}");
}

fn tell(flood: &mut Flood, reports: Vec<ServiceReport>) {
    let mut out = Vec::new();
    flood.world.scheduler.handle(flood.world.now, Event::ServedElsewhere(reports), &mut out);
    assert_eq!(sent(&out), [], "no replica has room");
}

fn weighted(weights: &[f64]) -> Policy {
    let mut rules = policy(&[&[4]], &[&[0]]);
    for (name, weight) in ["a", "b", "c", "d"].into_iter().zip(weights) {
        rules.tenants.insert(name, tenant(*weight));
    }
    rules
}

fn of(tenant: u32, prompt_tokens: u64) -> JobSpec {
    JobSpec { tenant: TenantId::new(tenant), prompt_tokens, max_output_tokens: 0, ..spec(0) }
}

fn work_of(tenant: u32, tokens: i64) -> ServiceReport {
    let (pool, class) = (PoolId::new(0), ClassId::new(0));
    ServiceReport { account: ServiceAccount::Tenant { pool, class, tenant: TenantId::new(tenant) }, tokens }
}

/// Share of the first tenant, over all gateways.
fn first_share(gateways: &Gateways) -> f64 {
    let served = gateways.served();
    let total: u64 = served.values().sum();
    served[&(TenantId::new(0), ClassId::new(0))] as f64 / total as f64
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 8, ..ProptestConfig::with_cases(6) })]

    /// One tenant comes to the first gateway only, the other to both; how much the gateways can do
    /// changes from round to round.
    #[test]
    fn weights_hold_under_a_split_of_the_ingress(
        weights in (1u32..5, 1u32..5),
        sizes in (200u64..600, 200u64..600),
        rounds in vec((4usize..12, 1usize..6), 120),
    ) {
        let target = f64::from(weights.0) / f64::from(weights.0 + weights.1);
        // At most this much can go to the tenant that comes to one gateway only.
        let (first, second) = rounds.iter().fold((0, 0), |sum, round| (sum.0 + round.0, sum.1 + round.1));
        let jobs = first as f64 * sizes.0 as f64;
        let room = jobs / (jobs + second as f64 * sizes.1 as f64);
        prop_assume!(target < room - 0.1);
        let rules = weighted(&[f64::from(weights.0), f64::from(weights.1)]);
        let (one, two) = (of(0, sizes.0), of(1, sizes.1));
        let mut gateways = Gateways::new(&rules, vec![vec![one, two], vec![two]], true);
        for (first, second) in rounds {
            gateways.round(&[first, second]);
        }
        prop_assert!(gateways.audit() == 0);
        let share = first_share(&gateways);
        prop_assert!((share - target).abs() < 0.05, "{share} of {target}: {:?}", gateways.served());
    }

    /// All tenants wait at all gateways: their shares are those of one gateway, whatever each gateway
    /// can do, and nobody is held back anywhere for long.
    #[test]
    fn tenants_that_come_everywhere_are_served_everywhere(
        weights in vec(1u32..5, 3),
        sizes in vec(200u64..600, 3),
        rounds in vec((1usize..9, 1usize..9, 1usize..9), 80),
    ) {
        let shares: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        let specs: Vec<JobSpec> = (0..).zip(&sizes).map(|(tenant, size)| of(tenant, *size)).collect();
        let mut gateways = Gateways::new(&weighted(&shares), vec![specs; 3], true);
        for (one, two, three) in rounds {
            gateways.round(&[one, two, three]);
        }
        prop_assert!(gateways.audit() == 0);
        let (served, all) = (gateways.served(), shares.iter().sum::<f64>());
        let total: u64 = served.values().sum();
        for ((tenant, _), served) in served {
            let (share, target) = (served as f64 / total as f64, shares[tenant.index()] / all);
            prop_assert!((share - target).abs() < 0.05, "{tenant} got {share} of {target}");
        }
        // 16 s: at least one job every four.
        let everywhere = gateways.floods.iter().all(|flood| {
            flood.served.iter().zip(&sizes).all(|(served, size)| *served >= 4 * size)
        });
        prop_assert!(everywhere, "{:?}", gateways.floods.iter().map(|flood| &flood.served).collect::<Vec<_>>());
    }
}

#[test]
fn without_an_exchange_a_split_ingress_bends_the_weights() {
    let shares = [false, true].map(|is_shared| {
        let rules = weighted(&[1.0, 4.0]);
        let specs = vec![vec![of(0, 300), of(1, 300)], vec![of(1, 300)]];
        let mut gateways = Gateways::new(&rules, specs, is_shared);
        (0..250).for_each(|_| gateways.round(&[8, 8]));
        first_share(&gateways)
    });
    assert!((shares[0] - 0.1).abs() < 0.01, "{shares:?}");
    assert!((shares[1] - 0.2).abs() < 0.02, "{shares:?}");
}

/// The first tenant comes to the first gateway only, and has half of its work by weight.
#[test]
fn weights_hold_over_four_and_sixteen_gateways() {
    for (count, rounds) in [(4, 120), (16, 40)] {
        let target = 0.5 / count as f64;
        let rules = weighted(&[1.0, 2.0 * count as f64 - 1.0]);
        let mut specs = vec![vec![of(1, 300)]; count];
        specs[0].insert(0, of(0, 300));
        let mut gateways = Gateways::new(&rules, specs, true);
        let ended = vec![8; count];
        (0..rounds).for_each(|_| gateways.round(&ended));
        let share = first_share(&gateways);
        assert!((share / target - 1.0).abs() < 0.15, "{count}: {share} of {target}");
    }
}

#[test]
fn classes_keep_their_shares_over_all_gateways() {
    let shares = [false, true].map(|is_shared| {
        let mut rules = weighted(&[1.0]);
        rules.classes.insert("second", class(1, 0.1));
        let second = JobSpec { class: ClassId::new(1), ..of(0, 300) };
        let mut gateways = Gateways::new(&rules, vec![vec![of(0, 300), second], vec![of(0, 300)]], is_shared);
        (0..250).for_each(|_| gateways.round(&[8, 8]));
        assert_eq!(gateways.audit(), 0);
        1.0 - first_share(&gateways)
    });
    assert!((shares[0] - 0.05).abs() < 0.01, "{shares:?}");
    assert!((shares[1] - 0.1).abs() < 0.01, "{shares:?}");
}

/// How long the second tenant is served nothing after reports of this much work elsewhere.
fn held_back(tokens: i64, reports: usize) -> Duration {
    let mut gateways = Gateways::new(&weighted(&[1.0, 1.0]), vec![vec![of(0, 300), of(1, 300)]], false);
    (0..20).for_each(|_| gateways.round(&[2]));
    (0..reports).for_each(|_| tell(&mut gateways.floods[0], vec![work_of(1, tokens)]));
    let (begun, before) = (gateways.floods[0].world.now, gateways.floods[0].served[1]);
    for _ in 0..100 {
        if gateways.floods[0].served[1] != before {
            return gateways.floods[0].world.now.since(begun);
        }
        gateways.round(&[1]);
    }
    panic!("{tokens}: still held back")
}

#[test]
fn a_report_that_is_wrong_holds_a_tenant_back_for_seconds_only() {
    assert!(held_back(0, 1) < Duration::from_secs(1));
    let fair = held_back(3_000, 1);
    // Ten jobs at five a second; then jobs in time go first for up to a quantum of 4,096 tokens.
    assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&fair), "{fair:?}");
    for (tokens, reports) in [(1 << 40, 1), (i64::MAX, 50)] {
        let wait = held_back(tokens, reports);
        assert!((Duration::from_secs(2)..=Duration::from_secs(5)).contains(&wait), "{tokens}: {wait:?}");
    }
}

#[test]
fn corrections_of_work_that_was_not_heard_earn_little() {
    let mut gateways = Gateways::new(&weighted(&[1.0, 1.0]), vec![vec![of(0, 300), of(1, 300)]], false);
    (0..20).for_each(|_| gateways.round(&[2]));
    (0..50).for_each(|_| tell(&mut gateways.floods[0], vec![work_of(1, -1_000_000)]));
    let before = gateways.floods[0].served.clone();
    (0..60).for_each(|_| gateways.round(&[2]));
    let got = |which: usize| gateways.floods[0].served[which] - before[which];
    // Eight mean jobs, as after an absence, and a quantum of 4,096 tokens; in all there were 36,000.
    assert!(got(1) < got(0) + 12_000, "{} {}", got(0), got(1));
    assert!(got(0) > 10_000, "{} {}", got(0), got(1));
}

#[test]
fn an_idle_tenant_keeps_neither_more_credit_nor_more_debt_than_by_its_own_work() {
    let mut gateways = Gateways::new(&weighted(&[1.0, 1.0]), vec![vec![of(0, 300)]], false);
    (0..100).for_each(|_| gateways.round(&[2]));
    let flood = &mut gateways.floods[0];
    let counter = |flood: &Flood| {
        flood.world.scheduler.groups.iter().next().map(|group| {
            let class = group.class(ClassId::new(0)).expect("a class");
            (group.counter(class, TenantId::new(0)), group.counter(class, TenantId::new(1)))
        })
    };
    // It has used little elsewhere: the rest of its absence earns nothing when it comes.
    tell(flood, vec![work_of(1, 300)]);
    flood.world.arrive(JobSpec { id: JobId::new(1 << 40), ..of(1, 300) });
    let (busy, idle) = counter(flood).expect("a group");
    assert!(idle < busy && busy - idle <= 9 * 300 * 1024, "{busy} {idle}");
    // It has used much elsewhere, long ago.
    let mut gateways = Gateways::new(&weighted(&[1.0, 1.0]), vec![vec![of(0, 300)]], false);
    let flood = &mut gateways.floods[0];
    tell(flood, vec![work_of(1, 1 << 30)]);
    (0..60).for_each(|_| gateways.round(&[2]));
    let (busy, idle) = counter(&gateways.floods[0]).expect("a group");
    assert!(idle <= busy, "{busy} {idle}");
}

#[test]
fn groups_pay_with_their_tenants_and_strangers_are_left_out() {
    let mut rules = weighted(&[1.0]);
    let child = Tenant { parent: Some(TenantId::new(0)), ..tenant(2.0) };
    rules.tenants.insert("b", child);
    let mut gateways = Gateways::new(&rules, vec![vec![of(2, 300)]], false);
    let flood = &mut gateways.floods[0];
    tell(flood, vec![work_of(1, 500), work_of(77, 500)]);
    let strange = ServiceAccount::Class { pool: PoolId::new(9), class: ClassId::new(0) };
    let unknown =
        ServiceAccount::Tenant { pool: PoolId::new(0), class: ClassId::new(9), tenant: TenantId::new(1) };
    tell(flood, [strange, unknown].map(|account| ServiceReport { account, tokens: 500 }).to_vec());
    tell(flood, vec![work_of(1, -100)]);
    let scheduler = &flood.world.scheduler;
    let group = scheduler.groups.iter().next().expect("a group");
    let class = group.class(ClassId::new(0)).expect("a class");
    assert_eq!(group.counter(class, TenantId::new(1)), 200 * 1024);
    assert_eq!(group.counter(class, TenantId::new(77)), 0);
}

#[test]
fn a_gateway_alone_records_nothing_and_decides_as_before() {
    let mut plain = Gateways::new(&weighted(&[1.0, 3.0]), vec![vec![of(0, 300), of(1, 200)]], false);
    let mut shared = Gateways::new(&weighted(&[1.0, 3.0]), vec![vec![of(0, 300), of(1, 200)]], true);
    for _ in 0..100 {
        plain.round(&[3]);
        assert_eq!(plain.floods[0].world.scheduler.take_service_reports(usize::MAX), []);
        shared.round(&[3]);
    }
    assert_eq!(plain.served(), shared.served());
}

#[test]
fn reports_tell_what_jobs_came_to() {
    let mut gateways = Gateways::new(&weighted(&[1.0]), vec![vec![of(0, 300)]], true);
    let flood = &mut gateways.floods[0];
    let told: Vec<ServiceReport> = flood.world.scheduler.take_service_reports(usize::MAX);
    let class = ServiceAccount::Class { pool: PoolId::new(0), class: ClassId::new(0) };
    let tokens = |account: ServiceAccount, told: &[ServiceReport]| {
        told.iter().find(|report| report.account == account).map(|report| report.tokens)
    };
    let charged = tokens(work_of(0, 0).account, &told).expect("a report");
    assert!(charged >= 4 * 300, "{told:?}");
    assert_eq!(tokens(class, &told), Some(charged));
    // The first answers show that there is no output.
    (0..40).for_each(|_| flood.step(1));
    let told = flood.world.scheduler.take_service_reports(usize::MAX);
    let all = charged + tokens(work_of(0, 0).account, &told).expect("a report");
    assert!((all - 44 * 300).abs() <= charged, "{all}");
}

#[test]
fn quotas_hold_over_all_gateways() {
    let mut rules = policy(&[&[4]], &[&[0]]);
    let quota = Quota { guarantee: 0.5, borrow: 0.0, lend: 1.0 };
    rules.tenants.insert("a", Tenant { quota, ..tenant(1.0) });
    let mut world = World::new(rules);
    let held = |seqs| {
        let (pool, tenant) = (PoolId::new(0), TenantId::new(0));
        Event::HeldElsewhere(if seqs == 0 { Vec::new() } else { vec![HeldSequences { pool, tenant, seqs }] })
    };
    world.event(held(1));
    assert_eq!(sent(&world.arrive(of_tenant(1, 0))).len(), 1);
    assert_eq!(sent(&world.arrive(of_tenant(2, 0))), [], "half of four, of which one is held elsewhere");
    let own = HeldSequences { pool: PoolId::new(0), tenant: TenantId::new(0), seqs: 1 };
    assert_eq!(world.scheduler.held_sequences(), [own]);
    reload(&mut world, |policy| _ = policy.tenants.insert("b", tenant(2.0)));
    reload(&mut world, |policy| _ = policy.classes.insert("second", class(1, 0.2)));
    assert_eq!(sent(&world.done(1)), [(2, 0)]);
    world.arrive(of_tenant(3, 0));
    assert_eq!(sent(&world.event(held(0))), [(3, 0)], "it is free again");
    world.event(held(40));
    assert_eq!(sent(&world.arrive(of_tenant(4, 1))).len(), 1, "a tenant without a ceiling goes on");
}
