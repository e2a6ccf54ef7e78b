//! Horizontal Pod Autoscaler of Kubernetes 1.36 for one external metric of the
//! type AverageValue (`replica_calculator.go`, `horizontal.go`).

use std::collections::VecDeque;
use std::time::Duration;

use penstock_core::model::time::Tick;

/// Time between two syncs.
pub const SYNC: Duration = Duration::from_secs(15);
/// Tolerance of a cluster with Kubernetes' default.
pub const USUAL_TOLERANCE: f64 = 0.1;
/// Time for which the highest proposal holds on the way down, unless the
/// behavior says otherwise.
pub const USUAL_WINDOW: Duration = Duration::from_secs(300);

/// Limit of one direction's change in a period. Where both `pods` and `percent`
/// are given, the one that allows more counts. Without either there is no
/// limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLimit {
    /// Replicas per period at most.
    pub pods: Option<u32>,
    /// Per cent of the replicas per period at most.
    pub percent: Option<f64>,
    pub period: Duration,
}

/// Rules of a `behavior` for one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Direction {
    /// Proposals that differ from the present number by no more than this share
    /// are ignored.
    pub tolerance: f64,
    /// Stabilization window: up, its lowest proposal counts; down, its highest.
    pub window: Duration,
    pub steps: StepLimit,
}

/// Rules of both directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Behavior {
    /// Rules for more replicas.
    pub up: Direction,
    /// Rules for fewer replicas.
    pub down: Direction,
}

impl Default for Behavior {
    /// The values that Kubernetes fills into an empty `behavior`.
    fn default() -> Self {
        let steps = |pods| StepLimit { pods, percent: Some(100.0), period: SYNC };
        Self {
            up: Direction { tolerance: USUAL_TOLERANCE, window: Duration::ZERO, steps: steps(Some(4)) },
            down: Direction { tolerance: USUAL_TOLERANCE, window: USUAL_WINDOW, steps: steps(None) },
        }
    }
}

impl Behavior {
    /// No tolerance, no window and no limit.
    pub fn free(max: u32) -> Self {
        let steps = StepLimit { pods: Some(max), percent: None, period: SYNC };
        let direction = Direction { tolerance: 0.0, window: Duration::ZERO, steps };
        Self { up: direction, down: direction }
    }

    /// The behavior that `penstock keda` writes: no tolerance, all missing
    /// replicas at once, and one replica less per 60 s.
    pub fn exact(max: u32) -> Self {
        let minute = Duration::from_secs(60);
        let steps = |pods, period| StepLimit { pods: Some(pods), percent: None, period };
        Self {
            up: Direction { tolerance: 0.0, window: Duration::ZERO, steps: steps(max, SYNC) },
            down: Direction { tolerance: 0.0, window: minute, steps: steps(1, minute) },
        }
    }
}

/// A number of replicas at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicasAt {
    pub at: Tick,
    pub replicas: u32,
}

#[derive(Debug, Clone)]
pub struct Hpa {
    min: u32,
    max: u32,
    behavior: Option<Behavior>,
    /// Proposals of each sync, before any limit.
    proposals: VecDeque<ReplicasAt>,
    /// Replicas added by each change.
    added: VecDeque<ReplicasAt>,
    removed: VecDeque<ReplicasAt>,
}

impl Hpa {
    /// An HPA between these numbers of replicas; it never goes below 1. Without
    /// a behavior it has the older limits: twice as many replicas in one sync
    /// or 4, and [`USUAL_WINDOW`].
    pub fn new(min: u32, max: u32, behavior: Option<Behavior>) -> Self {
        let (proposals, added, removed) = Default::default();
        Self { min: min.max(1), max, behavior, proposals, added, removed }
    }

    /// The metric's proposal, before any limit: `ceil(value / target)`, or
    /// `current` where the proposal is within the tolerance. `value` is the sum
    /// over all replicas. Both values are read to three decimals.
    pub fn proposal(&self, current: u32, value: f64, target: f64) -> u32 {
        let milli = |number: f64| (number * 1_000.0).round();
        let usual = Behavior::default();
        let behavior = self.behavior.as_ref().unwrap_or(&usual);
        let ratio = milli(value) / (milli(target) * f64::from(current));
        if (1.0 - behavior.down.tolerance..=1.0 + behavior.up.tolerance).contains(&ratio) {
            return current;
        }
        (milli(value) / milli(target)).ceil() as u32
    }

