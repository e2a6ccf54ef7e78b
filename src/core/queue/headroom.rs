//! Headroom: the sequences that are kept free for a class before its requests arrive.
//!
//! Requests that arrive at a rate λ and hold a sequence for a time h occupy λ·h sequences on
//! average (Little's law). For independent arrivals, that number varies by about its square root.
//! The headroom is a multiple of this deviation, free beyond what runs, so that the next requests
//! need not wait for others to end.

use std::time::Duration;

use crate::model::averages::{EventRate, RunningMean};
use crate::model::time::Tick;

/// Standard deviations that are kept free: enough for 98 of 100 moments.
const DEVIATIONS: f64 = 2.0;
/// Sequences that must arrive in one burst before headroom is kept for it.
const FEW: u32 = 4;
/// The shortest pause in arrivals that ends a burst.
const MIN_IDLE: Duration = Duration::from_secs(5);
/// The pause that ends a burst, in mean hold times. The longer of the two pauses counts.
const IDLE_HOLDS: f64 = 3.0;
/// The longest hold time that counts, in seconds.
const MAX_HOLD: f64 = 3600.0;

/// Headroom of one class.
#[derive(Debug, Clone, Copy, Default)]
pub struct Headroom {
    burst: Option<ArrivalBurst>,
    /// Seconds from dispatch to end.
    hold: RunningMean,
}

/// Arrivals without a long pause between them.
#[derive(Debug, Clone, Copy)]
struct ArrivalBurst {
    last: Tick,
    arrivals: u32,
    rate: EventRate,
}

impl Headroom {
    /// Counts an arrival of a request with `seqs` sequences.
    pub fn arrived(&mut self, now: Tick, seqs: u32) {
        let fresh = ArrivalBurst { last: now, arrivals: 0, rate: EventRate::default() };
        let mut burst = self.burst_at(now).unwrap_or(fresh);
        burst.last = burst.last.max(now);
        burst.arrivals = burst.arrivals.saturating_add(seqs);
        burst.rate.add(now, f64::from(seqs));
        self.burst = Some(burst);
    }

    /// Learns from a request that ended `hold` after its dispatch.
    pub fn learn_hold(&mut self, hold: Duration) {
        self.hold.add(hold.as_secs_f64().min(MAX_HOLD));
    }

    /// Whether requests of the class still arrive: the last one came at most five seconds or three
    /// mean hold times ago, whichever is longer.
    pub fn is_active(&self, now: Tick) -> bool {
        self.burst_at(now).is_some()
    }

    /// Sequences to keep free: two standard deviations, `⌈2·√(λ·h)⌉`. The headroom is 0 while the
    /// class is idle, and until four sequences have arrived and one request has ended.
    pub fn seqs(&self, now: Tick) -> u32 {
        let Some(burst) = self.burst_at(now).filter(|burst| burst.arrivals >= FEW) else { return 0 };
        let rate = burst.rate.per_second(now).unwrap_or(0.0);
        (DEVIATIONS * (rate * self.hold.value).sqrt()).ceil() as u32
    }

    fn burst_at(&self, now: Tick) -> Option<ArrivalBurst> {
        let pause = MIN_IDLE.max(Duration::from_secs_f64(IDLE_HOLDS * self.hold.value));
        self.burst.filter(|burst| now.since(burst.last) <= pause)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// Ten requests a second that hold for `hold` seconds each.
    fn ten_a_second(reserve: &mut Headroom, from: u64, seconds: u64, hold: u64) -> Tick {
        for step in 0..seconds * 10 {
            reserve.arrived(Tick::from_millis(from + step * 100), 1);
            reserve.learn_hold(Duration::from_secs(hold));
        }
        Tick::from_millis(from + seconds * 1000)
    }

    #[test]
    fn keeps_two_deviations_free_early_and_late() {
        for seconds in [5, 60, 300] {
            let mut reserve = Headroom::default();
            let now = ten_a_second(&mut reserve, 0, seconds, 10);
            assert_eq!(reserve.seqs(now), 20, "2·√(10·10) after {seconds} s");
        }
        let mut reserve = Headroom::default();
        let now = ten_a_second(&mut reserve, 0, 60, 40);
        assert_eq!(reserve.seqs(now), 40, "four times the hold time, twice the reserve");
    }

    #[test]
    fn says_nothing_before_it_knows() {
        let mut reserve = Headroom::default();
        assert!(!reserve.is_active(Tick::ZERO));
        reserve.learn_hold(Duration::from_secs(10));
        for arrival in 0..3 {
            reserve.arrived(Tick::from_millis(arrival), 1);
            assert_eq!(reserve.seqs(Tick::from_millis(arrival)), 0);
        }
        reserve.arrived(Tick::from_millis(3), 1);
        assert_eq!(reserve.seqs(Tick::from_millis(3)), 13, "2·√(4·10)");

        let mut reserve = Headroom::default();
        reserve.arrived(Tick::ZERO, 100);
        assert_eq!(reserve.seqs(Tick::ZERO), 0, "no hold time is known");
        assert!(reserve.is_active(Tick::ZERO));
    }

    #[test]
    fn an_idle_class_keeps_nothing_and_is_right_again_at_once() {
        let mut reserve = Headroom::default();
        let now = ten_a_second(&mut reserve, 0, 60, 10);
        assert!(reserve.is_active(now + Duration::from_millis(29_900)));
        assert!(reserve.seqs(now + Duration::from_millis(29_900)) > 0);
        assert!(!reserve.is_active(now + Duration::from_millis(29_901)));
        assert_eq!(reserve.seqs(now + Duration::from_millis(29_901)), 0);
        let back = ten_a_second(&mut reserve, 3_600_000, 5, 10);
        assert_eq!(reserve.seqs(back), 20);

        let mut short = Headroom::default();
        let now = ten_a_second(&mut short, 0, 60, 0);
        assert!(short.is_active(now + Duration::from_millis(4_900)), "five seconds at least");
        assert!(!short.is_active(now + Duration::from_millis(5_000)));
    }

    #[test]
    fn a_request_of_several_sequences_counts_as_many() {
        let (mut ones, mut fours) = (Headroom::default(), Headroom::default());
        for step in 0..100 {
            let now = Tick::from_millis(step * 400);
            (0..4).for_each(|_| ones.arrived(now, 1));
            fours.arrived(now, 4);
        }
        ones.learn_hold(Duration::from_secs(3));
        fours.learn_hold(Duration::from_secs(3));
        let now = Tick::from_millis(40_000);
        assert_eq!((ones.seqs(now), fours.seqs(now)), (11, 11));
    }

    proptest! {
        #[test]
        fn whatever_comes_it_stays_sane(
            events in vec((any::<u64>(), any::<u32>(), any::<u64>()), 0..50), idle in any::<u64>(),
        ) {
            let mut reserve = Headroom::default();
            let mut last = 0;
            for (at, seqs, hold) in events {
                reserve.arrived(Tick::from_nanos(at), seqs);
                reserve.learn_hold(Duration::from_nanos(hold));
                last = last.max(at);
                // 2·√(2³²·50 · 3600), all at once
                prop_assert!(reserve.seqs(Tick::from_nanos(at)) < 60_000_000);
            }
            let later = Tick::from_nanos(last.saturating_add(idle));
            prop_assert_eq!(reserve.is_active(later) || reserve.seqs(later) == 0, true);
        }
    }
}
