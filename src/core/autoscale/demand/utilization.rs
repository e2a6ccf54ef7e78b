//! Utilization of a pool's replicas, and the work that one replica can do.
//!
//! How full each replica is, in each of the ways in which it can be full, is
//! looked at now and then, and the work that was sent there is known. The two together give the time of a replica that a unit
//! of work takes. Both are counted for the same work over the same time, so
//! whatever is wrong about the unit, such as prompts that are cached or outputs
//! that are longer than expected, drops out where the same unit is used for
//! what is to come.

use std::time::Duration;

use crate::core::model::time::Tick;

use super::spread::{PAST, SLOT, WorkSpread, slot};

/// Seconds after which an old measure counts a third.
const MEMORY: f64 = 600.0;
/// Replica seconds of use before the measure is believed.
const EVIDENCE: f64 = 1.0;

/// Ways in which a replica can be full.
pub const WAYS: usize = 4;

/// Replicas in use in each of the ways, as numbers between whole ones: 1.5 = one
/// full and one half full, or three half full. A replica is full in one way at
/// one moment and in another at the next, so only the mean over a while says
/// which of them is the scarce one.
pub type ReplicasInUse = [f64; WAYS];

/// Seconds of a replica for a unit of work, where so many replica seconds were in
/// use for so much; `None` = too little was seen.
#[must_use]
pub fn cost_of(used: ReplicasInUse, work: f64) -> Option<f64> {
    let most = most(used);
    (most > EVIDENCE && work > 0.0).then(|| most / work)
}

fn most(used: ReplicasInUse) -> f64 {
    used.into_iter().fold(0.0, f64::max)
}

/// How much of a pool is used, by slots.
#[derive(Debug, Clone, Default)]
pub struct PoolUse {
    /// What was sent there.
    pub taken: WorkSpread,
    /// Replicas in use by slot, in the way in which most were.
    past: Vec<f64>,
    slot: u64,
    last: Option<Tick>,
    /// Replica seconds in the slot under way, and the seconds looked at.
    sum: ReplicasInUse,
    seen: f64,
    used: ReplicasInUse,
    work: f64,
    cost: Option<f64>,
}

impl PoolUse {
    /// So many replicas' worth is in use. Looked at twice in the same instant, the
    /// second look changes nothing.
    pub fn look(&mut self, now: Tick, used: ReplicasInUse) {
        if self.past.is_empty() {
            self.past = vec![0.0; PAST];
            self.slot = slot(now);
        }
        self.turn(now);
        let passed = self.last.map_or(Duration::ZERO, |last| now.since(last)).as_secs_f64().min(SLOT);
        self.sum.iter_mut().zip(used).for_each(|(sum, used)| *sum += used * passed);
        self.seen += passed;
        self.last = Some(now);
    }

    /// Seconds of a replica for a unit of work; `None` before it was measured.
    #[must_use]
    pub const fn cost(&self) -> Option<f64> {
        self.cost
    }

    /// Replica seconds in use, and the work that was sent there in the same time,
    /// old ones less and less.
    #[must_use]
    pub const fn evidence(&self) -> (ReplicasInUse, f64) {
        (self.used, self.work)
    }

    /// Takes over what was measured before.
    pub const fn restore(&mut self, cost: Option<f64>) {
        self.cost = cost;
    }

    /// Replicas in use in the last `count` slots.
    #[must_use]
    pub fn mean(&self, count: usize) -> f64 {
        let count = count.clamp(1, PAST);
        let past = (1..=count as u64).filter_map(|back| self.slot.checked_sub(back));
        let sum: f64 = past.filter_map(|at| self.past.get(at as usize % PAST)).sum();
        sum / count as f64
    }

    /// Ends the slots that are over.
    fn turn(&mut self, now: Tick) {
        let target = slot(now);
        if target <= self.slot {
            return;
        }
        self.taken.advance(now);
        let gone = target - self.slot;
        let used = self.sum.map(|sum| if self.seen > 0.0 { sum / self.seen } else { 0.0 });
        let kept = (-(gone as f64) * SLOT / MEMORY).exp();
        let work = usize::try_from(gone).map_or(0.0, |gone| self.taken.back(gone));
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
            own.look(at(step * 250), [3.0, 1.0, 0.0, 2.0]);
            // 20 jobs a second of 150 units each: 1 ms of a replica for each unit.
            (0..5).for_each(|_| own.taken.add(at(step * 250), 150.0, Duration::from_secs(10)));
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
            own.look(at(step * 250), [f64::from(u8::from(first)), f64::from(u8::from(!first)), 0.1, 0.1]);
            own.taken.add(at(step * 250), 100.0, Duration::ZERO);
        }
        assert!((own.mean(12) - 0.5).abs() < 0.01);
    }

    #[test]
    fn an_idle_pool_keeps_what_it_has_shown() {
        let mut own = PoolUse::default();
        for step in 0..400 {
            own.look(at(step * 250), [0.5; WAYS]);
            own.taken.add(at(step * 250), 100.0, Duration::ZERO);
        }
        let cost = own.cost();
        for step in 0..10_000 {
            own.look(at(100_000 + step * 1000), ReplicasInUse::default());
        }
        let later = own.cost().unwrap();
        assert!((later / cost.unwrap() - 1.0).abs() < 0.1, "{cost:?} {later}");
        assert_eq!(own.mean(12), 0.0);
    }
}
