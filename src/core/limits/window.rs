//! Minute window: the amount used in the sixty seconds before any instant.
//!
//! A token bucket that starts full and refills all the time lets twice its size pass in its first
//! minute. This window slides in steps of a quarter of a second instead: no sixty seconds ever
//! contain more than the limit. Use beyond a job's reservation may not fit any more. The excess
//! becomes a debt, paid with amounts that leave the window.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::time::Tick;

/// Length of a slot in nanoseconds.
const SLOT: u64 = 250_000_000;
/// Slots after which an amount has left the window: a minute, and the slot of the booking itself,
/// whose exact moment is not kept.
const KEPT: u64 = 241;
/// The shortest wait for the settlement of running jobs.
const MIN_SETTLE_WAIT: Duration = Duration::from_secs(1);
/// Largest debt in multiples of the limit. More is forgiven, so that one mistake does not lock a
/// tenant out for hours.
const MAX_DEBT: u64 = 10;

/// Minute window of one limit.
#[derive(Debug, Clone, Default)]
pub struct MinuteWindow {
    /// Slots with bookings, the oldest first.
    slots: VecDeque<SlotAmount>,
    sum: u64,
    debt: u64,
    /// The part of the booked amount that running jobs have reserved.
    held: u64,
    accuracy: ReservationAccuracy,
}

/// Amount that is booked in one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotAmount {
    /// Number of the slot since the start of the clock.
    pub slot: u64,
    /// In the unit of the limit.
    pub amount: u64,
}

/// Typical outcome of reservations; the latest ones count most.
#[derive(Debug, Clone, Copy, Default)]
struct ReservationAccuracy {
    /// Mean number of slots until a reservation is settled, times eight.
    slots: u64,
    /// Mean part of a reservation that is used, in 1/256, times eight.
    part: u64,
    is_known: bool,
}

impl ReservationAccuracy {
    const fn learn(&mut self, slots: u64, booked: u64, actual: u64) {
        let used = if actual < booked { actual } else { booked };
        let part = (used as u128 * 256 / (if booked == 0 { 1 } else { booked }) as u128) as u64;
        if self.is_known {
            self.slots = self.slots - self.slots / 8 + slots;
            self.part = self.part - self.part / 8 + part;
        } else {
            *self = Self { slots: slots * 8, part: part * 8, is_known: true };
        }
    }

    /// The part of a reserved amount that is likely to be used.
    const fn likely_use(&self, held: u64) -> u64 {
        (held as u128 * (self.part / 8) as u128 / 256) as u64
    }
}

const fn slot_of(now: Tick) -> u64 {
    now.as_nanos() / SLOT
}

impl MinuteWindow {
    /// Amount booked in the window, debts included.
    pub const fn used(&self) -> u64 {
        self.sum.saturating_add(self.debt)
    }

    /// Lets old slots leave the window, and pays debts with their amounts.
    pub fn advance(&mut self, now: Tick, limit: u64) {
        let now = slot_of(now);
        while let Some(SlotAmount { slot, amount }) = self.slots.front().copied() {
            let end = slot + KEPT;
            if end > now {
                break;
            }
            self.slots.pop_front();
            self.sum -= amount;
            self.pay_debt(end, limit);
        }
        self.pay_debt(now, limit);
    }

    /// Books an amount now. Returns the booking, which [`Self::settle`] takes back.
    pub fn book(&mut self, now: Tick, amount: u64) -> SlotAmount {
        let slot = slot_of(now);
        self.put(slot, amount);
        self.held = self.held.saturating_add(amount);
        SlotAmount { slot, amount }
    }

    /// Books an amount that was used already; no more of it than the limit.
    pub fn charge(&mut self, now: Tick, limit: u64, amount: u64) {
        self.advance(now, limit);
        self.put(slot_of(now), amount.min(limit));
    }

    /// Replaces a booking by the actual use. A smaller use is returned while the slot is in the
    /// window. The excess of a larger use counts from now on.
    pub fn settle(&mut self, now: Tick, limit: u64, booking: SlotAmount, actual: u64) {
        let SlotAmount { slot, amount: booked } = booking;
        self.advance(now, limit);
        self.held = self.held.saturating_sub(booked);
        self.accuracy.learn(slot_of(now).saturating_sub(slot), booked, actual);
        if actual > booked {
            let most = limit.saturating_mul(MAX_DEBT).max(1);
            self.debt = self.debt.saturating_add(actual - booked).min(most);
            return self.pay_debt(slot_of(now), limit);
        }
        let Ok(at) = self.slots.binary_search_by_key(&slot, |booked| booked.slot) else { return };
        let given_back = (booked - actual).min(self.slots[at].amount);
        self.slots[at].amount -= given_back;
        self.sum -= given_back;
        self.pay_debt(slot_of(now), limit);
    }

