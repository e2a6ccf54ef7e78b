//! Pool state: a pool's replicas with free capacity, in routing order.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::model::ids::{ModelId, ReplicaId};
use crate::core::queue::fit_tree::FitTree;
use crate::core::replica::affinity::adapter_slots::AdapterLoadTime;
use crate::core::replica::health::sleep::SleepPolicy;
use crate::core::replica::ledger::ReplicaRank;
use crate::core::replica::speed::PoolSpeeds;
use crate::core::replica::speed::pool_best::PoolBestTracker;

use crate::core::replica::fleet::contribution::PoolCounts;

/// Objective of a pool: that of the most urgent class that uses the pool now. The objective sets
/// how full the replicas may be, and how much is left for less urgent classes. Those classes are
/// background in this pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveObjective {
    /// TTFT objective.
    pub ttft: Duration,
    /// ITL objective.
    pub itl: Duration,
    /// Sequences of each replica that background classes leave free.
    pub headroom: u32,
    /// Sequences of the widest waiting job, at least 1. No replica's ITL limit is below this
    /// number.
    pub widest: u32,
    /// True when this is the most urgent class of the pool group, so that less urgent classes are
    /// background here. When false, no more urgent class comes here, and no class is background.
    pub background: bool,
}

impl Default for ActiveObjective {
    fn default() -> Self {
        Self { ttft: Duration::MAX, itl: Duration::MAX, headroom: 0, widest: 1, background: true }
    }
}

/// State of one pool.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolState {
    pub(super) buffer: u32,
    pub(super) objective: ActiveObjective,
    pub(super) members: Vec<ReplicaId>,
    /// Replicas with free capacity for the urgent class.
    pub(super) free: FitTree<ReplicaRank, ReplicaId>,
    /// Replicas with free capacity for background classes.
    pub(super) background: FitTree<ReplicaRank, ReplicaId>,
    /// Replicas with free capacity as soon as they have read their present prompts.
    pub(super) soon: FitTree<ReplicaRank, ReplicaId>,
    pub(super) counts: PoolCounts,
    pub(super) sleep: Option<SleepPolicy>,
    /// True when the pool may be scaled to zero, while nothing answers at its addresses.
    pub(super) may_scale_to_zero: bool,
    pub(super) speeds: PoolSpeeds,
    /// Models of the pool that are adapters.
    pub(super) adapters: BTreeSet<ModelId>,
    /// Load time of an adapter.
    pub(super) load: AdapterLoadTime,
    pub(super) bests: PoolBestTracker,
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

/// A pool may read background prompts at one of this many replicas at a time. The urgent class then
/// finds other replicas that read its prompts at once.
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

    /// Summary of the pool.
    pub(super) const fn summary(&self) -> PoolSummary {
        PoolSummary { up: self.counts.up, slowness: self.speeds.median() }
    }

    /// Whether one more replica may read a background prompt.
    pub(super) const fn takes_background(&self) -> bool {
        self.counts.background_prefills == 0
            || self.counts.background_prefills < self.counts.up / BACKGROUND_PREFILL_DIVISOR
    }

    /// Whether a job counts as background in this pool. `background` tells whether it does where
    /// the most urgent class comes.
    pub(super) const fn is_background(&self, background: bool) -> bool {
        background && self.objective.background
    }

    /// Whether jobs may be dispatched to the pool now; `background` tells whether they are
    /// background where the most urgent class comes.
    pub(super) const fn is_open(&self, background: bool) -> bool {
        !self.is_background(background) || self.takes_background()
    }

    /// Nodes of the search trees that were visited.
    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        [&self.free, &self.background, &self.soon].into_iter().map(|board| board.visits.get()).sum()
    }

    /// Search tree of the replicas with free capacity, for background jobs or for the urgent class.
    pub(super) const fn tree(&self, background: bool) -> &FitTree<ReplicaRank, ReplicaId> {
        if self.is_background(background) { &self.background } else { &self.free }
    }
}
