//! Signs of life: whether an engine that should be sending something is.
//!
//! An engine that has frozen keeps its connections and often answers its health
//! check. Silence gives it away: it owes tokens, and neither a byte nor a moving
//! gauge has come for longer than its prompts and its usual pace explain. An
//! engine that has never answered may still be compiling its kernels, so it is
//! given longer. So is one that was silent lately and went on, or was left for it:
//! it gets twice that silence, up to as long as a new one, and less as time passes.
//!
//! Silence is judged in two steps. When the patience is over, the edge is asked
//! for a fresh scrape ([`StallVerdict::Scrape`]); only when that brings no sign of life,
//! the engine is silent ([`StallVerdict::Stalled`]). So a gateway that was itself stopped
//! for a moment hears what has come meanwhile before it judges. What silence
//! means for the engine is decided by the scheduler, which knows what is owed.

use std::time::Duration;

use crate::core::model::event::ReplicaReport;
use crate::core::model::time::Tick;

/// Silence that is never held against an engine.
const GRACE: Duration = Duration::from_secs(1);
/// The same while nothing has ever come from it.
const WARM_UP: Duration = Duration::from_secs(30);
/// How many times as long as a silence that it has shown it may be silent.
const TIMES_SHOWN: u32 = 2;
/// In this time, a silence that it has shown counts half.
const SHOWN_HALVES: Duration = Duration::from_secs(60);
/// How many times as long as predicted it may take before that.
const TIMES: u64 = 3;
/// How many tokens it may have missed before that.
const TOKENS: u64 = 20;
/// How long the answer to a question about the gauges may take.
const ANSWER: Duration = Duration::from_millis(500);

/// How long an engine may be silent for which a first token is predicted to
/// take `expected` nanoseconds, and which takes `gap` nanoseconds between two
/// tokens; `None` while it has never sent one.
fn patience(expected: u64, gap: Option<u64>) -> Duration {
    let grace = if gap.is_some() { GRACE } else { WARM_UP };
    let tokens = gap.unwrap_or_default().saturating_mul(TOKENS);
    grace.saturating_add(Duration::from_nanos(expected.saturating_mul(TIMES).saturating_add(tokens)))
}

/// What the engine last said of itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WatchedGauges {
    progress: Option<u64>,
    running: Option<u64>,
    waiting: Option<u64>,
    kv_usage: Option<f64>,
}

impl WatchedGauges {
    /// Takes over a report; says whether it shows that the engine works. Counts of
    /// requests move when clients come and go, even at an engine that has frozen
    /// behind its server, so they count only where nothing else is told.
    pub fn moved(&mut self, report: &ReplicaReport) -> bool {
        let new = Self {
            progress: report.progress.or(self.progress),
            running: report.running.or(self.running),
            waiting: report.waiting.or(self.waiting),
            kv_usage: report.kv_usage.or(self.kv_usage),
        };
        let before = std::mem::replace(self, new);
        let differs = |new: Option<u64>, before: Option<u64>| before.is_some() && new != before;
        let cache = before.kv_usage.zip(new.kv_usage);
        let requests = differs(new.running, before.running) || differs(new.waiting, before.waiting);
        differs(new.progress, before.progress)
            || cache.is_some_and(|(before, new)| (before - new).abs() > f64::EPSILON)
            || (new.progress.is_none() && requests)
    }

    /// Whether it says something that moves while it works.
    #[must_use]
    pub const fn show_progress(&self) -> bool {
        self.progress.is_some()
    }
}

/// What a look at a replica comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallVerdict {
    /// Nothing is due.
    Alive,
    /// It has been silent for its whole patience: its gauges are to be read.
    Scrape,
    /// It stayed silent after that, for so long in all.
    Stalled(Duration),
}

/// One replica's watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StallDetector {
    /// The last sign of life.
    sign: Tick,
    /// Since when it has owed something without a break.
    owed: Option<Tick>,
    check: Option<Tick>,
    /// Its gauges were asked for, and nothing has come since.
    asked: bool,
    /// When a first token was last found missing, if nothing has come since.
    missed: Option<Tick>,
    /// A silence of the engine that did not mean that it had frozen, or has not
    /// yet shown that it did, and when it ended.
    shown: (Duration, Tick),
}

