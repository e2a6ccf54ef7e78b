//! Tests of what-if replays against a simulated past whose engines are known.

use std::sync::Arc;
use std::time::Duration;

use crate::core::model::event::Event;
use crate::core::model::ids::ClassId;
use crate::core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use crate::core::model::time::Tick;
use crate::core::placement::rules::PoolTraits;
use crate::core::scheduler::Scheduler;
use crate::dispatcher::event_log::{Decision, Decisions, LoggedStep};
use crate::record::line::HashKey;
use crate::record::replay::exact::ExactReplay;
use crate::record::replay::history::{History, JobEnd};
use crate::record::replay::report::{GroupFigures, compared, figures, model_error};
use crate::record::replay::what_if::predict;
use crate::sim::engine::EngineOptions;
use crate::sim::engine::profile::StepProfile;
use crate::sim::rng::Rng;
use crate::sim::world::arrival::Arrival;
use crate::sim::world::gateway::{EventTrace, ReplicaGroup, SimGateway, TracedStep, policy};
use crate::sim::world::replica::ReplicaSetup;
use crate::sim::world::router::Router;
use crate::sim::world::run::run;
use crate::sim::world::setup::Setup;

const PLACES: u32 = 6;

/// Two tenants with these weights on two engines with few places.
fn rules(weights: [f64; 2]) -> Policy {
    let class = Class {
        usage_half_life: None,
        rank: 0,
        min_share: 0.1,
        max_wait: Duration::from_secs(40),
        ttft_objective: Duration::from_secs(1),
        itl_objective: Duration::from_millis(50),
        cold_start_tolerance: None,
        demote_to: None,
        scavenger: false,
        placement: Default::default(),
    };
    let tenant = |weight| Tenant {
        weight,
        parent: None,
        default_class: ClassId::new(0),
        classes: [ClassId::new(0)].into(),
        models: None,
        bounds: QueueBounds::default(),
        quota: Quota::default(),
        placement: Default::default(),
    };
    let replica_group =
        ReplicaGroup { pool: "pool".to_owned(), supply: PoolTraits::default(), models: vec![0], replicas: 2 };
    let mut policy = policy(&[replica_group], &[class], &weights.map(tenant));
    let rows: Vec<_> = policy.replicas.iter().map(|(_, name, row)| (name.to_owned(), row.clone())).collect();
    for (name, mut row) in rows {
        row.max_seqs = Some(PLACES);
        policy.replicas.insert(&name, row);
    }
    policy
}

/// What happens under the policy: more work than the engines can do, of both tenants alike.
fn happened(policy: &Policy) -> (History, Vec<LoggedStep>) {
    let mut rng = Rng::new(4);
    let mut at = 0;
    let arrival = |number: u64| {
        at += rng.below(640_000_000);
        let prompt = 200 + rng.below(2_000) as u32;
        let own = Arrival {
            at: Tick::from_nanos(at),
            tenant: (number % 2) as u32,
            prompt,
            output: 100 + rng.below(300) as u32,
            max_output: 400,
            ..Arrival::default()
        };
        own.with_prompt(number % 3, prompt / 2, 1_000 + number)
    };
    let options = EngineOptions { max_seqs: Some(PLACES), ..EngineOptions::default() };
    let profile = StepProfile::named("a10-8b").unwrap();
    let engine = ReplicaSetup { one_way: Duration::from_millis(3), ..ReplicaSetup::new(profile, options) };
    let setup = Setup {
        replicas: vec![engine; 2],
        arrivals: (0..600).map(arrival).collect(),
        scrape: Some(Duration::from_secs(5)),
        late: true,
        ..Setup::default()
    };
    let log = EventTrace::default();
    run(&setup, &mut [Box::new(SimGateway::new(policy.clone()).recorded(&log)) as Box<dyn Router>]);
    let told = std::mem::take(&mut *log.lock());
    let steps = told.into_iter().map(|TracedStep { at, event, actions }| {
        let decisions: Decisions = actions.iter().filter_map(Decision::of).collect();
        LoggedStep { at, event, decisions }
    });
    let steps: Vec<LoggedStep> = steps.collect();
    let mut history = History::new(Arc::new(policy.clone()));
    steps.iter().for_each(|step| history.step(step));
    (history, steps)
}

fn of<'a>(rows: &'a [GroupFigures], tenant: &str, what: &str) -> &'a GroupFigures {
    rows.iter().find(|row| row.tenant.as_deref() == Some(tenant) && row.what == what).unwrap()
}