    /// One sync: the desired replicas where `current` replicas exist, ready or
    /// not. With 0 replicas the HPA is off.
    pub fn sync(&mut self, now: Tick, current: u32, value: f64, target: f64) -> u32 {
        if current == 0 {
            return 0;
        }
        let wanted = self.proposal(current, value, target);
        self.proposals.push_back(ReplicasAt { at: now, replicas: wanted });
        let next = match self.behavior {
            Some(behavior) => self.by_behavior(now, current, wanted, &behavior),
            None => {
                let highest = self.proposals_within(now, USUAL_WINDOW).max().unwrap_or(0);
                highest.min((2 * current).max(4))
            }
        };
        let next = next.clamp(self.min, self.max.max(self.min));
        if next > current {
            self.added.push_back(ReplicasAt { at: now, replicas: next - current });
        } else if next < current {
            self.removed.push_back(ReplicasAt { at: now, replicas: current - next });
        }
        self.forget(now);
        next
    }

    fn by_behavior(&self, now: Tick, current: u32, wanted: u32, behavior: &Behavior) -> u32 {
        let lowest = self.proposals_within(now, behavior.up.window).min().unwrap_or(wanted);
        let highest = self.proposals_within(now, behavior.down.window).max().unwrap_or(wanted);
        let held = current.max(lowest).min(highest);
        if held > current {
            held.min(self.max_allowed(now, current, &behavior.up.steps))
        } else {
            held.max(self.min_allowed(now, current, &behavior.down.steps))
        }
    }

    fn proposals_within(&self, now: Tick, window: Duration) -> impl Iterator<Item = u32> {
        let recent = self.proposals.iter().filter(move |proposal| now.since(proposal.at) <= window);
        recent.map(|proposal| proposal.replicas)
    }

    /// The most replicas that the steps allow, counted from the number at the
    /// start of their period.
    fn max_allowed(&self, now: Tick, current: u32, steps: &StepLimit) -> u32 {
        let start = self.at_start(now, current, steps.period);
        let pods = steps.pods.map(|pods| start.saturating_add(pods));
        let percent = steps.percent.map(|part| (f64::from(start) * (1.0 + part / 100.0)).ceil() as u32);
        pods.max(percent).unwrap_or(u32::MAX).max(current)
    }

    fn min_allowed(&self, now: Tick, current: u32, steps: &StepLimit) -> u32 {
        let start = self.at_start(now, current, steps.period);
        let pods = steps.pods.map(|pods| start.saturating_sub(pods));
        let percent = steps.percent.map(|part| (f64::from(start) * (1.0 - part / 100.0)) as u32);
        [pods, percent].into_iter().flatten().min().unwrap_or(0).min(current)
    }

    fn at_start(&self, now: Tick, current: u32, period: Duration) -> u32 {
        let within = |changes: &VecDeque<ReplicasAt>| -> u32 {
            let recent = changes.iter().filter(|change| now.since(change.at) < period);
            recent.map(|change| change.replicas).sum()
        };
        (current + within(&self.removed)).saturating_sub(within(&self.added))
    }

