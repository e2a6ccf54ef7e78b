//! Tests of affinity: adapters, sessions and prefixes.

mod sessions;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{prop_assert, proptest};

use super::{World, of_tenant, placed, policy, reload, sent, spec, used};
use crate::model::event::{Action, AttemptOutcome, EngineFault, Event, ItlSample, ReplicaReport};
use crate::model::ids::{JobId, ModelId, PoolId, ReplicaId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix, TokenCounts};
use crate::model::policy::{Policy, Pool};
use crate::model::time::Tick;
use crate::replica::affinity::adapter_slots::AdapterState;
use crate::replica::scores::WhyNot;

/// One pool of so many replicas; the base model 0 and five adapters.
fn adapters(replicas: &[u32], slots: u32, load: u64) -> Policy {
    let mut policy = policy(&[replicas], &[&[0][..]; 6]);
    let row = policy.pools.get(PoolId::new(0)).unwrap().clone();
    let row = Pool {
        adapters: (1..6).map(ModelId::new).collect(),
        adapter_slots: Some(slots),
        adapter_load: Some(Duration::from_millis(load)),
        ..row
    };
    policy.pools.insert("p0", row);
    policy
}

fn with(id: u64, model: u32) -> JobSpec {
    JobSpec { model: ModelId::new(model), ..spec(id) }
}

/// Where it goes, and how its adapter stands there.
fn goes(world: &mut World, spec: JobSpec) -> (u32, Option<AdapterState>) {
    let actions = world.arrive(spec);
    (sent(&actions)[0].1, placed(&actions).adapter)
}

#[test]
fn an_adapter_goes_where_it_is_then_where_there_is_room_then_where_it_evicts() {
    let mut world = World::new(adapters(&[8, 8], 2, 100));
    let (first, fit) = goes(&mut world, with(1, 1));
    assert_eq!(fit, Some(AdapterState::SlotFree));
    world.done(1);
    assert_eq!(
        goes(&mut world, with(2, 1)),
        (first, Some(AdapterState::Loaded)),
        "though the other's turn is next"
    );
    world.done(2);
    assert_eq!(goes(&mut world, spec(3)), (1 - first, None), "the base model needs none");
    world.done(3);
    for (id, model) in [(4, 2), (5, 3), (6, 4)] {
        assert_eq!(goes(&mut world, with(id, model)).1, Some(AdapterState::SlotFree));
        world.done(id);
    }
    let (_, fit) = goes(&mut world, with(7, 5));
    assert_eq!(fit, Some(AdapterState::Evicts));
}

#[test]
fn a_loaded_adapter_is_worth_what_a_load_costs_and_no_more() {
    let mut world = World::new(adapters(&[90, 90], 2, 20));
    let (first, _) = goes(&mut world, with(1, 1));
    world.event(Event::FirstToken { job: JobId::new(1) });
    let mut there = 0;
    for id in 2..60 {
        let (replica, fit) = goes(&mut world, JobSpec { prompt_tokens: 400, ..with(id, 1) });
        if replica != first {
            assert_eq!(fit, Some(AdapterState::SlotFree));
            break;
        }
        there += 1;
    }
    assert!((1..5).contains(&there), "20 ms are about 900 tokens: {there}");
}

/// How often others go before a job whose adapter finds no slot, when they come so
/// many milliseconds apart.
fn passes(apart: u64) -> u64 {
    let mut world = World::new(adapters(&[8, 8], 1, 10));
    for (id, model) in [(1, 1), (2, 2)] {
        goes(&mut world, with(id, model));
        world.event(Event::FirstToken { job: JobId::new(id) });
    }
    assert_eq!(sent(&world.arrive(with(3, 3))), [], "both run others");
    let mut running = [(1, 1), (2, 2)];
    for next in 4..200 {
        world.now = Tick::from_millis(apart * next);
        let (old, model) = running[next as usize % 2];
        let mut actions = world.arrive(with(next, model));
        actions.extend(world.event(Event::FirstToken { job: JobId::new(next) }));
        actions.extend(world.done(old));
        if sent(&actions).iter().any(|(job, _)| *job == 3) {
            return next - 4;
        }
        running[next as usize % 2] = (next, model);
    }
    panic!("it starves");
}

