//! Peers: the other gateways, the decider among them, and the demand of gateways that are lost.
//!
//! * Each gateway sends its demand report to the others. A report younger than five seconds
//!   makes its sender *live*.
//! * The eldest live gateway that hears enough of the others is the *decider* and uses the sum
//!   of all reports. The other gateways repeat its number while the number is younger than five
//!   seconds, by whatever way the number reached them. A newcomer never decides against
//!   gateways that know more.
//! * The last report of a silent gateway stays in force for up to 30 seconds. Demand that
//!   reappears at other gateways is subtracted from it. A gateway that announces its exit stops
//!   counting at once.
//! * When more than a third of the known gateways have been silent for ten seconds, the demand
//!   is unknown. Scalers then hold their numbers, which is better than a guess.

mod report;
mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::time::Tick;

use crate::autoscale::demand_report::DemandReport;

pub use self::report::{GatewayId, LIVE, PeerReport, REPLAY, ReportOutcome, SILENT, ScaleDecision};
use crate::autoscale::peers::slot::{LastReport, PeerSlot};

/// Time for which a silent gateway counts as known. By then, the gateways that took over its work
/// have seen all of it.
pub const MISSED: Duration = Duration::from_secs(300);
/// A gateway is blind when more than 1 / 3 of the known gateways are silent.
const BLIND_DIVISOR: usize = 3;
/// Most gateways beside this one.
pub const MAX_PEERS: usize = 64;

/// Role of this gateway among its peers.
#[derive(Debug, Clone, PartialEq)]
pub enum PeerRole {
    /// This gateway decides. It continues from the decision of another gateway, if there is one.
    Decides(Option<ScaleDecision>),
    /// Another gateway decides, with this decision.
    Follows(ScaleDecision),
    /// Another gateway decides, and its decision has not arrived yet.
    Waits,
    /// This gateway hears too few others to decide, and no decision of another one arrives.
    Blind,
}

/// View of the peers at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerView {
    /// Sum of the demand reports of the peers.
    pub others: DemandReport,
    pub role: PeerRole,
    /// The decider, if there is one.
    pub decider: Option<GatewayId>,
    pub count: PeerCount,
    /// True when this gateway hears too few peers to decide.
    pub blind: bool,
}

/// Number of gateways, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerCount {
    /// Gateways that should exist, this one included.
    pub known: usize,
    /// Peers with a live report.
    pub live: usize,
    /// Peers whose last report is no longer live and still counts.
    pub replayed: usize,
    /// Peers that should exist and are silent.
    pub silent: usize,
}

/// All gateways that this one knows of.
#[derive(Debug, Clone)]
pub struct PeerGroup {
    me: GatewayId,
    slots: BTreeMap<String, PeerSlot>,
    /// Whether it is known which gateways should exist.
    listed: bool,
    /// Sum of all demand at the last update.
    last: DemandReport,
    /// Gateways that were lost at the last update. `before` is the sum of all demand before the
    /// last of them was lost.
    lost: BTreeSet<GatewayId>,
    before: DemandReport,
}

impl PeerGroup {
    /// Creates a group of only this gateway.
    pub fn new(me: GatewayId) -> Self {
        Self {
            me,
            slots: BTreeMap::new(),
            listed: false,
            last: DemandReport::default(),
            lost: BTreeSet::new(),
            before: DemandReport::default(),
        }
    }

    /// Sets the peer slots at which gateways should exist, of which [`MAX_PEERS`] count; this gateway
    /// may be among them. At the first list, a gateway that was not heard yet is missing at once.
    /// Later gateways get time to start.
    pub fn list(&mut self, places: &BTreeSet<String>, now: Tick) {
        let first = !std::mem::replace(&mut self.listed, true);
        for (place, slot) in &mut self.slots {
            slot.listed = places.contains(place);
        }
        self.slots.retain(|_, slot| slot.listed || slot.counts(now));
        for place in places.iter().take(MAX_PEERS) {
            let since = (!first).then_some(now);
            let slot = self.slots.entry(place.clone()).or_insert_with(|| PeerSlot::new(since));
            slot.listed = true;
        }
    }

    /// Notes that the list may lack gateways. Until the next one this gateway is blind.
    pub fn mark_incomplete(&mut self) {
        self.listed = false;
    }

    /// Drops a slot with its report: its gateway has left, or another one has replaced it. Returns whether there was
    /// one.
    pub fn remove(&mut self, place: &str) -> bool {
        self.slots.remove(place).is_some()
    }

