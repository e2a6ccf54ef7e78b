//! Tests of scale: the cost of a decision does not grow with the number of jobs or replicas.

use std::sync::Arc;

use crate::model::event::{Action, AttemptOutcome, DispatchGrant, Event, JobAction};
use crate::model::ids::{ClassId, PoolId, ReplicaId, TenantId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::model::policy::{Model, Policy, Pool, Quota, Replica, Tenant};
use crate::model::time::Tick;
use crate::scheduler::Scheduler;
use crate::scheduler::tests::{class, spec, tenant, used};

/// Search steps per event in a full queue with as many tenants and replicas.
fn steps_per_event(tenants: u32, replicas: u32, jobs: u64, quota: Option<Quota>) -> f64 {
    let mut rules = Policy::default();
    rules.classes.insert("first", class(0, 0.0));
    rules.classes.insert("second", class(1, 0.2));
    for index in 0..tenants {
        let quota = quota.filter(|_| index % 4 > 0).unwrap_or_default();
        let row = Tenant { quota, ..tenant(f64::from(1 + index % 3)) };
        rules.tenants.insert(&format!("t{index}"), row);
    }
    let pool = PoolId::new(0);
    for index in 0..replicas {
        let row = Replica { pool, max_seqs: None, kv_tokens: Some(2_000) };
        rules.replicas.insert(&format!("p/r{index}"), row);
    }
    let members = (0..replicas).map(ReplicaId::new).collect();
    rules.pools.insert("p", Pool { replicas: members, ..Pool::default() });
    rules.models.insert("m", Model { pools: vec![pool], max_model_len: None });

    let mut scheduler = Scheduler::new(Arc::new(rules));
    let mut out = Vec::new();
    let mut events = 0;
    for id in 0..jobs {
        let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let spec = JobSpec {
            tenant: TenantId::new((mixed % u64::from(tenants)) as u32),
            class: ClassId::new((id % 2) as u32),
            prompt_tokens: 20 + mixed % 700,
            max_output_tokens: 50,
            sequences: 1 + u32::from(id % 50 == 0),
            deadline: Tick::from_millis(100_000 + mixed),
            ..spec(id)
        };
        let mut step = Vec::new();
        scheduler.handle(
            Tick::from_millis(id / 100),
            Event::Arrived(spec, PromptPrefix::default()),
            &mut step,
        );
        out.extend(step.into_iter().filter(|action| !is_bill(action)));
        events += 1;
    }
    assert!(scheduler.waiting().requests > jobs / 2, "the world is full");
    let (mut done, mut next) = (0, 0);
    while done < 2_000 {
        next += 1;
        // What cannot be in time is refused beside that.
        let Action::Job(JobAction::Dispatch(DispatchGrant { job, .. })) = out[next - 1] else { continue };
        done += 1;
        let event = if done % 7 == 0 {
            Event::Abandoned { job, usage: JobUsage::Unknown }
        } else {
            Event::Finished { job, outcome: AttemptOutcome::Done(used(100, 40)) }
        };
        let mut step = Vec::new();
        scheduler.handle(Tick::from_millis(jobs / 100), event, &mut step);
        out.extend(step.into_iter().filter(|action| !is_bill(action)));
        events += 1;
    }
    assert_eq!(scheduler.broken_invariants(), 0);
    scheduler.visits() as f64 / f64::from(events)
}

const fn is_bill(action: &Action) -> bool {
    matches!(action, Action::Job(JobAction::Billed { .. }))
}

#[test]
fn a_hundred_times_the_world_costs_little_more_per_event() {
    let small = steps_per_event(10, 50, 10_000, None);
    let large = steps_per_event(1_000, 500, 40_000, None);
    assert!(large < 300.0, "{large} steps per event");
    assert!(large < 8.0 * small, "{large} against {small} steps per event");
}

#[test]
fn quotas_cost_little_per_event() {
    // The capacity is 256 sequences a replica, of which the cache lets few run.
    let quota = |guarantee, borrow, lend| Some(Quota { guarantee, borrow, lend });
    let without = steps_per_event(500, 200, 10_000, None);
    for quota in
        [quota(1.5e-5, 1.0, 1.0), quota(1.0, 1.0, 1.0), quota(0.002, 1.0, 0.0), quota(0.0, 3e-5, 1.0)]
    {
        let with = steps_per_event(500, 200, 10_000, quota);
        assert!(with < 2.0 * without, "{with} against {without} steps per event with {quota:?}");
    }
}
