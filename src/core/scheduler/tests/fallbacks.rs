//! Tests of fallbacks: jobs that another model may serve.

use crate::model::event::{EngineFault, Event, RejectReason};
use crate::model::ids::{JobId, ModelId, ReplicaId};
use crate::model::job::JobSpec;
use crate::scheduler::tests::{World, of_tenant, policy, rejected, sent, spec};

/// Two models, each with a replica of one sequence of its own.
fn world() -> World {
    World::new(policy(&[&[1], &[1]], &[&[0], &[1]]))
}

fn falls_back(spec: JobSpec) -> JobSpec {
    JobSpec { has_fallback: true, ..spec }
}

/// The same request as the other model.
fn as_other(spec: JobSpec) -> JobSpec {
    JobSpec { model: ModelId::new(1), has_fallback: false, ..spec }
}

fn lose(world: &mut World, replica: u32) -> Vec<(u64, RejectReason)> {
    let actions = world.event(Event::ReplicaLost { replica: ReplicaId::new(replica), answers: true });
    rejected(&actions).into_iter().map(|(job, why)| (job, why.reason)).collect()
}

#[test]
fn it_does_not_wait_for_a_model_that_is_down() {
    let mut world = world();
    world.arrive(spec(0));
    world.arrive(falls_back(spec(1)));
    world.arrive(spec(2));
    assert_eq!(lose(&mut world, 1), [], "the other model's");
    assert_eq!(lose(&mut world, 0), [(1, RejectReason::NoReplica)], "the others have to wait");
    let late = rejected(&world.arrive(falls_back(spec(3))));
    assert_eq!((late[0].0, late[0].1.reason), (3, RejectReason::NoReplica));
    world.event(Event::ProbeSucceeded { replica: ReplicaId::new(1) });
    assert_eq!(sent(&world.arrive(as_other(spec(3)))), [(3, 1)], "the same job as another model");
    world.done(3);
    world.done(0);
    assert_eq!(world.scheduler.unfinished(), 1);
}

#[test]
fn it_does_not_wait_for_the_replica_that_it_saw_break() {
    let mut world = world();
    world.arrive(falls_back(spec(1)));
    let actions = world.fail(1, EngineFault::Refused);
    assert_eq!(rejected(&actions)[0].1.reason, RejectReason::NoReplica);
    world.arrive(falls_back(spec(2)));
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn a_busy_model_is_not_down() {
    let mut world = world();
    world.arrive(falls_back(spec(1)));
    assert_eq!(rejected(&world.fail(1, EngineFault::Busy { retry_after: None })), []);
    assert_eq!(world.scheduler.unfinished(), 1);
}

#[test]
fn a_stream_that_has_begun_stays_with_its_model() {
    let mut world = world();
    world.arrive(falls_back(spec(1)));
    world.event(Event::FirstToken { job: JobId::new(1) });
    assert_eq!(rejected(&world.interrupt(1, EngineFault::Reset, 4)), [], "it waits for its own");
    assert_eq!(world.scheduler.unfinished(), 1);
}

/// Which of two tenants goes next, after a job of the first one was refused
/// that had been at a replica.
fn next_after_a_refusal(job: JobSpec) -> u64 {
    let mut rules = policy(&[&[1, 1]], &[&[0]]);
    rules.retry.max_attempts = 1;
    let mut world = World::new(rules);
    world.arrive(of_tenant(9, 1));
    world.done(9);
    world.arrive(of_tenant(8, 2));
    world.arrive(JobSpec { max_output_tokens: 5_000, ..job });
    world.arrive(of_tenant(2, 1));
    world.arrive(spec(3));
    let refused = world.fail(1, EngineFault::Malformed);
    assert!(matches!(rejected(&refused)[0].1.reason, RejectReason::AttemptsExhausted(_)));
    sent(&refused)[0].0
}

#[test]
fn its_tenant_pays_where_it_is_served() {
    assert_eq!(next_after_a_refusal(spec(1)), 2, "the tenant has paid for the try");
    assert_eq!(next_after_a_refusal(falls_back(spec(1))), 3, "it has paid nothing");
}
