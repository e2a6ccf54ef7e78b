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

mod seat;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::time::Tick;

use super::outlook::{Number, Outlook};

use self::seat::{Seat, Word};

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
pub struct Name {
    /// When it started, in milliseconds since 1970.
    pub epoch: u64,
    /// A random number.
    pub id: u64,
}

/// What a gateway says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Who says it.
    pub from: Name,
    /// Counts its reports.
    pub sequence: u64,
    /// It takes nothing new.
    pub draining: bool,
    /// It is gone after this.
    pub leaving: bool,
    /// It hears too few others to decide.
    pub blind: bool,
    /// What it sees.
    pub outlook: Outlook,
    /// What it decided, or repeats.
    pub decision: Option<Decision>,
}

impl Report {
    /// Whether somebody waits for what it says beyond the one before.
    #[must_use]
    pub fn is_news_after(&self, before: &Self) -> bool {
        let told = |report: &Self| report.decision.as_ref().map(|told| (told.by, told.numbers.clone()));
        let state = |report: &Self| (report.from, report.draining, report.leaving, report.blind);
        let busy: BTreeSet<&str> = before.outlook.busy().collect();
        state(before) != state(self)
            || self.outlook.busy().any(|pool| !busy.contains(pool))
            || told(before) != told(self)
    }
}

/// Numbers of pools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Who decided.
    pub by: Name,
    /// How long ago.
    pub age: Duration,
    /// By pool.
    pub numbers: BTreeMap<String, Number>,
}

/// What came of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
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
pub enum Role {
    /// This gateway, going on from what was decided before, where another one
    /// decided that.
    Decides(Option<Decision>),
    /// Another one, and this is its word.
    Follows(Decision),
    /// Another one, whose word is not here yet.
    Waits,
    /// Nobody who can be heard, and too few can.
    Blind,
}

/// How it stands with the others at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Sight {
    /// The sum of what they see.
    pub others: Outlook,
    /// Who decides.
    pub role: Role,
    /// By name, if anybody.
    pub decider: Option<Name>,
    /// How many there are.
    pub count: Count,
    /// Whether this gateway hears too few of them to decide.
    pub blind: bool,
}

/// Gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
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
pub struct Peers {
    me: Name,
    seats: BTreeMap<String, Seat>,
    listed: bool,
    /// The sum of all at the last look.
    last: Outlook,
    /// Those that were lost then, and what all came to before the last of them
    /// was.
    lost: BTreeSet<Name>,
    before: Outlook,
}

impl Peers {
    /// Nobody is known yet beside `me`.
    #[must_use]
    pub fn new(me: Name) -> Self {
        Self {
            me,
            seats: BTreeMap::new(),
            listed: false,
            last: Outlook::default(),
            lost: BTreeSet::new(),
            before: Outlook::default(),
        }
    }

    /// There should be gateways at these places, of which [`MOST`] count; this one
    /// may be among them. At the first list, who was not heard yet is missed at
    /// once; later there is time to come up.
    pub fn list(&mut self, places: &BTreeSet<String>, now: Tick) {
        let first = !std::mem::replace(&mut self.listed, true);
        for (place, seat) in &mut self.seats {
            seat.listed = places.contains(place);
        }
        self.seats.retain(|_, seat| seat.listed || seat.counts(now));
        for place in places.iter().take(MOST) {
            let since = (!first).then_some(now);
            let seat = self.seats.entry(place.clone()).or_insert_with(|| Seat::new(since));
            seat.listed = true;
        }
    }

    /// Whether somebody should be, or may still be, at the place.
    #[must_use]
    pub fn expects(&self, place: &str) -> bool {
        self.seats.get(place).is_some_and(|seat| seat.listed)
    }

    /// Takes note of what was heard from a place.
    pub fn heard(&mut self, place: &str, report: Report, now: Tick) -> Heard {
        let Some(seat) = self.seats.get_mut(place) else { return Heard::Old };
        if report.from == self.me {
            seat.be_own();
            return Heard::Myself;
        }
        seat.hear(report, now)
    }

