//! Gateways that share engines and tell each other their loads and what their tenants got, as through a store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::world::gateway::SimGateway;
use crate::world::router::{Input, Router, RouterCommand};
use penstock_core::model::event::Event;
use penstock_core::model::time::Tick;
use penstock_core::queue::fairness::gateways::load::GatewayLoad;
use penstock_core::queue::fairness::service::ServiceReport;

/// What the store has of a gateway.
#[derive(Debug, Default)]
struct StoredGateway {
    load: GatewayLoad,
    /// Work at the other gateways that it has not heard of.
    unheard: Vec<ServiceReport>,
}

/// What the gateways have told.
type Store = Arc<Mutex<Vec<StoredGateway>>>;

/// A gateway that tells and hears in turns.
#[derive(Debug)]
struct SharingGateway {
    gateway: SimGateway,
    number: usize,
    store: Store,
    /// Time between two turns.
    every: Duration,
    next: Tick,
}

/// Gateways that exchange what they have every so often, each at another moment.
pub fn sharing(gateways: Vec<SimGateway>, every: Duration) -> Vec<Box<dyn Router>> {
    let count = gateways.len();
    let store: Store = Arc::new(Mutex::new((0..count).map(|_| StoredGateway::default()).collect()));
    let routers = gateways.into_iter().enumerate().map(|(number, mut gateway)| {
        gateway.scheduler_mut().record_service();
        let next = Tick::ZERO + every * number as u32 / count.max(1) as u32;
        Box::new(SharingGateway { gateway, number, store: Arc::clone(&store), every, next })
            as Box<dyn Router>
    });
    routers.collect()
}

impl SharingGateway {
    /// Tells what it has, and takes what the others have told.
    fn exchange(&mut self) -> (Vec<ServiceReport>, BTreeMap<String, GatewayLoad>) {
        let scheduler = self.gateway.scheduler_mut();
        let (reports, load) = (scheduler.take_service_reports(usize::MAX), scheduler.gateway_load());
        let mut store = self.store.lock();
        store[self.number].load = load;
        let mut loads = BTreeMap::new();
        for (number, other) in store.iter_mut().enumerate().filter(|(number, _)| *number != self.number) {
            other.unheard.extend(&reports);
            loads.insert(number.to_string(), other.load.clone());
        }
        (std::mem::take(&mut store[self.number].unheard), loads)
    }
}

impl Router for SharingGateway {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        self.gateway.handle(now, input, out);
        if now < self.next {
            return;
        }
        self.next = now + self.every;
        let (reports, loads) = self.exchange();
        if !reports.is_empty() {
            self.gateway.step(now, Event::ServedElsewhere(reports), out);
        }
        self.gateway.step(now, Event::LoadElsewhere(loads), out);
    }

    fn next_wake(&self) -> Option<Tick> {
        self.gateway.next_wake().into_iter().chain([self.next]).min()
    }

    fn broken_invariants(&self) -> u64 {
        self.gateway.broken_invariants()
    }
}
