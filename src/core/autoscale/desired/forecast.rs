//! Day forecast: what a pool needed at the same time on each of the last two days.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::time::Tick;

/// Length of a slot, in seconds.
const SLOT: u64 = 300;
/// Slots of a day.
const DAY: usize = 288;
/// Slots that show whether today is like a day before: the last hour.
const RECENT: usize = 12;
/// Slots that are kept: two days, and the hour before them.
const KEPT: usize = 2 * DAY + RECENT;
/// Largest difference between the last hour and the same hour of a day before, as a part of what
/// that hour needed.
const ALIKE: f64 = 0.2;

/// Need of a pool by slots, over the last two days and an hour.
#[derive(Debug, Clone, Default)]
pub(super) struct DayForecast {
    /// Need at the end of each slot, in replicas, newest last.
    needs: VecDeque<f32>,
    /// Number of the slot under way; `None` before the first need.
    slot: Option<u64>,
    /// Last need of the slot under way.
    need: f32,
}

impl DayForecast {
    /// Notes what is needed now. A gap of more than a slot ends what was learned.
    pub(super) fn note(&mut self, need: f64, now: Tick) {
        let slot = slot(now);
        match self.slot {
            Some(last) if last == slot => {}
            Some(last) if last + 1 == slot => {
                self.needs.push_back(self.need);
                if self.needs.len() > KEPT {
                    self.needs.pop_front();
                }
            }
            _ => self.needs.clear(),
        }
        (self.slot, self.need) = (Some(slot), need as f32);
    }

    /// The most that is expected to be needed until `ahead` from now: in each slot, the less of what
    /// the last two days needed. `None` before two days were seen, and when the last hour was unlike
    /// that hour on one of them.
    pub(super) fn expected(&self, ahead: Duration, now: Tick) -> Option<f64> {
        if self.needs.len() < KEPT {
            return None;
        }
        let days = [RECENT, RECENT + DAY];
        let hour = |end: usize| (end - RECENT..end).map(|slot| self.at(slot));
        let is_like = |day: &usize| {
            let apart: f64 = hour(KEPT).zip(hour(*day)).map(|(one, other)| (one - other).abs()).sum();
            apart <= hour(*day).sum::<f64>() * ALIKE
        };
        let slots = usize::try_from(slot(now + ahead).saturating_sub(self.slot?)).ok()?.min(DAY - 1);
        let less = |slot: usize| days.iter().map(|day| self.at(day + slot)).fold(f64::INFINITY, f64::min);
        days.iter().all(is_like).then(|| (0..=slots).map(less).fold(0.0, f64::max))
    }

    fn at(&self, slot: usize) -> f64 {
        self.needs.get(slot).copied().map_or(0.0, f64::from)
    }
}

const fn slot(now: Tick) -> u64 {
    now.as_nanos() / (SLOT * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(90);

    fn at(slot: u64, second: u64) -> Tick {
        Tick::from_millis((slot * SLOT + second) * 1000)
    }

    /// Notes these needs of slots, from the first.
    fn seen(slots: u64, need: impl Fn(u64) -> f64) -> DayForecast {
        let mut forecast = DayForecast::default();
        for slot in 0..slots {
            (0..SLOT).step_by(10).for_each(|second| forecast.note(need(slot), at(slot, second)));
        }
        forecast
    }

    /// Ten replicas for an hour from the sixth hour of each day, else three.
    fn morning(slot: u64) -> f64 {
        if (72..84).contains(&(slot % DAY as u64)) { 10.0 } else { 3.0 }
    }

    #[test]
    fn what_two_days_needed_is_expected_a_start_before() {
        let expected = |slots: u64, second: u64| {
            let mut forecast = seen(slots, morning);
            forecast.note(morning(slots), at(slots, 0));
            forecast.expected(START, at(slots, second))
        };
        let day = DAY as u64;
        assert_eq!(expected(day + 71, 250), None, "one day may be chance");
        assert_eq!(expected(2 * day + 11, 0), None, "nor is the hour before the first day known");
        assert_eq!(expected(2 * day + 12, 0), Some(3.0));
        assert_eq!(expected(2 * day + 71, 200), Some(3.0));
        assert_eq!(expected(2 * day + 71, 211), Some(10.0));
        assert_eq!(expected(2 * day + 83, 250), Some(10.0), "the slot under way");
        assert_eq!(expected(2 * day + 84, 0), Some(3.0));
    }

    #[test]
    fn a_day_unlike_the_others_expects_nothing() {
        let day = DAY as u64;
        let quiet = |slot: u64| if slot < 2 * day { morning(slot) } else { 1.0 };
        assert_eq!(seen(2 * day + 71, quiet).expected(START, at(2 * day + 71, 250)), None);
        let once = |slot: u64| if slot < day { morning(slot) } else { 3.0 };
        assert_eq!(
            seen(2 * day + 71, once).expected(START, at(2 * day + 71, 250)),
            Some(3.0),
            "on one day only"
        );
    }

    #[test]
    fn a_gap_ends_what_was_learned_and_memory_is_bounded() {
        let mut forecast = seen(5 * DAY as u64, morning);
        assert_eq!(forecast.needs.len(), KEPT);
        forecast.note(3.0, at(5 * DAY as u64 + 2, 0));
        assert!(forecast.needs.is_empty());
    }
}
