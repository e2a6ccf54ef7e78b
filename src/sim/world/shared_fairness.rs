//! Tests of fair shares over simulated gateways in front of the same engines.

use std::time::Duration;

use crate::engine::EngineOptions;
use crate::engine::profile::StepProfile;
use crate::rng::Rng;
use crate::world::arrival::Arrival;
use crate::world::gateway::{ReplicaGroup, SimGateway, policy};
use crate::world::record::{WorldRecord, quantile};
use crate::world::replica::ReplicaSetup;
use crate::world::router::Router;
use crate::world::run::run;
use crate::world::setup::Setup;
use crate::world::sharing::sharing;
use penstock_core::model::ids::ClassId;
use penstock_core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use penstock_core::model::time::Tick;

const EXCHANGE: Duration = Duration::from_millis(50);
/// Sequences of an engine.
const SEQS: u32 = 24;

/// Requests of a tenant at a gateway, at random.
#[derive(Debug, Clone, Copy)]
struct Stream {
    tenant: u32,
    gateway: u8,
    /// Requests a second.
    rate: f64,
    /// From and to this time, in seconds.
    time: (u64, u64),
}

const fn stream(tenant: u32, gateway: u8, rate: f64, time: (u64, u64)) -> Stream {
    Stream { tenant, gateway, rate, time }
}

/// A world: tenants with their weights, each in a class of its own number if `classes` has so many.
struct SharedWorld {
    gateways: usize,
    engines: usize,
    classes: Vec<Class>,
    weights: Vec<f64>,
    streams: Vec<Stream>,
    seed: u64,
}

fn class(rank: u32, ttft_ms: u64) -> Class {
    Class {
        usage_half_life: None,
        rank,
        min_share: if rank == 0 { 0.0 } else { 0.1 },
        max_wait: Duration::from_secs(20),
        ttft_objective: Duration::from_millis(ttft_ms),
        itl_objective: Duration::from_millis(50),
        cold_start_tolerance: None,
        demote_to: None,
        scavenger: false,
        placement: Default::default(),
    }
}

impl SharedWorld {
    fn class_of(&self, tenant: u32) -> u32 {
        if self.classes.len() > 1 { tenant } else { 0 }
    }

    fn policy(&self) -> Policy {
        let tenants = (0..).zip(&self.weights).map(|(tenant, weight)| {
            let class = ClassId::new(self.class_of(tenant));
            Tenant {
                weight: *weight,
                parent: None,
                default_class: class,
                classes: [class].into(),
                models: None,
                bounds: QueueBounds::default(),
                quota: Quota::default(),
                placement: Default::default(),
            }
        });
        policy(&[ReplicaGroup::plain(self.engines)], &self.classes, &tenants.collect::<Vec<_>>())
    }

    fn setup(&self) -> Setup {
        let mut rng = Rng::new(self.seed);
        let mut arrivals = Vec::new();
        for stream in &self.streams {
            let mut at = stream.time.0 as f64;
            loop {
                at += -((rng.below(1 << 20) + 1) as f64 / f64::from(1 << 20)).ln() / stream.rate;
                if at >= stream.time.1 as f64 {
                    break;
                }
                let (prompt, output) = (200 + rng.below(400) as u32, 50 + rng.below(200) as u32);
                let (tenant, class) = (stream.tenant, self.class_of(stream.tenant));
                let at = Tick::from_nanos((at * 1e9) as u64);
                let arrival =
                    Arrival { at, tenant, class, prompt, output, max_output: 400, ..Arrival::default() };
                arrivals.push((stream.gateway, arrival));
            }
        }
        arrivals.sort_by_key(|(_, arrival)| arrival.at);
        let profile = StepProfile::named("h100-8b").expect("a profile");
        let options = EngineOptions { max_seqs: Some(SEQS), ..EngineOptions::default() };
        let ends = self.streams.iter().map(|stream| stream.time.1).max().expect("a stream");
        Setup {
            replicas: vec![ReplicaSetup::new(profile, options); self.engines],
            gateways: arrivals.iter().map(|(gateway, _)| *gateway).collect(),
            arrivals: arrivals.into_iter().map(|(_, arrival)| arrival).collect(),
            scrape: Some(Duration::from_secs(2)),
            horizon: Some(Duration::from_secs(ends)),
            ..Setup::default()
        }
    }

    fn run(&self, is_shared: bool) -> Vec<WorldRecord> {
        let gateways: Vec<SimGateway> = (0..self.gateways).map(|_| SimGateway::new(self.policy())).collect();
        let mut routers = match is_shared {
            true => sharing(gateways, EXCHANGE),
            false => gateways.into_iter().map(|gateway| Box::new(gateway) as Box<dyn Router>).collect(),
        };
        let outcome = run(&self.setup(), &mut routers);
        assert_eq!(outcome.broken_invariants, 0);
        outcome.records
    }

    /// All requests at one gateway, which all others are compared with.
    fn at_one_gateway(&self) -> Vec<WorldRecord> {
        let streams = self.streams.iter().map(|stream| Stream { gateway: 0, ..*stream }).collect();
        Self { gateways: 1, streams, classes: self.classes.clone(), weights: self.weights.clone(), ..*self }
            .run(false)
    }
}

fn cost(record: &WorldRecord) -> u64 {
    u64::from(record.prompt) + 2 * u64::from(record.output)
}

/// Work that ended between two seconds.
fn work(records: &[WorldRecord], from: u64, to: u64, of: impl Fn(&WorldRecord) -> bool) -> f64 {
    let time = Tick::from_millis(from * 1000)..Tick::from_millis(to * 1000);
    let counted =
        |record: &&WorldRecord| record.served() && record.ended.is_some_and(|at| time.contains(&at));
    records.iter().filter(counted).filter(|record| of(record)).map(cost).sum::<u64>() as f64
}

