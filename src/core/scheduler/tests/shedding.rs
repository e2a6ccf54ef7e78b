//! Tests of shedding: refusals of jobs that cannot start in time.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use crate::model::event::{EngineFault, RejectReason};
use crate::model::job::JobSpec;
use crate::model::policy::Class;
use crate::model::time::Tick;
use crate::scheduler::tests::{World, class, of_tenant, policy, rejected, sent, spec};

/// Replicas that take so long for each job.
struct Line {
    world: World,
    each: u64,
    running: Vec<(u64, u64)>,
}

impl Line {
    fn new(world: World, each: u64) -> Self {
        Self { world, each, running: Vec::new() }
    }

    /// Ends what is over by then.
    fn until(&mut self, millis: u64) {
        while let Some(&(end, job)) = self.running.first().filter(|(end, _)| *end <= millis) {
            self.running.remove(0);
            self.world.at(end);
            let actions = self.world.done(job);
            self.note(end, &sent(&actions));
        }
        self.world.at(millis);
    }

    fn note(&mut self, now: u64, sent: &[(u64, u32)]) {
        self.running.extend(sent.iter().map(|(job, _)| (now + self.each, *job)));
    }

    /// Why the job was refused, if it was.
    fn arrive(&mut self, millis: u64, spec: JobSpec) -> Option<RejectReason> {
        self.until(millis);
        let actions = self.world.arrive(spec);
        self.note(millis, &sent(&actions));
        rejected(&actions).first().map(|(_, why)| why.reason)
    }
}

fn within(millis: u64, patience: u64, spec: JobSpec) -> JobSpec {
    JobSpec { deadline: Tick::from_millis(millis + patience), ..spec }
}

#[test]
fn a_hopeless_job_is_refused_at_once_with_its_own_lanes_time() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.classes.insert("first", Class { ttft_objective: Duration::from_secs(30), ..class(0, 0.0) });
    let mut pool_set = Line::new(World::new(rules), 100);
    for id in 0..101 {
        assert_eq!(pool_set.arrive(0, spec(id)), None, "no rate is known");
    }
    pool_set.until(1_000);
    assert_eq!(pool_set.arrive(1_000, within(1_000, 8_000, spec(200))), None, "with luck it starts");
    pool_set.until(1_050);
    let actions = pool_set.world.arrive(within(1_050, 5_000, spec(201)));
    let (job, why) = rejected(&actions)[0];
    assert_eq!((job, why.reason), (201, RejectReason::Unmeetable));
    let wait = why.retry_after.unwrap().as_secs_f64();
    assert!((9.0..12.0).contains(&wait), "some 90 jobs at 10 a second: {wait}");
    let other = within(1_050, 5_000, of_tenant(202, 1));
    assert_eq!(rejected(&pool_set.world.arrive(other)), [], "another tenant's lane is its own");
}

/// One replica of one sequence that runs job 0, in a first class with an objective of 30 s.
fn busy_world() -> World {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.classes.insert("first", Class { ttft_objective: Duration::from_secs(30), ..class(0, 0.0) });
    let mut world = World::new(rules);
    world.arrive(spec(0));
    world
}

#[test]
fn who_leaves_sooner_goes_first_in_its_lane() {
    let mut world = busy_world();
    world.arrive(spec(1));
    world.arrive(JobSpec { client_deadline: Tick::from_millis(20_000), ..within(0, 20_000, spec(2)) });
    world.arrive(JobSpec { client_deadline: Tick::from_millis(5_000), ..within(0, 5_000, spec(3)) });
    let mut running = 0;
    let mut order = Vec::new();
    while let Some((next, _)) = sent(&world.done(running)).first().copied() {
        (running, order) = (next, [order, vec![next]].concat());
    }
    assert_eq!(order, [3, 2, 1]);
}

