//! Sleep of a replica: a sleeping engine keeps its model outside the accelerator, takes no
//! work, and needs a moment to wake.
//!
//! An engine reports by itself whether it sleeps, but a report shows a past moment. Reports are
//! therefore ignored while an order is under way, and after its answer for as long as a report
//! may have been under way.

use std::time::Duration;

pub use crate::model::policy::sleep::{SleepPolicy, SleepResult};
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;

/// Time after which an order to sleep counts as unanswered.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(40);
/// Time added to the policy's wake timeout, within which the answer comes in any case.
const WAKE_GRACE: Duration = Duration::from_secs(10);
/// Longest time that a report is under way.
const REPORT_LAG: Duration = Duration::from_secs(6);

/// Change that the answer to an order brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepChange {
    /// Nothing changed that concerns others.
    Nothing,
    /// The replica woke, this long after the order.
    Woke(Duration),
    /// The replica was ordered to wake, and does not.
    Stuck,
}

/// Step of a replica's sleep that a timer brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepDue {
    /// The replica has been idle for long enough to sleep.
    Idle,
    /// An order got no answer in time.
    Unanswered,
}

/// Sleep state of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SleepState {
    phase: SleepPhase,
    unable: bool,
    /// When to look whether the replica may sleep.
    idle_check_at: Option<Tick>,
    /// Time from which the replica's reports count.
    reports_from: Tick,
    /// The last report, if the replica had no job of this gateway then.
    idle_report: Option<IdleReport>,
}

/// What was known when a report came while the replica had no job of this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IdleReport {
    /// Sequences that this gateway had ever sent there.
    sent: u64,
    /// The engine's progress.
    progress: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SleepPhase {
    #[default]
    Awake,
    /// The replica was ordered to sleep.
    FallingAsleep {
        until: Tick,
    },
    Asleep,
    /// The replica was ordered to wake.
    Waking {
        since: Tick,
        until: Tick,
    },
}

impl SleepState {
    /// Status of the replica; `None` while it is awake.
    pub const fn state(&self) -> Option<ReplicaStatus> {
        match self.phase {
            SleepPhase::Awake => None,
            SleepPhase::FallingAsleep { .. } | SleepPhase::Asleep => Some(ReplicaStatus::Asleep),
            SleepPhase::Waking { .. } => Some(ReplicaStatus::Waking),
        }
    }

    /// Whether the replica can be ordered to wake.
    pub const fn can_wake(&self) -> bool {
        matches!(self.phase, SleepPhase::Asleep) && !self.unable
    }

    /// Updates the idle timer: the replica is looked at when it has been idle for `after`, if it
    /// ever may sleep.
    pub fn arm(&mut self, now: Tick, idle: bool, after: Option<Duration>) {
        let after = after.filter(|_| idle && self.phase == SleepPhase::Awake && !self.unable);
        self.idle_check_at = after.map(|after| self.idle_check_at.unwrap_or(now + after));
    }

    /// Postpones the idle timer, because the replica has to stay awake for now.
    pub fn postpone(&mut self, until: Tick) {
        self.idle_check_at = Some(until);
    }

    /// Notes that the replica is ordered to sleep.
    pub fn order_sleep(&mut self, now: Tick) {
        (self.idle_check_at, self.reports_from) = (None, Tick::NEVER);
        self.phase = SleepPhase::FallingAsleep { until: now + SLEEP_TIMEOUT };
    }

    /// Notes that the replica is ordered to wake.
    pub fn order_wake(&mut self, now: Tick, timeout: Duration) {
        self.reports_from = Tick::NEVER;
        self.phase = SleepPhase::Waking { since: now, until: now + timeout + WAKE_GRACE };
    }

