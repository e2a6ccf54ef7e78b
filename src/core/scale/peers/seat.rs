//! One place at which a gateway should be, and the last word from there.

use std::time::Duration;

use crate::core::time::Tick;

use super::{Decision, Heard, LIVE, Name, REPLAY, Report, SILENT};

/// What was heard last.
#[derive(Debug, Clone)]
pub(super) struct Word {
    pub(super) report: Report,
    at: Tick,
}

impl Word {
    pub(super) const fn age(&self, now: Tick) -> Duration {
        now.since(self.at)
    }

    /// The decision that it repeats, as old as that is now.
    pub(super) fn decision(&self, now: Tick) -> Option<Decision> {
        let decision = self.report.decision.clone()?;
        Some(Decision { age: decision.age.saturating_add(self.age(now)), ..decision })
    }
}

/// A place.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    /// Whether somebody should be there.
    pub(super) listed: bool,
    /// Since when; `None` = since the first list.
    since: Option<Tick>,
    last: Option<Word>,
    /// It is where this gateway is.
    own: bool,
    /// Who was there said goodbye.
    left: bool,
}

impl Seat {
    pub(super) const fn new(since: Option<Tick>) -> Self {
        Self { listed: true, since, last: None, own: false, left: false }
    }

    pub(super) fn be_own(&mut self) {
        (self.own, self.last) = (true, None);
    }

    /// Takes note of a report, unless what is known is newer.
    pub(super) fn hear(&mut self, report: Report, now: Tick) -> Heard {
        let last = self.last.as_ref();
        let is_old = last.is_some_and(|last| {
            let (before, after) = (&last.report, &report);
            let same = before.from == after.from;
            let rival = before.from > after.from && last.age(now) < LIVE && !self.left;
            (same && before.sequence >= after.sequence) || (!same && rival)
        });
        if is_old {
            return Heard::Old;
        }
        let news = last.is_none_or(|last| report.is_news_after(&last.report));
        (self.own, self.left) = (false, report.leaving);
        self.last = Some(Word { report, at: now });
        if news { Heard::News } else { Heard::Usual }
    }

    /// The last word, of who has not said goodbye.
    pub(super) fn word(&self) -> Option<&Word> {
        self.last.as_ref().filter(|_| !self.left)
    }

    /// Whether this one was there and said goodbye.
    pub(super) fn has_left(&self, name: Name) -> bool {
        self.left && self.last.as_ref().is_some_and(|last| last.report.from == name)
    }

    /// Whether what was said here may still count.
    pub(super) fn counts(&self, now: Tick) -> bool {
        self.word().is_some_and(|word| word.age(now) <= REPLAY)
    }

    pub(super) const fn was_never_heard(&self) -> bool {
        self.last.is_none() && !self.own
    }

    /// Whether who was never heard had time enough to come up.
    pub(super) fn is_late(&self, now: Tick) -> bool {
        self.since.is_none_or(|since| now.since(since) > SILENT)
    }
}