    /// Notes that the gateway of a slot runs: it is missed for as long as it is silent, not only for [`MISSED`].
    pub fn note_running(&mut self, place: &str, now: Tick) {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.drop_report_older_than(MISSED, now);
        }
    }

    /// Whether a gateway should exist at the slot.
    pub fn is_listed(&self, place: &str) -> bool {
        self.slots.get(place).is_some_and(|slot| slot.listed)
    }

    /// Stores a report that arrived for a slot.
    pub fn store_report(&mut self, place: &str, report: PeerReport, now: Tick) -> ReportOutcome {
        let Some(slot) = self.slots.get_mut(place) else { return ReportOutcome::Stale };
        if report.from == self.me {
            slot.mark_own();
            return ReportOutcome::Own;
        }
        slot.store_report(report, now)
    }

    /// Updates the view of the peers. `own` is the demand that this gateway sees; `draining` is
    /// true when this gateway takes no new requests.
    pub fn update(&mut self, own: &DemandReport, draining: bool, now: Tick) -> PeerView {
        self.slots.retain(|_, slot| slot.listed || slot.counts(now));
        let reports = self.reports();
        let is_live = |last: &LastReport| last.age(now) < LIVE;
        let is_lost = |last: &LastReport| !is_live(last) && last.age(now) <= REPLAY;
        let count = self.count(&reports, now);
        let blind = !self.listed || count.silent * BLIND_DIVISOR > count.known;
        let role = self.role(&reports, blind, draining, now);
        let decider = match &role {
            PeerRole::Decides(_) => Some(self.me),
            PeerRole::Follows(decision) => Some(decision.by),
            PeerRole::Waits | PeerRole::Blind => None,
        };
        let sum = |counts: &dyn Fn(&LastReport) -> bool| {
            let mut sum = DemandReport::default();
            reports.values().filter(|last| counts(last)).for_each(|last| sum.add(&last.report.demand));
            sum
        };
        let lost: BTreeSet<GatewayId> =
            reports.iter().filter(|(_, last)| is_lost(last)).map(|(name, _)| *name).collect();
        let mut others = sum(&is_live);
        let mut all = others.clone();
        all.add(own);
        if !lost.is_empty() {
            all = self.cover_lost_gateways(&all, &sum(&is_lost), &lost);
            others.clone_from(&all);
            others.remove(own);
        }
        (self.last, self.lost) = (all, lost);
        PeerView { others, role, decider, count, blind }
    }

    fn cover_lost_gateways(
        &mut self,
        live: &DemandReport,
        lost: &DemandReport,
        names: &BTreeSet<GatewayId>,
    ) -> DemandReport {
        if names.iter().any(|name| !self.lost.contains(name)) {
            self.before.clone_from(&self.last);
        }
        DemandReport::with_lost(live, lost, &self.before)
    }

    /// Newest report of each gateway that has not announced its exit, from whatever slot.
    fn reports(&self) -> BTreeMap<GatewayId, LastReport> {
        let mut reports: BTreeMap<GatewayId, LastReport> = BTreeMap::new();
        for last in self.slots.values().filter_map(PeerSlot::report) {
            let newest = reports.entry(last.report.from).or_insert_with(|| last.clone());
            if last.report.sequence > newest.report.sequence {
                newest.clone_from(last);
            }
        }
        reports
    }

    fn count(&self, reports: &BTreeMap<GatewayId, LastReport>, now: Tick) -> PeerCount {
        let listed = || self.slots.values().filter(|slot| slot.listed);
        let heard: BTreeSet<GatewayId> =
            listed().filter_map(PeerSlot::report).map(|last| last.report.from).collect();
        let young =
            |name: &&GatewayId, limit: Duration| reports.get(name).is_some_and(|last| last.age(now) <= limit);
        let never = listed().filter(|slot| slot.was_never_heard());
        let (late, coming): (Vec<&PeerSlot>, Vec<&PeerSlot>) = never.partition(|slot| slot.is_late(now));
        let known = heard.iter().filter(|name| young(name, MISSED)).count();
        let silent = heard.iter().filter(|name| young(name, MISSED) && !young(name, SILENT)).count();
        let live = reports.values().filter(|last| last.age(now) < LIVE).count();
        let replayed = reports.values().filter(|last| last.age(now) <= REPLAY).count() - live;
        PeerCount {
            known: 1 + known + late.len() + coming.len(),
            live,
            replayed,
            silent: silent + late.len(),
        }
    }

    fn role(
        &self,
        reports: &BTreeMap<GatewayId, LastReport>,
        blind: bool,
        draining: bool,
        now: Tick,
    ) -> PeerRole {
        let live = || reports.values().filter(|last| last.age(now) < LIVE);
        let drains = |name: &GatewayId| reports.get(name).is_some_and(|last| last.report.draining);
        let stays = !(draining || blind) || live().any(|last| !last.report.draining && !last.report.blind);
        let may = |draining: bool| !draining || !stays;
        let others = live().filter(|last| !last.report.blind && may(last.report.draining));
        let others = others.map(|last| last.report.from);
        let me = Some(self.me).filter(|_| !blind && may(draining));
        let eldest = others.chain(me).min();
        let gone = |name: &GatewayId| self.slots.values().any(|slot| slot.has_left(*name));
        let fresh = live().filter_map(|last| last.decision(now));
        let fresh = fresh.filter(|decision| decision.by != self.me && decision.age < LIVE);
        let fresh = fresh.filter(|decision| !gone(&decision.by) && (!stays || !drains(&decision.by)));
        let told = fresh.min_by_key(|decision| (decision.by, decision.age));
        match (told, eldest == me) {
            (Some(told), true) if me.is_some_and(|me| told.by > me) => PeerRole::Decides(Some(told)),
            (Some(told), _) => PeerRole::Follows(told),
            (None, true) if me.is_some() => PeerRole::Decides(None),
            (None, _) if blind => PeerRole::Blind,
            (None, _) => PeerRole::Waits,
        }
    }
}

#[cfg(test)]
mod tests;