impl StallDetector {
    /// Something came from the engine, or a gauge of it moved.
    pub fn sign(&mut self, now: Tick) {
        self.note_stall(now);
        self.sign = now;
        self.asked = false;
        self.missed = None;
    }

    /// Keeps in mind for how long it has been silent while it owed something.
    pub fn note_stall(&mut self, now: Tick) {
        let silence = self.owed.map_or(Duration::ZERO, |_| now.since(self.stalled_since()));
        if silence > self.shown_at(now) {
            self.shown = (silence, now);
        }
    }

    /// What the silence that it has shown is worth now.
    fn shown_at(&self, now: Tick) -> Duration {
        let (silence, at) = self.shown;
        if silence < GRACE {
            return silence;
        }
        silence.mul_f64((-now.since(at).div_duration_f64(SHOWN_HALVES)).exp2())
    }

    /// How long the engine may be silent for which a first token and a gap are
    /// predicted, with what it has shown.
    #[must_use]
    pub fn patience(&self, expected: u64, gap: Option<u64>, now: Tick) -> Duration {
        let shown = self.shown_at(now).saturating_mul(TIMES_SHOWN).min(WARM_UP);
        patience(expected, gap).max(shown)
    }

    /// Whether anything came from the engine since then, and lately: within
    /// `patience`.
    #[must_use]
    pub fn is_alive(&self, since: Tick, now: Tick, patience: Duration) -> bool {
        self.sign > since && now.since(self.sign) < patience
    }

    /// The last sign of life.
    #[must_use]
    pub const fn last_sign(&self) -> Tick {
        self.sign
    }

    /// Keeps in mind that a first token did not come.
    pub fn miss(&mut self, now: Tick) {
        self.missed.get_or_insert(now);
    }

    /// When a first token was first found missing since the last sign of life.
    #[must_use]
    pub const fn missed(&self) -> Option<Tick> {
        self.missed
    }

    /// Keeps the next check while the engine owes something, and none otherwise.
    /// A check never moves to a later time: [`Self::check`] does that.
    pub fn arm(&mut self, now: Tick, owes: bool, patience: Duration) {
        self.owed = owes.then(|| self.owed.unwrap_or(now));
        self.asked &= owes;
        let next = (self.stalled_since() + patience).max(now + GRACE);
        self.check = owes.then(|| self.check.map_or(next, |at| at.min(next)));
    }

    /// When to look again.
    #[must_use]
    pub const fn check_at(&self) -> Option<Tick> {
        self.check
    }

    /// Looks, if it is time to. If the engine has not been silent for too long,
    /// the next check comes when it will have been.
    pub fn check(&mut self, now: Tick, patience: Duration) -> StallVerdict {
        if self.check.is_none_or(|at| at > now) {
            return StallVerdict::Alive;
        }
        let limit = self.stalled_since() + patience;
        let (next, look) = match (limit <= now, self.asked) {
            (false, _) => (limit, StallVerdict::Alive),
            (true, false) => (now + ANSWER, StallVerdict::Scrape),
            (true, true) => (now + GRACE, StallVerdict::Stalled(now.since(self.stalled_since()))),
        };
        self.asked = look == StallVerdict::Scrape;
        self.check = Some(next);
        look
    }

