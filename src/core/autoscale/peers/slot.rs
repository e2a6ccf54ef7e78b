//! Peer slot: one place at which a gateway should be, and its last report.

use std::time::Duration;

use crate::core::model::time::Tick;

use super::{GatewayId, LIVE, PeerReport, REPLAY, ReportOutcome, SILENT, ScaleDecision};

/// What was heard last.
#[derive(Debug, Clone)]
pub(super) struct LastReport {
    pub(super) report: PeerReport,
    at: Tick,
}

impl LastReport {
    pub(super) const fn age(&self, now: Tick) -> Duration {
        now.since(self.at)
    }

    /// The decision that it repeats, as old as that is now.
    pub(super) fn decision(&self, now: Tick) -> Option<ScaleDecision> {
        let decision = self.report.decision.clone()?;
        Some(ScaleDecision { age: decision.age.saturating_add(self.age(now)), ..decision })
    }
}

/// A place.
#[derive(Debug, Clone)]
pub(super) struct PeerSlot {
    /// Whether somebody should be there.
    pub(super) listed: bool,
    /// Since when; `None` = since the first list.
    since: Option<Tick>,
    last: Option<LastReport>,
    /// It is where this gateway is.
    own: bool,
    /// Who was there said goodbye.
    left: bool,
}

impl PeerSlot {
    pub(super) const fn new(since: Option<Tick>) -> Self {
        Self { listed: true, since, last: None, own: false, left: false }
    }

    pub(super) fn be_own(&mut self) {
        (self.own, self.last) = (true, None);
    }

    /// Takes note of a report, unless what is known is newer.
    pub(super) fn hear(&mut self, report: PeerReport, now: Tick) -> ReportOutcome {
        let last = self.last.as_ref();
        let is_old = last.is_some_and(|last| {
            let (before, after) = (&last.report, &report);
            let same = before.from == after.from;
            let rival = before.from > after.from && last.age(now) < LIVE && !self.left;
            (same && before.sequence >= after.sequence) || (!same && rival)
        });
        if is_old {
            return ReportOutcome::Old;
        }
        let news = last.is_none_or(|last| report.is_news_after(&last.report));
        (self.own, self.left) = (false, report.leaving);
        self.last = Some(LastReport { report, at: now });
        if news { ReportOutcome::News } else { ReportOutcome::Usual }
    }

    /// The last word, of who has not said goodbye.
    pub(super) fn report(&self) -> Option<&LastReport> {
        self.last.as_ref().filter(|_| !self.left)
    }

    /// Whether this one was there and said goodbye.
    pub(super) fn has_left(&self, name: GatewayId) -> bool {
        self.left && self.last.as_ref().is_some_and(|last| last.report.from == name)
    }

    /// Whether what was said here may still count.
    pub(super) fn counts(&self, now: Tick) -> bool {
        self.report().is_some_and(|word| word.age(now) <= REPLAY)
    }

    pub(super) const fn was_never_heard(&self) -> bool {
        self.last.is_none() && !self.own
    }

    /// Whether who was never heard had time enough to come up.
    pub(super) fn is_late(&self, now: Tick) -> bool {
        self.since.is_none_or(|since| now.since(since) > SILENT)
    }
}
