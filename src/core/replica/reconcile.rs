//! Reconciliation: compares an engine's own report with the ledger.
//!
//! The ledger knows only what this gateway sent. An engine that runs more sequences has other
//! clients. An engine that runs fewer for long has lost some. A report shows a past moment: our
//! sequences may have come or gone while it was under way, and an engine counts a request only
//! after reading it. No single report is therefore conclusive.
//!
//! Reconciliation ignores KV cache usage, because engines differ in whether they count blocks
//! that they merely keep for later.

use std::time::Duration;

use crate::model::event::ReplicaReport;
use crate::model::time::Tick;

/// Largest plausible count; larger ones are ignored.
const MAX_COUNT: u64 = 1 << 20;
/// Weight of the newest gap in the usual gap between reports.
const NEWEST_GAP: f64 = 0.25;
/// Bounds of the usual gap between reports, in seconds.
const GAPS: std::ops::RangeInclusive<f64> = 0.1..=60.0;
/// Largest gap that counts, as a multiple of the usual one. A pause of the reports is no new habit.
const MAX_GAP_GROWTH: f64 = 4.0;
/// Age of the last report, in usual gaps, after which an estimate is worth nothing.
const GONE_AFTER: f64 = 10.0;
/// The part of the sequences of other gateways that may have come since these were told: one in so many.
const REMOTE_MARGIN: u32 = 4;
/// Reports in a row that must show less than the ledger.
const MISSING_REPORTS: u32 = 3;
/// Time after which a sequence is not merely delayed in the engine's frontend, when the engine does
/// not show it.
const MISSING_AFTER: Duration = Duration::from_secs(10);

/// Ledger of a replica at the moment of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerView {
    /// Sequences booked there.
    pub seqs: u32,
    /// Sequences ever booked there, including those that have ended. This count never decreases.
    pub sent: u64,
    /// Sequences that other gateways say they have there.
    pub elsewhere: u32,
}

/// Finding from the reports of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileFinding {
    /// The ledger explains the reports.
    Consistent,
    /// The engine runs at least this many sequences of other clients.
    Foreign(u32),
    /// At least this many of our sequences are missing. They are at least half of those that have
    /// been there for ten seconds.
    Missing(u32),
    /// A counter of the engine decreased, so the engine has restarted.
    Restarted,
}

/// Reconciliation of one replica.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reconciler {
    last: Option<Tick>,
    /// Usual gap between reports, in seconds.
    gap: Option<f64>,
    /// Sequences that the last report shows beyond our own.
    excess: Option<u32>,
    /// The lesser excess of the last two reports.
    estimate: Option<u32>,
    progress: Option<u64>,
    shortage: Option<Shortage>,
}

/// Reports in a row that show less than the ledger.
#[derive(Debug, Clone, Copy)]
struct Shortage {
    reports: u32,
    /// Two moments at least ten seconds apart. The older one separates old sequences from new ones.
    older: ReportMark,
    newer: ReportMark,
    /// Old sequences that the last report lacks.
    missing: u32,
}

#[derive(Debug, Clone, Copy)]
struct ReportMark {
    at: Tick,
    sent: u64,
}

impl Reconciler {
    /// Compares a report with the ledger. A report without a plausible count of running sequences
    /// changes nothing: the known estimate ages as without a report.
    pub fn report(&mut self, now: Tick, report: &ReplicaReport, own: LedgerView) -> ReconcileFinding {
        let restarted = report.progress.zip(self.progress).is_some_and(|(new, before)| new < before);
        self.progress = report.progress.or(self.progress);
        if restarted {
            (self.excess, self.estimate, self.shortage) = (None, None, None);
        }
        let found = count(report).map(|(seqs, whole)| self.compare(now, seqs, whole, own));
        if restarted { ReconcileFinding::Restarted } else { found.unwrap_or(ReconcileFinding::Consistent) }
    }

    /// Sequences of other clients that run there: the least that the last two reports show, less as
    /// the reports age; 0 when nothing is known. Callers always leave the replica at least one
    /// sequence of ours, or a mistake here could never be found out.
    pub fn external_seqs(&self, now: Tick) -> u32 {
        (f64::from(self.estimate.unwrap_or(0)) * self.confidence(now)).round() as u32
    }

