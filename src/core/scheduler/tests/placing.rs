//! Tests of placement: pools with prices, kinds and windows.

use std::sync::Arc;
use std::time::Duration;

use crate::model::event::{AttemptOutcome, DispatchReason, EngineFault, Event, ItlSample, PassedOverPool};
use crate::model::ids::{ClassId, JobId, ModelId, PoolId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::policy::{Class, Policy, Pool};
use crate::model::snapshot::Obstacle;
use crate::model::time::Tick;
use crate::placement::choose_tier::PlacementReason;
use crate::placement::rules::{Isolation, LatePolicy, PlacementRules, PoolTraits, Price};
use crate::replica::scores::WhyNot;
use crate::scheduler::tests::{World, class, placed, policy, rejected, sent, spec, used};
use crate::scheduler::timers::WakeReason;

const SECOND: ClassId = ClassId::new(1);

fn second(id: u64) -> JobSpec {
    JobSpec { class: SECOND, ..spec(id) }
}

fn set_supply(rules: &mut Policy, pool: u32, supply: PoolTraits) {
    let row = rules.pools.get(PoolId::new(pool)).expect("a pool").clone();
    rules.pools.insert(&format!("p{pool}"), Pool { traits: supply, ..row });
}

fn priced(price: f64) -> PoolTraits {
    PoolTraits { price: Price::new(price), ..PoolTraits::default() }
}

/// One replica of two sequences for 9, one of two for 1 an hour.
fn two_prices() -> Policy {
    let mut rules = policy(&[&[2], &[2]], &[&[0, 1]]);
    set_supply(&mut rules, 0, priced(9.0));
    set_supply(&mut rules, 1, priced(1.0));
    rules
}

fn set_class(rules: &mut Policy, rank: u32, placement: PlacementRules) {
    let name = ["first", "second"][rank as usize];
    rules.classes.insert(name, Class { placement, ..class(rank, 0.0) });
}

fn only(pools: &[u32]) -> PlacementRules {
    PlacementRules {
        pools: Some(pools.iter().copied().map(PoolId::new).collect()),
        ..PlacementRules::default()
    }
}

#[test]
fn the_cheapest_fills_first_and_what_does_not_fit_spills() {
    let mut world = World::new(two_prices());
    let mut went = Vec::new();
    let busy = PassedOverPool { pool: PoolId::new(1), busy: true };
    for id in 1..=4 {
        let actions = world.arrive(spec(id));
        world.event(Event::FirstToken { job: JobId::new(id) });
        went.push((sent(&actions)[0].1, placed(&actions).placement));
        assert_eq!(placed(&actions).passed_over, (id > 2).then_some(busy), "{id}");
    }
    let (wanted, spilled) = ((1, PlacementReason::Preferred), (0, PlacementReason::Spilled));
    assert_eq!(went, [wanted, wanted, spilled, spilled]);
    assert_eq!(world.arrive(spec(5)), [], "all is full");
    assert_eq!(sent(&world.done(1)), [(5, 1)]);
}

fn others(why: &DispatchReason) -> Vec<(u32, WhyNot)> {
    why.scores.others().map(|other| (other.replica.index() as u32, other.why_not)).collect()
}

#[test]
fn a_decision_keeps_the_scores_of_at_most_four_others() {
    let mut world = World::new(policy(&[&[2; 6]], &[&[0]]));
    let why = placed(&world.arrive(spec(1)));
    assert_eq!(others(&why), [1, 2, 3, 4].map(|id| (id, WhyNot::Equal)), "all are idle");
    let actions = world.arrive(spec(2));
    let (chosen, rest) = (sent(&actions)[0].1, others(&placed(&actions)));
    assert!((1..=4).contains(&rest.len()) && rest.iter().all(|(id, _)| *id != chosen), "{rest:?}");

    let mut world = World::new(policy(&[&[2, 2]], &[&[0]]));
    let why = placed(&world.arrive(spec(1)));
    assert_eq!(others(&why), [(1, WhyNot::Equal)]);
    assert!(Duration::from(why.scores.chosen) >= why.expected, "the score has the first token in it");
}

#[test]
fn a_decision_tells_why_a_better_replica_was_not_chosen() {
    let mut world = World::new(two_prices());
    assert_eq!(others(&placed(&world.arrive(spec(1)))), [(0, WhyNot::Pool)], "the cheap pool goes first");

    let mut world = World::new(policy(&[&[2, 2]], &[&[0]]));
    let first = sent(&world.arrive(spec(1)))[0].1;
    let again = world.fail(1, EngineFault::Malformed);
    assert_eq!(others(&placed(&again)), [(first, WhyNot::Failed)]);
}

#[test]
fn a_suspect_keeps_apart_from_another_and_the_decision_tells_so() {
    let mut world = World::new(policy(&[&[4, 4, 4, 4]], &[&[0]]));
    let first = sent(&world.arrive(spec(1)))[0].1;
    let second = sent(&world.arrive(spec(2)))[0].1;
    let there = sent(&world.fail(1, EngineFault::Reset))[0].1;
    let why = placed(&world.fail(2, EngineFault::Reset));
    assert!(others(&why).contains(&(there, WhyNot::Suspect)), "{first} {second} {why:?}");
    assert!(others(&why).iter().all(|(id, why)| (*why == WhyNot::Suspect) == (*id == there)), "{why:?}");
}

#[test]
fn equal_prices_are_no_reason() {
    let mut rules = policy(&[&[2], &[2]], &[&[0, 1]]);
    for pool in 0..2 {
        set_supply(&mut rules, pool, priced(3.0));
    }
    let mut world = World::new(rules);
    let replicas: Vec<_> = (1..=4).map(|id| sent(&world.arrive(spec(id)))[0].1).collect();
    assert_eq!(replicas, [0, 1, 0, 1]);
}

#[test]
fn who_waits_takes_the_dearer_one_from_half_of_the_objective_on() {
    let mut rules = two_prices();
    set_class(
        &mut rules,
        0,
        PlacementRules { late_policy: Some(LatePolicy::Wait), ..PlacementRules::default() },
    );
    let mut world = World::new(rules);
    for id in 1..=2 {
        world.arrive(spec(id));
        world.event(Event::FirstToken { job: JobId::new(id) });
    }
    let arrived = |id| JobSpec { arrived: Tick::ZERO, ..spec(id) };
    assert_eq!(world.arrive(arrived(3)), [], "the dear one is free, and it waits");
    assert_eq!(world.scheduler.next_deadline(), Some(Tick::from_millis(500)));
    let why = world.scheduler.explain(JobId::new(3), world.now).expect("it waits");
    assert_eq!(why.obstacle, Obstacle::Rule);
    assert_eq!((why.waits_for, why.decides_again_in), (None, Some(Duration::from_millis(500))));
    let timer = WakeReason::HeadUpdate.at(Some(Tick::from_millis(500)));
    assert_eq!(world.scheduler.wakes().min(), timer, "the wait has a timer");
    assert_eq!(world.at(499), []);
    let actions = world.at(500);
    assert_eq!((sent(&actions), placed(&actions).placement), (vec![(3, 0)], PlacementReason::Spilled));

    // What is late pays nothing more: it waits for the cheap one.
    world.at(900);
    let long = JobSpec { prompt_tokens: 20_000, ..arrived(4) };
    assert_eq!(world.arrive(long), [], "with 100 ms left even the dear one would be late");
}

#[test]
fn where_the_urgent_class_may_not_come_nobody_is_a_guest() {
    let mut rules = policy(&[&[10], &[10]], &[&[0, 1]]);
    set_supply(&mut rules, 1, PoolTraits { isolation: Isolation::TimeSliced, ..PoolTraits::default() });
    let kinds = [Isolation::Dedicated, Isolation::Mig, Isolation::Mps].into();
    set_class(&mut rules, 0, PlacementRules { isolation: Some(kinds), ..PlacementRules::default() });
    set_class(&mut rules, 1, only(&[1]));
    let mut world = World::new(rules);
    for id in 1..=10 {
        assert_eq!(sent(&world.arrive(spec(id))), [(id, 0)]);
        world.event(Event::FirstToken { job: JobId::new(id) });
    }
    assert_eq!(world.arrive(spec(11)), [], "the other pool is free, and not for it");
    for id in 21..=30 {
        assert_eq!(sent(&world.arrive(second(id))), [(id, 1)], "ten, as many as it runs");
        world.event(Event::FirstToken { job: JobId::new(id) });
    }
    assert_eq!(world.arrive(second(31)), []);
}

#[test]
fn new_rules_move_what_waits_and_leave_what_runs() {
    let mut rules = policy(&[&[1], &[1]], &[&[0, 1]]);
    set_class(&mut rules, 0, only(&[0]));
    let mut world = World::new(rules.clone());
    assert_eq!(sent(&world.arrive(spec(1))), [(1, 0)]);
    assert_eq!(world.arrive(spec(2)), []);
    set_class(&mut rules, 0, only(&[1]));
    assert_eq!(sent(&world.event(Event::PolicyChanged(Arc::new(rules.clone())))), [(2, 1)]);
    set_class(&mut rules, 0, only(&[7]));
    world.arrive(spec(3));
    let refused = rejected(&world.event(Event::PolicyChanged(Arc::new(rules))));
    assert_eq!(refused.len(), 1);
    assert_eq!(world.done(1), []);
    assert_eq!(world.done(2), []);
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn long_prompts_wait_for_a_large_window() {
    let mut rules = policy(&[&[1], &[1]], &[&[0, 1]]);
    set_supply(&mut rules, 0, PoolTraits { window: Some(1000), ..PoolTraits::default() });
    let mut world = World::new(rules.clone());
    let long = |id| JobSpec { context: 1001, ..spec(id) };
    assert_eq!(sent(&world.arrive(long(1))), [(1, 1)]);
    assert_eq!(world.arrive(long(2)), []);
    assert_eq!(
        sent(&world.arrive(JobSpec { context: 1000, ..spec(3) })),
        [(3, 0)],
        "it goes past the long one"
    );
    world.done(3);
    set_supply(&mut rules, 0, PoolTraits { window: Some(2000), ..PoolTraits::default() });
    assert_eq!(sent(&world.event(Event::PolicyChanged(Arc::new(rules)))), [(2, 0)], "it fits now");
    assert_eq!(world.arrive(JobSpec { model: ModelId::new(5), ..long(4) }).len(), 1, "refused");
}

#[test]
fn streams_prefer_pools_that_can_keep_their_itl() {
    for priced in [false, true] {
        let mut world = World::new(if priced { two_prices() } else { policy(&[&[2], &[2]], &[&[0, 1]]) });
        let objective = class(0, 0.0).itl_objective;
        // The cheaper one has never kept it.
        for (pool, gap) in [(0, objective / 2), (1, objective * 2)] {
            let sample = ItlSample { gaps: 100, total: gap * 100 };
            (0..50).for_each(|_| {
                _ = world.event(Event::ItlSampled { replica: ReplicaId::new(pool), sample });
            });
        }
        let went: Vec<u32> = (1..=4).map(|id| sent(&world.arrive(spec(id)))[0].1).collect();
        assert_eq!(went, [0, 0, 1, 1], "what does not fit spills");
        (1..=4).for_each(|id| _ = world.done(id));
        let plain = JobSpec { streams: false, ..spec(5) };
        let went = sent(&world.arrive(plain))[0].1;
        assert!(!priced || went == 1, "a plain answer has no inter-token latency");
    }
}

#[test]
fn prompts_that_arrive_together_go_where_sequences_ended_together() {
    let mut world = World::new(policy(&[&[8, 8]], &[&[0]]));
    let plain = |id| JobSpec { streams: false, prompt_tokens: 600, ..spec(id) };
    let replicas: Vec<_> = (1..=12).map(|id| sent(&world.arrive(plain(id)))[0].1).collect();
    world.at(150);
    let ended = (1..=12).filter(|id| replicas[*id as usize - 1] == 1).take(4);
    for id in ended {
        world.finish(id, AttemptOutcome::Done(used(600, 10)));
    }
    let next: Vec<_> = (21..=24).map(|id| sent(&world.arrive(plain(id)))[0].1).collect();
    assert_eq!(next, [1; 4], "an prefilling prompt there costs less than a client notices");
}
