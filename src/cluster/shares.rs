//! Shares: what goes to the store and back besides limits and overrides.

use tokio::time::Instant;

use crate::cluster::demand::share::DemandShare;
use crate::cluster::load::share::LoadShare;
use crate::cluster::messages::share::MessageShare;
use crate::cluster::parts::ClusterParts;
use crate::cluster::service::share::ServiceShare;

/// Each has a script of its own, and a time at which it is told.
pub(super) struct ClusterShares {
    pub(super) demand: DemandShare,
    pub(super) service: ServiceShare,
    pub(super) load: LoadShare,
    pub(super) messages: MessageShare,
}

impl ClusterShares {
    pub(super) fn new() -> Self {
        Self {
            demand: DemandShare::new(),
            service: ServiceShare::new(),
            load: LoadShare::new(),
            messages: MessageShare::new(),
        }
    }

    /// Notes that the connection was lost.
    pub(super) fn start_over(&mut self, parts: &ClusterParts) {
        self.demand.start_over();
        self.service.start_over(&parts.dispatcher);
        self.load.start_over(&parts.dispatcher);
    }

    /// When the next call is due of what has a time of its own.
    pub(super) fn due(&self) -> Instant {
        self.load.due().min(self.messages.due())
    }
}
