//! Peer exchange: the demand reports that this gateway sends and hears.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::settings::scale::PeerAddress;
use crate::core::autoscale::demand_report::{DecidedNumber, DemandReport, PeerDemand};
use crate::core::autoscale::peers::{
    GatewayId, MISSED, PeerCount, PeerGroup, PeerReport, PeerRole, PeerView, ReportOutcome, ScaleDecision,
};
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::time::Tick;
use crate::protocol::ids::random;
use crate::scaler::peers::members::StoreMembers;
use crate::scaler::peers::wire;
use crate::scaler::source::DemandSource;
use crate::telemetry::event::{DeciderChanged, PeersSeen};
use crate::telemetry::{Telemetry, wall};

/// Time between two reports when nothing has changed that peers wait for.
pub(in crate::scaler) const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Time of the core at the start: more than the age of any report that counts.
const HEAD_START: Duration = MISSED.saturating_mul(2);

/// State of the peer exchange at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scaler) struct PeerState {
    pub(in crate::scaler) me: GatewayId,
    /// The gateway that decides, if there is one.
    pub(in crate::scaler) decider: Option<GatewayId>,
    /// Number of peers, by state.
    pub(in crate::scaler) count: PeerCount,
    /// Whether too few peers are heard to know the demand of all gateways.
    pub(in crate::scaler) is_isolated: bool,
    /// Whether the store carries the reports and has not answered for long enough.
    pub(in crate::scaler) lacks_store: bool,
}

pub(in crate::scaler) struct PeerExchange {
    pub(super) me: GatewayId,
    origin: Instant,
    peers: Mutex<PeerGroup>,
    /// Notified when a report has news, or the listed places change.
    news: Notify,
    pub(super) report: watch::Sender<Arc<wire::Report>>,
    last: Mutex<LastSent>,
    /// Reports that come through the store; absent = over connections between the gateways.
    pub(super) store: Option<Mutex<StoreMembers>>,
    /// Whether a report was too large for the store.
    pub(super) has_too_large: AtomicBool,
    pub(super) telemetry: Telemetry,
}

/// The last report sent, and the last decider seen.
#[derive(Default)]
pub(in crate::scaler) struct LastSent {
    report: Option<TimedReport>,
    decider: Option<GatewayId>,
}

/// A report, and when it was sent.
struct TimedReport {
    at: Instant,
    report: PeerReport,
}

impl fmt::Debug for PeerExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerExchange").field("me", &self.me).finish_non_exhaustive()
    }
}

impl PeerExchange {
    /// The exchange of a gateway that starts now, through the store or over connections.
    pub(in crate::scaler) fn new(telemetry: Telemetry, has_store: bool) -> Arc<Self> {
        let since = wall::unix_seconds(wall::now());
        let me = GatewayId { epoch: (since * 1e3) as u64, id: u64::from_le_bytes(random::bytes()) };
        Arc::new(Self {
            me,
            origin: Instant::now(),
            peers: Mutex::new(PeerGroup::new(me)),
            news: Notify::new(),
            report: watch::Sender::new(Arc::default()),
            last: Mutex::default(),
            store: has_store.then(Mutex::default),
            has_too_large: AtomicBool::new(false),
            telemetry,
        })
    }

    /// The core's time. It begins later than zero, because the store has reports from before the start.
    fn tick(&self, at: Instant) -> Tick {
        Tick::ZERO + HEAD_START + at.saturating_duration_since(self.origin)
    }

    /// Whether the store carries the reports.
    pub(in crate::scaler) const fn has_store(&self) -> bool {
        self.store.is_some()
    }

    /// Replica demand of every pool by the demand that all gateways see, and the state of the
    /// exchange. Sends a report to the peers when one is due.
    pub(in crate::scaler) fn refresh(
        &self,
        source: &DemandSource,
        now: Instant,
    ) -> (Vec<(String, ReplicaDemand)>, PeerState) {
        let (draining, demand) = (source.is_draining(), source.report());
        let lacks_store = self.store.as_ref().is_some_and(|store| !store.lock().is_settled(now));
        let mut peers = self.peers.lock();
        if lacks_store {
            peers.mark_incomplete();
        }
        let PeerView { others, role, count, decider, blind } =
            peers.update(&demand, draining, self.tick(now));
        drop(peers);
        let follow = matches!(role, PeerRole::Follows(_));
        let decided = match &role {
            PeerRole::Follows(told) | PeerRole::Decides(Some(told)) => told.numbers.clone(),
            PeerRole::Decides(None) | PeerRole::Waits | PeerRole::Blind => BTreeMap::new(),
        };
        let mut needs = source.demands_with(&PeerDemand { sum: others, expected: true, decided, follow });
        let unknown = role == PeerRole::Blind;
        if unknown {
            needs.iter_mut().for_each(|(_, need)| need.desired = None);
        }
        let decision = match role {
            PeerRole::Decides(_) => {
                Some(ScaleDecision { by: self.me, age: Duration::ZERO, numbers: numbers(&needs) })
            }
            PeerRole::Follows(told) => Some(told),
            PeerRole::Waits | PeerRole::Blind => None,
        };
        let report =
            PeerReport { from: self.me, sequence: 0, draining, leaving: false, blind, demand, decision };
        self.publish(report, now);
        PeersSeen { live: count.live, replayed: count.replayed, silent: count.silent }.emit(&self.telemetry);
        self.note_decider(decider);
        (needs, PeerState { me: self.me, decider, count, is_isolated: unknown, lacks_store })
    }

