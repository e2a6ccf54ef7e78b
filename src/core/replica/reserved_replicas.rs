//! Reserved replicas: the replicas of a pool that keep the objective of its urgent class while
//! slower classes fill the others.
//!
//! A trickle of urgent requests needs few replicas. If every replica kept their objective, slower
//! classes would lose throughput everywhere. The number of reserved replicas follows the urgent class's
//! largest recent demand, in sequences and in prefill time. It starts with all replicas and falls
//! slowly. It rises at once when urgent jobs wait, whatever the demand says, so that a wrong
//! estimate costs throughput and no objective.

use std::time::Duration;

use crate::model::averages::EventRate;
use crate::model::time::Tick;

/// Time between two updates.
const PERIOD: Duration = Duration::from_millis(500);
/// Time that all replicas are reserved replicas at the start.
const LEARNING: Duration = Duration::from_secs(20);
/// Time after a rise before the number may fall.
const HOLD: Duration = Duration::from_secs(60);
/// Time between two falls.
const FALL_PERIOD: Duration = Duration::from_secs(3);
/// Length of the two windows of the largest demand.
const WINDOW: Duration = Duration::from_secs(120);
/// Time over which the largest rate of prompts is taken.
const BIN: Duration = Duration::from_secs(30);
/// Standard deviations of a bin that may be chance.
const DEVIATIONS: f64 = 2.0;
/// Part of the reserved replicas' time that the urgent class's prompts may take.
const PREFILL_SHARE: f64 = 0.5;
/// Part of the urgent jobs that may be delayed before the number rises.
const MAX_DELAYED: f64 = 0.03;
/// A rise adds this part of the reserved replicas, at least one.
const RISE_DIVISOR: u32 = 4;
/// A fall takes this part of the reserved replicas, at least one.
const FALL_DIVISOR: u32 = 8;

/// Demand of the urgent class at one pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReservedReplicaDemand {
    /// Replicas in service.
    pub up: u32,
    /// Sequences of the urgent class that run there.
    pub seqs: u32,
    /// Sequences to keep free for its next requests, over all replicas.
    pub headroom: u32,
    /// Sequences that one replica may run under the objective.
    pub seqs_each: u32,
    /// Seconds that one replica takes for one token of prompt weight.
    pub seconds_per_token: f64,
}

/// Largest demand of the urgent class in a window of time.
#[derive(Debug, Clone, Copy, Default)]
struct PeakDemand {
    /// Sequences that ran at once.
    seqs: u32,
    /// Weight of prompts per second, over a bin; see [`WeightBin`].
    weight: f64,
}

impl PeakDemand {
    fn max(self, other: Self) -> Self {
        Self { seqs: self.seqs.max(other.seqs), weight: self.weight.max(other.weight) }
    }
}

/// Weight of the prompts of one bin of time.
#[derive(Debug, Clone, Copy, Default)]
struct WeightBin {
    sum: f64,
    /// Sum of the squares.
    squares: f64,
    since: Tick,
}

impl WeightBin {
    fn add(&mut self, weight: f64) {
        self.sum += weight;
        self.squares += weight * weight;
    }

    /// Ends the bin when its time is over. Returns the weight per second that is not by chance: two
    /// standard deviations below the sum, as of a compound Poisson process.
    fn end(&mut self, now: Tick) -> Option<f64> {
        let age = now.since(self.since);
        if age < BIN {
            return None;
        }
        let weight = self.sum - DEVIATIONS * self.squares.sqrt();
        *self = Self { since: now, ..Self::default() };
        Some(weight.max(0.0) / age.as_secs_f64())
    }
}

/// Number of reserved replicas of one pool.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReservedReplicaCount {
    /// `None` before the first update: all replicas are reserved replicas.
    count: Option<u32>,
    checked: Tick,
    /// When the number may fall.
    fall_at: Tick,
    /// Largest demand of this window and of the one before.
    peak: PeakDemand,
    peak_before: PeakDemand,
    window_since: Tick,
    bin: WeightBin,
    /// Weight of the urgent class's prompts.
    weight: EventRate,
    /// Whether some replicas are no reserved replicas. While all are, a delay says nothing about their number.
    is_partial: bool,
    /// Urgent jobs, and those that were delayed.
    jobs: EventRate,
    delayed: EventRate,
}

impl ReservedReplicaCount {
    /// Counts an urgent job by the weight of its prompt. `delayed` tells whether it waited for a
    /// large part of its objective, or found room only beyond the reserved replicas.
    pub fn note_job(&mut self, weight: u64, delayed: bool, now: Tick) {
        self.weight.add(now, weight as f64);
        self.bin.add(weight as f64);
        self.jobs.add(now, 1.0);
        self.delayed.add(now, f64::from(u8::from(delayed && self.is_partial)));
    }

    /// Whether an update is due.
    pub fn is_due(&self, now: Tick) -> bool {
        self.count.is_none() || now.since(self.checked) >= PERIOD
    }

