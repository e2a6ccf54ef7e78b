//! Tests of shares: tenants and classes that together want more than there is.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use crate::model::event::{Action, AttemptOutcome, EngineFault, Event};
use crate::model::ids::{ClassId, JobId, ModelId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::scheduler::dispatch::hold::MAX_PASSED_OVER;
use crate::scheduler::tests::{World, class, of_tenant, placed, policy, sent, spec, tenant, used};

/// Keeps three jobs of every tenant and class waiting at one replica of four
/// sequences; counts the cost of what is dispatched.
pub(super) struct Flood {
    pub(super) world: World,
    running: Vec<JobSpec>,
    next: u64,
    specs: Vec<JobSpec>,
    pub(super) served: Vec<u64>,
}

impl Flood {
    /// One backlog per spec.
    pub(super) fn new(policy: Policy, specs: Vec<JobSpec>) -> Self {
        let mut flood = Self::empty(policy, specs);
        (0..flood.specs.len()).for_each(|which| flood.begin(which));
        flood
    }

    pub(super) fn empty(policy: Policy, specs: Vec<JobSpec>) -> Self {
        let served = vec![0; specs.len()];
        Self { world: World::new(policy).audited_every(8), running: Vec::new(), next: 0, specs, served }
    }

    /// Begins the backlog of a spec.
    pub(super) fn begin(&mut self, which: usize) {
        (0..3).for_each(|_| self.add(which));
    }

    fn add(&mut self, which: usize) {
        self.next += 1;
        let id = JobId::new(self.next * self.specs.len() as u64 + which as u64);
        let spec = JobSpec { id, deadline: Tick::NEVER, ..self.specs[which] };
        let mut out = Vec::new();
        self.world.scheduler.handle(self.world.now, Event::Arrived(spec, PromptPrefix::default()), &mut out);
        self.take(&out);
    }

    fn take(&mut self, actions: &[Action]) {
        for (job, _) in sent(actions) {
            let which = job as usize % self.specs.len();
            let spec = JobSpec { id: JobId::new(job), ..self.specs[which] };
            self.served[which] += spec.prompt_tokens + 2 * spec.max_output_tokens;
            self.running.push(spec);
            self.add(which);
        }
    }

    /// Ends a running job and lets the next one in.
    pub(super) fn step(&mut self, pick: usize) {
        let spec = self.running.swap_remove(pick % self.running.len());
        let outcome = AttemptOutcome::Done(used(spec.prompt_tokens, spec.max_output_tokens));
        let mut out = Vec::new();
        self.world.scheduler.handle(self.world.now, Event::Finished { job: spec.id, outcome }, &mut out);
        self.take(&out);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn tenants_get_work_by_weight(
        tenants in vec((1u32..6, 1u64..200, 0u64..60), 2..5),
        picks in vec(0usize..4, 800),
    ) {
        let mut rules = policy(&[&[4]], &[&[0]]);
        let mut specs = Vec::new();
        for (index, (weight, prompt, output)) in tenants.iter().enumerate() {
            let name = ["a", "b", "c", "d"][index];
            let id = rules.tenants.insert(name, tenant(f64::from(*weight)));
            specs.push(JobSpec { tenant: id, prompt_tokens: *prompt, max_output_tokens: *output, ..spec(0) });
        }
        let mut flood = Flood::new(rules, specs);
        let start = flood.served.clone();
        for pick in picks {
            flood.step(pick);
        }
        prop_assert_eq!(flood.world.scheduler.audit(), []);
        // The largest job of each tenant over its weight bounds how far the
        // two can be apart; the jobs in flight before the start add to it.
        let each: Vec<f64> = (0..tenants.len())
            .map(|i| (flood.served[i] - start[i]) as f64 / f64::from(tenants[i].0))
            .collect();
        let slack = tenants.iter().map(|(weight, prompt, output)| (prompt + 2 * output) as f64 / f64::from(*weight));
        let slack = 6.0 * slack.fold(0.0, f64::max);
        for a in &each {
            for b in &each {
                prop_assert!((a - b).abs() <= slack, "{:?} with slack {}", each, slack);
            }
        }
    }

    #[test]
    fn classes_get_their_guaranteed_share(
        shares in (5u32..30, 5u32..30),
        sizes in (20u64..100, 20u64..100, 20u64..100),
        picks in vec(0usize..4, 1500),
    ) {
        let mut rules = policy(&[&[4]], &[&[0]]);
        rules.classes.insert("second", class(1, f64::from(shares.0) / 100.0));
        rules.classes.insert("third", class(2, f64::from(shares.1) / 100.0));
        let of = |class, prompt_tokens| JobSpec {
            class: ClassId::new(class),
            prompt_tokens,
            max_output_tokens: 0,
            ..spec(0)
        };
        let mut flood = Flood::new(rules, vec![of(0, sizes.0), of(1, sizes.1), of(2, sizes.2)]);
        for pick in picks {
            flood.step(pick);
        }
        let total: u64 = flood.served.iter().sum();
        let share = |class: usize| flood.served[class] as f64 / total as f64;
        prop_assert!((share(1) - f64::from(shares.0) / 100.0).abs() < 0.01, "{:?} of {:?}", flood.served, shares);
        prop_assert!((share(2) - f64::from(shares.1) / 100.0).abs() < 0.01, "{:?} of {:?}", flood.served, shares);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Small jobs that take every bit of credit as it comes hold up a large
    /// one only for so long.
    #[test]
    fn large_jobs_do_not_starve(
        limits in vec(2u32..9, 1..4),
    ) {
        let need = *limits.iter().max().expect("a replica");
        let places: u32 = limits.iter().sum();
        let mut world = World::new(policy(&[&limits], &[&[0]]));
        let mut small = 0;
        let mut running: Vec<u64> = Vec::new();
        let mut add = |world: &mut World, running: &mut Vec<u64>| {
            small += 1;
            let actions = world.arrive(of_tenant(small, 1 + (small % 3) as u32));
            running.extend(sent(&actions).iter().map(|(job, _)| *job));
        };
        for _ in 0..places + 6 {
            add(&mut world, &mut running);
        }
        let at_once = world.arrive(JobSpec { sequences: need, ..spec(1_000_000) });
        prop_assert_eq!(at_once, []);
        let mut before = 0;
        for _ in 0..300 {
            let job = running.remove(0);
            let actions = sent(&world.done(job));
            if let Some((_, replica)) = actions.iter().find(|(job, _)| *job == 1_000_000) {
                prop_assert!(limits[*replica as usize] >= need, "held where it fits");
                before += 1_000;
                break;
            }
            before += actions.len() as u32;
            running.extend(actions.iter().map(|(job, _)| *job));
            add(&mut world, &mut running);
        }
        // Until it is first: one turn of each of the three other tenants.
        prop_assert!((1_000..=1_000 + MAX_PASSED_OVER + places + 6).contains(&before), "{}", before);
    }
}

#[test]
fn without_a_share_the_lower_class_waits_for_the_higher_one() {
    let of = |class| JobSpec { class: ClassId::new(class), ..spec(0) };
    let mut flood = Flood::new(policy(&[&[4]], &[&[0]]), vec![of(0), of(1)]);
    let before = flood.served[1];
    for _ in 0..100 {
        flood.step(0);
    }
    assert_eq!(flood.served[1], before);
}

#[test]
fn a_guaranteed_turn_says_so() {
    use crate::model::event::OrderReason;

    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.classes.insert("second", class(1, 0.5));
    let mut world = World::new(rules);
    world.arrive(spec(0));
    world.arrive(JobSpec { class: ClassId::new(1), ..spec(100) });
    world.arrive(spec(1));
    world.arrive(spec(2));
    let first = world.done(0);
    assert_eq!((sent(&first), placed(&first).order), (vec![(1, 0)], OrderReason::Fair));
    let second = world.done(1);
    assert_eq!((sent(&second), placed(&second).order), (vec![(100, 0)], OrderReason::GuaranteedShare));
}

#[test]
fn being_away_earns_no_priority() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    let mut running = 0;
    world.arrive(of_tenant(0, 1));
    for id in 1..60 {
        world.arrive(of_tenant(id, 1));
    }
    for _ in 0..20 {
        running = sent(&world.done(running))[0].0;
    }
    for id in 100..120 {
        world.arrive(of_tenant(id, 0));
    }
    let mut newcomer = 0;
    for _ in 0..20 {
        running = sent(&world.done(running))[0].0;
        newcomer += u32::from(running >= 100);
    }
    assert_eq!(newcomer, 14, "half of what is served since it came, and eight jobs that it is owed");
}

#[test]
fn what_was_used_replaces_what_was_expected() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    let long = |id, tenant| JobSpec { max_output_tokens: 200, ..of_tenant(id, tenant) };
    world.arrive(of_tenant(99, 3));
    for id in 0..4 {
        world.arrive(long(id, 0));
        world.arrive(long(id + 10, 1));
    }
    assert_eq!(sent(&world.done(99)), [(0, 0)]);
    let short = AttemptOutcome::Done(used(10, 0));
    assert_eq!(sent(&world.finish(0, short)), [(10, 0)]);
    let next = sent(&world.finish(10, AttemptOutcome::Done(used(10, 200))));
    assert_eq!(next, [(1, 0)]);
    let next = sent(&world.finish(1, AttemptOutcome::Done(used(10, 10))));
    assert_eq!(next, [(2, 0)], "two short ones cost less than one long one");
    let next = sent(&world.event(Event::Abandoned { job: JobId::new(2), usage: JobUsage::Unknown }));
    assert_eq!(next.len(), 1, "nothing known: the charge stands");
}

#[test]
fn being_served_without_a_queue_counts_too() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    for id in 0..20 {
        world.arrive(of_tenant(id, 1));
        world.done(id);
    }
    world.arrive(of_tenant(20, 1));
    for id in 0..40 {
        world.arrive(of_tenant(100 + id, 0));
        world.arrive(of_tenant(30 + id, 1));
    }
    let (mut running, mut newcomer) = (20, 0);
    for _ in 0..40 {
        running = sent(&world.done(running))[0].0;
        newcomer += u32::from(running >= 100);
    }
    assert!((23..=25).contains(&newcomer), "{newcomer} of 40: half, and the eight that it is owed");
}