#[test]
fn a_client_that_leaves_sooner_takes_no_turn_of_another_tenant() {
    let mut world = busy_world();
    world.arrive(of_tenant(1, 1));
    world.arrive(JobSpec { client_deadline: Tick::from_millis(5_000), ..within(0, 5_000, spec(2)) });
    assert_eq!(sent(&world.done(0)), [(1, 0)], "tenant a had its turn");
}

#[test]
fn the_time_to_read_the_prompt_comes_off_the_clients_deadline() {
    let refused_after = |prompt_tokens: u64| {
        let mut world = busy_world();
        let patience = Tick::from_millis(4_000);
        world.arrive(JobSpec { client_deadline: patience, prompt_tokens, ..within(0, 4_000, spec(1)) });
        let is_refused = |world: &mut World, at: u64| !rejected(&world.at(at)).is_empty();
        let at = (0..=4_000).find(|at| is_refused(&mut world, *at)).unwrap();
        Duration::from_millis(at).as_secs_f64()
    };
    let after = refused_after(20_000);
    assert!((2.8..3.8).contains(&after), "20,000 tokens take about half a second: {after}");
    let after = refused_after(10_000_000);
    assert!((after - 2.0).abs() < 0.01, "a wrong speed takes off half at most: {after}");
}

#[test]
fn what_came_back_is_not_refused_for_those_that_wait() {
    let mut pool_set = Line::new(World::new(policy(&[&[1]], &[&[0]])), 100);
    for id in 0..60 {
        pool_set.arrive(0, within(0, 20_000, spec(id)));
    }
    pool_set.until(1_050);
    let (_, running) = pool_set.running[0];
    let actions = pool_set.world.fail(running, EngineFault::Malformed);
    assert_eq!(rejected(&actions), []);
    assert_eq!(sent(&actions), [(running, 0)]);
}

/// Two jobs come in each second and one goes, in a class with this `max_wait` and this TTFT
/// objective in seconds. Returns the ages of the dispatched jobs and the waits of the refused
/// ones, in seconds.
fn overload(max_wait: u64, objective: u64, seconds: u64) -> (Vec<u64>, Vec<u64>) {
    let mut rules = policy(&[&[1]], &[&[0]]);
    let [max, ttft_objective] = [max_wait, objective].map(Duration::from_secs);
    rules.classes.insert("first", Class { max_wait: max, ttft_objective, ..class(0, 0.0) });
    let mut world = World::new(rules);
    world.arrive(spec(0));
    let (mut running, mut ages, mut waits) = (0, Vec::new(), Vec::new());
    for second in 0..seconds {
        let expired = world.at(second * 1_000);
        let deadline = Tick::from_millis((second + max_wait) * 1_000);
        for id in [2 * second + 1, 2 * second + 2] {
            let actions = world.arrive(JobSpec { deadline, ..spec(id) });
            waits.extend(rejected(&actions).iter().map(|(_, why)| why.queued.as_secs()));
        }
        let told = world.at(second * 1_000 + 500);
        let actions = world.done(running);
        let refused = [&expired, &told, &actions].map(|actions| rejected(actions)).concat();
        waits.extend(refused.iter().map(|(_, why)| why.queued.as_secs()));
        running = sent(&actions)[0].0;
        ages.push(second - (running - 1) / 2);
    }
    (ages, waits)
}

#[test]
fn late_jobs_take_only_a_part_of_the_turns_and_the_rest_is_told_early() {
    let (ages, waits) = overload(30, 1, 240);
    let late: Vec<u64> = ages.iter().copied().filter(|age| *age > 1).collect();
    assert!(ages[..21].iter().all(|age| *age <= 1), "those in time go first: {ages:?}");
    assert!((20..=30).contains(&late.len()), "an eighth of the turns: {ages:?}");
    assert!(late.iter().all(|age| (20..=30).contains(age)), "{late:?}");
    let early = waits.iter().filter(|wait| **wait <= 5).count();
    assert!(early * 2 > waits.len() && waits.len() > 150, "most are told within five seconds: {waits:?}");
}

