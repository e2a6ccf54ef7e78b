//! Stall detector: finds an engine that sends nothing although it owes output.
//!
//! A frozen engine keeps its connections and often answers its health check, but it stalls: it
//! owes tokens, and neither a byte nor a moving gauge has come for longer than its prompts and
//! its usual ITL explain. An engine that has never answered may still be compiling its kernels
//! and gets more time. An engine that stalled lately and went on, or that was ejected for a
//! stall, also gets more time: twice the length of that stall, up to the time of a new engine.
//! The extra time decays.
//!
//! A stall is judged in two steps. When the patience is over, the detector asks the edge for a
//! fresh scrape ([`StallVerdict::Scrape`]). Only if the scrape brings no sign of life, the
//! engine has stalled ([`StallVerdict::Stalled`]). A gateway that was itself stopped for a
//! moment therefore reads the bytes that arrived meanwhile before it judges. The scheduler
//! knows what is owed and decides the consequence of a stall.

use std::time::Duration;

use crate::model::event::ReplicaReport;
use crate::model::time::Tick;

/// Time without a sign of life that never counts as a stall.
const GRACE: Duration = Duration::from_secs(1);
/// Time without a sign of life that never counts as a stall, while the engine has never sent a
/// token.
const WARM_UP: Duration = Duration::from_secs(30);
/// Patience with an engine that stalled before and went on, as a multiple of that stall.
const TIMES_SHOWN: u32 = 2;
/// Half-life of a stall that the engine has shown.
const SHOWN_HALVES: Duration = Duration::from_secs(60);
/// Patience, as a multiple of the predicted TTFT.
const TTFT_MULTIPLE: u64 = 3;
/// Patience, in tokens that the engine may have missed.
const MISSED_TOKENS: u64 = 20;
/// Time for the answer to a fresh scrape of the gauges.
const SCRAPE_TIMEOUT: Duration = Duration::from_millis(500);

/// Patience with an engine whose first token is predicted to take `expected` nanoseconds and whose
/// ITL is `gap` nanoseconds; `None` while it has never sent a token.
fn patience(expected: u64, gap: Option<u64>) -> Duration {
    let grace = if gap.is_some() { GRACE } else { WARM_UP };
    let tokens = gap.unwrap_or_default().saturating_mul(MISSED_TOKENS);
    grace.saturating_add(Duration::from_nanos(expected.saturating_mul(TTFT_MULTIPLE).saturating_add(tokens)))
}

/// Gauges of an engine's last report that show whether it works.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WatchedGauges {
    progress: Option<u64>,
    running: Option<u64>,
    waiting: Option<u64>,
    kv_usage: Option<f64>,
}

impl WatchedGauges {
    /// Takes over a report. Returns whether the report shows that the engine works. Request counts
    /// move when clients come and go, even at an engine that has frozen behind its server. They
    /// count only where the engine reports no progress.
    pub fn update(&mut self, report: &ReplicaReport) -> bool {
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

    /// Whether the engine reports a counter that moves while the engine works.
    pub const fn show_progress(&self) -> bool {
        self.progress.is_some()
    }
}

/// Verdict of a stall check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallVerdict {
    /// No action is due.
    Alive,
    /// The engine has been silent for its whole patience: its gauges have to be scraped.
    Scrape,
    /// The engine stayed silent after the scrape, for this long in all.
    Stalled(Duration),
}

/// Stall detector of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StallDetector {
    /// Last sign of life.
    sign: Tick,
    /// Since when the engine has owed something without a break.
    owed: Option<Tick>,
    check: Option<Tick>,
    /// True when a scrape was asked for and no sign of life has come since.
    asked: bool,
    /// When a first token was first found missing since the last sign of life.
    missed: Option<Tick>,
    past_stall: PastStall,
}

/// A stall that did not mean, or has not yet shown, that the engine had frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct PastStall {
    length: Duration,
    ended: Tick,
}

impl StallDetector {
    /// Notes a sign of life: bytes came from the engine, or a gauge of it moved.
    pub fn note_sign(&mut self, now: Tick) {
        self.note_stall(now);
        self.sign = now;
        self.asked = false;
        self.missed = None;
    }

    /// Notes for how long the engine has been silent while it owed something.
    pub fn note_stall(&mut self, now: Tick) {
        let silence = self.owed.map_or(Duration::ZERO, |_| now.since(self.stalled_since()));
        if silence > self.past_stall_at(now) {
            self.past_stall = PastStall { length: silence, ended: now };
        }
    }

    /// Length of the shown stall, halved every [`SHOWN_HALVES`].
    fn past_stall_at(&self, now: Tick) -> Duration {
        let PastStall { length: silence, ended: at } = self.past_stall;
        if silence < GRACE {
            return silence;
        }
        silence.mul_f64((-now.since(at).div_duration_f64(SHOWN_HALVES)).exp2())
    }

