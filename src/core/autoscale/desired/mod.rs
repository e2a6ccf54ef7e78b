//! Desired replicas of a pool over time. The number does not fall too soon, does not swing, and
//! does not wait for replicas that do not come.

mod follow;
mod forecast;

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::time::Tick;

use self::forecast::DayForecast;

/// Part of the target utilization below which utilization must fall before a replica is given up.
const SLACK: f64 = 0.92;
/// Divisor of one step down: a quarter of the replicas goes at once, at least one.
const STEP: u32 = 4;
/// Divisor of the pause between two steps down: a sixth of a start.
const PAUSE: u32 = 6;
/// Shortest pause between two steps down.
const MIN_PAUSE: Duration = Duration::from_secs(15);
/// Shortest time for which a pool that lost replicas counts as short.
const SHORTAGE: Duration = Duration::from_secs(600);
/// Time added to two starts before a pool with missing replicas counts as short.
const GRACE: Duration = Duration::from_secs(30);
/// Time from the order of a replica to its start: a poll of KEDA, a sync of the HPA, and starts that
/// take longer than usual.
const ORDER: Duration = Duration::from_secs(45);
/// Hopeless bursts within [`BURST_MEMORY`] that raise the floor.
const MIN_BURSTS: usize = 3;
/// Hopeless bursts that are remembered.
const BURSTS: usize = 8;
/// Time for which hopeless bursts are remembered.
const BURST_MEMORY: Duration = Duration::from_secs(3600);
/// Largest floor that bursts may raise, as a multiple of the replicas needed without them.
const MOST_FLOOR: f64 = 1.25;

/// Desired replicas of one pool, and the history that the number depends on.
#[derive(Debug, Clone, Default)]
pub struct DesiredReplicas {
    number: u32,
    /// Largest needs since each moment, falling.
    peaks: VecDeque<NeedPeak>,
    /// When jobs were last seen to have waited for long.
    strained: Option<Tick>,
    unmet: Option<UnmetDemand>,
    /// When the number last went down.
    lowered_at: Option<Tick>,
    /// Replicas in service at the last update; since when replicas are missing and none arrives;
    /// and when replicas were last lost.
    ready: u32,
    missing_since: Option<Tick>,
    lost: Option<Tick>,
    /// See [`DesiredReplicas::update_shortage`], as of the last update.
    short: bool,
    forecast: DayForecast,
    bursts: VecDeque<HopelessBurst>,
}

/// The largest need since a moment.
#[derive(Debug, Clone, Copy)]
struct NeedPeak {
    at: Tick,
    replicas: u32,
}

/// Demand that the replicas in service do not meet.
#[derive(Debug, Clone, Copy)]
struct UnmetDemand {
    since: Tick,
    /// Replicas in service since then.
    ready: u32,
}

/// A burst of demand that could not wait for a start.
#[derive(Debug, Clone, Copy)]
struct HopelessBurst {
    last_seen: Tick,
    /// Replicas that would have met it.
    replicas: f64,
}

/// Whole replicas that do the work of a fractional number.
pub fn whole(replicas: f64) -> u32 {
    (replicas - 1e-9).ceil().max(0.0) as u32
}

impl DesiredReplicas {
    /// Updates the number. `replicas` are needed, at least `floor`; the largest need is kept for
    /// `hold`; a start takes `start`. Returns the number, and whether it is held above the present
    /// need.
    pub fn update(
        &mut self,
        replicas: f64,
        floor: u32,
        hold: Duration,
        start: Duration,
        now: Tick,
    ) -> (u32, bool) {
        let (up, low) = (whole(replicas).max(floor), whole(replicas / SLACK).max(floor));
        self.remember(low, hold, now);
        let peak = self.peaks.front().map_or(low, |peak| peak.replicas);
        let pause = (start / PAUSE).max(MIN_PAUSE);
        if up > self.number {
            (self.number, self.lowered_at) = (up, None);
        } else if peak < self.number
            && self.lowered_at.is_none_or(|fell| now.since(fell) >= pause)
            && self.strained.is_none_or(|strained| now.since(strained) > hold)
        {
            self.number = peak.max(self.number - (self.number / STEP).max(1));
            self.lowered_at = Some(now);
        }
        (self.number, self.number > up)
    }

    /// Notes what is needed now, and returns what is expected to be needed by the time that a replica
    /// ordered now has started: zero unless the last two days tell.
    pub fn forecast(&mut self, replicas: f64, start: Duration, now: Tick) -> f64 {
        self.forecast.note(replicas, now);
        self.forecast.expected(start + ORDER, now).unwrap_or_default()
    }