    /// Confidence in [`Self::external_seqs`]: 1 while reports come as usual, one half when the last report
    /// is two usual gaps old. The confidence is 0 after ten usual gaps, and before there were two
    /// reports.
    pub fn confidence(&self, now: Tick) -> f64 {
        let (Some(last), Some(gap), Some(_)) = (self.last, self.gap, self.estimate) else { return 0.0 };
        let gaps = now.since(last).as_secs_f64() / gap;
        if gaps >= GONE_AFTER {
            return 0.0;
        }
        0.5_f64.powf((gaps - 1.0).max(0.0))
    }

    fn compare(&mut self, now: Tick, seqs: u32, whole: bool, own: LedgerView) -> ReconcileFinding {
        self.learn_gap(now);
        // What other gateways have is a little old, and comes and goes.
        let elsewhere = match own.elsewhere {
            0 => 0,
            told => told.saturating_add(told / REMOTE_MARGIN + 1),
        };
        let excess = seqs.saturating_sub(own.seqs).saturating_sub(elsewhere);
        self.estimate = self.excess.replace(excess).map(|before| before.min(excess));
        if whole && seqs < own.seqs {
            return self
                .check_missing(now, seqs, own)
                .map_or(ReconcileFinding::Consistent, ReconcileFinding::Missing);
        }
        self.shortage = None;
        self.estimate.filter(|seqs| *seqs > 0).map_or(ReconcileFinding::Consistent, ReconcileFinding::Foreign)
    }

    /// Learns the usual gap between reports.
    fn learn_gap(&mut self, now: Tick) {
        if let Some(last) = self.last {
            let seen = now.since(last).as_secs_f64();
            let usual = self
                .gap
                .map_or(seen, |usual| usual + (seen.min(usual * MAX_GAP_GROWTH) - usual) * NEWEST_GAP);
            self.gap = Some(usual.clamp(*GAPS.start(), *GAPS.end()));
        }
        self.last = self.last.max(Some(now));
    }

    /// Handles a report that shows less than the ledger. Recently sent sequences may not be counted
    /// yet, and sequences that end at once may never be. Only sequences that have been there for
    /// long can therefore be missing. All that were sent since count as still there, so the result
    /// is a lower bound: nothing is found while new sequences pass through faster than the ledger
    /// is large.
    fn check_missing(&mut self, now: Tick, seqs: u32, own: LedgerView) -> Option<u32> {
        let here = ReportMark { at: now, sent: own.sent };
        let start = Shortage { reports: 0, older: here, newer: here, missing: 0 };
        let shortage = self.shortage.get_or_insert(start);
        shortage.reports = shortage.reports.saturating_add(1);
        let late = u32::try_from(own.sent.saturating_sub(shortage.older.sent)).unwrap_or(u32::MAX);
        let old = own.seqs.saturating_sub(late);
        let missing = old.saturating_sub(seqs);
        let least = missing.min(std::mem::replace(&mut shortage.missing, missing));
        let long = shortage.reports >= MISSING_REPORTS && now.since(shortage.older.at) > MISSING_AFTER;
        if now.since(shortage.newer.at) > MISSING_AFTER {
            (shortage.older, shortage.newer) = (shortage.newer, here);
        }
        (long && least > 0 && least >= old.div_ceil(2)).then_some(least)
    }
}

