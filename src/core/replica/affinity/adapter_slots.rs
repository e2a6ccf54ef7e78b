//! Adapter slots: the LoRA adapters that a replica has loaded.
//!
//! An engine computes with a few adapters at a time: those in its slots. Another adapter has to
//! be loaded first, into a free slot or in place of the least recently used adapter. While
//! requests run with every loaded adapter, no other adapter can be loaded. Its requests would
//! wait inside the engine, behind later requests. This module mirrors the slots from outside,
//! from the jobs sent to the replica and from the engine's own reports.

use std::time::Duration;

use smallvec::SmallVec;

use crate::model::ids::ModelId;

/// Slots of an engine that does not report their number: the number that SGLang has.
const USUAL_SLOTS: u32 = 8;
/// Time to load an adapter until it is measured, in nanoseconds.
const USUAL_LOAD: f64 = 100e6;
/// Bounds of a measured load time, in nanoseconds.
const BELIEVED: (f64, f64) = (1e6, 60e9);
/// Weight of the newest load in the mean load time.
const NEWS: f64 = 0.25;

/// State of an adapter at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdapterState {
    /// The adapter is in a slot.
    Loaded,
    /// The adapter has to be loaded, and a slot is free.
    SlotFree,
    /// The adapter has to be loaded in place of an idle one.
    Evicts,
    /// Requests run with all loaded adapters, so no other adapter can be loaded now.
    Full,
}

impl AdapterState {
    /// A short stable name for logs and the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::SlotFree => "room",
            Self::Evicts => "evicts",
            Self::Full => "full",
        }
    }

    /// Whether the adapter has to be loaded.
    pub const fn needs_load(self) -> bool {
        !matches!(self, Self::Loaded)
    }
}

/// Adapter in a slot, and the number of jobs that run with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoadedAdapter {
    model: ModelId,
    jobs: u32,
}

/// Adapter slots of one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterSlots {
    configured: Option<u32>,
    reported: Option<u32>,
    /// Loaded adapters, least recently used first.
    held: SmallVec<[LoadedAdapter; 4]>,
}

/// Adapters that lost their slots.
pub type EvictedAdapters = SmallVec<[ModelId; 4]>;

impl AdapterSlots {
    /// Number of slots; at least 1.
    pub fn size(&self) -> usize {
        self.configured.or(self.reported).unwrap_or(USUAL_SLOTS).max(1) as usize
    }

    /// State of the adapter here.
    pub fn state(&self, model: ModelId) -> AdapterState {
        if self.place(model).is_some() { AdapterState::Loaded } else { self.state_of_unloaded() }
    }

    /// State here of any adapter that is not loaded.
    pub fn state_of_unloaded(&self) -> AdapterState {
        if self.held.len() < self.size() {
            return AdapterState::SlotFree;
        }
        // No adapter may wait for a slot before the number of slots is known.
        let known = self.configured.or(self.reported).is_some();
        let running = self.held.iter().filter(|held| held.jobs > 0).count();
        if known && running >= self.size() { AdapterState::Full } else { AdapterState::Evicts }
    }

    /// Counts a job that runs with the adapter, and loads the adapter.
    pub fn take(&mut self, model: ModelId) -> EvictedAdapters {
        let jobs = self.renew(model) + 1;
        if let Some(newest) = self.held.last_mut() {
            newest.jobs = jobs;
        }
        self.shrink()
    }

    /// Removes a job that ran with the adapter. Returns false when no such job was counted.
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

    /// Takes over the engine's own report: its number of slots, and the adapters with which it runs
    /// requests.
    pub fn report(&mut self, slots: Option<u32>, running: &[ModelId]) -> EvictedAdapters {
        self.reported = slots.or(self.reported);
        for model in running {
            self.renew(*model);
        }
        self.shrink()
    }

    /// Takes over the operator's number of slots; `None` = the engine's number.
    pub fn configure(&mut self, slots: Option<u32>) -> EvictedAdapters {
        self.configured = slots;
        self.shrink()
    }

    /// Drops all idle adapters, because the engine restarted or may have restarted.
    pub fn forget(&mut self) -> EvictedAdapters {
        self.drop_idle(usize::MAX)
    }

