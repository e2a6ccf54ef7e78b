//! Desired replicas of a pool over time: the number does not fall too soon, swing, or wait for
//! replicas that do not come.

mod follow;

use std::collections::VecDeque;
use std::time::Duration;

use crate::core::model::time::Tick;

/// How much less a replica must be used before one is given up, as a part of
/// the use that is aimed at.
const SLACK: f64 = 0.92;
/// The part of the replicas that goes in one step down, 1 / 4, at least one.
const STEP: u32 = 4;
/// The part of a start between two steps, 1 / 6.
const PAUSE: u32 = 6;
/// The shortest time between two steps.
const MIN_PAUSE: Duration = Duration::from_secs(15);
/// How long a pool that lost replicas counts as short at least.
const SHORTAGE: Duration = Duration::from_secs(600);
/// What is added to twice the time of a start before a pool counts as short.
const GRACE: Duration = Duration::from_secs(30);
/// Hopeless bursts within [`RECENT`] that make a floor.
const OFTEN: usize = 3;
/// Hopeless bursts that are remembered.
const BURSTS: usize = 8;
/// How long.
const RECENT: Duration = Duration::from_secs(3600);
/// The most that bursts may raise the floor to, in what is needed without them.
const MOST_FLOOR: f64 = 1.25;

/// One pool's number and what it remembers.
#[derive(Debug, Clone, Default)]
pub struct DesiredReplicas {
    number: u32,
    /// The most that was needed from each moment on until now, falling.
    peaks: VecDeque<(Tick, u32)>,
    /// When jobs were last seen to have waited for long.
    strained: Option<Tick>,
    /// Since when so many replicas do not meet what is asked.
    unmet: Option<(Tick, u32)>,
    /// When it last went down.
    fell: Option<Tick>,
    /// Replicas in service as of the last look, since when there are too few
    /// without any coming, and when some were lost.
    ready: u32,
    lacking: Option<Tick>,
    lost: Option<Tick>,
    /// See [`DesiredReplicas::is_short`], as of the last look.
    short: bool,
    /// Hopeless bursts: when each was last seen, and how many replicas would have
    /// met it.
    bursts: VecDeque<(Tick, f64)>,
}

/// Whole replicas that do the work of so many.
#[must_use]
pub fn whole(replicas: f64) -> u32 {
    (replicas - 1e-9).ceil().max(0.0) as u32
}

impl DesiredReplicas {
    /// The number from now on, where `replicas` are needed, at least `floor`, and
    /// the most that was needed is kept for `hold`; whether it is kept. A start
    /// takes `start`.
    pub fn settle(
        &mut self,
        replicas: f64,
        floor: u32,
        hold: Duration,
        start: Duration,
        now: Tick,
    ) -> (u32, bool) {
        let (up, low) = (whole(replicas).max(floor), whole(replicas / SLACK).max(floor));
        self.remember(low, hold, now);
        let peak = self.peaks.front().map_or(low, |(_, peak)| *peak);
        let pause = (start / PAUSE).max(MIN_PAUSE);
        if up > self.number {
            (self.number, self.fell) = (up, None);
        } else if peak < self.number
            && self.fell.is_none_or(|fell| now.since(fell) >= pause)
            && self.strained.is_none_or(|strained| now.since(strained) > hold)
        {
            self.number = peak.max(self.number - (self.number / STEP).max(1));
            self.fell = Some(now);
        }
        (self.number, self.number > up)
    }

    /// So many are needed now; what was needed before `hold` is forgotten.
    fn remember(&mut self, peak: u32, hold: Duration, now: Tick) {
        while self.peaks.back().is_some_and(|(_, last)| *last <= peak) {
            self.peaks.pop_back();
        }
        self.peaks.push_back((now, peak));
        while self.peaks.front().is_some_and(|(at, _)| now.since(*at) > hold) && self.peaks.len() > 1 {
            self.peaks.pop_front();
        }
    }

    /// Jobs wait for long: whatever the number is, it is not too large.
    pub const fn unmet_work(&mut self, now: Tick) {
        self.strained = Some(now);
    }

    /// The least number where what is asked is `unmet` by the replicas in service:
    /// once that has lasted for a `window`, a tenth more than these, at least one.
    /// Replicas that come begin a new window, so a number is told until they are
    /// there, and no more.
    pub fn unmet(&mut self, unmet: bool, ready: u32, window: Duration, now: Tick) -> u32 {
        let before = self.unmet.filter(|(_, of)| *of == ready);
        self.unmet = unmet.then(|| before.unwrap_or((now, ready)));
        match self.unmet {
            Some((since, _)) if now.since(since) >= window => ready.saturating_add((ready / 10).max(1)),
            _ => 0,
        }
    }