    /// Updates the number from the demand, and returns it; at least 1, at most `up`.
    pub fn update(&mut self, demand: &ReservedReplicaDemand, now: Tick) -> u32 {
        let most = demand.up.max(1);
        let fresh = self.count.is_none();
        let before = self.count.unwrap_or(most).min(most);
        if fresh {
            self.fall_at = now + LEARNING;
        }
        if now.since(self.window_since) >= WINDOW {
            (self.peak_before, self.peak, self.window_since) = (self.peak, PeakDemand::default(), now);
        }
        self.checked = now;
        let weight = self.bin.end(now).unwrap_or(0.0);
        self.peak = self.peak.max(PeakDemand { seqs: demand.seqs, weight });
        let needed = self.needed(demand, now).min(most);
        let rate = |events: &EventRate| events.per_second(now).unwrap_or(0.0);
        let pressed = before < most && rate(&self.delayed) > rate(&self.jobs) * MAX_DELAYED;
        let count = if pressed {
            before.max(needed).saturating_add((before / RISE_DIVISOR).max(1)).min(most)
        } else if needed < before && now >= self.fall_at {
            self.fall_at = now + FALL_PERIOD;
            (before - (before / FALL_DIVISOR).max(1)).max(needed)
        } else {
            before.max(needed)
        };
        if count > before {
            (self.fall_at, self.delayed) = (now + HOLD, EventRate::default());
        }
        (self.count, self.is_partial) = (Some(count), count < most);
        count
    }

    fn needed(&self, demand: &ReservedReplicaDemand, now: Tick) -> u32 {
        let peak = self.peak.max(self.peak_before);
        let seqs = peak.seqs.saturating_add(demand.headroom);
        let by_seqs = f64::from(seqs) / f64::from(demand.seqs_each.max(1));
        let weight = self.weight.per_second(now).unwrap_or(0.0).max(peak.weight);
        let busy = weight * demand.seconds_per_token;
        by_seqs.max(busy / PREFILL_SHARE).ceil().max(1.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: ReservedReplicaDemand =
        ReservedReplicaDemand { up: 8, seqs: 10, headroom: 6, seqs_each: 100, seconds_per_token: 20e-6 };

    /// Updates twice a second, with one urgent job of 1,000 tokens each time.
    fn run(
        count: &mut ReservedReplicaCount,
        demand: ReservedReplicaDemand,
        seconds: std::ops::Range<u64>,
        delayed: bool,
    ) -> u32 {
        let times = (seconds.start * 2..seconds.end * 2).map(|half| Tick::from_millis(half * 500));
        times.fold(0, |_, now| {
            count.note_job(1_000, delayed, now);
            count.update(&demand, now)
        })
    }

    #[test]
    fn all_keep_the_objective_until_the_demand_is_known() {
        let mut count = ReservedReplicaCount::default();
        assert_eq!(run(&mut count, DEMAND, 0..20, false), 8);
        assert_eq!(run(&mut count, DEMAND, 20..30, false), 4, "one less every three seconds");
        assert_eq!(run(&mut count, DEMAND, 30..60, false), 1);
    }

    #[test]
    fn the_largest_recent_demand_counts() {
        let mut count = ReservedReplicaCount::default();
        run(&mut count, DEMAND, 0..60, false);
        let surge = ReservedReplicaDemand { seqs: 350, ..DEMAND };
        assert_eq!(run(&mut count, surge, 60..61, false), 4);
        assert_eq!(run(&mut count, DEMAND, 61..180, false), 4, "it may come again");
        assert_eq!(run(&mut count, DEMAND, 180..400, false), 1);
    }

    #[test]
    fn prompts_count_by_the_time_that_they_take() {
        let mut count = ReservedReplicaCount::default();
        // 2,000 tokens a second at 0.9 ms each: half of the time of 3.6 replicas.
        let slow = ReservedReplicaDemand { seconds_per_token: 0.9e-3, ..DEMAND };
        assert_eq!(run(&mut count, slow, 0..200, false), 4);
    }

    #[test]
    fn delayed_jobs_raise_the_number_whatever_the_demand_says() {
        let mut count = ReservedReplicaCount::default();
        run(&mut count, DEMAND, 0..60, false);
        assert_eq!(run(&mut count, DEMAND, 60..64, true), 8);
        assert_eq!(run(&mut count, DEMAND, 64..120, false), 8, "held for a minute");
        assert_eq!(run(&mut count, DEMAND, 120..200, false), 1);
    }

    #[test]
    fn there_are_no_more_reserved_replicas_than_replicas() {
        let mut count = ReservedReplicaCount::default();
        run(&mut count, DEMAND, 0..10, false);
        assert_eq!(run(&mut count, ReservedReplicaDemand { up: 3, ..DEMAND }, 10..11, false), 3);
        assert_eq!(run(&mut count, ReservedReplicaDemand { up: 0, ..DEMAND }, 11..12, false), 1);
    }
}