    /// Takes over the answer to an order. An answer to an order that is no longer waited for
    /// changes nothing.
    pub fn answer(&mut self, now: Tick, sleep_result: SleepResult) -> SleepChange {
        let told_to_wake = match self.phase {
            SleepPhase::FallingAsleep { .. } => None,
            SleepPhase::Waking { since, .. } => Some(since),
            SleepPhase::Awake | SleepPhase::Asleep => return SleepChange::Nothing,
        };
        self.unable |= sleep_result == SleepResult::Unable;
        let sure = matches!(sleep_result, SleepResult::Asleep | SleepResult::Awake);
        self.reports_from = if sure { now + REPORT_LAG } else { now };
        self.phase = match (sleep_result, told_to_wake) {
            (SleepResult::Awake, _) | (SleepResult::Unable, None) => SleepPhase::Awake,
            (SleepResult::Failed, None) => self.phase,
            (SleepResult::Asleep, _) | (SleepResult::Failed | SleepResult::Unable, Some(_)) => {
                SleepPhase::Asleep
            }
        };
        match (sleep_result, told_to_wake) {
            (SleepResult::Awake, Some(since)) => SleepChange::Woke(now.since(since)),
            (_, Some(_)) => SleepChange::Stuck,
            (_, None) => SleepChange::Nothing,
        }
    }

    /// Takes over an engine's own report. Returns whether the engine fell asleep without an order.
    pub fn report(&mut self, now: Tick, asleep: bool) -> bool {
        if now < self.reports_from {
            return false;
        }
        let unasked = self.phase == SleepPhase::Awake && asleep;
        self.phase = if asleep { SleepPhase::Asleep } else { SleepPhase::Awake };
        unasked
    }

    /// Notes the engine's progress and the number of this gateway's jobs there, of all `sent` so
    /// far. An engine that made progress without any of these jobs works for other clients, and has
    /// not been idle.
    pub fn note_progress(&mut self, jobs: u32, sent: u64, progress: Option<u64>) {
        let report = progress.filter(|_| jobs == 0).map(|progress| IdleReport { sent, progress });
        if let (Some(report), Some(before)) = (report, self.idle_report)
            && report.sent == before.sent
            && report.progress != before.progress
        {
            self.idle_check_at = None;
        }
        self.idle_report = report;
    }

    /// Step that is due now.
    pub fn due(&self, now: Tick) -> Option<SleepDue> {
        match self.phase {
            SleepPhase::Awake => self.idle_check_at.filter(|at| *at <= now).map(|_| SleepDue::Idle),
            SleepPhase::FallingAsleep { until } | SleepPhase::Waking { until, .. } => {
                (until <= now).then_some(SleepDue::Unanswered)
            }
            SleepPhase::Asleep => None,
        }
    }

    /// Gives up an order that got no answer. Without an answer to an order to sleep, and without a
    /// report, the replica counts as awake; its reports will show otherwise.
    pub fn give_up(&mut self, now: Tick) -> SleepChange {
        if let SleepPhase::FallingAsleep { .. } = self.phase {
            (self.phase, self.reports_from) = (SleepPhase::Awake, now);
            return SleepChange::Nothing;
        }
        self.answer(now, SleepResult::Failed)
    }