#[test]
fn a_retry_is_not_charged_again() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(of_tenant(99, 3));
    for id in 0..3 {
        world.arrive(spec(id));
        world.arrive(of_tenant(10 + id, 1));
    }
    assert_eq!(sent(&world.done(99)), [(0, 0)]);
    for _ in 0..3 {
        assert_eq!(sent(&world.fail(0, EngineFault::Malformed)), [(0, 0)]);
    }
    assert_eq!(sent(&world.done(0)), [(10, 0)]);
    assert_eq!(sent(&world.done(10)), [(1, 0)], "both have had one job");
}

#[test]
fn a_job_that_ends_while_it_waits_costs_nothing() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(of_tenant(99, 3));
    let last = JobSpec { max_output_tokens: 250, deadline: Tick::from_millis(100), ..spec(0) };
    world.arrive(last);
    for id in 1..3 {
        world.arrive(of_tenant(10 + id, 1));
        world.arrive(spec(id));
    }
    assert_eq!(sent(&world.done(99)), [(0, 0)]);
    assert_eq!(sent(&world.fail(0, EngineFault::Busy { retry_after: None })), Vec::new());
    world.at(100);
    assert_eq!(sent(&world.at(250)), [(11, 0)]);
    assert_eq!(sent(&world.done(11)), [(1, 0)], "the job that never ran is not held against its tenant");
}