#[test]
fn another_share_is_predicted_from_what_happened_under_the_first() {
    let (equal, skewed) = (rules([1.0, 1.0]), rules([4.0, 1.0]));
    let (past, _) = happened(&equal);
    assert_eq!(past.jobs.len(), 600);
    assert!(past.jobs.iter().all(|job| job.end != JobEnd::Open));
    let rows = compared(&past, &predict(&past, &skewed, &|_| {}));
    let error = model_error(&rows).unwrap();
    assert!(error.first_token_p50 < 0.25 && error.refused < 0.05 && error.share < 0.02, "{error:?}");
    let truth = figures(&happened(&skewed).0, "happened");
    for tenant in ["0", "1"] {
        let (said, was) = (of(&rows, tenant, "predicted"), of(&truth, tenant, "happened"));
        let before = of(&rows, tenant, "happened");
        assert!((said.share / was.share - 1.0).abs() < 0.15, "{said:?}\n{was:?}");
        assert!((was.share / before.share - 1.0).abs() > 0.15, "the share does change: {was:?}\n{before:?}");
        let part = |row: &GroupFigures| row.refused as f64 / row.requests as f64;
        assert!((part(said) - part(was)).abs() < 0.1, "{said:?}\n{was:?}");
    }
    // Those of the other tenant are few: most of them are refused.
    let first = |rows: &[GroupFigures], what| of(rows, "0", what).first_token_p50.unwrap();
    let (said, was) = (first(&rows, "predicted"), first(&truth, "happened"));
    assert!((said / was - 1.0).abs() < 0.15, "{said} {was}");
}

#[test]
fn keyed_hashes_lead_to_the_same_decisions() {
    let (_, steps) = happened(&rules([1.0, 2.0]));
    let mut exact = ExactReplay::new(&rules([1.0, 2.0]));
    let key = HashKey::new([3; 32]);
    for mut step in steps {
        key.hide(&mut step.event);
        exact.step(&step);
    }
    assert!(exact.decisions > 600);
    assert_eq!((exact.differing, exact.same, exact.first), (0, exact.decisions, None));
}

#[test]
fn a_changed_policy_is_found_out() {
    let (_, steps) = happened(&rules([1.0, 1.0]));
    let mut exact = ExactReplay::new(&rules([1.0, 9.0]));
    steps.iter().for_each(|step| exact.step(step));
    assert!(exact.differing > 0 && exact.same < exact.decisions);
    let first = exact.first.unwrap();
    assert_ne!(first.recorded, first.replayed);
}

#[test]
fn tenants_that_the_other_policy_lacks_are_refused_and_its_own_fleet_counts() {
    let (past, _) = happened(&rules([1.0, 1.0]));
    let mut other = rules([1.0, 1.0]);
    let mut alone = crate::core::model::id_table::IdTable::default();
    alone.insert("1", other.tenants.iter().last().unwrap().2.clone());
    other.tenants = alone;
    let rows = compared(&past, &predict(&past, &other, &|_| {}));
    let (gone, kept) = (of(&rows, "0", "predicted"), of(&rows, "1", "predicted"));
    assert_eq!((gone.requests, gone.refused), (300, 300));
    let before = of(&rows, "1", "happened");
    assert!(kept.requests == 300 && kept.served > before.served * 5 / 4, "{kept:?}, {before:?}");
    let mut pools = other.pools.clone();
    let (_, name, pool) = other.pools.iter().next().unwrap();
    let found = crate::core::model::policy::Pool { replicas: Vec::new(), ..pool.clone() };
    pools.insert(name, found);
    let discovered = Policy { pools, replicas: Default::default(), ..other.clone() };
    let again = compared(&past, &predict(&past, &discovered, &|_| {}));
    assert_eq!(of(&again, "1", "predicted"), kept, "a pool without replicas has the recorded ones");
}

#[test]
fn a_drain_and_unknown_jobs_do_no_harm() {
    let policy = Arc::new(rules([1.0, 1.0]));
    let mut history = History::new(Arc::clone(&policy));
    let mut scheduler = Scheduler::new(policy);
    let job = crate::core::model::ids::JobId::new(77);
    for event in [Event::FirstToken { job }, Event::Draining, Event::Timer] {
        scheduler.handle(Tick::ZERO, event.clone(), &mut Vec::new());
        history.step(&LoggedStep { at: Tick::ZERO, event, decisions: Decisions::new() });
    }
    assert!(history.jobs.is_empty());
    assert_eq!(figures(&history, "happened").len(), 1);
}