    /// Time of the next timer.
    pub const fn next_wake(&self) -> Option<Tick> {
        match self.phase {
            SleepPhase::Awake => self.idle_check_at,
            SleepPhase::FallingAsleep { until } | SleepPhase::Waking { until, .. } => Some(until),
            SleepPhase::Asleep => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};

    use super::*;

    const AFTER: Option<Duration> = Some(Duration::from_secs(60));

    fn s(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    #[test]
    fn idle_time_counts_from_the_last_work() {
        let mut rest = SleepState::default();
        rest.arm(s(0), true, AFTER);
        rest.arm(s(30), true, AFTER);
        assert_eq!(rest.next_wake(), Some(s(60)));
        rest.arm(s(40), false, AFTER);
        assert_eq!(rest.next_wake(), None);
        rest.arm(s(50), true, AFTER);
        assert_eq!((rest.due(s(109)), rest.due(s(110))), (None, Some(SleepDue::Idle)));
        rest.arm(s(50), true, None);
        assert_eq!(rest.next_wake(), None, "its pool never sleeps");
    }

    #[test]
    fn work_of_others_is_work() {
        let mut rest = SleepState::default();
        rest.arm(s(0), true, AFTER);
        for (at, jobs, sent, progress) in [(1, 0, 5, 100), (2, 0, 5, 100), (3, 1, 6, 110), (4, 0, 6, 120)] {
            rest.note_progress(jobs, sent, Some(progress));
            rest.arm(s(at), true, AFTER);
            assert_eq!(rest.next_wake(), Some(s(60)), "all of that is ours");
        }
        rest.note_progress(0, 6, Some(121));
        rest.arm(s(5), true, AFTER);
        assert_eq!(rest.next_wake(), Some(s(65)));
    }

    #[test]
    fn reports_count_once_they_must_be_newer_than_the_answer() {
        let mut rest = SleepState::default();
        rest.order_sleep(s(0));
        assert!(!rest.report(s(1), false));
        assert_eq!(rest.state(), Some(ReplicaStatus::Asleep), "the order is on its way");
        assert_eq!(rest.answer(s(2), SleepResult::Asleep), SleepChange::Nothing);
        rest.report(s(7), false);
        assert_eq!(rest.state(), Some(ReplicaStatus::Asleep), "it may be from before");
        rest.report(s(8), false);
        assert_eq!(rest.state(), None, "somebody woke it");
        assert!(rest.report(s(9), true), "and put it to sleep again");
        rest.order_wake(s(10), Duration::from_secs(60));
        assert_eq!(rest.state(), Some(ReplicaStatus::Waking));
        rest.report(s(11), true);
        assert_eq!(rest.answer(s(14), SleepResult::Awake), SleepChange::Woke(Duration::from_secs(4)));
        assert!(!rest.report(s(15), true));
        assert_eq!(rest.state(), None);
    }

    #[test]
    fn an_order_that_fails_leaves_it_to_the_reports_or_to_time() {
        let mut rest = SleepState::default();
        rest.order_sleep(s(0));
        assert_eq!(rest.answer(s(1), SleepResult::Failed), SleepChange::Nothing);
        assert_eq!(rest.state(), Some(ReplicaStatus::Asleep), "nothing is sent there");
        let mut told = rest;
        told.report(s(2), false);
        assert_eq!(told.state(), None);
        assert_eq!((rest.due(s(39)), rest.due(s(40))), (None, Some(SleepDue::Unanswered)));
        assert_eq!((rest.give_up(s(40)), rest.state()), (SleepChange::Nothing, None));

        let mut rest = SleepState::default();
        rest.report(s(0), true);
        rest.order_wake(s(0), Duration::from_secs(20));
        assert_eq!(rest.next_wake(), Some(s(30)));
        assert_eq!((rest.give_up(s(30)), rest.can_wake()), (SleepChange::Stuck, true));
    }

    #[test]
    fn who_does_not_know_the_order_is_not_told_again() {
        let mut rest = SleepState::default();
        rest.order_sleep(s(0));
        assert_eq!(rest.answer(s(1), SleepResult::Unable), SleepChange::Nothing);
        rest.arm(s(1), true, AFTER);
        assert_eq!((rest.state(), rest.next_wake()), (None, None));
        rest.report(s(10), true);
        assert!(!rest.can_wake());
    }

    proptest! {
        /// For any sequence of events: an order waits for its answer
        /// with a timer, and a timer that is due goes away when it is followed.
        #[test]
        fn no_order_waits_for_ever(steps in vec((0..20_u64, step()), 0..60)) {
            let (mut rest, mut now) = (SleepState::default(), s(0));
            for (pause, step) in steps {
                now += Duration::from_secs(pause);
                match step {
                    Step::Say(asleep) => { rest.report(now, asleep); }
                    Step::Answer(sleep_result) => { rest.answer(now, sleep_result); }
                    Step::Order if rest.can_wake() => rest.order_wake(now, Duration::from_secs(5)),
                    Step::Order if rest.state().is_none() => rest.order_sleep(now),
                    Step::Order => {}
                }
                rest.arm(now, true, AFTER);
                let awaits = matches!(rest.phase, SleepPhase::FallingAsleep { .. } | SleepPhase::Waking { .. });
                prop_assert!(!awaits || rest.next_wake().is_some());
                if rest.due(now) == Some(SleepDue::Unanswered) {
                    rest.give_up(now);
                    prop_assert!(rest.due(now) != Some(SleepDue::Unanswered));
                }
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Say(bool),
        Answer(SleepResult),
        Order,
    }

    fn step() -> impl Strategy<Value = Step> {
        let sleep_result = prop_oneof![
            Just(SleepResult::Asleep),
            Just(SleepResult::Awake),
            Just(SleepResult::Failed),
            Just(SleepResult::Unable)
        ];
        prop_oneof![any::<bool>().prop_map(Step::Say), sleep_result.prop_map(Step::Answer), Just(Step::Order)]
    }
}