    /// Time until `amount` can be booked; zero when it can be booked now. An amount above the limit
    /// is treated as the limit. When the amount is likely to fit once running jobs are settled, the
    /// wait is the usual time until a settlement.
    pub fn wait(&self, now: Tick, limit: u64, amount: u64) -> Duration {
        let at_the_latest = self.latest_wait(now, limit, amount);
        let settled = self.used().saturating_sub(self.held);
        let likely = settled.saturating_add(self.accuracy.likely_use(self.held));
        if self.held == 0 || likely.saturating_add(amount.min(limit)) > limit {
            return at_the_latest;
        }
        let usually = Duration::from_nanos((self.accuracy.slots / 8).saturating_mul(SLOT));
        at_the_latest.min(usually.max(MIN_SETTLE_WAIT))
    }

    fn latest_wait(&self, now: Tick, limit: u64, amount: u64) -> Duration {
        let mut needed = self.used().saturating_add(amount.min(limit)).saturating_sub(limit);
        let mut last = slot_of(now);
        if needed == 0 {
            return Duration::ZERO;
        }
        for SlotAmount { slot, amount } in &self.slots {
            needed = needed.saturating_sub(*amount);
            last = slot + KEPT;
            if needed == 0 {
                break;
            }
        }
        // The rest of the need is debt, which is paid at the rate of the limit.
        let rounds = needed.div_ceil(limit.max(1));
        let at = last.saturating_add(rounds.saturating_mul(KEPT));
        Tick::from_nanos(at.saturating_mul(SLOT)).since(now)
    }

    fn pay_debt(&mut self, slot: u64, limit: u64) {
        let paid = self.debt.min(limit.saturating_sub(self.sum));
        self.debt -= paid;
        self.put(slot, paid);
    }

