//! Several gateways, one number: who is there, who decides, and what counts of
//! those that are lost.
//!
//! * Each gateway tells the others what it sees of the demand. A report younger
//!   than five seconds is *live*.
//! * The eldest live gateway that hears enough of the others *decides* by the sum
//!   of all; the others repeat its number while that is younger than five seconds,
//!   by whatever way it came to them. A newcomer never decides against those who
//!   know more.
//! * What a gateway last said counts for up to 30 seconds after it fell silent, as
//!   far as the others have not taken it over; one that says goodbye is gone at
//!   once.
//! * When more than a third of the known gateways have been silent for ten
//!   seconds, nothing is known: to hold is better than to guess.

mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::model::time::Tick;

use crate::core::autoscale::demand_report::{DecidedNumber, DemandReport};

use crate::core::autoscale::peers::slot::{LastReport, PeerSlot};

/// How long a report makes its sender live, and a decision holds.
pub const LIVE: Duration = Duration::from_secs(5);
/// How long what a silent gateway last said counts.
pub const REPLAY: Duration = Duration::from_secs(30);
/// How long a gateway may be silent before it is missed.
pub const SILENT: Duration = Duration::from_secs(10);
/// How long it is missed: by then who took over its work has seen all of it.
pub const MISSED: Duration = Duration::from_secs(300);
/// Of so many gateways one may be missing.
const ONE_OF: usize = 3;
/// Gateways beside this one.
pub const MOST: usize = 64;

/// A process; the eldest is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GatewayId {
    /// When it started, in milliseconds since 1970.
    pub epoch: u64,
    /// A random number.
    pub id: u64,
}

/// What a gateway says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PeerReport {
    /// Who says it.
    pub from: GatewayId,
    /// Counts its reports.
    pub sequence: u64,
    /// It takes nothing new.
    pub draining: bool,
    /// It is gone after this.
    pub leaving: bool,
    /// It hears too few others to decide.
    pub blind: bool,
    /// What it sees.
    pub demand: DemandReport,
    /// What it decided, or repeats.
    pub decision: Option<ScaleDecision>,
}

impl PeerReport {
    /// Whether somebody waits for what it says beyond the one before.
    #[must_use]
    pub fn is_news_after(&self, before: &Self) -> bool {
        let told = |report: &Self| report.decision.as_ref().map(|told| (told.by, told.numbers.clone()));
        let state = |report: &Self| (report.from, report.draining, report.leaving, report.blind);
        let busy: BTreeSet<&str> = before.demand.busy().collect();
        state(before) != state(self)
            || self.demand.busy().any(|pool| !busy.contains(pool))
            || told(before) != told(self)
    }
}

/// Numbers of pools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScaleDecision {
    /// Who decided.
    pub by: GatewayId,
    /// How long ago.
    pub age: Duration,
    /// By pool.
    pub numbers: BTreeMap<String, DecidedNumber>,
}

/// What came of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportOutcome {
    /// The place is where we are ourselves.
    Myself,
    /// What is known is newer.
    Old,
    /// It was taken note of, and changes nothing that cannot wait.
    Usual,
    /// It was taken note of, and somebody may want to know at once.
    News,
}

/// Who decides.
#[derive(Debug, Clone, PartialEq)]
pub enum PeerRole {
    /// This gateway, going on from what was decided before, where another one
    /// decided that.
    Decides(Option<ScaleDecision>),
    /// Another one, and this is its word.
    Follows(ScaleDecision),
    /// Another one, whose word is not here yet.
    Waits,
    /// Nobody who can be heard, and too few can.
    Blind,
}

/// How it stands with the others at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerView {
    /// The sum of what they see.
    pub others: DemandReport,
    /// Who decides.
    pub role: PeerRole,
    /// By name, if anybody.
    pub decider: Option<GatewayId>,
    /// How many there are.
    pub count: PeerCount,
    /// Whether this gateway hears too few of them to decide.
    pub blind: bool,
}

/// Gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerCount {
    /// That there should be, this one included.
    pub known: usize,
    /// Other ones with a young report.
    pub live: usize,
    /// Other ones whose last report still counts.
    pub replayed: usize,
    /// Other ones that should be there and say nothing.
    pub silent: usize,
}

/// All gateways that this one knows of.
#[derive(Debug, Clone)]
pub struct PeerGroup {
    me: GatewayId,
    slots: BTreeMap<String, PeerSlot>,
    listed: bool,
    /// The sum of all at the last look.
    last: DemandReport,
    /// Those that were lost then, and what all came to before the last of them
    /// was.
    lost: BTreeSet<GatewayId>,
    before: DemandReport,
}

impl PeerGroup {
    /// Nobody is known yet beside `me`.
    #[must_use]
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

    /// There should be gateways at these places, of which [`MOST`] count; this one
    /// may be among them. At the first list, who was not heard yet is missed at
    /// once; later there is time to come up.
    pub fn list(&mut self, places: &BTreeSet<String>, now: Tick) {
        let first = !std::mem::replace(&mut self.listed, true);
        for (place, slot) in &mut self.slots {
            slot.listed = places.contains(place);
        }
        self.slots.retain(|_, slot| slot.listed || slot.counts(now));
        for place in places.iter().take(MOST) {
            let since = (!first).then_some(now);
            let slot = self.slots.entry(place.clone()).or_insert_with(|| PeerSlot::new(since));
            slot.listed = true;
        }
    }