    /// Loaded adapters, each with the number of jobs that run with it.
    pub fn held(&self) -> impl Iterator<Item = (ModelId, u32)> {
        self.held.iter().map(|held| (held.model, held.jobs))
    }

    fn place(&self, model: ModelId) -> Option<usize> {
        self.held.iter().position(|held| held.model == model)
    }

    /// Makes the adapter the most recently used one. Returns the number of jobs that run with it.
    fn renew(&mut self, model: ModelId) -> u32 {
        let known = self.place(model).map(|at| self.held.remove(at));
        let held = known.unwrap_or(LoadedAdapter { model, jobs: 0 });
        self.held.push(held);
        held.jobs
    }

    fn shrink(&mut self) -> EvictedAdapters {
        self.drop_idle(self.held.len().saturating_sub(self.size()))
    }

    /// Drops up to `most` idle adapters, least recently used first.
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

/// Time that a pool's replicas take to load an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AdapterLoadTime {
    /// Time that the operator configured; it overrides the learned one.
    pub configured: Option<Duration>,
    learned: Option<f64>,
}

impl AdapterLoadTime {
    /// Load time in nanoseconds.
    pub fn nanos(&self) -> u64 {
        match self.configured {
            Some(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            None => self.learned.unwrap_or(USUAL_LOAD) as u64,
        }
    }

    /// Cost of running an adapter in this state at a replica, in nanoseconds. Evicting another
    /// adapter also costs the later reload of that one. [`u64::MAX`] where the adapter cannot be
    /// loaded.
    pub fn cost(&self, fit: AdapterState) -> u64 {
        match fit {
            AdapterState::Loaded => 0,
            AdapterState::SlotFree => self.nanos(),
            AdapterState::Evicts => self.nanos().saturating_mul(2),
            AdapterState::Full => u64::MAX,
        }
    }

    /// Learns from a first token that came `late` nanoseconds later than predicted, of a job whose
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
        assert_eq!(
            (slots.state(model(1)), slots.state(model(2))),
            (AdapterState::SlotFree, AdapterState::SlotFree)
        );
        assert!(slots.take(model(1)).is_empty() && slots.take(model(2)).is_empty());
        assert_eq!(
            (slots.state(model(1)), slots.state(model(3))),
            (AdapterState::Loaded, AdapterState::Full)
        );
        assert!(slots.give_back(model(2)) && slots.give_back(model(1)));
        assert!(!slots.give_back(model(1)), "nothing runs with it");
        assert_eq!(slots.state(model(3)), AdapterState::Evicts);
        assert_eq!(slots.take(model(3)).as_slice(), [model(2)]);
        assert_eq!(held(&slots), [(1, 0), (3, 1)]);
    }

    #[test]
    fn nothing_waits_for_slots_whose_number_is_not_known() {
        let mut slots = AdapterSlots::default();
        for number in 0..USUAL_SLOTS {
            slots.take(model(number));
        }
        assert_eq!(slots.state(model(99)), AdapterState::Evicts);
        slots.report(Some(USUAL_SLOTS), &[]);
        assert_eq!(slots.state(model(99)), AdapterState::Full);
        slots.configure(Some(USUAL_SLOTS + 1));
        assert_eq!(slots.state(model(99)), AdapterState::SlotFree);
    }

    #[test]
    fn what_an_engine_runs_is_there_and_a_restart_leaves_nothing() {
        let mut slots = AdapterSlots::default();
        slots.report(Some(2), &[model(5), model(6)]);
        assert_eq!(
            (slots.state(model(5)), slots.state(model(7))),
            (AdapterState::Loaded, AdapterState::Evicts)
        );
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
            (time.cost(AdapterState::SlotFree), time.cost(AdapterState::Evicts)),
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
                        let fit = slots.state(model(number));
                        let evicted = slots.take(model(number));
                        prop_assert!(evicted.is_empty() || fit != AdapterState::SlotFree);
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
                prop_assert!(slots.state_of_unloaded() != AdapterState::Full || running >= slots.size());
            }
        }
    }
}
