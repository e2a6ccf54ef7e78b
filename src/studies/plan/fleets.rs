//! Fleets over time: the smallest fleet for every window of a trace, and the
//! replicas of a fleet that follows that demand.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sim::trace::TrafficTrace;
use crate::studies::plan::demand::{TraceStretch, WINDOW, busiest, windows};
use crate::studies::plan::report::WindowNeed;
use crate::studies::plan::trials::{CountedRequests, FleetTrials, TriedFleet, in_parallel, smallest};

/// Most windows that a source is divided into.
const MOST_WINDOWS: u32 = 24;
/// Shortest window. The fleet is not reduced faster than start times justify.
const SHORTEST: Duration = Duration::from_secs(120);

/// A fleet that follows the demand.
#[derive(Debug, Clone, Default)]
pub struct FollowingFleet {
    pub windows: Vec<WindowNeed>,
    pub counted: CountedRequests,
    /// Replica-hours, including the time in which replicas start.
    pub hours: f64,
}

/// Width of a window: at least two start times and two minutes, and at most 24
/// windows per source.
pub fn window_width(span: Duration, start: Duration) -> Duration {
    (span / MOST_WINDOWS).max(2 * start).max(SHORTEST)
}

impl FollowingFleet {
    /// Mean number of replicas, weighted by time.
    pub fn mean(&self) -> f64 {
        self.hours * 3_600.0 / self.windows.iter().map(|window| window.lasts_s).sum::<f64>().max(1e-9)
    }

    /// Replicas that nine of ten windows need at least.
    pub fn floor(&self) -> usize {
        let mut needs: Vec<usize> = self.windows.iter().map(|window| window.needs).collect();
        needs.sort_unstable();
        needs.get(needs.len() / 10).copied().unwrap_or(0)
    }

    /// Computes the replicas of each window: the larger of its own need and
    /// that of the window before, but at least `floor`. Added replicas are
    /// billed while they start.
    fn smallest_by_window(&mut self, floor: usize, start: Duration) {
        let (mut before, mut had, mut seconds) = (0, None, 0.0);
        for window in &mut self.windows {
            window.has = window.needs.max(before).max(floor);
            let added = window.has.saturating_sub(had.unwrap_or(window.has));
            seconds += window.has as f64 * window.lasts_s + added as f64 * start.as_secs_f64();
            (before, had) = (window.needs, Some(window.has));
        }
        self.hours = seconds / 3_600.0;
    }
}

/// Finds the smallest fleet of a pool, at most `most` replicas, for each window
/// of the trace. Of a long window the busiest stretch is simulated.
pub fn follow(
    lab: &FleetTrials<'_>,
    trace: &TrafficTrace,
    work: &[f64],
    pool: usize,
    most: usize,
) -> FollowingFleet {
    let start = lab.setting.start;
    let window = window_width(trace.span(), start);
    let ranges = windows(trace, window);
    let all: f64 = work.iter().sum::<f64>() / trace.span().as_secs_f64().max(1.0);
    let needs = in_parallel(lab.threads, &ranges, |range| {
        if range.is_empty() {
            return (0, CountedRequests::default());
        }
        let own = trace.part(range.clone());
        let part = own.part(busiest(&own, &work[range.clone()], WINDOW));
        let stretch = TraceStretch::of(&part);
        let here = work[range.clone()].iter().sum::<f64>() / window.as_secs_f64();
        let guess = (most as f64 * 0.7 * here / all.max(1e-9)).ceil() as usize;
        smallest_fleet(lab, &stretch, pool, guess, most)
    });
    let mut followed = FollowingFleet::default();
    for (index, (needs, counted)) in needs.into_iter().enumerate() {
        let at_s = window.as_secs_f64() * index as f64;
        let lasts_s = (trace.span().as_secs_f64() - at_s).clamp(1e-3, window.as_secs_f64());
        followed.windows.push(WindowNeed { at_s, lasts_s, needs, has: needs });
        followed.counted.all += counted.all;
        followed.counted.kept += counted.kept;
    }
    let patient = lab.setting.classes.iter().all(|(_, class)| class.max_wait >= start);
    // If a class cannot wait for a replica's start, the floor is at least one
    // replica.
    let floor = if patient { followed.floor() } else { followed.floor().max(1) };
    followed.smallest_by_window(floor, start);
    followed
}

/// The smallest fleet for a stretch, with the requests that count.
fn smallest_fleet(
    lab: &FleetTrials<'_>,
    stretch: &TraceStretch,
    pool: usize,
    guess: usize,
    most: usize,
) -> (usize, CountedRequests) {
    let mut tried: BTreeMap<usize, TriedFleet> = BTreeMap::new();
    let found = smallest(guess.min(most), most, 1, |counts| {
        let mut keeps = Vec::new();
        for count in counts {
            let result = lab.run(stretch, &lab.single_pool_fleet(pool, *count), "windows");
            // Without a request that counts any fleet suffices.
            keeps.push(lab.meets_target(&result) || result.counted.all == 0);
            tried.insert(*count, result);
        }
        keeps
    });
    let needs = found.unwrap_or(most);
    (needs, tried.get(&needs).map(|result| result.counted).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(needs: &[usize]) -> FollowingFleet {
        let window = |(index, needs): (usize, &usize)| WindowNeed {
            at_s: 600.0 * index as f64,
            lasts_s: 600.0,
            needs: *needs,
            has: 0,
        };
        FollowingFleet {
            windows: needs.iter().enumerate().map(window).collect(),
            ..FollowingFleet::default()
        }
    }

    #[test]
    fn a_fall_is_followed_a_window_later_and_a_start_is_paid_for() {
        let mut followed = followed(&[2, 2, 5, 2, 2, 2]);
        followed.smallest_by_window(2, Duration::from_secs(300));
        let has: Vec<usize> = followed.windows.iter().map(|window| window.has).collect();
        assert_eq!(has, [2, 2, 5, 5, 2, 2]);
        // 18 windows of ten minutes, and three starts of five minutes.
        assert!((followed.hours - (18.0 / 6.0 + 3.0 / 12.0)).abs() < 1e-9, "{}", followed.hours);
        assert!((followed.mean() - 3.25).abs() < 1e-9);
    }

    #[test]
    fn the_floor_is_what_the_quiet_windows_need() {
        assert_eq!(followed(&[9, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]).floor(), 4, "one of twelve is less");
        assert_eq!(followed(&[9, 1, 4]).floor(), 1);
        assert_eq!(followed(&[]).floor(), 0);
    }

    #[test]
    fn windows_are_no_shorter_than_two_starts_and_no_more_than_24() {
        let secs = Duration::from_secs;
        assert_eq!(window_width(secs(1_800), secs(180)), secs(360));
        assert_eq!(window_width(secs(86_400), secs(180)), secs(3_600));
        assert_eq!(window_width(secs(600), secs(10)), secs(120));
    }
}
