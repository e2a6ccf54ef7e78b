//! Setup of a world.

use std::time::Duration;

use crate::world::arrival::Arrival;
use crate::world::autoscale::Scaling;
use crate::world::replica::ReplicaSetup;
use penstock_core::model::time::Tick;

/// Setup of a world.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    pub replicas: Vec<ReplicaSetup>,
    /// Arrivals in order of time.
    pub arrivals: Vec<Arrival>,
    /// Index of the router that gets each arrival; empty = all go to the first.
    pub gateways: Vec<u8>,
    /// Time between two scrapes of an engine; absent = none.
    pub scrape: Option<Duration>,
    /// Whether an engine plans its next step before a router hears of the last
    /// one, as over any network.
    pub late: bool,
    /// Time at which the world ends whatever is still open.
    pub horizon: Option<Duration>,
    /// Autoscaling; absent = all engines are there from the beginning.
    pub scaling: Option<Scaling>,
    /// Closed loop: number of clients. Each client sends the next arrival, in
    /// their order, when its last request has ended, and after a refusal when
    /// the refusal says. Absent = every arrival comes at its time.
    pub clients: Option<usize>,
    /// Time from which [`RunOutcome::tokens`](crate::world::run::RunOutcome::tokens) are counted.
    pub counted_from: Tick,
}