    /// Patience with the engine, for a predicted TTFT and an ITL in nanoseconds, and for the stalls
    /// that it has shown.
    pub fn patience(&self, expected: u64, gap: Option<u64>, now: Tick) -> Duration {
        let shown = self.past_stall_at(now).saturating_mul(TIMES_SHOWN).min(WARM_UP);
        patience(expected, gap).max(shown)
    }

    /// Whether a sign of life came after `since`, and within `patience` before now.
    pub fn is_alive(&self, since: Tick, now: Tick, patience: Duration) -> bool {
        self.sign > since && now.since(self.sign) < patience
    }

    /// Last sign of life.
    pub const fn last_sign(&self) -> Tick {
        self.sign
    }

    /// Notes that a first token did not come in time.
    pub fn note_missed_token(&mut self, now: Tick) {
        self.missed.get_or_insert(now);
    }

    /// When a first token was first found missing since the last sign of life.
    pub const fn missed_at(&self) -> Option<Tick> {
        self.missed
    }

    /// Sets the time of the next check while the engine owes something, and clears it otherwise. A
    /// check never moves to a later time here; only [`Self::check`] moves it.
    pub fn arm(&mut self, now: Tick, owes: bool, patience: Duration) {
        self.owed = owes.then(|| self.owed.unwrap_or(now));
        self.asked &= owes;
        let next = (self.stalled_since() + patience).max(now + GRACE);
        self.check = owes.then(|| self.check.map_or(next, |at| at.min(next)));
    }

    /// Time of the next check.
    pub const fn check_at(&self) -> Option<Tick> {
        self.check
    }

    /// Checks for a stall, when a check is due. If the engine has not been silent for too long, the
    /// next check comes when its patience will be over.
    pub fn check(&mut self, now: Tick, patience: Duration) -> StallVerdict {
        if self.check.is_none_or(|at| at > now) {
            return StallVerdict::Alive;
        }
        let limit = self.stalled_since() + patience;
        let (next, look) = match (limit <= now, self.asked) {
            (false, _) => (limit, StallVerdict::Alive),
            (true, false) => (now + SCRAPE_TIMEOUT, StallVerdict::Scrape),
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
        watch.note_sign(ms(500));
        assert_eq!(watch.patience(0, gap, ms(500)), usual);
        watch.note_sign(ms(4_500));
        assert_eq!(watch.patience(0, gap, ms(4_500)), Duration::from_secs(8));
        assert_eq!(watch.patience(0, gap, ms(64_500)), Duration::from_secs(4));
        assert_eq!(watch.patience(0, gap, ms(600_000)), usual);
        watch.note_sign(ms(600_000));
        watch.note_stall(ms(700_000));
        assert_eq!(watch.patience(0, gap, ms(700_000)), WARM_UP, "as long as a new one at most");
    }

    #[test]
    fn silence_is_judged_only_while_something_is_owed_and_after_a_question() {
        let mut watch = StallDetector::default();
        watch.arm(ms(100), true, PATIENCE);
        assert_eq!(watch.check_at(), Some(ms(1_600)));
        watch.note_sign(ms(400));
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
        watch.note_missed_token(ms(1_500));
        watch.note_sign(ms(1_600));
        assert_eq!(watch.missed_at(), None);
        assert_eq!(watch.check(ms(2_000), PATIENCE), StallVerdict::Alive);
        assert_eq!(watch.check(ms(3_100), PATIENCE), StallVerdict::Scrape, "from the beginning");
    }

    #[test]
    fn a_debt_begins_when_there_was_none() {
        let mut watch = StallDetector::default();
        watch.note_sign(ms(100));
        watch.arm(ms(60_000), true, PATIENCE);
        assert_eq!(watch.check_at(), Some(ms(61_500)));
        assert!(!watch.is_alive(ms(0), ms(60_000), PATIENCE));
        watch.note_sign(ms(60_200));
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
        assert!(!gauges.update(&report(None, Some(1), None)), "the first one");
        assert!(gauges.update(&report(None, Some(2), None)) && !gauges.show_progress());
        assert!(!gauges.update(&ReplicaReport::default()), "a report without gauges");
        assert!(!gauges.update(&report(Some(7), Some(2), Some(0.5))));
        assert!(gauges.show_progress());
        assert!(!gauges.update(&report(Some(7), Some(9), Some(0.5))), "who comes is no progress");
        assert!(gauges.update(&report(Some(7), Some(9), Some(0.6))));
        assert!(gauges.update(&report(Some(3), None, Some(f64::NAN))), "it is another process");
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
        watch.note_sign(ms(500));
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