    fn stalled_since(&self) -> Tick {
        self.owed.map_or(self.sign, |owed| owed.max(self.sign))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(1_500);

    fn ms(millis: u64) -> Tick {
        Tick::from_millis(millis)
    }

    #[test]
    fn a_silence_that_it_came_back_from_is_given_again_and_fades() {
        let gap = Some(1_000_000);
        let usual = patience(0, gap);
        let mut watch = StallDetector::default();
        watch.arm(ms(0), true, PATIENCE);
        watch.sign(ms(500));
        assert_eq!(watch.patience(0, gap, ms(500)), usual);
        watch.sign(ms(4_500));
        assert_eq!(watch.patience(0, gap, ms(4_500)), Duration::from_secs(8));
        assert_eq!(watch.patience(0, gap, ms(64_500)), Duration::from_secs(4));
        assert_eq!(watch.patience(0, gap, ms(600_000)), usual);
        watch.sign(ms(600_000));
        watch.note_stall(ms(700_000));
        assert_eq!(watch.patience(0, gap, ms(700_000)), WARM_UP, "as long as a new one at most");
    }

    #[test]
    fn silence_is_judged_only_while_something_is_owed_and_after_a_question() {
        let mut watch = StallDetector::default();
        watch.arm(ms(100), true, PATIENCE);
        assert_eq!(watch.check_at(), Some(ms(1_600)));
        watch.sign(ms(400));
        assert_eq!(watch.check(ms(1_600), PATIENCE), StallVerdict::Alive);
        assert_eq!(watch.check_at(), Some(ms(1_900)));
        assert_eq!(watch.check(ms(1_900), PATIENCE), StallVerdict::Scrape);
        assert_eq!(watch.check(ms(1_900), PATIENCE), StallVerdict::Alive, "the answer is on its way");
        assert_eq!(watch.check(ms(2_400), PATIENCE), StallVerdict::Stalled(Duration::from_secs(2)));
        watch.arm(ms(2_400), false, PATIENCE);
        assert_eq!(watch.check_at(), None);
        assert_eq!(watch.check(ms(9_000), PATIENCE), StallVerdict::Alive);
    }

    #[test]
    fn what_comes_after_the_question_is_an_answer() {
        let mut watch = StallDetector::default();
        watch.arm(ms(0), true, PATIENCE);
        assert_eq!(watch.check(ms(1_500), PATIENCE), StallVerdict::Scrape);
        watch.miss(ms(1_500));
        watch.sign(ms(1_600));
        assert_eq!(watch.missed(), None);
        assert_eq!(watch.check(ms(2_000), PATIENCE), StallVerdict::Alive);
        assert_eq!(watch.check(ms(3_100), PATIENCE), StallVerdict::Scrape, "from the beginning");
    }

    #[test]
    fn a_debt_begins_when_there_was_none() {
        let mut watch = StallDetector::default();
        watch.sign(ms(100));
        watch.arm(ms(60_000), true, PATIENCE);
        assert_eq!(watch.check_at(), Some(ms(61_500)));
        assert!(!watch.is_alive(ms(0), ms(60_000), PATIENCE));
        watch.sign(ms(60_200));
        assert!(watch.is_alive(ms(60_000), ms(60_300), PATIENCE));
        assert!(!watch.is_alive(ms(60_200), ms(60_300), PATIENCE));
    }

    #[test]
    fn gauges_show_life_when_they_move() {
        let mut gauges = WatchedGauges::default();
        let report = |progress, running, kv_usage| ReplicaReport {
            progress,
            running,
            kv_usage,
            ..ReplicaReport::default()
        };
        assert!(!gauges.moved(&report(None, Some(1), None)), "the first one");
        assert!(gauges.moved(&report(None, Some(2), None)) && !gauges.show_progress());
        assert!(!gauges.moved(&ReplicaReport::default()), "a report without gauges");
        assert!(!gauges.moved(&report(Some(7), Some(2), Some(0.5))));
        assert!(gauges.show_progress());
        assert!(!gauges.moved(&report(Some(7), Some(9), Some(0.5))), "who comes is no progress");
        assert!(gauges.moved(&report(Some(7), Some(9), Some(0.6))));
        assert!(gauges.moved(&report(Some(3), None, Some(f64::NAN))), "it is another process");
    }

    #[test]
    fn long_prompts_explain_long_silence() {
        assert_eq!(patience(0, Some(0)), Duration::from_secs(1));
        assert_eq!(patience(1_000_000_000, Some(0)), Duration::from_secs(4));
        assert!(patience(u64::MAX, Some(u64::MAX)) > Duration::from_secs(1_000_000));
    }

    #[test]
    fn a_first_answer_ends_the_patience_with_a_cold_engine() {
        let mut watch = StallDetector::default();
        watch.arm(ms(0), true, patience(0, None));
        assert_eq!(watch.check_at(), Some(ms(30_000)));
        watch.sign(ms(500));
        watch.arm(ms(500), true, patience(0, Some(0)));
        assert_eq!(watch.check_at(), Some(ms(1_500)));
    }

    #[test]
    fn slow_streams_explain_silence_too() {
        assert_eq!(patience(0, Some(100_000_000)), Duration::from_secs(3));
    }

    #[test]
    fn an_engine_that_never_answered_may_be_compiling() {
        assert_eq!(patience(1_000_000_000, None), Duration::from_secs(33));
    }
}