    /// Remembers a need, and forgets needs older than `hold`.
    fn remember(&mut self, replicas: u32, hold: Duration, now: Tick) {
        while self.peaks.back().is_some_and(|last| last.replicas <= replicas) {
            self.peaks.pop_back();
        }
        self.peaks.push_back(NeedPeak { at: now, replicas });
        while self.peaks.front().is_some_and(|peak| now.since(peak.at) > hold) && self.peaks.len() > 1 {
            self.peaks.pop_front();
        }
    }

    /// Notes that jobs wait for long, so the number is not too large and must not fall.
    pub const fn note_long_waits(&mut self, now: Tick) {
        self.strained = Some(now);
    }

    /// Minimum number while demand is `unmet` by the replicas in service. Once demand has been
    /// unmet for `window`, the minimum is a tenth more than the replicas in service, at least one
    /// more. A change of `ready` begins a new window, so the minimum stands only until the new
    /// replicas are there. Zero otherwise.
    pub fn unmet_floor(&mut self, unmet: bool, ready: u32, window: Duration, now: Tick) -> u32 {
        let before = self.unmet.filter(|before| before.ready == ready);
        self.unmet = unmet.then(|| before.unwrap_or(UnmetDemand { since: now, ready }));
        match self.unmet {
            Some(unmet) if now.since(unmet.since) >= window => ready.saturating_add((ready / 10).max(1)),
            _ => 0,
        }
    }

    /// Whether replicas that the pool should have do not come: some have been missing for longer
    /// than two starts, or were taken away in a pool where that may happen (`may_be_taken`).
    pub fn update_shortage(&mut self, ready: u32, start: Duration, may_be_taken: bool, now: Tick) -> bool {
        self.short = self.find_shortage(ready, start, may_be_taken, now);
        self.short
    }

    /// Desired replicas over replicas in service, where the missing ones may be expected to come;
    /// at least 1.
    pub fn growth(&self) -> f64 {
        let may_come = !self.short && self.ready > 0;
        if may_come { f64::from(self.number.max(self.ready)) / f64::from(self.ready) } else { 1.0 }
    }

    fn find_shortage(&mut self, ready: u32, start: Duration, may_be_taken: bool, now: Tick) -> bool {
        let before = std::mem::replace(&mut self.ready, ready);
        if ready < before && before <= self.number && may_be_taken {
            self.lost = Some(now);
        }
        if ready >= self.number {
            (self.missing_since, self.lost) = (None, None);
            return false;
        }
        if ready > before {
            self.missing_since = Some(now);
        }
        let lacking = now.since(*self.missing_since.get_or_insert(now)) > start * 2 + GRACE;
        lacking || self.lost.is_some_and(|lost| now.since(lost) < SHORTAGE.max(start * 2))
    }

    /// Notes a hopeless burst: demand that could not wait for a start, and the replicas that would
    /// have met it. Sightings less than `apart` apart are one burst.
    pub fn note_hopeless_burst(&mut self, replicas: f64, apart: Duration, now: Tick) {
        match self.bursts.back_mut().filter(|burst| now.since(burst.last_seen) < apart) {
            Some(burst) => {
                *burst = HopelessBurst { last_seen: now, replicas: burst.replicas.max(replicas) };
            }
            None => {
                self.bursts.push_back(HopelessBurst { last_seen: now, replicas });
                if self.bursts.len() > BURSTS {
                    self.bursts.pop_front();
                }
            }
        }
    }