#[test]
fn a_class_of_which_nothing_waits_is_owed_nothing() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.classes.insert("second", class(1, 0.5));
    let mut world = World::new(rules);
    let second = |id| JobSpec { class: ClassId::new(1), ..spec(id) };
    world.arrive(spec(0));
    world.arrive(second(100));
    for id in 1..4 {
        world.arrive(spec(id));
    }
    assert_eq!(sent(&world.done(0)), [(1, 0)]);
    world.event(Event::Abandoned { job: JobId::new(100), usage: JobUsage::Unknown });
    world.arrive(second(101));
    assert_eq!(sent(&world.done(1)), [(2, 0)]);
    assert_eq!(sent(&world.done(2)), [(101, 0)]);
}

#[test]
fn the_class_that_is_owed_most_goes_first() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.classes.insert("second", class(1, 0.1));
    rules.classes.insert("third", class(2, 0.4));
    let mut world = World::new(rules);
    let of = |id, class| JobSpec { class: ClassId::new(class), ..spec(id) };
    for (id, class) in [(0, 0), (1, 0), (2, 0), (10, 1), (20, 2)] {
        world.arrive(of(id, class));
    }
    assert_eq!(sent(&world.done(0)), [(1, 0)]);
    assert_eq!(sent(&world.done(1)), [(20, 0)]);
    assert_eq!(sent(&world.done(20)), [(10, 0)]);
}

#[test]
fn who_comes_for_another_model_on_the_same_replicas_has_no_more_than_a_share() {
    // The second pool has no replica; it only makes the second model's pools others.
    let rules = policy(&[&[4], &[]], &[&[0], &[0, 1]]);
    let of = |tenant, model| JobSpec {
        model: ModelId::new(model),
        prompt_tokens: 100,
        max_output_tokens: 0,
        ..of_tenant(0, tenant)
    };
    let mut flood = Flood::empty(rules, vec![of(0, 0), of(1, 0), of(2, 1)]);
    flood.begin(0);
    flood.begin(1);
    (0..300).for_each(|_| flood.step(0));
    let before = flood.served.clone();
    flood.begin(2);
    (0..60).for_each(|_| flood.step(0));
    let since: Vec<u64> =
        before.iter().zip(&flood.served).map(|(before, now)| (now - before) / 100).collect();
    let owed = 8;
    assert!((16..=20).contains(&since[0]) && (16..=20).contains(&since[1]), "{since:?}");
    assert!((16..=20).contains(&(since[2] - owed)), "{since:?}");
    assert_eq!(flood.world.scheduler.audit(), []);
}