    /// Whether replicas that the pool should have do not come: some are missing
    /// for longer than two starts, or were taken away where they may be.
    pub fn is_short(&mut self, ready: u32, start: Duration, may_be_taken: bool, now: Tick) -> bool {
        self.short = self.has_shortage(ready, start, may_be_taken, now);
        self.short
    }

    /// How many times as many replicas are called for as are in service, where they
    /// may be expected to come; at least 1.
    #[must_use]
    pub fn growth(&self) -> f64 {
        let may_come = !self.short && self.ready > 0;
        if may_come { f64::from(self.number.max(self.ready)) / f64::from(self.ready) } else { 1.0 }
    }

    fn has_shortage(&mut self, ready: u32, start: Duration, may_be_taken: bool, now: Tick) -> bool {
        let before = std::mem::replace(&mut self.ready, ready);
        if ready < before && before <= self.number && may_be_taken {
            self.lost = Some(now);
        }
        if ready >= self.number {
            (self.lacking, self.lost) = (None, None);
            return false;
        }
        if ready > before {
            self.lacking = Some(now);
        }
        let lacking = now.since(*self.lacking.get_or_insert(now)) > start * 2 + GRACE;
        lacking || self.lost.is_some_and(|lost| now.since(lost) < SHORTAGE.max(start * 2))
    }

    /// What came could not wait for a start, and so many replicas would have met
    /// it.
    pub fn hopeless(&mut self, replicas: f64, apart: Duration, now: Tick) {
        match self.bursts.back_mut().filter(|(last, _)| now.since(*last) < apart) {
            Some(burst) => *burst = (now, burst.1.max(replicas)),
            None => {
                self.bursts.push_back((now, replicas));
                if self.bursts.len() > BURSTS {
                    self.bursts.pop_front();
                }
            }
        }
    }

    /// Replicas to keep for bursts that come again and again; `usual` are needed
    /// without them.
    pub fn floor(&mut self, usual: f64, now: Tick) -> u32 {
        self.bursts.retain(|(last, _)| now.since(*last) < RECENT);
        if self.bursts.len() < OFTEN {
            return 0;
        }
        let mut heights: Vec<f64> = self.bursts.iter().map(|(_, height)| *height).collect();
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
        let mut at_least = |unmet, ready, second| memory.unmet(unmet, ready, START, at(second));
        assert_eq!([at_least(true, 3, 0), at_least(true, 3, 59)], [0, 0], "not for long");
        assert_eq!([at_least(true, 3, 60), at_least(true, 3, 500)], [4, 4], "and no more while it starts");
        assert_eq!([at_least(true, 4, 501), at_least(true, 4, 561)], [0, 5], "it was not enough");
        assert_eq!([at_least(false, 4, 562), at_least(true, 4, 563), at_least(true, 4, 622)], [0, 0, 0]);
        assert_eq!([at_least(true, 40, 700), at_least(true, 40, 760)], [0, 44], "a tenth");
    }

    fn number(memory: &mut DesiredReplicas, replicas: f64, second: u64) -> u32 {
        memory.settle(replicas, 0, HOLD, START, at(second)).0
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
    fn it_does_not_fall_while_jobs_wait_for_long() {
        let mut memory = DesiredReplicas::default();
        number(&mut memory, 4.0, 0);
        memory.unmet_work(at(200));
        assert_eq!((number(&mut memory, 1.0, 1), number(&mut memory, 1.0, 500)), (4, 4));
        assert_eq!(number(&mut memory, 1.0, 501), 3);
    }

    #[test]
    fn replicas_that_do_not_come_or_go_away_make_it_short() {
        let mut memory = DesiredReplicas::default();
        number(&mut memory, 4.0, 0);
        assert!(!memory.is_short(1, START, false, at(0)) && !memory.is_short(1, START, false, at(150)));
        assert!(memory.is_short(1, START, false, at(151)));
        assert!(!memory.is_short(2, START, false, at(160)), "one came");
        assert!(!memory.is_short(4, START, true, at(170)));
        assert!(memory.is_short(3, START, true, at(180)), "it was taken away");
        assert!(!memory.is_short(4, START, true, at(190)));
        assert!(!memory.is_short(3, START, false, at(200)), "it fell, and will come back");
    }

    #[test]
    fn bursts_that_come_again_raise_the_floor() {
        let mut memory = DesiredReplicas::default();
        memory.hopeless(8.0, START, at(0));
        memory.hopeless(9.0, START, at(30));
        memory.hopeless(7.0, START, at(600));
        assert_eq!(memory.floor(5.0, at(640)), 0, "two may be chance");
        memory.hopeless(8.0, START, at(1200));
        assert_eq!(memory.floor(7.0, at(1300)), 8);
        assert_eq!(
            memory.floor(4.0, at(1300)),
            5,
            "never more than a quarter over what is needed without them"
        );
        assert_eq!(memory.floor(5.0, at(4300)), 0);
    }
}
