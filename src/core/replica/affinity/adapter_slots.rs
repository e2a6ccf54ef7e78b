//! Adapter slots: the LoRA adapters that a replica has loaded.
//!
//! An engine computes with a few adapters at a time: those in its slots. One
//! that is not there has to be loaded first, into a free slot or in place of
//! the one that was used longest ago. While requests run with all of them, no
//! other can come in: its requests would wait inside the engine, behind who
//! came later. This is a copy of the slots from outside, from what was sent
//! there and from what the engine says of itself.

use std::time::Duration;

use smallvec::SmallVec;

use crate::core::model::ids::ModelId;

/// Slots of an engine that says nothing of them: what SGLang has.
const USUAL_SLOTS: u32 = 8;
/// How long it takes to load an adapter, in nanoseconds, until it is known.
const USUAL_LOAD: f64 = 100e6;
/// The least and the most that is believed of it.
const BELIEVED: (f64, f64) = (1e6, 60e9);
/// Part of what is known that the next load replaces.
const NEWS: f64 = 0.25;

/// How an adapter stands to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdapterState {
    /// It is in a slot.
    Loaded,
    /// It has to be loaded, and there is a free slot.
    Room,
    /// It has to be loaded in place of one that nothing runs with.
    Evicts,
    /// Requests run with all that are there: no other can come in now.
    Full,
}

impl AdapterState {
    /// A short stable name for logs and the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Room => "room",
            Self::Evicts => "evicts",
            Self::Full => "full",
        }
    }

    /// Whether it would have to be loaded.
    #[must_use]
    pub const fn loads(self) -> bool {
        !matches!(self, Self::Loaded)
    }
}

/// An adapter in a slot, and how many jobs run with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoadedAdapter {
    model: ModelId,
    jobs: u32,
}

/// The slots of one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterSlots {
    configured: Option<u32>,
    reported: Option<u32>,
    /// The one that was used longest ago first.
    held: SmallVec<[LoadedAdapter; 4]>,
}

/// Adapters that lost their slots.
pub type EvictedAdapters = SmallVec<[ModelId; 4]>;

impl AdapterSlots {
    /// How many there are; at least 1.
    #[must_use]
    pub fn size(&self) -> usize {
        self.configured.or(self.reported).unwrap_or(USUAL_SLOTS).max(1) as usize
    }

    /// How the adapter stands to it.
    #[must_use]
    pub fn fit(&self, model: ModelId) -> AdapterState {
        if self.place(model).is_some() { AdapterState::Loaded } else { self.fit_of_other() }
    }

    /// How any adapter stands to it that is in no slot.
    #[must_use]
    pub fn fit_of_other(&self) -> AdapterState {
        if self.held.len() < self.size() {
            return AdapterState::Room;
        }
        // How many there are has to be known before anything may wait for it.
        let known = self.configured.or(self.reported).is_some();
        let running = self.held.iter().filter(|held| held.jobs > 0).count();
        if known && running >= self.size() { AdapterState::Full } else { AdapterState::Evicts }
    }

    /// A job with the adapter goes there.
    pub fn take(&mut self, model: ModelId) -> EvictedAdapters {
        let jobs = self.renew(model) + 1;
        if let Some(newest) = self.held.last_mut() {
            newest.jobs = jobs;
        }
        self.shrink()
    }

    /// A job with the adapter is gone from there. False when none was there.
    pub fn give_back(&mut self, model: ModelId) -> bool {
        let Some(jobs) = self.place(model).and_then(|at| self.held[at].jobs.checked_sub(1)) else {
            return false;
        };
        self.renew(model);
        if let Some(newest) = self.held.last_mut() {
            newest.jobs = jobs;
        }
        true
    }

    /// What the engine says: how many slots it has, and the adapters that it
    /// runs requests with.
    pub fn report(&mut self, slots: Option<u32>, running: &[ModelId]) -> EvictedAdapters {
        self.reported = slots.or(self.reported);
        for model in running {
            self.renew(*model);
        }
        self.shrink()
    }

    /// What the operator says; absent = what the engine says.
    pub fn configure(&mut self, slots: Option<u32>) -> EvictedAdapters {
        self.configured = slots;
        self.shrink()
    }