#[test]
fn an_adapter_waits_for_a_slot_and_does_not_starve() {
    assert!((30..40).contains(&passes(1)), "passed over as often as any large job: {}", passes(1));
    assert!((2..8).contains(&passes(100)), "for half of its objective: {}", passes(100));
    assert!(passes(2_000) < 3, "at once when it is late: {}", passes(2_000));
}

#[test]
fn engines_say_what_they_have_and_a_restart_forgets() {
    let mut world = World::new(adapters(&[8, 8], 2, 100));
    reload(&mut world, |next| {
        let row = next.pools.get(PoolId::new(0)).unwrap().clone();
        next.pools.insert("p0", Pool { adapter_slots: None, ..row });
    });
    let replica = ReplicaId::new(1);
    world.event(Event::AdaptersReported { replica, slots: Some(1), running: vec![ModelId::new(4)] });
    assert_eq!(goes(&mut world, with(1, 4)), (1, Some(AdapterState::Loaded)));
    world.fail(1, EngineFault::Refused);
    assert_eq!(sent(&world.event(Event::ProbeSucceeded { replica })), []);
    world.done(1);
    assert_eq!(goes(&mut world, with(2, 4)).1, Some(AdapterState::Loaded), "at the one that it was moved to");
}

#[test]
fn loads_are_measured_and_teach_nothing_of_speed() {
    let mut policy = adapters(&[8], 1, 0);
    let row = policy.pools.get(PoolId::new(0)).unwrap().clone();
    policy.pools.insert("p0", Pool { adapter_load: None, ..row });
    let mut world = World::new(policy);
    let mut now = 0;
    for id in 1..9 {
        goes(&mut world, with(id, 1 + (id % 2) as u32));
        now += 700;
        world.at(now);
        world.event(Event::FirstToken { job: JobId::new(id) });
        world.done(id);
    }
    let why = placed(&world.arrive(with(9, 2)));
    assert_eq!(why.adapter, Some(AdapterState::Evicts));
    assert!((600..720).contains(&why.expected.as_millis()), "{:?}", why.expected);
    let view = &world.scheduler.snapshot(world.now).replicas[0];
    assert!((view.speed_factor - 1.0).abs() < 1e-9, "{}", view.speed_factor);
}

proptest! {
    /// Whatever comes, no replica runs more adapters at once than it has slots,
    /// and everything is served.
    #[test]
    fn no_replica_runs_more_adapters_than_it_has_slots(
        slots in 1u32..4,
        jobs in vec((0u32..6, 0usize..8, 1u64..200), 1..80),
    ) {
        let mut world = World::new(adapters(&[4, 3], slots, 50));
        let mut at: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        let mut models = BTreeMap::new();
        let mut waiting = 0i64;
        let note = |actions: &[Action], at: &mut BTreeMap<u64, (u32, u32)>, models: &BTreeMap<u64, u32>| {
            for (job, replica) in sent(actions) {
                at.insert(job, (replica, models[&job]));
            }
            sent(actions).len() as i64
        };
        let most = |at: &BTreeMap<u64, (u32, u32)>| {
            let of = |replica| {
                let here = at.values().filter(|(other, model)| *other == replica && *model > 0);
                here.map(|(_, model)| model).collect::<std::collections::BTreeSet<_>>().len()
            };
            of(0).max(of(1))
        };
        for (id, (model, ends, millis)) in (0u64..).zip(jobs) {
            models.insert(id, model);
            world.now += Duration::from_millis(millis % 7);
            let actions = world.arrive(JobSpec { deadline: Tick::NEVER, ..with(id, model) });
            waiting += 1 - note(&actions, &mut at, &models);
            prop_assert!(most(&at) <= slots as usize);
            for _ in 0..ends {
                let Some((&job, _)) = at.iter().next() else { break };
                at.remove(&job);
                let actions = world.finish(job, AttemptOutcome::Done(JobUsage::Unknown));
                waiting -= note(&actions, &mut at, &models);
                prop_assert!(most(&at) <= slots as usize);
            }
        }
        while let Some((&job, _)) = at.iter().next() {
            at.remove(&job);
            let actions = world.finish(job, AttemptOutcome::Done(JobUsage::Unknown));
            waiting -= note(&actions, &mut at, &models);
        }
        prop_assert!(waiting == 0 && world.scheduler.unfinished() == 0, "{waiting} wait for ever");
    }
}

