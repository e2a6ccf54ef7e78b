//! Tests of reserved replicas: a trickle of urgent work beside more background work than there is
//! room for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::event::{Action, Event, ItlSample};
use crate::model::ids::{ClassId, JobId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::policy::Class;
use crate::model::time::Tick;
use crate::scheduler::tests::{World, class, policy, sent, spec};

/// Replicas, and the sequences of each.
const REPLICAS: usize = 4;
const SEQS: u32 = 20;
/// Prompts of the urgent class and of the other, whose plain answers have shorter ones: these count
/// as unread for as long as they would take.
const PROMPT_TOKENS: [u64; 2] = [10, 400_000];
const PLAIN_PROMPT_TOKENS: u64 = 2_000;
/// Jobs of the urgent class have even numbers.
const fn is_urgent(job: u64) -> bool {
    job.is_multiple_of(2)
}

/// A fleet whose background class always has jobs that wait, and no hurry.
struct Fleet {
    world: World,
    millis: u64,
    ends: BTreeMap<u64, Vec<u64>>,
    next: [u64; 2],
    /// Replicas that urgent jobs went to since the last look.
    urgent_at: BTreeSet<u32>,
    /// Whether the background class asks for plain answers, of which no first token is seen.
    plain: bool,
}

impl Fleet {
    fn new(plain: bool) -> Self {
        let mut rules = policy(&[&[SEQS; REPLICAS]], &[&[0]]);
        let ttft_objective = Duration::from_secs(3_600);
        rules.classes.insert("second", Class { ttft_objective, ..class(1, 0.0) });
        let world = World::new(rules).audited_every(50);
        let urgent_at = BTreeSet::new();
        let mut fleet = Self { world, millis: 0, ends: BTreeMap::new(), next: [0, 1], urgent_at, plain };
        (0..REPLICAS as u64 * u64::from(SEQS) * 2).for_each(|_| fleet.arrive(1));
        fleet
    }

    fn arrive(&mut self, class: u32) {
        let id = &mut self.next[class as usize];
        *id += 2;
        let plain = self.plain && class > 0;
        let job = JobSpec {
            id: JobId::new(*id),
            class: ClassId::new(class),
            deadline: Tick::NEVER,
            arrived: Tick::from_millis(self.millis),
            prompt_tokens: if plain { PLAIN_PROMPT_TOKENS } else { PROMPT_TOKENS[class as usize] },
            streams: !plain,
            ..spec(0)
        };
        let actions = self.world.arrive(job);
        self.take(&actions);
    }

    /// First tokens come at once; urgent jobs take a second, the others ten.
    fn take(&mut self, actions: &[Action]) {
        for (job, replica) in sent(actions) {
            if is_urgent(job) {
                self.urgent_at.insert(replica);
            }
            let lasts = if is_urgent(job) { 1_000 } else { 10_000 };
            self.ends.entry(self.millis + lasts).or_default().push(job);
            if is_urgent(job) || !self.plain {
                let actions = self.world.event(Event::FirstToken { job: JobId::new(job) });
                self.take(&actions);
            }
        }
    }

    /// Lets time pass, with an urgent job every `gap` milliseconds.
    fn run(&mut self, seconds: u64, gap: u64) {
        self.urgent_at.clear();
        for _ in 0..seconds * 20 {
            self.step();
            if self.millis.is_multiple_of(gap) {
                self.arrive(0);
            }
        }
    }

    /// Lets 50 ms pass. Each background job that ends is followed by another.
    fn step(&mut self) {
        self.millis += 50;
        let actions = self.world.at(self.millis);
        self.take(&actions);
        if self.millis.is_multiple_of(1_000) {
            (0..REPLICAS as u32).for_each(|replica| self.sample(replica));
        }
        let later = self.ends.split_off(&(self.millis + 1));
        for job in std::mem::replace(&mut self.ends, later).into_values().flatten() {
            let actions = self.world.done(job);
            self.take(&actions);
            if !is_urgent(job) {
                self.arrive(1);
            }
        }
    }

    /// The replica's streams have a token every 10 ms.
    fn sample(&mut self, replica: u32) {
        let sample = ItlSample { gaps: 100, total: Duration::from_secs(1) };
        let actions = self.world.event(Event::ItlSampled { replica: ReplicaId::new(replica), sample });
        self.take(&actions);
    }

    fn running(&self, replica: u32) -> u32 {
        let replicas = self.world.scheduler.snapshot(self.world.now).replicas;
        replicas.iter().find(|row| row.replica == ReplicaId::new(replica)).map_or(0, |row| row.running)
    }

    /// Replicas with more than their share for background classes.
    fn full(&self) -> Vec<u32> {
        (0..REPLICAS as u32).filter(|replica| self.running(*replica) > SEQS * 9 / 10).collect()
    }
}

#[test]
fn a_trickle_of_urgent_jobs_keeps_one_replica_from_being_filled() {
    for plain in [false, true] {
        let mut fleet = Fleet::new(plain);
        fleet.run(15, 1_000);
        assert!(fleet.full().is_empty(), "all replicas keep the objective at first");
        fleet.run(60, 1_000);
        fleet.run(30, 1_000);
        assert_eq!(fleet.full().len(), REPLICAS - 1, "{plain} {:?}", fleet.full());
        assert_eq!(fleet.urgent_at.len(), 1, "{plain} {:?}", fleet.urgent_at);
        assert!(fleet.urgent_at.iter().all(|reserved| !fleet.full().contains(reserved)));
        assert_eq!(fleet.world.scheduler.audit(), []);
    }
}

#[test]
fn more_urgent_work_takes_more_replicas_back() {
    let mut fleet = Fleet::new(false);
    fleet.run(90, 1_000);
    assert_eq!(fleet.full().len(), REPLICAS - 1);
    // 40 a second, each for a second: more than one replica runs.
    for _ in 0..300 {
        (0..2).for_each(|_| fleet.arrive(0));
        fleet.step();
    }
    assert!(fleet.full().len() < REPLICAS - 1, "{:?}", fleet.full());
    assert_eq!(fleet.world.scheduler.audit(), []);
}

#[test]
fn background_demand_from_before_reserves_no_replicas() {
    let mut fleet = Fleet::new(false);
    fleet.run(60, u64::MAX);
    assert_eq!(fleet.full().len(), REPLICAS, "nothing urgent is there");
    fleet.run(90, 1_000);
    assert_eq!(fleet.full().len(), REPLICAS - 1, "{:?}", fleet.full());
}

/// A replica of 20 sequences with steps of 20 ms and 4 ms more for each further sequence, full of
/// jobs of a patient class. Job 1 ends at `ends`, if at all. Returns the milliseconds for which an
/// urgent job then waits.
fn wait_at_a_full_replica(ends: Option<u64>) -> Option<u64> {
    let mut rules = policy(&[&[SEQS]], &[&[0]]);
    let (ttft_objective, itl_objective) = (Duration::from_secs(60), Duration::from_millis(500));
    rules.classes.insert("second", Class { ttft_objective, itl_objective, ..class(1, 0.0) });
    let mut world = World::new(rules);
    let sample = |world: &mut World, seqs: u32| {
        let total = Duration::from_millis(20 + 4 * u64::from(seqs)) * 10;
        let replica = ReplicaId::new(0);
        world.event(Event::ItlSampled { replica, sample: ItlSample { gaps: 10, total } })
    };
    for id in 1..=u64::from(SEQS) {
        world.arrive(JobSpec { class: ClassId::new(1), deadline: Tick::NEVER, ..spec(id) });
        for step in 0..10 {
            world.at(id * 1_000 + step * 100);
            world.event(Event::FirstToken { job: JobId::new(id) });
            sample(&mut world, id as u32);
        }
    }
    let arrived = 30_000;
    world.at(arrived);
    let urgent = JobSpec { arrived: Tick::from_millis(arrived), deadline: Tick::NEVER, ..spec(100) };
    assert_eq!(sent(&world.arrive(urgent)), []);
    (1..200).map(|step| step * 50).find(|millis| {
        let mut actions = world.at(arrived + millis);
        if ends == Some(*millis) {
            actions.extend(world.done(1));
        }
        actions.extend(sample(&mut world, SEQS));
        sent(&actions) == [(100, 0)]
    })
}

#[test]
fn urgent_jobs_start_beyond_the_limit_of_a_replica_that_background_jobs_fill() {
    assert_eq!(wait_at_a_full_replica(None), None, "it has no place");
    assert_eq!(wait_at_a_full_replica(Some(100)), Some(500), "after half of its objective");
    assert_eq!(wait_at_a_full_replica(Some(800)), Some(800));
}
