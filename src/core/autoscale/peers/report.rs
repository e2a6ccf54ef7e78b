//! Peer report: what one gateway tells the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::autoscale::demand_report::{DecidedNumber, DemandReport};

/// Age up to which a report makes its sender live, and a decision holds.
pub const LIVE: Duration = Duration::from_secs(5);

/// Age up to which the last report of a silent gateway counts.
pub const REPLAY: Duration = Duration::from_secs(30);

/// Time without a report after which a gateway counts as silent.
pub const SILENT: Duration = Duration::from_secs(10);

/// Gateway process. The eldest gateway is the least value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GatewayId {
    /// Start time, in milliseconds since 1970.
    pub epoch: u64,
    /// Random number.
    pub id: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct PeerReport {
    /// Sender.
    pub from: GatewayId,
    /// Sequence number of the sender's reports.
    pub sequence: u64,
    /// True when the sender takes no new requests.
    pub draining: bool,
    /// True when the sender exits after this report.
    pub leaving: bool,
    /// True when the sender hears too few gateways to decide.
    pub blind: bool,
    /// Demand as the sender sees it.
    pub demand: DemandReport,
    /// Decision that the sender made or repeats.
    pub decision: Option<ScaleDecision>,
}

impl PeerReport {
    /// Whether the report changes something that another gateway may wait for: the sender's state,
    /// a pool that became busy, or the decided numbers.
    pub fn is_urgent_after(&self, before: &Self) -> bool {
        let told = |report: &Self| report.decision.as_ref().map(|told| (told.by, told.numbers.clone()));
        let state = |report: &Self| (report.from, report.draining, report.leaving, report.blind);
        let busy: BTreeSet<&str> = before.demand.busy().collect();
        state(before) != state(self)
            || self.demand.busy().any(|pool| !busy.contains(pool))
            || told(before) != told(self)
    }
}

/// Decided numbers of replicas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScaleDecision {
    /// The decider.
    pub by: GatewayId,
    pub age: Duration,
    /// By pool name.
    pub numbers: BTreeMap<String, DecidedNumber>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportOutcome {
    /// The peer slot is this gateway itself.
    Own,
    /// A newer report is known, or no slot has this name.
    Stale,
    /// The report was stored, and nothing in it is urgent.
    Stored,
    /// The report was stored, and another gateway may wait for what it changes.
    Urgent,
}
