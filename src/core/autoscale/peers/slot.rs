//! Peer slot: one place at which a gateway should be, and its last report.

use std::time::Duration;

use crate::model::time::Tick;

use crate::autoscale::peers::report::{
    GatewayId, LIVE, PeerReport, REPLAY, ReportOutcome, SILENT, ScaleDecision,
};

/// Last report that arrived.
#[derive(Debug, Clone)]
pub(super) struct LastReport {
    pub(super) report: PeerReport,
    at: Tick,
}

impl LastReport {
    pub(super) const fn age(&self, now: Tick) -> Duration {
        now.since(self.at)
    }

    /// Decision that the report repeats, with its present age.
    pub(super) fn decision(&self, now: Tick) -> Option<ScaleDecision> {
        let decision = self.report.decision.clone()?;
        Some(ScaleDecision { age: decision.age.saturating_add(self.age(now)), ..decision })
    }
}

#[derive(Debug, Clone)]
pub(super) struct PeerSlot {
    /// Whether a gateway should exist here.
    pub(super) listed: bool,
    /// When the slot was first listed; `None` = on the first list.
    since: Option<Tick>,
    last: Option<LastReport>,
    /// True when the slot is this gateway itself.
    own: bool,
    /// True when the gateway announced its exit.
    left: bool,
}

impl PeerSlot {
    pub(super) const fn new(since: Option<Tick>) -> Self {
        Self { listed: true, since, last: None, own: false, left: false }
    }

    pub(super) fn mark_own(&mut self) {
        (self.own, self.last) = (true, None);
    }

    /// Stores a report, unless a newer one is known.
    pub(super) fn store_report(&mut self, report: PeerReport, now: Tick) -> ReportOutcome {
        let last = self.last.as_ref();
        let is_old = last.is_some_and(|last| {
            let (before, after) = (&last.report, &report);
            let same = before.from == after.from;
            let rival = before.from > after.from && last.age(now) < LIVE && !self.left;
            (same && before.sequence >= after.sequence) || (!same && rival)
        });
        if is_old {
            return ReportOutcome::Stale;
        }
        let news = last.is_none_or(|last| report.is_urgent_after(&last.report));
        (self.own, self.left) = (false, report.leaving);
        self.last = Some(LastReport { report, at: now });
        if news { ReportOutcome::Urgent } else { ReportOutcome::Stored }
    }

    /// Makes the slot one that was never heard, when its report is older than this.
    pub(super) fn drop_report_older_than(&mut self, limit: Duration, now: Tick) {
        self.last = self.last.take().filter(|last| last.age(now) <= limit);
    }

    /// Last report, unless the gateway announced its exit.
    pub(super) fn report(&self) -> Option<&LastReport> {
        self.last.as_ref().filter(|_| !self.left)
    }

    /// Whether this gateway was here and announced its exit.
    pub(super) fn has_left(&self, name: GatewayId) -> bool {
        self.left && self.last.as_ref().is_some_and(|last| last.report.from == name)
    }

    /// Whether the last report still counts.
    pub(super) fn counts(&self, now: Tick) -> bool {
        self.report().is_some_and(|last| last.age(now) <= REPLAY)
    }

    pub(super) const fn was_never_heard(&self) -> bool {
        self.last.is_none() && !self.own
    }

    /// Whether a gateway that was never heard has had time enough to start.
    pub(super) fn is_late(&self, now: Tick) -> bool {
        self.since.is_none_or(|since| now.since(since) > SILENT)
    }
}