/// Share of each tenant in the work that ended between two seconds.
fn shares(records: &[WorldRecord], from: u64, to: u64, tenants: u32) -> Vec<f64> {
    let all = work(records, from, to, |_| true);
    (0..tenants).map(|tenant| work(records, from, to, |record| record.tenant == tenant) / all).collect()
}

/// Jain's index of work over weight.
fn jain(shares: &[f64], weights: &[f64]) -> f64 {
    let parts: Vec<f64> = shares.iter().zip(weights).map(|(share, weight)| share / weight).collect();
    parts.iter().sum::<f64>().powi(2)
        / (parts.len() as f64 * parts.iter().map(|part| part * part).sum::<f64>())
}

/// Quantile of the time to the first token of a tenant's requests after some seconds.
fn ttft(records: &[WorldRecord], tenant: u32, from: u64, part: f64) -> Duration {
    let counted = records.iter().filter(|record| record.tenant == tenant);
    let counted = counted.filter(|record| record.arrived >= Tick::from_millis(from * 1000));
    let mut seconds: Vec<f64> = counted.filter_map(|record| Some(record.ttft?.as_secs_f64())).collect();
    Duration::from_secs_f64(quantile(&mut seconds, part))
}

#[test]
fn weights_hold_when_a_tenant_comes_to_one_gateway_only() {
    let busy = |tenant, gateway| stream(tenant, gateway, 22.0, (0, 60));
    let streams = vec![busy(0, 0), busy(1, 0), busy(1, 1)];
    let (classes, weights) = (vec![class(0, 2_000)], vec![1.0, 4.0]);
    let world = SharedWorld { gateways: 2, engines: 2, classes, weights, streams, seed: 1 };
    let [alone, together] = [false, true].map(|is_shared| world.run(is_shared));
    let first = |records: &[WorldRecord]| shares(records, 20, 60, 2)[0];
    assert!((first(&together) - 0.2).abs() < 0.02, "{}", first(&together));
    let [alone, together] = [alone, together].map(|records| work(&records, 20, 60, |_| true));
    assert!(together > 0.98 * alone, "no work is lost: {together} of {alone}");
}

#[test]
fn weights_hold_between_tenants_of_different_gateways_also_when_they_swap() {
    let busy = |tenant, gateway, time| stream(tenant, gateway, 40.0, time);
    let streams =
        vec![busy(0, 0, (0, 50)), busy(1, 1, (0, 50)), busy(0, 1, (50, 100)), busy(1, 0, (50, 100))];
    let (classes, weights) = (vec![class(0, 2_000)], vec![4.0, 1.0]);
    let world = SharedWorld { gateways: 2, engines: 2, classes, weights, streams, seed: 3 };
    let records = world.run(true);
    for (from, to) in [(15, 50), (50, 70), (70, 100)] {
        let shares = shares(&records, from, to, 2);
        assert!((shares[0] - 0.8).abs() < 0.04 && jain(&shares, &world.weights) > 0.97, "{from}: {shares:?}");
    }
    let [one, two] = [world.at_one_gateway(), records].map(|records| work(&records, 15, 100, |_| true));
    assert!(two > 0.97 * one, "{two} of {one}");
}

#[test]
fn weights_hold_between_four_and_sixteen_gateways() {
    let busy = |tenant: u32| stream(tenant, tenant as u8, 33.0, (0, 60));
    let (classes, weights) = (vec![class(0, 2_000)], vec![4.0, 3.0, 2.0, 1.0]);
    let streams = (0..4).map(busy).collect();
    let world = SharedWorld { gateways: 4, engines: 4, classes, weights, streams, seed: 4 };
    let four = shares(&world.run(true), 20, 60, 4);
    assert!(jain(&four, &world.weights) > 0.97, "{four:?}");

    let mut streams = vec![stream(0, 0, 50.0, (0, 60))];
    streams.extend((0..16).map(|gateway| stream(1, gateway, 6.0, (0, 60))));
    let world = SharedWorld { gateways: 16, streams, weights: vec![4.0, 1.0], ..world };
    let sixteen = shares(&world.run(true), 30, 60, 2);
    assert!((sixteen[0] - 0.8).abs() < 0.08, "{sixteen:?}");
}

/// A trickle of chats at one gateway, and more batch work at the other than the engines can do.
#[test]
fn chats_at_one_gateway_do_not_wait_for_batch_work_of_another() {
    let streams = vec![stream(0, 0, 10.0, (0, 60)), stream(1, 1, 50.0, (0, 60))];
    let (classes, weights) = (vec![class(0, 500), class(1, 10_000)], vec![1.0, 1.0]);
    let world = SharedWorld { gateways: 2, engines: 2, classes, weights, streams, seed: 6 };
    let [alone, together] = [false, true].map(|is_shared| ttft(&world.run(is_shared), 0, 20, 0.9));
    let best = ttft(&world.at_one_gateway(), 0, 20, 0.9);
    let told = format!("{alone:?} {together:?} {best:?}");
    assert!(alone > Duration::from_secs(5) && together < Duration::from_millis(300), "{told}");
}

#[test]
fn at_seven_tenths_of_the_load_four_gateways_serve_as_one() {
    let streams = (0..4).map(|gateway| stream(0, gateway, 11.0, (0, 60))).collect();
    let (classes, weights) = (vec![class(0, 1_000)], vec![1.0]);
    let world = SharedWorld { gateways: 4, engines: 4, classes, weights, streams, seed: 7 };
    let [four, one] = [world.run(true), world.at_one_gateway()].map(|records| ttft(&records, 0, 10, 0.99));
    assert!(four.as_secs_f64() < 1.1 * one.as_secs_f64(), "{four:?} {one:?}");
}