/// A job whose prompt of 2,048 tokens begins like all others of its talk.
fn turn(world: &mut World, spec: JobSpec, talk: u64) -> Vec<(u64, u32)> {
    let spec = JobSpec { prompt_tokens: 2_048, ..spec };
    let blocks = (0..8).map(|block| talk * 100 + block).collect();
    sent(&world.event(Event::Arrived(spec, PromptPrefix { blocks, block_tokens: 256 })))
}

/// Two replicas of one place each, with talk 1 at one and talk 2 at the other, and a turn of talk 1
/// that waits. Returns both replicas.
fn talks() -> (World, u32, u32) {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    let first = turn(&mut world, spec(1), 1)[0].1;
    let second = turn(&mut world, spec(2), 2)[0].1;
    assert_ne!(first, second);
    assert_eq!(turn(&mut world, spec(3), 1), []);
    (world, first, second)
}

#[test]
fn a_turn_whose_prompt_is_cached_goes_first() {
    let (mut world, first, second) = talks();
    assert_eq!(turn(&mut world, spec(4), 2), []);
    assert_eq!(sent(&world.done(2)), [(4, second)]);
    assert_eq!(sent(&world.done(1)), [(3, first)]);
}

#[test]
fn no_replica_idles_for_a_prompt_that_is_cached_elsewhere() {
    let (mut world, _, second) = talks();
    assert_eq!(sent(&world.done(2)), [(3, second)]);
}

#[test]
fn a_decision_tells_of_the_replica_that_has_the_prompt_and_no_room() {
    let (mut world, first, _) = talks();
    let why = placed(&world.done(2));
    let others: Vec<_> = why.scores.others().collect();
    let [other] = others[..] else { panic!("one other: {others:?}") };
    assert_eq!((other.replica, other.why_not), (ReplicaId::new(first), WhyNot::NoRoom));
    assert!(other.cached_tokens > 0 && other.score < why.scores.chosen, "{why:?}");
}

#[test]
fn others_go_first_for_half_of_the_objective() {
    let (mut world, _, second) = talks();
    let mut running = 2;
    for id in 4..40 {
        world.now = Tick::from_millis((id - 4) * 50);
        assert_eq!(turn(&mut world, spec(id), 2), []);
        let next = sent(&world.done(running));
        if next == [(3, second)] {
            assert_eq!(world.now, Tick::from_millis(550));
            return;
        }
        assert_eq!(next, [(id, second)]);
        running = id;
    }
    panic!("the first turn starves");
}

#[test]
fn a_prompt_that_a_replica_has_cached_goes_before_an_earlier_one_that_has_more_to_compute() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    turn(&mut world, spec(1), 1);
    assert_eq!(turn(&mut world, spec(2), 2), []);
    world.now += Duration::from_millis(100);
    assert_eq!(turn(&mut world, spec(3), 1), []);
    assert_eq!(sent(&world.done(1)), [(3, 0)], "2,048 tokens take a tenth of a second, and weigh ten times");
    assert_eq!(sent(&world.done(3)), [(2, 0)]);
}

#[test]
fn a_tenant_goes_first_only_as_far_as_it_is_little_ahead() {
    let (mut world, _, second) = talks();
    let mut running = 2;
    for id in 4..40 {
        assert_eq!(turn(&mut world, of_tenant(id, 1), 2), []);
        let next = sent(&world.finish(running, AttemptOutcome::Done(used(2_048, 10))));
        if next == [(3, second)] {
            assert!((8..16).contains(&id), "about 16,384 tokens of 2,000 each: {id}");
            return;
        }
        assert_eq!(next, [(id, second)]);
        running = id;
    }
    panic!("the other tenant starves");
}

