//! Replicas that sleep: they keep what they hold of a model outside the
//! accelerator, take no work, and need a moment to wake.
//!
//! An engine's own word comes with its reports, which show a moment that has
//! passed. So a report says nothing while an order is on its way, nor for as
//! long after its answer as a report may have been under way.

use std::time::Duration;

use crate::core::model::snapshot::ReplicaStatus;
use crate::core::model::time::Tick;

/// How long the order to sleep may go without an answer.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(40);
/// Beyond the time that the policy gives a wake, in which its answer comes in
/// any case.
const WAKE_GRACE: Duration = Duration::from_secs(10);
/// No report is on its way for longer.
const REPORT_LAG: Duration = Duration::from_secs(6);

/// When the replicas of a pool sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SleepPolicy {
    /// How long a replica must have had no work, since it last woke; not zero.
    pub after_idle: Duration,
    /// Replicas of the pool that stay awake, whatever they do.
    pub keep_awake: u32,
    /// How long a wake may take until it counts as failed.
    pub wake_timeout: Duration,
}

/// What came of the order to sleep or to wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepResult {
    /// It sleeps.
    Asleep,
    /// It is awake.
    Awake,
    /// Nobody knows.
    Failed,
    /// It does not know the order.
    Unable,
}

/// What an answer changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepChange {
    /// Nothing that concerns others.
    Nothing,
    /// It woke, so long after it was told to.
    Woke(Duration),
    /// It was told to wake, and does not.
    Stuck,
}

/// What time brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepDue {
    /// It has been idle for long enough to sleep.
    Idle,
    /// An order has gone without an answer.
    Unanswered,
}

/// Whether one replica sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SleepState {
    phase: SleepPhase,
    unable: bool,
    /// When to look whether it is to sleep.
    look_at: Option<Tick>,
    /// From when on its reports count.
    reports_from: Tick,
    /// What was ever sent there and its progress, at the last report that came
    /// while it had no work of ours.
    mark: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SleepPhase {
    #[default]
    Awake,
    /// It was told to sleep.
    Retiring {
        until: Tick,
    },
    Asleep,
    /// It was told to wake.
    Waking {
        since: Tick,
        until: Tick,
    },
}

impl SleepState {
    /// How it stands; absent while it is awake.
    #[must_use]
    pub const fn state(&self) -> Option<ReplicaStatus> {
        match self.phase {
            SleepPhase::Awake => None,
            SleepPhase::Retiring { .. } | SleepPhase::Asleep => Some(ReplicaStatus::Asleep),
            SleepPhase::Waking { .. } => Some(ReplicaStatus::Waking),
        }
    }

    /// Whether it can be told to wake.
    #[must_use]
    pub const fn can_wake(&self) -> bool {
        matches!(self.phase, SleepPhase::Asleep) && !self.unable
    }

    /// Keeps its timer: it is to be looked at when it has been `idle` for so
    /// long, if it ever is to sleep.
    pub fn arm(&mut self, now: Tick, idle: bool, after: Option<Duration>) {
        let after = after.filter(|_| idle && self.phase == SleepPhase::Awake && !self.unable);
        self.look_at = after.map(|after| self.look_at.unwrap_or(now + after));
    }

    /// It was looked at, and is to stay awake for now.
    pub fn postpone(&mut self, until: Tick) {
        self.look_at = Some(until);
    }

    /// It is told to sleep.
    pub fn retire(&mut self, now: Tick) {
        (self.look_at, self.reports_from) = (None, Tick::NEVER);
        self.phase = SleepPhase::Retiring { until: now + SLEEP_TIMEOUT };
    }

    /// It is told to wake.
    pub fn rouse(&mut self, now: Tick, timeout: Duration) {
        self.reports_from = Tick::NEVER;
        self.phase = SleepPhase::Waking { since: now, until: now + timeout + WAKE_GRACE };
    }

    /// The answer to an order came. One to an order that is no longer waited
    /// for says nothing.
    pub fn answer(&mut self, now: Tick, rested: SleepResult) -> SleepChange {
        let told_to_wake = match self.phase {
            SleepPhase::Retiring { .. } => None,
            SleepPhase::Waking { since, .. } => Some(since),
            SleepPhase::Awake | SleepPhase::Asleep => return SleepChange::Nothing,
        };
        self.unable |= rested == SleepResult::Unable;
        let sure = matches!(rested, SleepResult::Asleep | SleepResult::Awake);
        self.reports_from = if sure { now + REPORT_LAG } else { now };
        self.phase = match (rested, told_to_wake) {
            (SleepResult::Awake, _) | (SleepResult::Unable, None) => SleepPhase::Awake,
            (SleepResult::Failed, None) => self.phase,
            (SleepResult::Asleep, _) | (SleepResult::Failed | SleepResult::Unable, Some(_)) => {
                SleepPhase::Asleep
            }
        };
        match (rested, told_to_wake) {
            (SleepResult::Awake, Some(since)) => SleepChange::Woke(now.since(since)),
            (_, Some(_)) => SleepChange::Stuck,
            (_, None) => SleepChange::Nothing,
        }
    }

    /// The engine's own word. Says whether it fell asleep unasked.
    pub fn report(&mut self, now: Tick, asleep: bool) -> bool {
        if now < self.reports_from {
            return false;
        }
        let unasked = self.phase == SleepPhase::Awake && asleep;
        self.phase = if asleep { SleepPhase::Asleep } else { SleepPhase::Awake };
        unasked
    }

