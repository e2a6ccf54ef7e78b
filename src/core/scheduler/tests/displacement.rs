//! Tests of displacement in a full queue.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use crate::model::event::{EngineFault, Event, QueueBound, RejectReason};
use crate::model::ids::{ClassId, JobId};
use crate::model::job::{JobSpec, JobUsage};
use crate::model::policy::QueueBounds;
use crate::scheduler::tests::{World, of_tenant, policy, rejected, spec, tenant};

const FULL: RejectReason = RejectReason::QueueFull(QueueBound::Requests);

/// One replica of one sequence, which job 0 of tenant d has for ever.
fn full_world(requests: u64, weights: [u32; 4]) -> World {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.bounds = QueueBounds { requests, ..QueueBounds::default() };
    for (name, weight) in ["a", "b", "c", "d"].into_iter().zip(weights) {
        rules.tenants.insert(name, tenant(f64::from(weight)));
    }
    let mut world = World::new(rules);
    world.arrive(of_tenant(0, 3));
    world
}

fn refused(world: &mut World, spec: JobSpec) -> Vec<(u64, RejectReason)> {
    rejected(&world.arrive(spec)).into_iter().map(|(job, why)| (job, why.reason)).collect()
}

#[test]
fn the_tail_of_whoever_has_most_makes_room() {
    let mut world = full_world(4, [1; 4]);
    for id in 1..=2 {
        assert_eq!(refused(&mut world, spec(id)), []);
        let second = JobSpec { class: ClassId::new(1), ..spec(id + 10) };
        assert_eq!(refused(&mut world, second), []);
    }
    assert_eq!(refused(&mut world, spec(3)), [(3, FULL)], "not for its own tenant");
    assert_eq!(refused(&mut world, of_tenant(20, 1)), [(12, RejectReason::Displaced)], "least urgent, last");
    assert_eq!(refused(&mut world, of_tenant(21, 1)), [(11, RejectReason::Displaced)]);
    assert_eq!(refused(&mut world, of_tenant(22, 1)), [(22, FULL)], "two each is fair");
    assert_eq!(refused(&mut world, of_tenant(30, 2)), [(21, RejectReason::Displaced)]);
    assert_eq!(refused(&mut world, of_tenant(23, 1)), [(23, FULL)], "nobody is pushed out in turn");
}

#[test]
fn what_came_back_is_not_displaced() {
    let mut world = full_world(2, [1; 4]);
    world.arrive(of_tenant(1, 3));
    world.fail(0, EngineFault::Busy { retry_after: None });
    assert_eq!(world.scheduler.waiting().requests, 2);
    assert_eq!(refused(&mut world, spec(2)), [(1, RejectReason::Displaced)]);
    assert_eq!(refused(&mut world, of_tenant(3, 1)), [(3, FULL)]);
}

#[test]
fn one_job_makes_room_for_one_or_nobody_goes() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.bounds = QueueBounds { bytes: 1_000, ..QueueBounds::default() };
    let mut world = World::new(rules);
    world.arrive(of_tenant(0, 3));
    for id in 1..=10 {
        assert_eq!(refused(&mut world, spec(id)), []);
    }
    let large = JobSpec { bytes: 300, ..of_tenant(20, 1) };
    assert_eq!(refused(&mut world, large), [(20, RejectReason::QueueFull(QueueBound::Bytes))]);
    assert_eq!(refused(&mut world, of_tenant(21, 1)), [(10, RejectReason::Displaced)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn displacement_evens_out_and_never_takes_from_who_has_least(
        requests in 1u64..30,
        weights in [1u32..6, 1..6, 1..6, 1..6],
        arrivals in vec((0u32..4, 0u32..2), 1..200),
    ) {
        let mut world = full_world(requests, weights);
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        let share = |waiting: &[(u64, u32)], tenant: u32, more: i64| {
            let count = waiting.iter().filter(|(_, own)| *own == tenant).count() as i64 + more;
            count as f64 / f64::from(weights[tenant as usize])
        };
        for (id, (tenant, class)) in (1..).zip(arrivals) {
            let newcomer = JobSpec { class: ClassId::new(class), ..of_tenant(id, tenant) };
            let least = (0..4).map(|tenant| share(&waiting, tenant, 0)).fold(f64::MAX, f64::min);
            match refused(&mut world, newcomer)[..] {
                [] => waiting.push((id, tenant)),
                [(job, reason)] if job == id => {
                    prop_assert_eq!(reason, FULL);
                    let could = (0..4).any(|other| {
                        other != tenant && share(&waiting, other, -1) >= share(&waiting, tenant, 1)
                    });
                    prop_assert!(!could, "somebody had more: {:?}", waiting);
                }
                [(job, reason)] => {
                    prop_assert_eq!(reason, RejectReason::Displaced);
                    let index = waiting.iter().position(|(id, _)| *id == job).expect("it waited");
                    let (_, loser) = waiting.remove(index);
                    prop_assert!(loser != tenant);
                    waiting.push((id, tenant));
                    prop_assert!(share(&waiting, loser, 0) >= share(&waiting, tenant, 0));
                    let now = (0..4).map(|tenant| share(&waiting, tenant, 0)).fold(f64::MAX, f64::min);
                    prop_assert!(now >= least);
                }
                ref more => prop_assert!(false, "{more:?}"),
            }
            prop_assert_eq!(world.scheduler.waiting().requests, waiting.len() as u64);
            prop_assert!(waiting.len() as u64 <= requests);
        }
        let everyone = world.scheduler.unfinished();
        for (job, _) in &waiting {
            world.event(Event::Abandoned { job: JobId::new(*job), usage: JobUsage::Unknown });
        }
        prop_assert_eq!(everyone, waiting.len() as u64 + 1);
        prop_assert_eq!(world.scheduler.waiting().requests, 0);
    }
}