    fn note_decider(&self, decider: Option<GatewayId>) {
        let before = std::mem::replace(&mut self.last.lock().decider, decider);
        if before != decider {
            let id = decider.map(shown);
            let own = decider == Some(self.me);
            DeciderChanged { id: id.as_deref(), own }.emit(&self.telemetry);
        }
    }

    /// Sends a report when [`REPORT_INTERVAL`] has passed or the report has news for the peers. After the
    /// last one nothing is sent.
    fn publish(&self, mut report: PeerReport, now: Instant) {
        let mut last = self.last.lock();
        if let Some(TimedReport { at, report: before }) = &last.report {
            let due = now.saturating_duration_since(*at) >= REPORT_INTERVAL || report.is_urgent_after(before);
            if before.leaving || !due {
                return;
            }
            report.sequence = before.sequence;
        }
        report.sequence += 1;
        self.report.send_replace(Arc::new(wire::encode(&report)));
        last.report = Some(TimedReport { at: now, report });
    }

    /// Sends the last report, with which peers drop those of this gateway. It has no demand: however large that is, the
    /// store takes the report.
    pub(in crate::scaler) fn leave(&self) {
        let said = self.last.lock().report.as_ref().map(|last| last.report.clone());
        let report = said.unwrap_or_else(|| PeerReport { from: self.me, ..PeerReport::default() });
        self.publish(
            PeerReport { leaving: true, decision: None, demand: DemandReport::default(), ..report },
            Instant::now(),
        );
    }

    pub(super) fn receive(&self, place: &str, report: PeerReport) -> ReportOutcome {
        let heard = self.accept_report(place, report, Instant::now(), Duration::ZERO);
        if heard == ReportOutcome::Urgent {
            self.announce_news();
        }
        heard
    }

    /// Takes over a report of this age.
    pub(super) fn accept_report(
        &self,
        place: &str,
        report: PeerReport,
        now: Instant,
        age: Duration,
    ) -> ReportOutcome {
        self.peers.lock().store_report(place, report, self.tick(now).earlier_by(age))
    }

    /// Sets the gateways that the store knows of; more may exist unless they are `complete`. Returns
    /// whether one is new.
    pub(super) fn list_stored(&self, ids: &BTreeSet<String>, complete: bool, now: Instant) -> bool {
        let mut peers = self.peers.lock();
        let has_new = ids.iter().any(|id| !peers.is_listed(id));
        peers.list(ids, self.tick(now));
        if !complete {
            peers.mark_incomplete();
        }
        has_new
    }

    /// Drops a gateway that has left or was replaced. Returns whether it was there.
    pub(super) fn remove_stored(&self, id: &str) -> bool {
        self.peers.lock().remove(id)
    }

    /// Notes that a gateway runs, whatever it reports.
    pub(super) fn note_running(&self, id: &str, now: Instant) {
        self.peers.lock().note_running(id, self.tick(now));
    }

    /// Has the numbers evaluated anew.
    pub(super) fn announce_news(&self) {
        self.news.notify_one();
    }

    pub(super) fn set_places(&self, places: &BTreeSet<PeerAddress>) {
        let names = places.iter().map(PeerAddress::to_string).collect();
        self.peers.lock().list(&names, self.tick(Instant::now()));
        self.news.notify_one();
    }

    pub(super) fn expects(&self, place: &str) -> bool {
        self.peers.lock().is_listed(place)
    }

    /// Waits for a report with news, or for a change of the listed places.
    pub(in crate::scaler) async fn next_news(&self) {
        self.news.notified().await;
    }
}

pub(in crate::scaler) fn numbers(needs: &[(String, ReplicaDemand)]) -> BTreeMap<String, DecidedNumber> {
    let number = |need: &ReplicaDemand| {
        Some(DecidedNumber {
            desired: need.desired?,
            reason: need.reason.to_owned(),
            keep_above_zero: need.keep_above_zero,
        })
    };
    needs.iter().filter_map(|(name, need)| Some((name.clone(), number(need)?))).collect()
}

/// A gateway's id as shown to people: 16 hexadecimal digits.
pub(in crate::scaler) fn shown(name: GatewayId) -> String {
    format!("{:016x}", name.id)
}