#[test]
fn a_patient_class_serves_its_late_jobs_in_order_of_arrival() {
    let (ages, waits) = overload(240, 1, 60);
    assert!(ages[..21].iter().all(|age| *age <= 1), "those in time go first: {ages:?}");
    assert!(ages[28..].iter().all(|age| (20..=30).contains(age)), "then those whose turn has come: {ages:?}");
    assert!(waits.is_empty(), "{waits:?}");
}

#[test]
fn whose_late_turn_comes_after_its_deadline_is_told_when_it_is_late() {
    for (max_wait, objective) in [(60, 10), (300, 60)] {
        let (ages, waits) = overload(max_wait, objective, 2_000);
        assert!(ages.iter().all(|age| *age <= objective), "a late turn comes after ten objectives: {ages:?}");
        let kept = waits.iter().filter(|wait| **wait > objective + 1).count();
        assert!(kept * 10 < waits.len() && waits.len() > 1_000, "{kept} of {}", waits.len());
    }
}

#[test]
fn who_can_wait_for_minutes_is_told_at_arrival_whatever_its_objective_is() {
    let (_, waits) = overload(300, 300, 1_500);
    let told = waits.iter().filter(|wait| **wait == 0).count();
    assert!(told * 10 > waits.len() * 9 && waits.len() > 500, "{told} of {}", waits.len());
}

#[test]
fn a_burst_that_cannot_be_served_is_told_within_five_seconds() {
    let mut pool_set = Line::new(World::new(policy(&[&[1]], &[&[0]])), 100);
    let mut refused = Vec::new();
    for id in 0..1_000 {
        assert_eq!(pool_set.arrive(0, spec(id)), None, "nobody knows how fast they go");
    }
    for millis in (100..=60_000).step_by(100) {
        let (_, job) = pool_set.running.remove(0);
        let actions = pool_set.world.at(millis);
        refused.extend(rejected(&actions).iter().map(|(job, why)| (*job, why.queued, why.reason)));
        let actions = pool_set.world.done(job);
        pool_set.note(millis, &sent(&actions));
        refused.extend(rejected(&actions).iter().map(|(job, why)| (*job, why.queued, why.reason)));
        if pool_set.running.is_empty() {
            break;
        }
    }
    let in_time = |(_, queued, why): &(u64, Duration, RejectReason)| {
        *queued <= Duration::from_secs(5) && *why == RejectReason::Unmeetable
    };
    assert!((400..=520).contains(&refused.len()), "ten go in a second: {}", refused.len());
    assert!(refused.iter().all(in_time), "nobody is told later");
    assert!(refused.iter().all(|(job, ..)| *job >= 480), "the last that came");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whoever is refused had more before it than the replicas can do in time.
    #[test]
    fn only_the_hopeless_are_refused(
        limit in 1u32..5,
        each in 50u64..400,
        patience in 200u64..3_000,
        gaps in vec(0u64..60, 300),
    ) {
        let mut pool_set = Line::new(World::new(policy(&[&[limit]], &[&[0]])), each);
        let mut now = 0;
        let mut refused = 0;
        for (id, gap) in gaps.into_iter().enumerate() {
            now += gap;
            pool_set.until(now);
            let waiting = pool_set.world.scheduler.waiting().requests;
            let why = pool_set.arrive(now, within(now, patience, spec(id as u64)));
            let Some(why) = why else { continue };
            prop_assert_eq!(why, RejectReason::Unmeetable);
            refused += 1;
            let soonest = waiting / u64::from(limit) * each;
            // A rate taken just before several jobs end at once is too low.
            let late = patience.saturating_sub(each) * 3 / 4;
            prop_assert!(soonest >= late, "{} waited, {} ms", waiting, soonest);
        }
        let over = 30.0 * f64::from(limit) / each as f64;
        prop_assert!(refused == 0 || over < 2.0, "refused at a load of {}", 1.0 / over);
        prop_assert_eq!(pool_set.world.scheduler.broken_invariants(), 0);
    }
}
