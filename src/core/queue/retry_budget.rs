//! Retry budget: retries are limited to a share of the first attempts of the last ten seconds. A
//! floor allows a few retries however few requests there are.
//!
//! Retries help while most engines work. When most engines fail, retries overload the rest. The
//! share bounds the load that retries add, whatever fails. Requests that a healthy engine loses
//! when it dies do not count: they come once for each death, and all at the same moment.

use crate::model::policy::RetryPolicy;
use crate::model::time::Tick;

/// Length of the window in seconds.
const SECONDS: usize = 10;
const SECOND: u64 = 1_000_000_000;

/// First attempts and retries of the last ten seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetryBudget {
    /// The current second.
    second: u64,
    first_attempts: [u32; SECONDS],
    retries: [u32; SECONDS],
}

impl RetryBudget {
    /// Counts the first attempt of a request.
    pub fn note_first_attempt(&mut self, now: Tick) {
        let slot = self.slot(now);
        self.first_attempts[slot] = self.first_attempts[slot].saturating_add(1);
    }

    /// Takes one retry from the budget. Returns whether one was left.
    #[must_use]
    pub fn take_retry(&mut self, now: Tick, rules: &RetryPolicy) -> bool {
        let slot = self.slot(now);
        let sum = |all: &[u32]| all.iter().copied().map(u64::from).sum::<u64>();
        let share = sum(&self.first_attempts).saturating_mul(u64::from(rules.budget_permille)) / 1000;
        let left = sum(&self.retries) < share.max(u64::from(rules.budget_floor));
        self.retries[slot] = self.retries[slot].saturating_add(u32::from(left));
        left
    }

    /// Slot of the current second. Clears the slots of seconds that have left the window.
    fn slot(&mut self, now: Tick) -> usize {
        let second = (now.as_nanos() / SECOND).max(self.second);
        let passed = (second - self.second).min(SECONDS as u64);
        for back in 0..passed {
            let slot = ((second - back) % SECONDS as u64) as usize;
            (self.first_attempts[slot], self.retries[slot]) = (0, 0);
        }
        self.second = second;
        (second % SECONDS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    const RULES: RetryPolicy = RetryPolicy { max_attempts: 4, budget_permille: 200, budget_floor: 10 };

    fn taken(budget: &mut RetryBudget, millis: u64, wanted: u32) -> u32 {
        (0..wanted).map(|_| u32::from(budget.take_retry(Tick::from_millis(millis), &RULES))).sum()
    }

    #[test]
    fn a_few_are_always_allowed_and_come_back() {
        let mut budget = RetryBudget::default();
        assert_eq!(taken(&mut budget, 0, 100), 10);
        assert_eq!(taken(&mut budget, 9_999, 100), 0);
        assert_eq!(taken(&mut budget, 10_000, 100), 10);
        assert_eq!(taken(&mut budget, 1_000_000, 100), 10);
    }

    #[test]
    fn traffic_earns_a_share() {
        let mut budget = RetryBudget::default();
        for millis in 0..1000 {
            budget.note_first_attempt(Tick::from_millis(millis));
        }
        assert_eq!(taken(&mut budget, 5_000, 1000), 200);
        assert_eq!(taken(&mut budget, 11_000, 1000), 0, "the traffic is forgotten before its retries");
        assert_eq!(taken(&mut budget, 15_000, 1000), 10);
    }

    proptest! {
        #[test]
        fn no_ten_seconds_have_more(steps in vec((0u64..4_000, 0u32..60, 0u32..60), 1..60)) {
            let (mut budget, mut now, mut log) = (RetryBudget::default(), 0, Vec::new());
            for (pause, tries, wanted) in steps {
                now += pause;
                (0..tries).for_each(|_| budget.note_first_attempt(Tick::from_millis(now)));
                log.push((now / 1000, tries, taken(&mut budget, now, wanted)));
                let recent = || log.iter().filter(|(at, ..)| at + 10 > now / 1000);
                let (tries, retries) = recent().fold((0, 0), |sum, row| (sum.0 + row.1, sum.1 + row.2));
                // At most the share of first attempts in the current window and the window just
                // before it.
                let earlier = log.iter().filter(|(at, ..)| at + 19 > now / 1000).map(|row| row.1).sum::<u32>();
                prop_assert!(retries <= (earlier / 5).max(10), "{retries} of {tries} and {earlier}");
            }
        }
    }
}