    /// It reported its progress while it had so many jobs of ours, of all that
    /// were `sent`. One that went on without any works for others, and has not
    /// been idle.
    pub fn worked(&mut self, jobs: u32, sent: u64, progress: Option<u64>) {
        let mark = progress.filter(|_| jobs == 0).map(|progress| (sent, progress));
        if let (Some((sent, progress)), Some(before)) = (mark, self.mark)
            && sent == before.0
            && progress != before.1
        {
            self.look_at = None;
        }
        self.mark = mark;
    }

    /// What is due by now.
    #[must_use]
    pub fn due(&self, now: Tick) -> Option<SleepDue> {
        match self.phase {
            SleepPhase::Awake => self.look_at.filter(|at| *at <= now).map(|_| SleepDue::Idle),
            SleepPhase::Retiring { until } | SleepPhase::Waking { until, .. } => {
                (until <= now).then_some(SleepDue::Unanswered)
            }
            SleepPhase::Asleep => None,
        }
    }

    /// An order to sleep went without an answer, and no report has said what
    /// came of it: it is taken to be awake, and shows when it is not.
    pub fn give_up(&mut self, now: Tick) -> SleepChange {
        if let SleepPhase::Retiring { .. } = self.phase {
            (self.phase, self.reports_from) = (SleepPhase::Awake, now);
            return SleepChange::Nothing;
        }
        self.answer(now, SleepResult::Failed)
    }

    /// When time alone will change something next.
    #[must_use]
    pub const fn next_wake(&self) -> Option<Tick> {
        match self.phase {
            SleepPhase::Awake => self.look_at,
            SleepPhase::Retiring { until } | SleepPhase::Waking { until, .. } => Some(until),
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
            rest.worked(jobs, sent, Some(progress));
            rest.arm(s(at), true, AFTER);
            assert_eq!(rest.next_wake(), Some(s(60)), "all of that is ours");
        }
        rest.worked(0, 6, Some(121));
        rest.arm(s(5), true, AFTER);
        assert_eq!(rest.next_wake(), Some(s(65)));
    }

    #[test]
    fn reports_count_once_they_must_be_newer_than_the_answer() {
        let mut rest = SleepState::default();
        rest.retire(s(0));
        assert!(!rest.report(s(1), false));
        assert_eq!(rest.state(), Some(ReplicaStatus::Asleep), "the order is on its way");
        assert_eq!(rest.answer(s(2), SleepResult::Asleep), SleepChange::Nothing);
        rest.report(s(7), false);
        assert_eq!(rest.state(), Some(ReplicaStatus::Asleep), "it may be from before");
        rest.report(s(8), false);
        assert_eq!(rest.state(), None, "somebody woke it");
        assert!(rest.report(s(9), true), "and put it to sleep again");
        rest.rouse(s(10), Duration::from_secs(60));
        assert_eq!(rest.state(), Some(ReplicaStatus::Waking));
        rest.report(s(11), true);
        assert_eq!(rest.answer(s(14), SleepResult::Awake), SleepChange::Woke(Duration::from_secs(4)));
        assert!(!rest.report(s(15), true));
        assert_eq!(rest.state(), None);
    }

    #[test]
    fn an_order_that_fails_leaves_it_to_the_reports_or_to_time() {
        let mut rest = SleepState::default();
        rest.retire(s(0));
        assert_eq!(rest.answer(s(1), SleepResult::Failed), SleepChange::Nothing);
        assert_eq!(rest.state(), Some(ReplicaStatus::Asleep), "nothing is sent there");
        let mut told = rest;
        told.report(s(2), false);
        assert_eq!(told.state(), None);
        assert_eq!((rest.due(s(39)), rest.due(s(40))), (None, Some(SleepDue::Unanswered)));
        assert_eq!((rest.give_up(s(40)), rest.state()), (SleepChange::Nothing, None));

        let mut rest = SleepState::default();
        rest.report(s(0), true);
        rest.rouse(s(0), Duration::from_secs(20));
        assert_eq!(rest.next_wake(), Some(s(30)));
        assert_eq!((rest.give_up(s(30)), rest.can_wake()), (SleepChange::Stuck, true));
    }

    #[test]
    fn who_does_not_know_the_order_is_not_told_again() {
        let mut rest = SleepState::default();
        rest.retire(s(0));
        assert_eq!(rest.answer(s(1), SleepResult::Unable), SleepChange::Nothing);
        rest.arm(s(1), true, AFTER);
        assert_eq!((rest.state(), rest.next_wake()), (None, None));
        rest.report(s(10), true);
        assert!(!rest.can_wake());
    }

    proptest! {
        /// Whatever is said in whatever order: an order waits for its answer
        /// with a timer, and a timer that is due goes away when it is followed.
        #[test]
        fn no_order_waits_for_ever(steps in vec((0..20_u64, step()), 0..60)) {
            let (mut rest, mut now) = (SleepState::default(), s(0));
            for (pause, step) in steps {
                now += Duration::from_secs(pause);
                match step {
                    Step::Say(asleep) => { rest.report(now, asleep); }
                    Step::Answer(rested) => { rest.answer(now, rested); }
                    Step::Order if rest.can_wake() => rest.rouse(now, Duration::from_secs(5)),
                    Step::Order if rest.state().is_none() => rest.retire(now),
                    Step::Order => {}
                }
                rest.arm(now, true, AFTER);
                let awaits = matches!(rest.phase, SleepPhase::Retiring { .. } | SleepPhase::Waking { .. });
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
        let rested = prop_oneof![
            Just(SleepResult::Asleep),
            Just(SleepResult::Awake),
            Just(SleepResult::Failed),
            Just(SleepResult::Unable)
        ];
        prop_oneof![any::<bool>().prop_map(Step::Say), rested.prop_map(Step::Answer), Just(Step::Order)]
    }
}