    /// How it stands, where this gateway sees `own`; `draining` when it takes
    /// nothing new.
    pub fn look(&mut self, own: &Outlook, draining: bool, now: Tick) -> Sight {
        self.seats.retain(|_, seat| seat.listed || seat.counts(now));
        let words = self.words();
        let is_live = |word: &Word| word.age(now) < LIVE;
        let is_lost = |word: &Word| !is_live(word) && word.age(now) <= REPLAY;
        let count = self.count(&words, now);
        let blind = !self.listed || count.silent * ONE_OF > count.known;
        let role = self.role(&words, blind, draining, now);
        let decider = match &role {
            Role::Decides(_) => Some(self.me),
            Role::Follows(decision) => Some(decision.by),
            Role::Waits | Role::Blind => None,
        };
        let sum = |counts: &dyn Fn(&Word) -> bool| {
            let mut sum = Outlook::default();
            words.values().filter(|word| counts(word)).for_each(|word| sum.add(&word.report.outlook));
            sum
        };
        let lost: BTreeSet<Name> =
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
        Sight { others, role, decider, count, blind }
    }

    fn bridge(&mut self, live: &Outlook, lost: &Outlook, names: &BTreeSet<Name>) -> Outlook {
        if names.iter().any(|name| !self.lost.contains(name)) {
            self.before.clone_from(&self.last);
        }
        Outlook::bridged(live, lost, &self.before)
    }

    /// The last word of each that has not said goodbye, by whatever place it came.
    fn words(&self) -> BTreeMap<Name, Word> {
        let mut words: BTreeMap<Name, Word> = BTreeMap::new();
        for word in self.seats.values().filter_map(Seat::word) {
            let last = words.entry(word.report.from).or_insert_with(|| word.clone());
            if word.report.sequence > last.report.sequence {
                last.clone_from(word);
            }
        }
        words
    }

    fn count(&self, words: &BTreeMap<Name, Word>, now: Tick) -> Count {
        let listed = || self.seats.values().filter(|seat| seat.listed);
        let heard: BTreeSet<Name> = listed().filter_map(Seat::word).map(|word| word.report.from).collect();
        let young =
            |name: &&Name, limit: Duration| words.get(name).is_some_and(|word| word.age(now) <= limit);
        let never = listed().filter(|seat| seat.was_never_heard());
        let (late, coming): (Vec<&Seat>, Vec<&Seat>) = never.partition(|seat| seat.is_late(now));
        let known = heard.iter().filter(|name| young(name, MISSED)).count();
        let silent = heard.iter().filter(|name| young(name, MISSED) && !young(name, SILENT)).count();
        let live = words.values().filter(|word| word.age(now) < LIVE).count();
        let replayed = words.values().filter(|word| word.age(now) <= REPLAY).count() - live;
        Count { known: 1 + known + late.len() + coming.len(), live, replayed, silent: silent + late.len() }
    }

    fn role(&self, words: &BTreeMap<Name, Word>, blind: bool, draining: bool, now: Tick) -> Role {
        let live = || words.values().filter(|word| word.age(now) < LIVE);
        let drains = |name: &Name| words.get(name).is_some_and(|word| word.report.draining);
        let stays = !(draining || blind) || live().any(|word| !word.report.draining && !word.report.blind);
        let may = |draining: bool| !draining || !stays;
        let others = live().filter(|word| !word.report.blind && may(word.report.draining));
        let others = others.map(|word| word.report.from);
        let me = Some(self.me).filter(|_| !blind && may(draining));
        let eldest = others.chain(me).min();
        let gone = |name: &Name| self.seats.values().any(|seat| seat.has_left(*name));
        let fresh = live().filter_map(|word| word.decision(now));
        let fresh = fresh.filter(|decision| decision.by != self.me && decision.age < LIVE);
        let fresh = fresh.filter(|decision| !gone(&decision.by) && (!stays || !drains(&decision.by)));
        let told = fresh.min_by_key(|decision| (decision.by, decision.age));
        match (told, eldest == me) {
            (Some(told), true) if me.is_some_and(|me| told.by > me) => Role::Decides(Some(told)),
            (Some(told), _) => Role::Follows(told),
            (None, true) if me.is_some() => Role::Decides(None),
            (None, _) if blind => Role::Blind,
            (None, _) => Role::Waits,
        }
    }
}

#[cfg(test)]
mod tests;