/// Turns of one talk, each answered with so many cached tokens. Returns what was believed to be
/// cached of the last one.
fn believed_after(world: &mut World, ids: std::ops::Range<u64>, cached: Option<u64>) -> u64 {
    let mut predicted_cached = 0;
    for id in ids {
        world.now += Duration::from_secs(1);
        let spec = JobSpec { prompt_tokens: 2_048, ..spec(id) };
        let blocks = (0..8).collect();
        let actions = world.event(Event::Arrived(spec, PromptPrefix { blocks, block_tokens: 256 }));
        predicted_cached = placed(&actions).cached_tokens;
        world.event(Event::FirstToken { job: JobId::new(id) });
        let tokens = TokenCounts { input: 2_048, cached, output: 1 };
        world.finish(id, AttemptOutcome::Done(JobUsage::Exact(tokens)));
    }
    predicted_cached
}

#[test]
fn answers_tell_that_prefix_caching_is_off_and_that_it_is_on_again() {
    let mut world = World::new(policy(&[&[8]], &[&[0]]));
    assert_eq!(believed_after(&mut world, 0..2, Some(2_032)), 2_048);
    assert_eq!(believed_after(&mut world, 2..40, Some(0)), 0);
    assert_eq!(believed_after(&mut world, 40..44, Some(2_032)), 2_048);
}

#[test]
fn answers_that_do_not_tell_what_was_cached_change_nothing() {
    let mut world = World::new(policy(&[&[8]], &[&[0]]));
    assert_eq!(believed_after(&mut world, 0..30, None), 2_048);
}

#[test]
fn a_counter_tells_where_answers_do_not() {
    let mut world = World::new(policy(&[&[8]], &[&[0]]));
    let scraped = |world: &mut World, total: u64| {
        let report = ReplicaReport { cached_tokens: Some(total), ..ReplicaReport::default() };
        world.event(Event::ReplicaReported { replica: ReplicaId::new(0), report });
    };
    scraped(&mut world, 7);
    for round in 0..8 {
        believed_after(&mut world, round * 5..round * 5 + 5, None);
        scraped(&mut world, 7);
    }
    assert_eq!(believed_after(&mut world, 40..45, None), 0);
    scraped(&mut world, 7 + 10_240);
    assert_eq!(believed_after(&mut world, 45..46, None), 2_048);
}

#[test]
fn requests_for_several_sequences_tell_nothing() {
    let mut world = World::new(policy(&[&[64]], &[&[0]]));
    for id in 0..50 {
        turn(&mut world, JobSpec { sequences: 4, ..spec(id) }, 0);
        let tokens = TokenCounts { input: 2_048, cached: Some(0), output: 4 };
        world.finish(id, AttemptOutcome::Done(JobUsage::Exact(tokens)));
    }
    assert_eq!(believed_after(&mut world, 50..51, None), 2_048);
}

#[test]
fn a_turn_that_returns_overcommits_its_replica_within_a_bound() {
    let mut world = World::new(policy(&[&[64, 64]], &[&[0]]));
    let home = turn(&mut world, spec(0), 1)[0].1;
    world.event(Event::FirstToken { job: JobId::new(0) });
    assert_eq!(turn(&mut world, spec(99), 1), [(99, home)]);
    let tokens = TokenCounts { input: 2_048, cached: Some(2_032), output: 1 };
    world.finish(99, AttemptOutcome::Done(JobUsage::Exact(tokens)));
    for id in 1..20 {
        assert_eq!(turn(&mut world, spec(id), 1), [(id, home)], "its prompt is cached there");
        world.event(Event::FirstToken { job: JobId::new(id) });
    }
    for _ in 0..100 {
        world.now += Duration::from_millis(100);
        for (replica, millis) in [(home, 60), (1 - home, 10)] {
            let sample = ItlSample { gaps: 20, total: Duration::from_millis(20 * millis) };
            world.event(Event::ItlSampled { replica: ReplicaId::new(replica), sample });
        }
    }
    let limit = world.scheduler.snapshot(world.now).replicas[home as usize].limit;
    assert!((10..20).contains(&limit), "{limit}");
    assert_eq!(turn(&mut world, spec(90), 2), [(90, 1 - home)], "it has nothing there");
    world.event(Event::FirstToken { job: JobId::new(90) });
    (0..20 - u64::from(limit)).for_each(|id| drop(world.done(id)));
    let returned = (100..160).take_while(|id| {
        let went = turn(&mut world, spec(*id), 1);
        world.event(Event::FirstToken { job: JobId::new(*id) });
        went == [(*id, home)]
    });
    assert_eq!(returned.count(), 8, "{limit}");
}
