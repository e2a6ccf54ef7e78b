//! Tests of continuations: streams that break after their first token and go on elsewhere.

use std::time::Duration;

use crate::model::event::{Action, EngineFault, Event, JobAction, OrderReason, RejectReason, ReplicaAction};
use crate::model::ids::{JobId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::snapshot::ReplicaSnapshot;
use crate::model::time::Tick;
use crate::scheduler::tests::{World, placed, policy, rejected, sent, spec};

fn first_token(world: &mut World, job: u64) {
    world.event(Event::FirstToken { job: JobId::new(job) });
}

fn view(world: &World, replica: u32) -> ReplicaSnapshot {
    let views = world.scheduler.snapshot(world.now).replicas;
    views.into_iter().find(|view| view.replica == ReplicaId::new(replica)).unwrap()
}

#[test]
fn the_rest_goes_to_another_replica_before_the_others() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    for job in 1..=3 {
        world.arrive(spec(job));
    }
    first_token(&mut world, 1);
    let actions = world.interrupt(1, EngineFault::Reset, 4);
    let (job, replica) = (JobId::new(1), ReplicaId::new(0));
    assert_eq!(
        actions,
        [
            Action::Job(JobAction::Requeue { job, replica, why: EngineFault::Reset }),
            Action::Replica(ReplicaAction::Eject { replica, why: EngineFault::Reset })
        ]
    );
    world.now = Tick::from_millis(7);
    let actions = world.done(2);
    assert_eq!(sent(&actions), [(1, 1)]);
    let why = placed(&actions);
    assert_eq!((why.order, why.attempt, why.queued), (OrderReason::Requeued, 2, Duration::from_millis(7)));
}

#[test]
fn what_was_said_is_booked_as_prompt() {
    let mut world = World::new(policy(&[&[1, 1]], &[&[0]]));
    world.arrive(spec(1));
    let whole = view(&world, 0);
    first_token(&mut world, 1);
    assert_eq!(sent(&world.interrupt(1, EngineFault::Reset, 4)), [(1, 1)]);
    let (left, rest) = (view(&world, 0), view(&world, 1));
    assert_eq!((left.running, left.prefill_tokens, left.kv_tokens), (0, 0, 0));
    assert_eq!(rest.prefill_tokens, whole.prefill_tokens + 4);
    assert_eq!(rest.kv_tokens, whole.kv_tokens, "no more in all than before");
    first_token(&mut world, 1);
    world.done(1);
    assert_eq!((view(&world, 1).kv_tokens, world.scheduler.unfinished()), (0, 0));
}

#[test]
fn it_may_wait_as_long_again_although_its_deadline_has_passed() {
    let mut world = World::new(policy(&[&[1]], &[&[0]]));
    world.arrive(JobSpec {
        deadline: Tick::from_millis(900),
        client_deadline: Tick::from_millis(900),
        ..spec(1)
    });
    first_token(&mut world, 1);
    world.now = Tick::from_millis(5_000);
    world.interrupt(1, EngineFault::Reset, 4);
    assert_eq!(rejected(&world.at(64_999)), []);
    assert_eq!(rejected(&world.at(65_000))[0].1.reason, RejectReason::DeadlineExceeded);
    assert_eq!(world.scheduler.unfinished(), 0);
}

#[test]
fn every_broken_stream_counts_as_an_attempt() {
    let mut rules = policy(&[&[1]], &[&[0]]);
    rules.retry.max_attempts = 2;
    let mut world = World::new(rules);
    world.arrive(spec(1));
    first_token(&mut world, 1);
    assert_eq!(sent(&world.interrupt(1, EngineFault::Malformed, 1)), [(1, 0)]);
    first_token(&mut world, 1);
    let refused = rejected(&world.interrupt(1, EngineFault::Busy { retry_after: None }, 2));
    assert_eq!(refused[0].1.reason, RejectReason::AttemptsExhausted(EngineFault::Busy { retry_after: None }));
    assert_eq!(world.scheduler.unfinished(), 0);
}