/// Sequences that the report shows, and whether waiting sequences are among them.
fn count(report: &ReplicaReport) -> Option<(u32, bool)> {
    let plausible = |count: u64| u32::try_from(count).ok().filter(|_| count <= MAX_COUNT);
    let running = plausible(report.running?)?;
    let Some(waiting) = report.waiting else { return Some((running, false)) };
    Some((running + plausible(waiting)?, true))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    fn s(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    fn report(running: u64, waiting: u64) -> ReplicaReport {
        ReplicaReport { running: Some(running), waiting: Some(waiting), ..ReplicaReport::default() }
    }

    fn own(seqs: u32) -> LedgerView {
        LedgerView { seqs, sent: 1000, elsewhere: 0 }
    }

    fn lie() -> impl Strategy<Value = (u64, ReplicaReport, u32)> {
        let count = || option::of(prop_oneof![0..50_u64, any::<u64>(), Just(u64::MAX)]);
        let usage = option::of(prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), 0.0..1.0]);
        (0..20_000_u64, count(), count(), usage, count(), 0..60_u32).prop_map(
            |(gap, running, waiting, kv_usage, progress, seqs)| {
                (
                    gap,
                    ReplicaReport { running, waiting, kv_usage, progress, ..ReplicaReport::default() },
                    seqs,
                )
            },
        )
    }

    /// Plays false reports. Returns the time of the last one.
    fn play(reconciler: &mut Reconciler, lies: &[(u64, ReplicaReport, u32)]) -> Tick {
        let mut now = Tick::ZERO;
        for (gap, report, seqs) in lies {
            now += Duration::from_millis(*gap);
            reconciler.report(now, report, own(*seqs));
            assert!((0.0..=1.0).contains(&reconciler.confidence(now)));
            assert!(reconciler.external_seqs(now) <= 2 << 20);
        }
        now
    }

    proptest! {
        #[test]
        fn two_true_reports_are_enough(
            lies in vec(lie(), 0..12), true_external in 0..40_u32, ours in vec(0..40_u32, 2),
        ) {
            let mut reconciler = Reconciler::default();
            let mut now = play(&mut reconciler, &lies);
            let mut found = ReconcileFinding::Consistent;
            for ours in ours {
                now += Duration::from_secs(1);
                found = reconciler.report(now, &report(u64::from(ours + true_external), 0), own(ours));
            }
            prop_assert_eq!(reconciler.external_seqs(now), true_external);
            prop_assert!((reconciler.confidence(now) - 1.0).abs() < 1e-9);
            let expected = if true_external > 0 { ReconcileFinding::Foreign(true_external) } else { ReconcileFinding::Consistent };
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn what_is_missing_is_right_after_two_true_reports_and_said_in_time(
            lies in vec(lie(), 0..12), ours in 1..40_u32, there in 0..40_u32,
        ) {
            let mut reconciler = Reconciler::default();
            let mut now = play(&mut reconciler, &lies);
            let lost = ours.saturating_sub(there);
            let mut last = ReconcileFinding::Consistent;
            for number in 1..=6 {
                now += Duration::from_secs(6);
                last = reconciler.report(now, &report(u64::from(there), 0), own(ours));
                if let ReconcileFinding::Missing(said) = last && number >= 2 {
                    prop_assert_eq!(said, lost);
                }
            }
            prop_assert_eq!(last == ReconcileFinding::Missing(lost), lost > 0 && lost >= ours.div_ceil(2));
            now += Duration::from_secs(1);
            prop_assert_eq!(reconciler.report(now, &report(u64::from(ours), 0), own(ours)), ReconcileFinding::Consistent);
        }

        #[test]
        fn sequences_that_come_and_go_are_never_missing(
            steps in vec((0..30_u32, 0..30_u32, 500..8000_u64), 1..60),
        ) {
            let (mut reconciler, mut now, mut sent) = (Reconciler::default(), Tick::ZERO, 0);
            for (ours, lag, gap) in steps {
                now += Duration::from_millis(gap);
                sent += u64::from(ours);
                let seen = u64::from(ours.saturating_sub(lag));
                let found = reconciler.report(now, &report(seen, 0), LedgerView { seqs: ours, sent, elsewhere: 0 });
                prop_assert_eq!(found, ReconcileFinding::Consistent);
            }
        }
    }

    #[test]
    fn without_reports_nothing_is_foreign() {
        let reconciler = Reconciler::default();
        assert_eq!((reconciler.external_seqs(s(100)), reconciler.confidence(s(100))), (0, 0.0));
        let mut reconciler = Reconciler::default();
        for second in 0..5 {
            let silent = ReplicaReport { waiting: Some(9), kv_usage: Some(1.0), ..ReplicaReport::default() };
            assert_eq!(reconciler.report(s(second), &silent, own(0)), ReconcileFinding::Consistent);
        }
        assert_eq!((reconciler.external_seqs(s(5)), reconciler.confidence(s(5))), (0, 0.0));
    }

    #[test]
    fn what_ended_while_the_report_was_on_its_way_is_not_foreign() {
        let mut reconciler = Reconciler::default();
        for second in 0..20 {
            let (seen, ours) = if second == 10 { (64, 0) } else { (0, 0) };
            assert_eq!(
                reconciler.report(s(second), &report(seen, 0), own(ours)),
                ReconcileFinding::Consistent
            );
            assert_eq!(reconciler.external_seqs(s(second)), 0);
        }
    }

    #[test]
    fn an_estimate_fades_with_its_age() {
        let mut reconciler = Reconciler::default();
        for second in 0..10 {
            reconciler.report(s(second * 2), &report(15, 5), own(4));
        }
        let at = |millis: u64| Tick::from_millis(18_000 + millis);
        assert_eq!((reconciler.external_seqs(at(0)), reconciler.external_seqs(at(2000))), (16, 16));
        assert!((reconciler.confidence(at(4000)) - 0.5).abs() < 1e-9);
        assert_eq!(reconciler.external_seqs(at(4000)), 8);
        assert!(reconciler.confidence(at(19_999)) > 0.0);
        assert_eq!((reconciler.external_seqs(at(20_000)), reconciler.confidence(at(20_000))), (0, 0.0));
    }

    #[test]
    fn a_pause_is_no_new_habit_but_a_new_interval_is() {
        let mut reconciler = Reconciler::default();
        let mut now = Tick::ZERO;
        let mut step = |reconciler: &mut Reconciler, millis: u64| {
            now += Duration::from_millis(millis);
            reconciler.report(now, &report(9, 0), own(0));
            now
        };
        (0..10).for_each(|_| _ = step(&mut reconciler, 1000));
        let after_pause = step(&mut reconciler, 3_600_000);
        assert_eq!(reconciler.confidence(after_pause + Duration::from_secs(20)), 0.0);
        (0..12).for_each(|_| _ = step(&mut reconciler, 15_000));
        let now = step(&mut reconciler, 15_000);
        assert!(reconciler.confidence(now + Duration::from_secs(15)) > 0.9);
    }

    #[test]
    fn a_counter_that_goes_back_is_a_restart_and_clears_what_was_known() {
        let mut reconciler = Reconciler::default();
        let with = |progress| ReplicaReport { progress: Some(progress), ..report(20, 0) };
        assert_eq!(reconciler.report(s(0), &with(500), own(0)), ReconcileFinding::Consistent);
        assert_eq!(reconciler.report(s(1), &with(500), own(0)), ReconcileFinding::Foreign(20));
        assert_eq!(reconciler.report(s(2), &report(20, 0), own(0)), ReconcileFinding::Foreign(20));
        assert_eq!(reconciler.report(s(3), &with(3), own(0)), ReconcileFinding::Restarted);
        assert_eq!((reconciler.external_seqs(s(3)), reconciler.confidence(s(3))), (0, 0.0));
        assert_eq!(reconciler.report(s(4), &with(4), own(0)), ReconcileFinding::Foreign(20));
    }

    #[test]
    fn missing_needs_three_reports_and_more_than_ten_seconds() {
        let mut reconciler = Reconciler::default();
        let mut at = |millis: u64| reconciler.report(Tick::from_millis(millis), &report(1, 0), own(8));
        let early: Vec<_> = (0..=10).map(|second| at(second * 1000)).collect();
        assert!(early.iter().all(|found| *found == ReconcileFinding::Consistent));
        assert_eq!(at(10_500), ReconcileFinding::Missing(7));

        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.report(s(0), &report(1, 0), own(8)), ReconcileFinding::Consistent);
        assert_eq!(reconciler.report(s(30), &report(1, 0), own(8)), ReconcileFinding::Consistent);
        assert_eq!(reconciler.report(s(60), &report(1, 0), own(8)), ReconcileFinding::Missing(7));
    }

    #[test]
    fn a_loss_is_found_behind_a_standing_lag_and_under_new_work() {
        let (mut reconciler, mut sent) = (Reconciler::default(), 0);
        for second in 0..100 {
            sent += 20;
            let found =
                reconciler.report(s(second), &report(0, 0), LedgerView { seqs: 20, sent, elsewhere: 0 });
            assert_eq!(found, ReconcileFinding::Consistent, "jobs so short that they are never seen");
        }
        let mut found = Vec::new();
        for second in 100..130 {
            sent += 1;
            found.push(reconciler.report(
                s(second),
                &report(5, 0),
                LedgerView { seqs: 45, sent, elsewhere: 0 },
            ));
        }
        let right = |found: &ReconcileFinding| {
            matches!(found, ReconcileFinding::Consistent | ReconcileFinding::Missing(10..=40))
        };
        assert!(found.iter().all(right), "{found:?}");
        assert_ne!(found.last(), Some(&ReconcileFinding::Consistent));
    }

    #[test]
    fn an_engine_that_does_not_say_what_waits_is_never_short() {
        let mut reconciler = Reconciler::default();
        let silent = ReplicaReport { running: Some(0), ..ReplicaReport::default() };
        for second in 0..60 {
            assert_eq!(reconciler.report(s(second), &silent, own(8)), ReconcileFinding::Consistent);
        }
    }
}
