//! Demand source: the figures of the scale signal, asked of the dispatcher.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::config::settings::Settings;
use crate::core::autoscale::demand_report::{DemandReport, PeerDemand};
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::dispatcher::Dispatcher;

/// The dispatcher of this gateway, with the names of its pools.
#[derive(Debug)]
pub struct DemandSource {
    dispatcher: Arc<Dispatcher>,
    settings: Arc<ArcSwap<Settings>>,
}

impl DemandSource {
    /// Asks `dispatcher`, and names pools by `settings`.
    pub const fn new(dispatcher: Arc<Dispatcher>, settings: Arc<ArcSwap<Settings>>) -> Self {
        Self { dispatcher, settings }
    }

    /// The demand of each pool now, by the demand that this gateway sees.
    pub(super) fn demands(&self) -> Vec<(String, ReplicaDemand)> {
        self.named(self.dispatcher.replica_demand())
    }

    /// The demand of each pool now, by the demand that all gateways see.
    pub(super) fn demands_with(&self, others: &PeerDemand) -> Vec<(String, ReplicaDemand)> {
        self.named(self.dispatcher.replica_demand_with(others))
    }

    /// The demand that this gateway sees, for its peers.
    pub(super) fn report(&self) -> DemandReport {
        self.dispatcher.demand_report()
    }

    /// Whether this gateway takes no new requests.
    pub(super) fn is_draining(&self) -> bool {
        self.dispatcher.shutdown().is_draining()
    }

    /// Starts to wait: arrivals from now on end [`Self::arrival`].
    pub(super) fn expect_arrival(&self) {
        self.dispatcher.expect_arrival();
    }

    /// Waits for the next arrival after [`Self::expect_arrival`].
    pub(super) async fn arrival(&self) {
        self.dispatcher.next_arrival().await;
    }

    fn named(&self, demands: Vec<ReplicaDemand>) -> Vec<(String, ReplicaDemand)> {
        let policy = &self.settings.load().policy;
        let known = demands.into_iter().filter(|demand| policy.pools.get(demand.pool).is_some());
        known.map(|demand| (policy.pools.name(demand.pool).to_owned(), demand)).collect()
    }
}
