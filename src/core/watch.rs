//! Signs of life: whether an engine that should be sending something is.
//!
//! An engine that has frozen keeps its connections and often answers its health
//! check. What gives it away is silence: it owes tokens, to streams or as first
//! tokens, and none has come for longer than its prompts and its usual pace
//! explain. An engine that has never answered may still be compiling its
//! kernels, so it is given longer.

use std::time::Duration;

use crate::core::time::Tick;

/// Silence that is never held against an engine.
const GRACE: Duration = Duration::from_secs(1);
/// The same while nothing has ever come from it.
const WARM_UP: Duration = Duration::from_secs(30);
/// How many times as long as predicted it may take before that.
const TIMES: u64 = 3;
/// How many tokens it may have missed before that.
const TOKENS: u64 = 20;

/// How long an engine may be silent for which a first token is predicted to
/// take `expected` nanoseconds, and which takes `gap` nanoseconds between two
/// tokens; `None` while it has never sent one.
#[must_use]
pub fn patience(expected: u64, gap: Option<u64>) -> Duration {
    let grace = if gap.is_some() { GRACE } else { WARM_UP };
    let tokens = gap.unwrap_or_default().saturating_mul(TOKENS);
    grace.saturating_add(Duration::from_nanos(expected.saturating_mul(TIMES).saturating_add(tokens)))
}

/// One replica's watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watch {
    sign: Tick,
    check: Option<Tick>,
}

impl Watch {
    /// Something came from the engine, or it began to owe something.
    pub const fn sign(&mut self, now: Tick) {
        self.sign = now;
    }

    /// Keeps the next check while the engine owes tokens, and none otherwise.
    /// A check never moves to a later time: [`Self::look`] does that.
    pub fn arm(&mut self, now: Tick, owes: bool, patience: Duration) {
        let next = (self.sign + patience).max(now + GRACE);
        self.check = owes.then(|| self.check.map_or(next, |at| at.min(next)));
    }

    /// When to look again.
    #[must_use]
    pub const fn check_at(&self) -> Option<Tick> {
        self.check
    }

    /// Looks, if it is time to; says whether the engine has stalled. If not,
    /// the next check comes when it will have been silent for too long.
    pub fn look(&mut self, now: Tick, patience: Duration) -> bool {
        if self.check.is_none_or(|at| at > now) {
            return false;
        }
        let limit = self.sign + patience;
        let stalled = limit <= now;
        self.check = Some(if stalled { now + patience } else { limit });
        stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(1_500);

    #[test]
    fn silence_is_a_stall_only_while_tokens_are_owed() {
        let mut watch = Watch::default();
        watch.sign(Tick::from_millis(100));
        watch.arm(Tick::from_millis(100), true, PATIENCE);
        assert_eq!(watch.check_at(), Some(Tick::from_millis(1_600)));
        watch.sign(Tick::from_millis(400));
        assert!(!watch.look(Tick::from_millis(1_600), PATIENCE));
        assert_eq!(watch.check_at(), Some(Tick::from_millis(1_900)));
        assert!(watch.look(Tick::from_millis(1_900), PATIENCE));
        watch.arm(Tick::from_millis(1_900), false, PATIENCE);
        assert_eq!(watch.check_at(), None);
        assert!(!watch.look(Tick::from_millis(9_000), PATIENCE));
    }

    #[test]
    fn long_prompts_explain_long_silence() {
        assert_eq!(patience(0, Some(0)), Duration::from_secs(1));
        assert_eq!(patience(1_000_000_000, Some(0)), Duration::from_secs(4));
        assert!(patience(u64::MAX, Some(u64::MAX)) > Duration::from_secs(1_000_000));
    }

    #[test]
    fn a_first_answer_ends_the_patience_with_a_cold_engine() {
        let mut watch = Watch::default();
        watch.arm(Tick::from_millis(0), true, patience(0, None));
        assert_eq!(watch.check_at(), Some(Tick::from_millis(30_000)));
        watch.sign(Tick::from_millis(500));
        watch.arm(Tick::from_millis(500), true, patience(0, Some(0)));
        assert_eq!(watch.check_at(), Some(Tick::from_millis(1_500)));
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