    /// It started anew, or may have: what nothing runs with is not there.
    pub fn forget(&mut self) -> EvictedAdapters {
        self.drop_idle(usize::MAX)
    }

    /// The adapters in its slots, each with the jobs that run with it.
    pub fn held(&self) -> impl Iterator<Item = (ModelId, u32)> {
        self.held.iter().map(|held| (held.model, held.jobs))
    }

    fn place(&self, model: ModelId) -> Option<usize> {
        self.held.iter().position(|held| held.model == model)
    }

    /// Makes it the one that was used last; says how many jobs run with it.
    fn renew(&mut self, model: ModelId) -> u32 {
        let known = self.place(model).map(|at| self.held.remove(at));
        let held = known.unwrap_or(LoadedAdapter { model, jobs: 0 });
        self.held.push(held);
        held.jobs
    }

    fn shrink(&mut self) -> EvictedAdapters {
        self.drop_idle(self.held.len().saturating_sub(self.size()))
    }

    /// Takes out so many at most of those that nothing runs with, those used
    /// longest ago first.
    fn drop_idle(&mut self, most: usize) -> EvictedAdapters {
        let mut evicted = EvictedAdapters::new();
        self.held.retain(|held| {
            let goes = held.jobs == 0 && evicted.len() < most;
            if goes {
                evicted.push(held.model);
            }
            !goes
        });
        evicted
    }
}

/// How long a pool's replicas take to load an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AdapterLoadTime {
    /// What the operator says; it goes before what is learned.
    pub configured: Option<Duration>,
    learned: Option<f64>,
}

