//! Tests of bottlenecks: what the scheduler names as the reason that a replica takes no more.

use std::time::Duration;

use crate::model::event::{EngineFault, Event, ItlSample};
use crate::model::ids::{ClassId, JobId, PoolId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::policy::{Class, Policy, Replica};
use crate::model::snapshot::{ReplicaSnapshot, ReplicaStatus};
use crate::replica::bottleneck::Bottleneck;
use crate::scheduler::tests::{World, class, policy, sent, spec};

/// A world with a job that waits, and the replica that is asked why.
type Scene = (World, u32, u64);
/// How such a world is made, and the reasons there for a job of the urgent class and for one of a background class.
type Row = (fn() -> Scene, [Option<&'static str>; 2]);

fn one(seqs: u32) -> World {
    World::new(policy(&[&[seqs]], &[&[0]]))
}

fn background(id: u64) -> JobSpec {
    JobSpec { class: ClassId::new(1), ..spec(id) }
}

/// A job arrives and has its first token at once. Returns where it went.
fn start(world: &mut World, spec: JobSpec) -> Option<u32> {
    let sent = sent(&world.arrive(spec));
    world.event(Event::FirstToken { job: spec.id });
    sent.first().map(|(_, replica)| *replica)
}

/// Starts such jobs until one of them has to wait.
fn fill(mut world: World, job: impl Fn(u64) -> JobSpec) -> Scene {
    let waiting = (100..400).find(|id| start(&mut world, job(*id)).is_none());
    (world, 0, waiting.expect("it is never full"))
}

/// Samples of the replica's ITL for so many seconds.
fn sample(world: &mut World, seconds: u32, millis: u64) {
    for _ in 0..seconds * 10 {
        world.now += Duration::from_millis(100);
        let sample = ItlSample { gaps: 20, total: Duration::from_millis(20 * millis) };
        world.event(Event::ItlSampled { replica: ReplicaId::new(0), sample });
    }
}

fn slots() -> Scene {
    fill(one(4), spec)
}

/// The replica's streams have a token every 10 ms, and every 100 ms once there are twenty.
fn pace() -> Scene {
    let mut world = one(64);
    start(&mut world, spec(0));
    sample(&mut world, 3, 10);
    (1..20).for_each(|id| assert_eq!(start(&mut world, spec(id)), Some(0)));
    sample(&mut world, 8, 100);
    fill(world, spec)
}

fn with_kv(tokens: u64) -> Policy {
    let mut policy = policy(&[&[64]], &[&[0]]);
    policy
        .replicas
        .insert("p0/r0", Replica { pool: PoolId::new(0), max_seqs: Some(64), kv_tokens: Some(tokens) });
    policy
}

fn kv() -> Scene {
    fill(World::new(with_kv(110)), spec)
}

/// A long prompt is read.
fn reading() -> Scene {
    let mut world = one(64);
    assert_eq!(sent(&world.arrive(JobSpec { prompt_tokens: 20_000, ..spec(1) })), [(1, 0)]);
    fill(world, spec)
}

fn guest_share() -> Scene {
    let mut world = one(10);
    start(&mut world, spec(1));
    fill(world, background)
}

/// Four jobs of the urgent class came at once, and three of them took a second.
fn reserve() -> Scene {
    let mut world = one(10);
    (0..4).for_each(|id| assert_eq!(start(&mut world, spec(id)), Some(0)));
    world.at(1_000);
    (0..3).for_each(|id| drop(world.done(id)));
    fill(world, background)
}

fn slow_start() -> Scene {
    let mut world = one(8);
    let replica = ReplicaId::new(0);
    world.event(Event::ReplicaLost { replica, answers: true });
    world.event(Event::ProbeSucceeded { replica });
    fill(world, spec)
}

/// It was busy, and has one job to show that it is no longer.
fn trial() -> Scene {
    let mut world = one(8);
    world.arrive(spec(1));
    world.fail(1, EngineFault::Busy { retry_after: Some(Duration::from_millis(100)) });
    assert_eq!(sent(&world.at(150)), [(1, 0)]);
    fill(world, spec)
}

/// Two replicas with a job of the urgent class each, one of which reads a long prompt of the other
/// class. Returns the reader.
fn one_reads() -> (World, u32) {
    let mut world = World::new(policy(&[&[10, 10]], &[&[0]]));
    (1..=2).for_each(|id| _ = start(&mut world, spec(id)));
    let long = sent(&world.arrive(JobSpec { prompt_tokens: 20_000, ..background(3) }));
    let reader = long[0].1;
    assert_eq!(sent(&world.arrive(background(4))), []);
    (world, reader)
}

fn guest_is_read() -> Scene {
    let (world, reader) = one_reads();
    (world, reader, 4)
}

fn guest_readers() -> Scene {
    let (world, reader) = one_reads();
    (world, 1 - reader, 4)
}

#[test]
fn every_replica_prefills_short_prompts_of_a_background_class() {
    let mut world = World::new(policy(&[&[10, 10]], &[&[0]]));
    (1..=2).for_each(|id| _ = start(&mut world, spec(id)));
    let short = |id| JobSpec { prompt_tokens: 2_000, ..background(id) };
    let replicas = [3, 4].map(|id| sent(&world.arrive(short(id)))[0].1);
    assert_ne!(replicas[0], replicas[1]);
    assert_eq!(sent(&world.arrive(short(5))), [], "one prompt each");
}

fn row(world: &World, replica: u32) -> ReplicaSnapshot {
    let rows = world.scheduler.snapshot(world.now).replicas;
    rows.into_iter().find(|row| row.replica == ReplicaId::new(replica)).expect("a replica")
}

/// What is told to the job that waits: whether the replica has room for it, and else why not.
fn told(world: &World, replica: u32, waiting: u64) -> (bool, Option<&'static str>) {
    let told = world.scheduler.explain(JobId::new(waiting), world.now).expect("it waits");
    let row = told.replicas.into_iter().find(|row| row.replica == ReplicaId::new(replica));
    row.map(|row| (row.fits, row.bottleneck.map(Bottleneck::name))).expect("a replica")
}

#[test]
fn each_replica_names_what_keeps_it_from_more() {
    let table: [Row; 10] = [
        (slots, [Some("slots"); 2]),
        (pace, [Some("pace"); 2]),
        (kv, [Some("kv"); 2]),
        (reading, [Some("reading"); 2]),
        (guest_share, [None, Some("guest_share")]),
        (reserve, [None, Some("reserve")]),
        (slow_start, [Some("slow_start"); 2]),
        (trial, [Some("trial"); 2]),
        (guest_is_read, [Some("reading"); 2]),
        (guest_readers, [None, Some("guest_readers")]),
    ];
    for (scene, expected) in table {
        let (world, replica, waiting) = scene();
        let row = row(&world, replica);
        let names = [row.bottleneck, row.background_bottleneck].map(|why| why.map(Bottleneck::name));
        assert_eq!(names, expected, "{row:?}");
        let class = world.scheduler.explain(JobId::new(waiting), world.now).expect("it waits").class;
        assert_eq!(told(&world, replica, waiting), (false, expected[class.index()]), "{row:?}");
        assert_eq!(row.slots.free == 0, expected[0].is_some(), "{row:?}");
    }
}

#[test]
fn a_replica_out_of_service_names_its_state() {
    let mut world = World::new(policy(&[&[4, 4]], &[&[0]]));
    world.event(Event::ReplicaLost { replica: ReplicaId::new(0), answers: true });
    let (world, _, waiting) = fill(world, spec);
    let row = row(&world, 0);
    assert_eq!((row.state, row.bottleneck, row.background_bottleneck), (ReplicaStatus::Ejected, None, None));
    assert_eq!((row.slots.out_of_service, row.slots.free), (4, 0));
    assert_eq!((told(&world, 0, waiting), told(&world, 1, waiting)), ((false, None), (false, Some("slots"))));
}

/// Others find room at the replica.
#[test]
fn a_large_job_is_told_what_it_lacks() {
    let table = [
        (World::new(with_kv(110)), JobSpec { prompt_tokens: 90, ..spec(3) }, "kv"),
        (one(8), JobSpec { sequences: 7, ..spec(3) }, "slots"),
        (one(10), JobSpec { sequences: 7, ..background(3) }, "guest_share"),
    ];
    for (mut world, large, expected) in table {
        (1..=2).for_each(|id| assert_eq!(start(&mut world, spec(id)), Some(0)));
        assert_eq!(sent(&world.arrive(large)), []);
        assert_eq!(row(&world, 0).bottleneck, None);
        assert_eq!(told(&world, 0, 3), (false, Some(expected)));
    }
}

#[test]
fn no_limit_falls_below_the_largest_job_that_waits() {
    let mut world = one(64);
    start(&mut world, spec(0));
    sample(&mut world, 3, 10);
    (1..4).for_each(|id| assert_eq!(start(&mut world, spec(id)), Some(0)));
    sample(&mut world, 8, 100);
    assert!(row(&world, 0).limit < 8, "{:?}", row(&world, 0));
    assert_eq!(sent(&world.arrive(JobSpec { sequences: 8, ..spec(50) })), []);
    for id in 0..4 {
        assert_eq!(row(&world, 0).limit, 8);
        assert_eq!(told(&world, 0, 50), (false, Some("pace")));
        let sent = sent(&world.done(id));
        assert_eq!(sent, if id == 3 { vec![(50, 0)] } else { vec![] });
    }
}

/// Steps take 35 ms of the 50 that the urgent class allows: too long for others, unless these miss
/// their own objective.
#[test]
fn a_background_job_about_to_miss_its_objective_may_make_steps_longer() {
    let mut policy = policy(&[&[64]], &[&[0]]);
    let [ttft_objective, itl_objective] = [10_000, 200].map(Duration::from_millis);
    policy.classes.insert("second", Class { ttft_objective, itl_objective, ..class(1, 0.0) });
    let mut world = World::new(policy);
    assert_eq!(start(&mut world, spec(0)), Some(0));
    sample(&mut world, 5, 35);
    assert_eq!(sent(&world.arrive(background(1))), []);
    sample(&mut world, 4, 35);
    assert_eq!(told(&world, 0, 1), (false, Some("pace")));
    sample(&mut world, 2, 35);
    assert!(world.scheduler.explain(JobId::new(1), world.now).is_none(), "it runs");
}