    /// Whether somebody should be, or may still be, at the place.
    #[must_use]
    pub fn expects(&self, place: &str) -> bool {
        self.slots.get(place).is_some_and(|slot| slot.listed)
    }

    /// Takes note of what was heard from a place.
    pub fn heard(&mut self, place: &str, report: PeerReport, now: Tick) -> ReportOutcome {
        let Some(slot) = self.slots.get_mut(place) else { return ReportOutcome::Old };
        if report.from == self.me {
            slot.be_own();
            return ReportOutcome::Myself;
        }
        slot.hear(report, now)
    }

    /// How it stands, where this gateway sees `own`; `draining` when it takes
    /// nothing new.
    pub fn look(&mut self, own: &DemandReport, draining: bool, now: Tick) -> PeerView {
        self.slots.retain(|_, slot| slot.listed || slot.counts(now));
        let words = self.reports();
        let is_live = |word: &LastReport| word.age(now) < LIVE;
        let is_lost = |word: &LastReport| !is_live(word) && word.age(now) <= REPLAY;
        let count = self.count(&words, now);
        let blind = !self.listed || count.silent * ONE_OF > count.known;
        let role = self.role(&words, blind, draining, now);
        let decider = match &role {
            PeerRole::Decides(_) => Some(self.me),
            PeerRole::Follows(decision) => Some(decision.by),
            PeerRole::Waits | PeerRole::Blind => None,
        };
        let sum = |counts: &dyn Fn(&LastReport) -> bool| {
            let mut sum = DemandReport::default();
            words.values().filter(|word| counts(word)).for_each(|word| sum.add(&word.report.demand));
            sum
        };
        let lost: BTreeSet<GatewayId> =
            words.iter().filter(|(_, word)| is_lost(word)).map(|(name, _)| *name).collect();
        let mut others = sum(&is_live);
        let mut all = others.clone();
        all.add(own);
        if !lost.is_empty() {
            all = self.bridge(&all, &sum(&is_lost), &lost);
            others.clone_from(&all);
            others.remove(own);
        }
        (self.last, self.lost) = (all, lost);
        PeerView { others, role, decider, count, blind }
    }

    fn bridge(
        &mut self,
        live: &DemandReport,
        lost: &DemandReport,
        names: &BTreeSet<GatewayId>,
    ) -> DemandReport {
        if names.iter().any(|name| !self.lost.contains(name)) {
            self.before.clone_from(&self.last);
        }
        DemandReport::bridged(live, lost, &self.before)
    }

    /// The last word of each that has not said goodbye, by whatever place it came.
    fn reports(&self) -> BTreeMap<GatewayId, LastReport> {
        let mut words: BTreeMap<GatewayId, LastReport> = BTreeMap::new();
        for word in self.slots.values().filter_map(PeerSlot::report) {
            let last = words.entry(word.report.from).or_insert_with(|| word.clone());
            if word.report.sequence > last.report.sequence {
                last.clone_from(word);
            }
        }
        words
    }

    fn count(&self, words: &BTreeMap<GatewayId, LastReport>, now: Tick) -> PeerCount {
        let listed = || self.slots.values().filter(|slot| slot.listed);
        let heard: BTreeSet<GatewayId> =
            listed().filter_map(PeerSlot::report).map(|word| word.report.from).collect();
        let young =
            |name: &&GatewayId, limit: Duration| words.get(name).is_some_and(|word| word.age(now) <= limit);
        let never = listed().filter(|slot| slot.was_never_heard());
        let (late, coming): (Vec<&PeerSlot>, Vec<&PeerSlot>) = never.partition(|slot| slot.is_late(now));
        let known = heard.iter().filter(|name| young(name, MISSED)).count();
        let silent = heard.iter().filter(|name| young(name, MISSED) && !young(name, SILENT)).count();
        let live = words.values().filter(|word| word.age(now) < LIVE).count();
        let replayed = words.values().filter(|word| word.age(now) <= REPLAY).count() - live;
        PeerCount {
            known: 1 + known + late.len() + coming.len(),
            live,
            replayed,
            silent: silent + late.len(),
        }
    }

    fn role(
        &self,
        words: &BTreeMap<GatewayId, LastReport>,
        blind: bool,
        draining: bool,
        now: Tick,
    ) -> PeerRole {
        let live = || words.values().filter(|word| word.age(now) < LIVE);
        let drains = |name: &GatewayId| words.get(name).is_some_and(|word| word.report.draining);
        let stays = !(draining || blind) || live().any(|word| !word.report.draining && !word.report.blind);
        let may = |draining: bool| !draining || !stays;
        let others = live().filter(|word| !word.report.blind && may(word.report.draining));
        let others = others.map(|word| word.report.from);
        let me = Some(self.me).filter(|_| !blind && may(draining));
        let eldest = others.chain(me).min();
        let gone = |name: &GatewayId| self.slots.values().any(|slot| slot.has_left(*name));
        let fresh = live().filter_map(|word| word.decision(now));
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