impl AdapterLoadTime {
    /// Nanoseconds.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        match self.configured {
            Some(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            None => self.learned.unwrap_or(USUAL_LOAD) as u64,
        }
    }

    /// What it counts for an adapter that stands so to a replica, in
    /// nanoseconds: one that takes another's slot costs the load of that one
    /// too, when it is wanted again. [`u64::MAX`] where it cannot come in.
    #[must_use]
    pub fn cost(&self, fit: AdapterState) -> u64 {
        match fit {
            AdapterState::Loaded => 0,
            AdapterState::Room => self.nanos(),
            AdapterState::Evicts => self.nanos().saturating_mul(2),
            AdapterState::Full => u64::MAX,
        }
    }

    /// A first token came so many nanoseconds after its time, of a job whose
    /// adapter had to be loaded.
    pub fn learn(&mut self, late: u64) {
        let late = (late as f64).clamp(BELIEVED.0, BELIEVED.1);
        let before = self.learned.unwrap_or(late);
        self.learned = Some(before + (late - before) * NEWS);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn model(number: u32) -> ModelId {
        ModelId::new(number)
    }

    fn held(slots: &AdapterSlots) -> Vec<(usize, u32)> {
        slots.held().map(|(model, jobs)| (model.index(), jobs)).collect()
    }

    #[test]
    fn the_one_used_longest_ago_loses_its_slot() {
        let mut slots = AdapterSlots::default();
        slots.configure(Some(2));
        assert_eq!((slots.fit(model(1)), slots.fit(model(2))), (AdapterState::Room, AdapterState::Room));
        assert!(slots.take(model(1)).is_empty() && slots.take(model(2)).is_empty());
        assert_eq!((slots.fit(model(1)), slots.fit(model(3))), (AdapterState::Loaded, AdapterState::Full));
        assert!(slots.give_back(model(2)) && slots.give_back(model(1)));
        assert!(!slots.give_back(model(1)), "nothing runs with it");
        assert_eq!(slots.fit(model(3)), AdapterState::Evicts);
        assert_eq!(slots.take(model(3)).as_slice(), [model(2)]);
        assert_eq!(held(&slots), [(1, 0), (3, 1)]);
    }

    #[test]
    fn nothing_waits_for_slots_whose_number_is_not_known() {
        let mut slots = AdapterSlots::default();
        for number in 0..USUAL_SLOTS {
            slots.take(model(number));
        }
        assert_eq!(slots.fit(model(99)), AdapterState::Evicts);
        slots.report(Some(USUAL_SLOTS), &[]);
        assert_eq!(slots.fit(model(99)), AdapterState::Full);
        slots.configure(Some(USUAL_SLOTS + 1));
        assert_eq!(slots.fit(model(99)), AdapterState::Room);
    }

    #[test]
    fn what_an_engine_runs_is_there_and_a_restart_leaves_nothing() {
        let mut slots = AdapterSlots::default();
        slots.report(Some(2), &[model(5), model(6)]);
        assert_eq!((slots.fit(model(5)), slots.fit(model(7))), (AdapterState::Loaded, AdapterState::Evicts));
        slots.report(None, &[model(5)]);
        slots.take(model(6));
        assert_eq!(slots.forget().as_slice(), [model(5)]);
        assert_eq!(held(&slots), [(6, 1)]);
    }

    #[test]
    fn a_load_takes_what_loads_took() {
        let mut time = AdapterLoadTime::default();
        assert_eq!((time.nanos(), time.cost(AdapterState::Loaded)), (100_000_000, 0));
        time.learn(400_000_000);
        time.learn(800_000_000);
        assert_eq!(
            (time.cost(AdapterState::Room), time.cost(AdapterState::Evicts)),
            (500_000_000, 1_000_000_000)
        );
        time.learn(0);
        assert_eq!(time.nanos(), 375_250_000);
        time.configured = Some(Duration::from_millis(7));
        assert_eq!((time.nanos(), time.cost(AdapterState::Full)), (7_000_000, u64::MAX));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Take(u32),
        GiveBack(u32),
        Report(Option<u32>, Vec<u32>),
        Configure(Option<u32>),
        Forget,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = (0..12_u8, 0..6_u32, any::<bool>(), 1..5_u32, vec(0..6_u32, 0..3));
        let op = op.prop_map(|(kind, model, some, size, running)| match kind {
            0 => Op::Forget,
            1 => Op::Configure(some.then_some(size)),
            2 => Op::Report(some.then_some(size), running),
            3..=6 => Op::GiveBack(model),
            _ => Op::Take(model),
        });
        vec(op, 0..80)
    }

    proptest! {
        #[test]
        fn what_runs_keeps_its_slot_and_nothing_is_lost(ops in ops()) {
            let mut slots = AdapterSlots::default();
            let mut jobs = [0_u32; 6];
            let mut listed = std::collections::BTreeSet::new();
            for op in ops {
                let before = slots.clone();
                let evicted = match op {
                    Op::Take(number) => {
                        let fit = slots.fit(model(number));
                        let evicted = slots.take(model(number));
                        prop_assert!(evicted.is_empty() || fit != AdapterState::Room);
                        jobs[number as usize] += 1;
                        listed.insert(model(number));
                        evicted
                    }
                    Op::GiveBack(number) => {
                        prop_assert_eq!(slots.give_back(model(number)), jobs[number as usize] > 0);
                        jobs[number as usize] = jobs[number as usize].saturating_sub(1);
                        EvictedAdapters::new()
                    }
                    Op::Report(size, running) => {
                        let running: Vec<ModelId> = running.into_iter().map(model).collect();
                        listed.extend(&running);
                        slots.report(size, &running)
                    }
                    Op::Configure(size) => slots.configure(size),
                    Op::Forget => slots.forget(),
                };
                for model in &evicted {
                    prop_assert!(listed.remove(model), "{before:?} -> {slots:?}");
                }
                let held: Vec<(ModelId, u32)> = slots.held().collect();
                prop_assert_eq!(held.iter().map(|(model, _)| *model).collect::<std::collections::BTreeSet<_>>(), listed.clone());
                for (number, count) in jobs.iter().enumerate() {
                    let found = held.iter().find(|(model, _)| model.index() == number);
                    prop_assert_eq!(found.map_or(0, |(_, jobs)| *jobs), *count);
                }
                let running = held.iter().filter(|(_, jobs)| *jobs > 0).count();
                prop_assert!(slots.fit_of_other() != AdapterState::Full || running >= slots.size());
            }
        }
    }
}