    /// Adds an amount to a slot. Slots come in order, except for a payment in a slot before the
    /// last one.
    fn put(&mut self, slot: u64, amount: u64) {
        if amount == 0 {
            return;
        }
        self.sum = self.sum.saturating_add(amount);
        match self.slots.binary_search_by_key(&slot, |booked| booked.slot) {
            Ok(at) => self.slots[at].amount = self.slots[at].amount.saturating_add(amount),
            Err(at) => self.slots.insert(at, SlotAmount { slot, amount }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn secs(secs: u64) -> Tick {
        Tick::from_millis(secs * 1000)
    }

    #[test]
    fn what_was_booked_leaves_after_a_minute() {
        let mut window = MinuteWindow::default();
        for (at, amount) in [(secs(10), 60), (secs(20), 40)] {
            let booking = window.book(at, amount);
            window.settle(at, 100, booking, amount);
        }
        assert_eq!(window.wait(secs(30), 100, 50), Duration::from_millis(40_250));
        assert_eq!(window.wait(secs(30), 100, 61), Duration::from_millis(50_250));
        window.advance(secs(70), 100);
        assert_eq!(window.used(), 100);
        window.advance(Tick::from_millis(70_250), 100);
        assert_eq!((window.used(), window.wait(Tick::from_millis(70_250), 100, 60)), (40, Duration::ZERO));
        window.advance(secs(1_000), 100);
        assert_eq!(window.used(), 0);
    }

    #[test]
    fn what_was_not_used_is_given_back_and_what_was_more_is_a_debt() {
        let mut window = MinuteWindow::default();
        let booking = window.book(secs(0), 100);
        window.settle(secs(5), 100, booking, 30);
        assert_eq!(window.used(), 30);
        let booking = window.book(secs(5), 70);
        window.settle(secs(6), 100, booking, 300);
        assert_eq!(window.used(), 330);
        // 230 of debt: 30 are paid at 60.25 s, 70 at 65.25 s, the last 30
        // when the first round of payments leaves.
        window.advance(secs(66), 100);
        assert_eq!(window.used(), 230);
        assert!(window.wait(secs(66), 100, 1) > Duration::from_secs(60));
        window.advance(secs(400), 100);
        assert_eq!(window.used(), 0);
    }

    #[test]
    fn debts_have_an_end() {
        let mut window = MinuteWindow::default();
        let booking = window.book(secs(0), 10);
        window.settle(secs(1), 10, booking, u64::MAX);
        assert!(window.wait(secs(1), 10, 10) <= Duration::from_secs(11 * 61));
        window.advance(secs(12 * 61), 10);
        assert_eq!(window.used(), 0);
    }

    #[test]
    fn a_limit_of_nothing_does_no_harm() {
        let mut window = MinuteWindow::default();
        let booking = window.book(secs(0), 0);
        window.settle(secs(0), 0, booking, 5);
        window.advance(secs(100), 0);
        assert!(window.wait(secs(100), 0, 1) > Duration::ZERO);
    }

    #[test]
    fn what_is_only_reserved_is_waited_for_as_long_as_it_usually_takes() {
        let mut window = MinuteWindow::default();
        let first = window.book(secs(0), 100);
        assert_eq!(window.wait(secs(0), 100, 50), MIN_SETTLE_WAIT, "nobody knows how long it takes");
        window.settle(secs(5), 100, first, 10);
        let second = window.book(secs(5), 90);
        assert_eq!(window.wait(secs(5), 100, 50), Duration::from_secs(5));
        window.settle(secs(10), 100, second, 90);
        assert_eq!(window.wait(secs(10), 100, 50), Duration::from_millis(55_250), "it is used");
        // Every job uses its whole reservation, so that nothing is returned at the settlement.
        let mut window = MinuteWindow::default();
        for _ in 0..20 {
            let booking = window.book(secs(0), 3);
            window.settle(secs(1), 100, booking, 3);
        }
        window.book(secs(2), 40);
        assert_eq!(window.wait(secs(2), 100, 10), Duration::from_millis(58_250));
    }

    proptest! {
        /// In any 60 seconds the window admits at most the limit. An amount that was given a wait
        /// fits after that wait.
        #[test]
        fn never_more_than_the_limit_in_any_minute(
            limit in 1_u64..500,
            steps in prop::collection::vec((0_u64..20_000, 1_u64..200, 0_u64..3), 1..120),
        ) {
            let mut window = MinuteWindow::default();
            let mut now = Tick::ZERO;
            let mut taken: Vec<(Tick, u64)> = Vec::new();
            for (gap, amount, part) in steps {
                now += Duration::from_millis(gap);
                window.advance(now, limit);
                let amount = amount.min(limit);
                let wait = window.wait(now, limit, amount);
                if wait.is_zero() {
                    let booking = window.book(now, amount);
                    let actual = amount * part / 2;
                    window.settle(now, limit, booking, actual.min(amount));
                    taken.push((now, actual.min(amount)));
                } else {
                    let mut later = window.clone();
                    later.advance(now + wait, limit);
                    prop_assert!(later.wait(now + wait, limit, amount).is_zero());
                    let mut sooner = window.clone();
                    let before = now + (wait - Duration::from_nanos(1));
                    sooner.advance(before, limit);
                    prop_assert!(!sooner.wait(before, limit, amount).is_zero());
                }
                let recent = taken.iter().filter(|(at, _)| now.since(*at) < Duration::from_secs(60));
                prop_assert!(recent.map(|(_, amount)| amount).sum::<u64>() <= limit);
            }
        }

        /// Over a long time the use is at most what the limit allows, plus the debt that was
        /// forgiven, with or without debts.
        #[test]
        fn the_sum_is_that_of_the_slots(
            limit in 0_u64..300,
            steps in prop::collection::vec((0_u64..90_000, 0_u64..400, 0_u64..900), 1..60),
        ) {
            let mut window = MinuteWindow::default();
            let mut now = Tick::ZERO;
            for (gap, booked, actual) in steps {
                now += Duration::from_millis(gap);
                window.advance(now, limit);
                let booking = window.book(now, booked);
                window.settle(now, limit, booking, actual);
                prop_assert_eq!(window.slots.iter().map(|booked| booked.amount).sum::<u64>(), window.sum);
                prop_assert!(window.slots.len() as u64 <= KEPT + 1);
                prop_assert!(window.debt <= limit.max(1) * MAX_DEBT);
                prop_assert!(window.debt == 0 || window.sum >= limit);
            }
        }
    }
}
