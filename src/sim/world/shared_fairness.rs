//! Tests of fair shares over simulated gateways in front of the same engines, which tell each other every
//! 200 ms what their tenants got.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::EngineOptions;
use crate::engine::profile::StepProfile;
use crate::rng::Rng;
use crate::world::arrival::Arrival;
use crate::world::gateway::{ReplicaGroup, SimGateway, policy};
use crate::world::record::WorldRecord;
use crate::world::replica::ReplicaSetup;
use crate::world::router::{Input, Router, RouterCommand};
use crate::world::run::run;
use crate::world::setup::Setup;
use penstock_core::model::event::Event;
use penstock_core::model::ids::ClassId;
use penstock_core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use penstock_core::model::time::Tick;
use penstock_core::queue::fairness::service::ServiceReport;

const EXCHANGE: Duration = Duration::from_millis(200);
/// The fleet is busy from here on.
const COUNTED_FROM: Tick = Tick::from_millis(30_000);
const ENDS: u64 = 90_000;

/// What each of two gateways has heard of the other one.
type Mail = Arc<Mutex<[Vec<ServiceReport>; 2]>>;

/// A gateway that exchanges reports with another one.
#[derive(Debug)]
struct SharingGateway {
    gateway: SimGateway,
    number: usize,
    mail: Mail,
    exchange_at: Tick,
}

impl Router for SharingGateway {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        self.gateway.handle(now, input, out);
        if now >= self.exchange_at {
            self.exchange_at = now + EXCHANGE;
            let reports = self.gateway.scheduler_mut().take_service_reports(usize::MAX);
            let heard = {
                let mut mail = self.mail.lock();
                mail[1 - self.number].extend(reports);
                std::mem::take(&mut mail[self.number])
            };
            if !heard.is_empty() {
                self.gateway.step(now, Event::ServedElsewhere(heard), out);
            }
        }
    }

    fn next_wake(&self) -> Option<Tick> {
        self.gateway.next_wake().into_iter().chain([self.exchange_at]).min()
    }

    fn broken_invariants(&self) -> u64 {
        self.gateway.broken_invariants()
    }
}

fn rules(weights: [f64; 2]) -> Policy {
    let class = Class {
        usage_half_life: None,
        rank: 0,
        min_share: 0.0,
        max_wait: Duration::from_secs(20),
        ttft_objective: Duration::from_secs(2),
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
    policy(&[ReplicaGroup::plain(2)], &[class], &weights.map(tenant))
}

/// Requests of the tenants and gateways of `streams` at random, each stream with more than the engines can do.
fn setup(seed: u64, streams: &[(u32, u8)]) -> Setup {
    let mut rng = Rng::new(seed);
    let (mut arrivals, mut gateways) = (Vec::new(), Vec::new());
    for at in (0..ENDS).step_by(15) {
        let (tenant, gateway) = streams[rng.below(streams.len() as u64) as usize];
        let at = Tick::from_nanos(at * 1_000_000 + rng.below(15_000_000));
        let prompt = 200 + rng.below(400) as u32;
        let output = 50 + rng.below(200) as u32;
        arrivals.push(Arrival { at, tenant, prompt, output, max_output: 400, ..Arrival::default() });
        gateways.push(gateway);
    }
    let profile = StepProfile::named("h100-8b").expect("a profile");
    let options = EngineOptions { max_seqs: Some(24), ..EngineOptions::default() };
    Setup {
        replicas: vec![ReplicaSetup::new(profile, options); 2],
        arrivals,
        gateways,
        scrape: Some(Duration::from_secs(2)),
        horizon: Some(Duration::from_millis(ENDS)),
        ..Setup::default()
    }
}

/// Share of the first tenant in the work done, and that work in tokens.
fn share(setup: &Setup, weights: [f64; 2], is_shared: bool) -> (f64, u64) {
    let mail = Mail::default();
    let gateway = |number| {
        let mut gateway = SimGateway::new(rules(weights));
        if is_shared {
            gateway.scheduler_mut().record_service();
        }
        Box::new(SharingGateway { gateway, number, mail: Arc::clone(&mail), exchange_at: Tick::ZERO })
            as Box<dyn Router>
    };
    let mut routers = [0, 1].map(gateway);
    let outcome = run(setup, &mut routers);
    assert_eq!(outcome.broken_invariants, 0);
    let cost = |record: &WorldRecord| u64::from(record.prompt) + 2 * u64::from(record.output);
    let counted = |record: &&WorldRecord| record.ended.is_some_and(|ended| ended >= COUNTED_FROM);
    let records = || outcome.records.iter().filter(|record| record.served()).filter(counted);
    let first: u64 = records().filter(|record| record.tenant == 0).map(cost).sum();
    let all: u64 = records().map(cost).sum();
    (first as f64 / all as f64, all)
}

#[test]
fn weights_hold_at_shared_engines_when_a_tenant_comes_to_one_gateway_only() {
    let setup = setup(1, &[(0, 0), (1, 0), (1, 1)]);
    let [(alone, all), (together, all_together)] =
        [false, true].map(|is_shared| share(&setup, [1.0, 4.0], is_shared));
    let told = format!("{alone:.3} of {all}, {together:.3} of {all_together}");
    assert!((together - 0.2).abs() < 0.03 && (alone - 0.2).abs() > 0.03, "{told}");
    assert!(all_together as f64 > 0.98 * all as f64, "no work is lost: {told}");
}
