//! Calendar task: tells the scheduler when days and months begin, in UTC. The task reads the wall
//! clock every minute, because the wall clock may jump.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};

use crate::core::limits::rule::LimitPeriod;
use crate::core::model::event::Event;
use crate::dispatcher::Dispatcher;
use crate::telemetry::wall;

/// Longest time between two readings of the wall clock.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// The current day in UTC, and the time of the reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::app) struct Today {
    date: Date,
    /// Time of the reading, in seconds since 1970.
    now: i64,
}

impl Today {
    fn at(now: SystemTime) -> Self {
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
        Self { date: Zoned::new(now, TimeZone::UTC).date(), now: now.as_second() }
    }

    /// Begin of the day and of the month, in milliseconds since 1970.
    pub(in crate::app) fn period_starts_ms(&self) -> [i64; 2] {
        let begin = |date: Date| date.to_zoned(TimeZone::UTC).map_or(0, |at| at.timestamp().as_millisecond());
        [begin(self.date), begin(self.date.first_of_month())]
    }

    fn month(&self) -> (i16, i8) {
        (self.date.year(), self.date.month())
    }

    /// Whether a day and a month began. A clock that is set back begins none: what was used would be
    /// allowed once more.
    fn periods_begun_since(&self, before: &Self) -> [bool; 2] {
        [before.date < self.date, before.month() < self.month()]
    }

    /// Time until the period ends: at most a day or a month.
    fn time_left(&self, period: LimitPeriod) -> Duration {
        let next = match period {
            LimitPeriod::Month => self.date.first_of_month().checked_add(1.month()),
            LimitPeriod::Now | LimitPeriod::Minute | LimitPeriod::Day => self.date.checked_add(1.day()),
        };
        let next = next.ok().and_then(|date| date.to_zoned(TimeZone::UTC).ok());
        let left = next.map_or(0, |next| next.timestamp().as_second() - self.now);
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }
}

/// Tells the scheduler the current day and month.
pub(in crate::app) fn report_today(dispatcher: &Dispatcher) -> Today {
    let today = Today::at(wall::now());
    report_periods(dispatcher, &today, [true, true]);
    today
}

/// Reports each new day and month until dropped. `before` is what the scheduler knows.
pub(in crate::app) async fn follow(dispatcher: Arc<Dispatcher>, mut before: Today) {
    loop {
        tokio::time::sleep(before.time_left(LimitPeriod::Day).clamp(Duration::from_secs(1), MAX_SLEEP)).await;
        let today = Today::at(wall::now());
        report_periods(&dispatcher, &today, today.periods_begun_since(&before));
        before = Today { date: today.date.max(before.date), ..today };
    }
}

fn report_periods(dispatcher: &Dispatcher, today: &Today, new: [bool; 2]) {
    for (period, new) in [LimitPeriod::Day, LimitPeriod::Month].into_iter().zip(new) {
        if new {
            dispatcher.event(Event::PeriodBegan {
                period,
                ends: dispatcher.clock().now() + today.time_left(period),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_months_end_at_midnight() {
        let at = |text: &str| Today::at(text.parse::<Timestamp>().unwrap().into());
        let leap = at("2028-02-28T23:59:50Z");
        assert_eq!(leap.time_left(LimitPeriod::Day), Duration::from_secs(10));
        assert_eq!(leap.time_left(LimitPeriod::Month), Duration::from_secs(86_410));
        assert_eq!(leap.period_starts_ms(), [1_835_308_800_000, 1_832_976_000_000]);
        let year = at("2026-12-31T00:00:00Z");
        assert_eq!(year.time_left(LimitPeriod::Day), Duration::from_secs(86_400));
        assert_eq!(
            (year.time_left(LimitPeriod::Month), year.month()),
            (Duration::from_secs(86_400), (2026, 12))
        );
    }

    #[test]
    fn a_clock_that_is_set_back_begins_no_period() {
        let at = |text: &str| Today::at(text.parse::<Timestamp>().unwrap().into());
        let (last, first) = (at("2027-12-31T23:59:59Z"), at("2028-01-01T00:00:00Z"));
        assert_eq!(first.periods_begun_since(&last), [true, true]);
        assert_eq!(last.periods_begun_since(&first), [false, false]);
        assert_eq!(at("2028-01-02T00:00:00Z").periods_begun_since(&first), [true, false]);
    }
}