    /// Drops proposals and changes that no window reaches.
    fn forget(&mut self, now: Tick) {
        let longest = self.behavior.map_or(USUAL_WINDOW, |behavior| {
            let of = |direction: &Direction| direction.window.max(direction.steps.period);
            of(&behavior.up).max(of(&behavior.down))
        });
        for events in [&mut self.proposals, &mut self.added, &mut self.removed] {
            while events.front().is_some_and(|first| now.since(first.at) > longest) {
                events.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hpa(tolerance: f64) -> Hpa {
        let mut behavior = Behavior::default();
        (behavior.up.tolerance, behavior.down.tolerance) = (tolerance, tolerance);
        Hpa::new(1, 100_000, Some(behavior))
    }

    /// The numbers of replicas at each sync while the metric asks for `to`.
    fn climb(mut hpa: Hpa, from: u32, to: u32, syncs: u64) -> Vec<u32> {
        let mut steps = vec![from];
        for sync in 0..syncs {
            let current = steps[steps.len() - 1];
            steps.push(hpa.sync(Tick::from_millis(sync * 15_000), current, f64::from(to), 1.0));
        }
        steps
    }

    #[test]
    fn without_tolerance_every_number_is_reached_and_with_it_many_are_not() {
        let (exact, usual) = (hpa(0.0), hpa(USUAL_TOLERANCE));
        let mut missed = 0;
        for current in 1..=200 {
            for wanted in 1..=200 {
                let value = f64::from(wanted);
                assert_eq!(exact.proposal(current, value, 1.0), wanted);
                for target in [0.1, 10.0] {
                    let scaled = usual.proposal(current, value * target, target);
                    assert_eq!(scaled, usual.proposal(current, value, 1.0));
                }
                let got = usual.proposal(current, value, 1.0);
                missed += u32::from(got != wanted);
                assert!(current > 9 || got == wanted, "{current} to {wanted} was {got}");
            }
        }
        assert_eq!(missed, 3_657);
    }

    #[test]
    fn the_nearest_numbers_that_a_tolerance_leaves() {
        let usual = hpa(USUAL_TOLERANCE);
        let moves = |current: u32, wanted: &u32| usual.proposal(current, f64::from(*wanted), 1.0) != current;
        for (current, below, above) in [(10, 8, 12), (20, 17, 23), (50, 44, 56), (100, 89, 111)] {
            assert_eq!((1..current).rev().find(|wanted| moves(current, wanted)), Some(below));
            assert_eq!((current + 1..).find(|wanted| moves(current, wanted)), Some(above));
        }
    }

    #[test]
    fn a_half_is_rounded_up() {
        assert_eq!(hpa(0.0).proposal(3, 6.5, 1.0), 7);
        assert_eq!(hpa(0.0).proposal(3, 0.0, 1.0), 0, "the clamp comes later");
    }

    #[test]
    fn limits_of_a_step_without_a_behavior_and_with_one() {
        let old = || Hpa::new(1, 100, None);
        assert_eq!(climb(old(), 1, 16, 3), [1, 4, 8, 16]);
        assert_eq!(climb(old(), 1, 7, 2), [1, 4, 7]);
        assert_eq!(climb(old(), 9, 30, 2), [9, 18, 30]);
        assert_eq!(climb(Hpa::new(1, 100, Some(Behavior::default())), 1, 20, 3), [1, 5, 10, 20]);
        assert_eq!(climb(Hpa::new(1, 60, Some(Behavior::exact(40))), 1, 40, 2), [1, 40, 40]);
        assert_eq!(climb(old(), 90, 300, 2), [90, 100, 100], "the bound");
    }

    #[test]
    fn the_highest_proposal_of_the_window_holds_on_the_way_down() {
        let mut hpa = Hpa::new(1, 100, None);
        let at = Tick::from_millis;
        assert_eq!(hpa.sync(at(0), 8, 8.0, 1.0), 8);
        for sync in 1..=20 {
            assert_eq!(hpa.sync(at(sync * 15_000), 8, 2.0, 1.0), 8, "{sync}");
        }
        assert_eq!(hpa.sync(at(315_000), 8, 2.0, 1.0), 2, "then all at once");
    }

    #[test]
    fn one_in_a_minute_goes() {
        let steps = climb(Hpa::new(1, 40, Some(Behavior::exact(40))), 4, 1, 14);
        // All proposals of the window are low from the start.
        assert_eq!(steps, [4, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn at_zero_it_is_off_and_it_never_makes_zero() {
        let mut hpa = Hpa::new(0, 5, None);
        assert_eq!(hpa.sync(Tick::ZERO, 0, 5.0, 1.0), 0);
        assert_eq!(hpa.sync(Tick::from_millis(15_000), 3, 0.0, 1.0), 1);
    }

    /// The most pods and the pod-hours under this HPA in 15 minutes. Requests
    /// come at 100 per second; pods serve 10 per second each, after a start of
    /// 180 s.
    fn fluid(target: f64, metric: impl Fn(f64) -> f64) -> (u32, f64) {
        let (mut hpa, mut backlog, mut hours) = (Hpa::new(1, u32::MAX, None), 0.0_f64, 0.0);
        let mut orders: Vec<(u64, u32)> = Vec::new();
        let (mut count, mut peak) = (1, 1);
        for second in 0..900_u64 {
            let ordered = |before: u64| orders.iter().rev().find(|(at, _)| *at <= before).map(|(_, n)| *n);
            // Pods ordered at the start are ready, but never more than are
            // ordered now.
            let ready = second.checked_sub(180).and_then(ordered).unwrap_or(1).min(count);
            backlog = (backlog + 100.0 - 10.0 * f64::from(ready)).max(0.0);
            if second.is_multiple_of(15) {
                let now = Tick::from_millis(second * 1_000);
                count = hpa.sync(now, count, metric(backlog), target);
                peak = peak.max(count);
                orders.push((second, count));
            }
            hours += f64::from(count) / 3_600.0;
        }
        (peak, hours)
    }

    /// Worked example behind the gateway's demand signal: a metric of waiting
    /// requests orders more slow-starting replicas at each sync; work over time
    /// does not.
    #[test]
    fn queue_depth_cascades_while_pods_start_and_a_total_does_not() {
        let (queue, queue_hours) = fluid(10.0, |backlog| backlog);
        assert!((1_200..=2_500).contains(&queue), "{queue} pods, {queue_hours} h");
        assert!((150.0..=450.0).contains(&queue_hours), "{queue} pods, {queue_hours} h");
        let drained = |backlog: f64| ((100.0 + backlog / 120.0) / 10.0).ceil();
        let (total, total_hours) = fluid(1.0, drained);
        assert!((10..=30).contains(&total), "{total} pods, {total_hours} h");
        assert!(total_hours < 6.0, "{total} pods, {total_hours} h");
    }
}
