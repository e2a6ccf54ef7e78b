//! Pool state: a pool's replicas with free capacity, in routing order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::ids::{ClassId, ModelId, ReplicaId};
use crate::queue::fit_tree::FitTree;
use crate::replica::affinity::adapter_slots::AdapterLoadTime;
use crate::replica::fleet::search::rank::ReplicaRank;
use crate::replica::health::sleep::SleepPolicy;
use crate::replica::kv_use::OutputProgress;
use crate::replica::reserved_replicas::ReservedReplicaCount;
use crate::replica::speed::PoolSpeeds;
use crate::replica::speed::pool_best::PoolBestTracker;

use crate::replica::fleet::contribution::PoolCounts;

/// Latency objective of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyObjective {
    pub ttft: Duration,
    pub itl: Duration,
}

/// Objective of a pool: that of the most urgent class that uses the pool now. The objective sets
/// how full the replicas may be, and how much is left for less urgent classes. Those classes are
/// background in this pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveObjective {
    /// The class; absent while no class uses the pool.
    pub class: Option<ClassId>,
    /// The class's latency objective.
    pub latency: LatencyObjective,
    /// Latency objective of the most urgent background class in use. Replicas that are not reserved replicas
    /// keep this objective only. Absent while no background class uses the pool.
    pub released: Option<LatencyObjective>,
    /// Sequences of each replica that background classes leave free.
    pub headroom: u32,
    /// Sequences of the waiting job that has the most, at least 1. No replica's ITL limit is below
    /// this number.
    pub max_sequences: u32,
    /// True when this is the most urgent class of the pool group, so that less urgent classes are
    /// background here. When false, no more urgent class comes here, and no class is background.
    pub background: bool,
    /// Whether jobs of a background class are about to miss the objective of their own class.
    pub background_delayed: bool,
}

impl Default for ActiveObjective {
    fn default() -> Self {
        let latency = LatencyObjective { ttft: Duration::MAX, itl: Duration::MAX };
        Self {
            class: None,
            latency,
            released: None,
            headroom: 0,
            max_sequences: 1,
            background: true,
            background_delayed: false,
        }
    }
}

/// Sequences of a pool's replicas, where the replicas are alike.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PoolSlots {
    /// Sequences that may wait inside each engine.
    pub(super) buffer: u32,
    /// Slots that a replica has shown, with which those without a learned limit begin.
    pub(super) shown: Option<u32>,
}

/// State of one pool.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolState {
    pub(super) slots: PoolSlots,
    pub(super) objective: ActiveObjective,
    pub(super) members: Vec<ReplicaId>,
    /// Replicas with free capacity for the urgent class.
    pub(super) free: FitTree<ReplicaRank, ReplicaId>,
    /// Reserved replicas with free capacity for background classes.
    pub(super) background: FitTree<ReplicaRank, ReplicaId>,
    /// Released replicas with free capacity for background classes.
    pub(super) released: FitTree<ReplicaRank, ReplicaId>,
    /// Number of reserved replicas for each class that was the pool's urgent class.
    pub(super) reserved_replicas: BTreeMap<ClassId, ReservedReplicaCount>,
    /// Replicas with free capacity as soon as their present prefills have ended.
    pub(super) soon: FitTree<ReplicaRank, ReplicaId>,
    pub(super) counts: PoolCounts,
    pub(super) sleep: Option<SleepPolicy>,
    /// True when the pool may be scaled to zero, while nothing answers at its addresses.
    pub(super) may_scale_to_zero: bool,
    pub(super) speeds: PoolSpeeds,
    pub(super) adapters: BTreeSet<ModelId>,
    pub(super) load: AdapterLoadTime,
    pub(super) bests: PoolBestTracker,
    pub(super) output_progress: OutputProgress,
    /// Jobs of the urgent class that waited for the pool at the last dispatch of such a job.
    pub(super) waiting: u64,
}

/// Summary of a pool for the choice between pools. The summaries lie close together, by pool,
/// because one decision reads those of all pools of several pool sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PoolSummary {
    pub(super) up: u32,
    /// See [`PoolSpeeds::median`].
    pub(super) slowness: f64,
}

/// A pool may prefill long background prompts at one of this many replicas at a time. The urgent
/// class then finds other replicas that prefill its prompts at once.
const BACKGROUND_PREFILL_DIVISOR: u32 = 2;

impl PoolState {
    /// Whether no replica is in service or busy, and some replica sleeps or wakes.
    pub(super) const fn is_dormant(&self) -> bool {
        self.counts.up == 0 && self.counts.busy == 0 && self.counts.sleepers > 0
    }

    /// Whether the pool is scaled to zero.
    pub(super) fn is_scaled_to_zero(&self) -> bool {
        self.may_scale_to_zero && self.counts.up == 0 && self.counts.away as usize == self.members.len()
    }

    /// Whether a replica can take a job, urgent or background.
    pub(super) fn is_open(&self) -> bool {
        !(self.free.is_empty() && self.background.is_empty() && self.released.is_empty())
    }

    /// The search trees, in the order of [`super::replica_parts::IndexedReplica::slots`].
    pub(super) const fn trees_mut(&mut self) -> [&mut FitTree<ReplicaRank, ReplicaId>; 4] {
        [&mut self.free, &mut self.background, &mut self.released, &mut self.soon]
    }

    /// Forgets what belongs to a pool that was in the policy, for one that comes under its id.
    pub(super) fn forget(&mut self) {
        self.slots.shown = None;
        (self.objective, self.bests) = (ActiveObjective::default(), PoolBestTracker::default());
        (self.load, self.waiting) = (AdapterLoadTime::default(), 0);
        self.reserved_replicas.clear();
    }

    pub(super) const fn summary(&self) -> PoolSummary {
        PoolSummary { up: self.counts.up, slowness: self.speeds.median() }
    }

    /// Whether one more reserved replica may prefill a background prompt: its length is not known here.
    pub(super) const fn takes_background(&self) -> bool {
        let reserved_replicas = self.counts.up.saturating_sub(self.counts.released);
        self.counts.background_prefills == 0
            || self.counts.background_prefills < reserved_replicas / BACKGROUND_PREFILL_DIVISOR
    }

    /// Whether a job counts as background in this pool. `background` tells whether it does where
    /// the most urgent class comes.
    pub(super) const fn is_background(&self, background: bool) -> bool {
        background && self.objective.background
    }

    /// Nodes of the search trees that were visited.
    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        [&self.free, &self.background, &self.released, &self.soon]
            .into_iter()
            .map(|tree| tree.visits.get())
            .sum()
    }

    /// Search trees of the replicas with free capacity now, for background jobs or for the urgent
    /// class; `background` tells whether the jobs are background where the most urgent class comes.
    pub(super) fn trees(&self, background: bool) -> impl Iterator<Item = &FitTree<ReplicaRank, ReplicaId>> {
        let background = self.is_background(background);
        let reserved_replicas = match background {
            true => Some(&self.background).filter(|_| self.takes_background()),
            false => Some(&self.free),
        };
        reserved_replicas.into_iter().chain(background.then_some(&self.released))
    }
}
