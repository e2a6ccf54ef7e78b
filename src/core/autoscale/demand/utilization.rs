//! Utilization of a pool's replicas, and the work that one replica can do.
//!
//! Samples measure how full each replica is, in each of the [`DIMENSIONS`] in which a replica can be
//! full. The work sent to the pool is known. Utilization divided by work gives the replica time
//! of a unit of work. Both are counted for the same work over the same time. Errors of the
//! unit, such as cached prompts or outputs longer than expected, therefore cancel when the same
//! unit measures future demand.

use std::time::Duration;

use crate::model::time::Tick;

use super::spread::{PAST, SLOT, WorkSpread, slot};

/// Time constant of the measurement, in seconds.
const MEMORY: f64 = 600.0;
/// Replica seconds of use before the measurement is trusted.
const EVIDENCE: f64 = 1.0;

/// Ways in which a replica can be full: sequences, KV cache, prefill and ITL.
pub const DIMENSIONS: usize = 4;

/// Replicas in use in each way, as fractional numbers: 1.5 is one full and one half full replica,
/// or three half full ones. A replica is full in one way at one moment and in another at the next,
/// so only the mean over time shows which resource is scarce.
pub type ReplicasInUse = [f64; DIMENSIONS];

/// Replica seconds for a unit of work, from the replica seconds in use and the work done with them.
/// `None` when too little was measured.
pub fn cost_of(used: ReplicasInUse, work: f64) -> Option<f64> {
    let most = most(used);
    (most > EVIDENCE && work > 0.0).then(|| most / work)
}

fn most(used: ReplicasInUse) -> f64 {
    used.into_iter().fold(0.0, f64::max)
}

/// Use of a pool, by slots.
#[derive(Debug, Clone, Default)]
pub struct PoolUse {
    pub sent: WorkSpread,
    /// Replicas in use by slot, in the way with the most use.
    past: Vec<f64>,
    slot: u64,
    last: Option<Tick>,
    /// Replica seconds of the slot under way, and the seconds sampled.
    sum: ReplicasInUse,
    seen: f64,
    used: ReplicasInUse,
    work: f64,
    cost: Option<f64>,
}

impl PoolUse {
    /// Samples the use. A second sample at the same instant changes nothing.
    pub fn sample(&mut self, now: Tick, used: ReplicasInUse) {
        if self.past.is_empty() {
            self.past = vec![0.0; PAST];
            self.slot = slot(now);
        }
        self.end_slots(now);
        let passed = self.last.map_or(Duration::ZERO, |last| now.since(last)).as_secs_f64().min(SLOT);
        self.sum.iter_mut().zip(used).for_each(|(sum, used)| *sum += used * passed);
        self.seen += passed;
        self.last = Some(now);
    }

    /// Replica seconds for a unit of work; `None` before it was measured.
    pub const fn cost(&self) -> Option<f64> {
        self.cost
    }

    /// Replica seconds in use, and the work sent in the same time; both fade.
    pub const fn evidence(&self) -> (ReplicasInUse, f64) {
        (self.used, self.work)
    }

    /// Restores a saved measurement.
    pub const fn restore(&mut self, cost: Option<f64>) {
        self.cost = cost;
    }

    /// Mean number of replicas in use over the last `count` slots.
    pub fn mean(&self, count: usize) -> f64 {
        let count = count.clamp(1, PAST);
        let past = (1..=count as u64).filter_map(|back| self.slot.checked_sub(back));
        let sum: f64 = past.filter_map(|at| self.past.get(at as usize % PAST)).sum();
        sum / count as f64
    }

    /// Ends the slots that are over.
    fn end_slots(&mut self, now: Tick) {
        let target = slot(now);
        if target <= self.slot {
            return;
        }
        self.sent.advance(now);
        let gone = target - self.slot;
        let used = self.sum.map(|sum| if self.seen > 0.0 { sum / self.seen } else { 0.0 });
        let kept = (-(gone as f64) * SLOT / MEMORY).exp();
        let work = usize::try_from(gone).map_or(0.0, |gone| self.sent.slot_work(gone));
        self.used.iter_mut().zip(used).for_each(|(sum, used)| *sum = *sum * kept + used * SLOT);
        self.work = self.work * kept + work;
        self.cost = cost_of(self.used, self.work).or(self.cost);
        for back in 0..gone.min(PAST as u64) {
            let at = (self.slot + back) as usize % PAST;
            self.past[at] = if back == 0 { most(used) } else { 0.0 };
        }
        (self.slot, self.sum, self.seen) = (target, ReplicasInUse::default(), 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::from_millis(millis)
    }

    #[test]
    fn use_and_work_give_the_time_of_a_unit() {
        let mut own = PoolUse::default();
        for step in 0..2_400_u64 {
            own.sample(at(step * 250), [3.0, 1.0, 0.0, 2.0]);
            // 20 jobs a second of 150 units each: 1 ms of a replica for each unit.
            (0..5).for_each(|_| own.sent.add(at(step * 250), 150.0, Duration::from_secs(10)));
        }
        let cost = own.cost().unwrap();
        assert!((0.98e-3..1.05e-3).contains(&cost), "{cost}");
        assert!((own.mean(12) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_full_by_turns_in_two_ways_is_half_full_in_each() {
        let mut own = PoolUse::default();
        for step in 0..2_400_u64 {
            let first = step % 2 == 0;
            own.sample(at(step * 250), [f64::from(u8::from(first)), f64::from(u8::from(!first)), 0.1, 0.1]);
            own.sent.add(at(step * 250), 100.0, Duration::ZERO);
        }
        assert!((own.mean(12) - 0.5).abs() < 0.01);
    }

    #[test]
    fn an_idle_pool_keeps_what_it_has_shown() {
        let mut own = PoolUse::default();
        for step in 0..400 {
            own.sample(at(step * 250), [0.5; DIMENSIONS]);
            own.sent.add(at(step * 250), 100.0, Duration::ZERO);
        }
        let cost = own.cost();
        for step in 0..10_000 {
            own.sample(at(100_000 + step * 1000), ReplicasInUse::default());
        }
        let later = own.cost().unwrap();
        assert!((later / cost.unwrap() - 1.0).abs() < 0.1, "{cost:?} {later}");
        assert_eq!(own.mean(12), 0.0);
    }
}