    /// Floor for repeated hopeless bursts, where `usual` replicas are needed without them: the
    /// median height of the bursts, bounded by `MOST_FLOOR`. Zero with fewer than `MIN_BURSTS`
    /// bursts.
    pub fn burst_floor(&mut self, usual: f64, now: Tick) -> u32 {
        self.bursts.retain(|burst| now.since(burst.last_seen) < BURST_MEMORY);
        if self.bursts.len() < MIN_BURSTS {
            return 0;
        }
        let mut heights: Vec<f64> = self.bursts.iter().map(|burst| burst.replicas).collect();
        heights.sort_by(f64::total_cmp);
        whole(heights[heights.len() / 2].min(usual.max(1.0) * MOST_FLOOR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(60);
    const HOLD: Duration = Duration::from_secs(300);

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    #[test]
    fn what_stays_unmet_asks_for_more_than_there_is() {
        let mut memory = DesiredReplicas::default();
        let mut at_least = |unmet, ready, second| memory.unmet_floor(unmet, ready, START, at(second));
        assert_eq!([at_least(true, 3, 0), at_least(true, 3, 59)], [0, 0], "not for long");
        assert_eq!([at_least(true, 3, 60), at_least(true, 3, 500)], [4, 4], "and no more while it starts");
        assert_eq!([at_least(true, 4, 501), at_least(true, 4, 561)], [0, 5], "it was not enough");
        assert_eq!([at_least(false, 4, 562), at_least(true, 4, 563), at_least(true, 4, 622)], [0, 0, 0]);
        assert_eq!([at_least(true, 40, 700), at_least(true, 40, 760)], [0, 44], "a tenth");
    }

    fn number(memory: &mut DesiredReplicas, replicas: f64, second: u64) -> u32 {
        memory.update(replicas, 0, HOLD, START, at(second)).0
    }

    #[test]
    fn it_rises_at_once_and_falls_after_the_hold_in_steps() {
        let mut memory = DesiredReplicas::default();
        assert_eq!(number(&mut memory, 11.2, 0), 12);
        assert_eq!(number(&mut memory, 2.0, 300), 12);
        assert_eq!(number(&mut memory, 2.0, 301), 9, "a quarter less");
        assert_eq!(number(&mut memory, 2.0, 301), 9, "asked twice");
        assert_eq!(number(&mut memory, 2.0, 316), 7);
        let last = (317..500).map(|second| number(&mut memory, 2.0, second)).last();
        assert_eq!(last, Some(3), "2 would leave no slack");
        assert_eq!(number(&mut memory, 0.0, 900), 2);
        assert_eq!((number(&mut memory, 0.0, 950), number(&mut memory, 0.0, 990)), (1, 0));
    }

    #[test]
    fn it_grows_before_a_rise_of_the_last_two_days() {
        let mut memory = DesiredReplicas::default();
        let need = |second: u64| if (36_000..39_600).contains(&(second % 86_400)) { 9.0 } else { 3.0 };
        let mut number = |second: u64| {
            let expected = memory.forecast(need(second), START, at(second));
            memory.update(need(second).max(expected), 0, HOLD, START, at(second)).0
        };
        let day = |number: &mut dyn FnMut(u64) -> u32, of: u64| {
            let numbers: Vec<u32> = (of * 86_400..(of + 1) * 86_400).step_by(5).map(number).collect();
            [35_890, 35_900, 36_000, 39_895, 39_905].map(|second| numbers[second / 5])
        };
        assert_eq!(day(&mut number, 0), [3, 3, 9, 9, 7]);
        assert_eq!(day(&mut number, 1), [4, 4, 9, 9, 7]);
        assert_eq!(day(&mut number, 2), [4, 9, 9, 9, 7]);
    }

    #[test]
    fn it_does_not_fall_while_jobs_wait_for_long() {
        let mut memory = DesiredReplicas::default();
        number(&mut memory, 4.0, 0);
        memory.note_long_waits(at(200));
        assert_eq!((number(&mut memory, 1.0, 1), number(&mut memory, 1.0, 500)), (4, 4));
        assert_eq!(number(&mut memory, 1.0, 501), 3);
    }

    #[test]
    fn replicas_that_do_not_come_or_go_away_make_it_short() {
        let mut memory = DesiredReplicas::default();
        number(&mut memory, 4.0, 0);
        assert!(
            !memory.update_shortage(1, START, false, at(0))
                && !memory.update_shortage(1, START, false, at(150))
        );
        assert!(memory.update_shortage(1, START, false, at(151)));
        assert!(!memory.update_shortage(2, START, false, at(160)), "one came");
        assert!(!memory.update_shortage(4, START, true, at(170)));
        assert!(memory.update_shortage(3, START, true, at(180)), "it was taken away");
        assert!(!memory.update_shortage(4, START, true, at(190)));
        assert!(!memory.update_shortage(3, START, false, at(200)), "it fell, and will come back");
    }

    #[test]
    fn bursts_that_come_again_raise_the_floor() {
        let mut memory = DesiredReplicas::default();
        memory.note_hopeless_burst(8.0, START, at(0));
        memory.note_hopeless_burst(9.0, START, at(30));
        memory.note_hopeless_burst(7.0, START, at(600));
        assert_eq!(memory.burst_floor(5.0, at(640)), 0, "two may be chance");
        memory.note_hopeless_burst(8.0, START, at(1200));
        assert_eq!(memory.burst_floor(7.0, at(1300)), 8);
        assert_eq!(
            memory.burst_floor(4.0, at(1300)),
            5,
            "never more than a quarter over what is needed without them"
        );
        assert_eq!(memory.burst_floor(5.0, at(4300)), 0);
    }
}
