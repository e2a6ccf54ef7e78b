//! Tests of entry checks: refusals before anything is learned, and refusals that are sure in
//! advance.

use super::{World, of_tenant, policy, rejected, sent, spec};
use crate::model::event::{Action, Event, QueueBound, RejectReason, ReplicaAction, ReplicaReport};
use crate::model::ids::{ClassId, JobId, ModelId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::replica::seq_limit::DEFAULT_SEQS;

fn wide(id: u64, sequences: u32) -> JobSpec {
    JobSpec { sequences, ..spec(id) }
}

#[test]
fn what_no_replica_runs_at_once_is_refused_and_nothing_learns_from_it() {
    let rules = policy(&[&[2, 4], &[8]], &[&[0], &[0, 1]]);
    let (mut world, mut other) = (World::new(rules.clone()), World::new(rules));
    for (id, model, sequences, most) in [(1, 0, 5, 4), (2, 0, u32::MAX, 4), (3, 1, 9, 8)] {
        let actions = world.arrive(JobSpec { model: ModelId::new(model), ..wide(id, sequences) });
        let [(job, why)] = rejected(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!((job, why.reason), (id, RejectReason::TooManySequences { most }));
        assert_eq!(why.retry_after, None, "it would be refused again");
        other.arrive(JobSpec { class: ClassId::new(9), ..spec(id) });
    }
    let [one, same] = [&world, &other].map(|world| format!("{:?}", world.scheduler));
    let differs = one.bytes().zip(same.bytes()).position(|(one, same)| one != same);
    let around = differs.map(|at| &one[at.saturating_sub(120)..(at + 40).min(one.len())]);
    assert!(one == same, "it is as if they had asked for what nobody serves: {around:?}");
    assert_eq!(sent(&world.arrive(wide(4, 4))).len(), 1, "the max_sequences that fits");
    assert_eq!(sent(&world.arrive(JobSpec { model: ModelId::new(1), ..wide(5, 8) })).len(), 1);
}

#[test]
fn a_replica_of_which_nothing_is_known_may_be_a_large_one() {
    let mut unknown = policy(&[&[1], &[]], &[&[0], &[1]]);
    let (id, name, row) =
        unknown.replicas.iter().map(|(id, name, row)| (id, name.to_owned(), row.clone())).next().unwrap();
    assert_eq!(unknown.replicas.insert(&name, crate::model::policy::Replica { max_seqs: None, ..row }), id);
    let mut world = World::new(unknown);
    assert_eq!(sent(&world.arrive(wide(1, 4 * DEFAULT_SEQS))), [(1, 0)]);
    assert_eq!(rejected(&world.arrive(wide(2, 4 * DEFAULT_SEQS + 1))).len(), 1);
    let of_empty = JobSpec { model: ModelId::new(1), ..wide(3, 2) };
    assert_eq!(rejected(&world.arrive(of_empty)), [], "a replica may come that takes it");
}

/// Times that the actions ask for a report of the first replica.
fn asks(actions: &[Action]) -> usize {
    let scrape = Action::Replica(ReplicaAction::Scrape { replica: ReplicaId::new(0) });
    actions.iter().filter(|action| **action == scrape).count()
}

#[test]
fn a_used_up_number_of_slots_that_nobody_told_asks_for_a_report() {
    let mut unknown = policy(&[&[1]], &[&[0]]);
    let (id, name, row) =
        unknown.replicas.iter().map(|(id, name, row)| (id, name.to_owned(), row.clone())).next().unwrap();
    assert_eq!(unknown.replicas.insert(&name, crate::model::policy::Replica { max_seqs: None, ..row }), id);
    let mut world = World::new(unknown);
    let report = |running, waiting| ReplicaReport {
        running: Some(running),
        waiting: Some(waiting),
        ..ReplicaReport::default()
    };
    world.event(Event::ReplicaReported { replica: id, report: report(0, 0) });
    assert_eq!(asks(&world.arrive(wide(1, DEFAULT_SEQS - 1))), 0, "the report is too young");
    world.at(300);
    assert_eq!(
        asks(&world.event(Event::FirstToken { job: JobId::new(1) })),
        1,
        "one more of its width has no room"
    );
    assert_eq!(asks(&world.arrive(wide(2, 1))), 0, "it was asked already");
    world.event(Event::ReplicaReported { replica: id, report: report(u64::from(DEFAULT_SEQS), 0) });
    world.at(900);
    assert_eq!(sent(&world.arrive(wide(3, 9))), [(3, 0)], "the report raised the limit");
}

/// One place, and one request of each tenant may wait.
fn narrow() -> Policy {
    let mut policy = policy(&[&[1]], &[&[0]]);
    for (_, name, mut row) in
        policy.tenants.clone().iter().map(|(id, name, row)| (id, name.to_owned(), row.clone()))
    {
        row.bounds.requests = 1;
        policy.tenants.insert(&name, row);
    }
    policy
}

#[test]
fn what_surely_is_refused_is_known_before_and_changes_nothing() {
    let mut world = World::new(narrow());
    let now = Tick::ZERO;
    assert!(!world.scheduler.would_refuse(&spec(1), 0, now), "a place is free");
    assert!(world.scheduler.would_refuse(&wide(1, 2), 0, now));
    let late = JobSpec { deadline: Tick::ZERO, ..spec(1) };
    let unknown = JobSpec { class: ClassId::new(9), ..spec(1) };
    world.at(1);
    for odd in [late, unknown] {
        assert!(world.scheduler.would_refuse(&odd, 0, now), "{odd:?}");
    }
    assert_eq!(sent(&world.arrive(spec(1))), [(1, 0)]);
    assert!(!world.scheduler.would_refuse(&spec(2), 0, now), "one may wait");
    world.arrive(spec(2));
    assert!(world.scheduler.would_refuse(&spec(3), 0, now));
    assert!(!world.scheduler.would_refuse(&of_tenant(3, 1), 0, now), "another tenant's may");
    let [(3, why)] = rejected(&world.arrive(spec(3)))[..] else { panic!("it is refused") };
    assert_eq!(why.reason, RejectReason::TenantQueueFull(QueueBound::Requests));
}
