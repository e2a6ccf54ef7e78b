//! Pool state: a pool's replicas with free capacity, in the order of routing.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::model::ids::{ModelId, ReplicaId};
use crate::core::model::policy::HealthPolicy;
use crate::core::model::time::Tick;
use crate::core::queue::fit_tree::{FitEntry, FitTree};
use crate::core::replica::affinity::adapter_slots::AdapterLoadTime;
use crate::core::replica::health::sleep::SleepPolicy;
use crate::core::replica::ledger::ReplicaRank;
use crate::core::replica::speed::PoolSpeeds;
use crate::core::replica::speed::pool_best::PoolBestTracker;

use crate::core::replica::fleet::contribution::PoolCounts;
use crate::core::replica::fleet::replica_state::ReplicaState;

/// What a pool owes to the most urgent class that uses it just now. It sets
/// how full its replicas may be, and what is left for less urgent classes:
/// those are background there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveObjective {
    /// Time to the first token.
    pub ttft: Duration,
    /// Time between tokens.
    pub itl: Duration,
    /// Sequences of each replica that background leave free.
    pub headroom: u32,
    /// Sequences of the widest job that waits, where it is wider than one. No
    /// replica's limit by pace is below that.
    pub widest: u32,
    /// Whether it is the most urgent class of all that use pools together with
    /// this one. Else no more urgent one comes here, and nobody is a background.
    pub background: bool,
}

impl Default for ActiveObjective {
    fn default() -> Self {
        Self { ttft: Duration::MAX, itl: Duration::MAX, headroom: 0, widest: 1, background: true }
    }
}

/// One pool.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolState {
    pub(super) buffer: u32,
    pub(super) objective: ActiveObjective,
    pub(super) members: Vec<ReplicaId>,
    /// Replicas with credit.
    pub(super) free: FitTree<ReplicaRank, ReplicaId>,
    /// Replicas with credit for background.
    pub(super) background: FitTree<ReplicaRank, ReplicaId>,
    /// Replicas with credit but for the prompts that they read just now.
    pub(super) soon: FitTree<ReplicaRank, ReplicaId>,
    pub(super) counts: PoolCounts,
    pub(super) sleep: Option<SleepPolicy>,
    /// Whether nothing answers at its addresses while it is scaled to zero.
    pub(super) starts: bool,
    pub(super) speeds: PoolSpeeds,
    /// Those of its models that are adapters.
    pub(super) adapters: BTreeSet<ModelId>,
    /// How long they take to load.
    pub(super) load: AdapterLoadTime,
    pub(super) bests: PoolBestTracker,
    /// Jobs of the urgent class that waited when one last came.
    pub(super) waiting: u64,
}

/// What those ask of every pool that choose between pools. It stands apart, by
/// pool and close together: a decision reads it of all pools of several pool sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PoolSummary {
    /// Replicas in service.
    pub(super) up: u32,
    /// See [`PoolSpeeds::median`].
    pub(super) slowness: f64,
}

/// A pool may read background' prompts at one replica of so many at the same time:
/// the urgent class finds others that read its prompts at once.
const GUEST_READERS: u32 = 2;

impl PoolState {
    /// Whether what it has sleeps or wakes.
    pub(super) const fn is_dormant(&self) -> bool {
        self.counts.up == 0 && self.counts.busy == 0 && self.counts.sleepers > 0
    }

    /// Whether it is scaled to zero.
    pub(super) fn is_away(&self) -> bool {
        self.starts && self.counts.up == 0 && self.counts.away as usize == self.members.len()
    }

    /// What it shows to those who choose.
    pub(super) const fn shown(&self) -> PoolSummary {
        PoolSummary { up: self.counts.up, slowness: self.speeds.median() }
    }

    /// Gives a replica its place among those that can take something.
    pub(super) fn rank(&mut self, id: ReplicaId, node: &mut ReplicaState, now: Tick, rules: &HealthPolicy) {
        node.factor = self.speeds.applied(&node.speed, now);
        let key = node.key(self, id);
        node.free_capacity = node.find_free_capacity(self, now, rules);
        let free = node.free_capacity;
        let trees = [
            (&mut self.free, free.own),
            (&mut self.background, free.background),
            (&mut self.soon, free.soon),
        ];
        for ((tree, free), slot) in trees.into_iter().zip(&mut node.slots) {
            let entry = free.map(|free| FitEntry { key, size: free.complement(), value: id });
            *slot = tree.put(*slot, entry);
        }
    }

    /// Whether one more replica may read a background's prompt.
    pub(super) const fn takes_background(&self) -> bool {
        self.counts.background_prefills == 0
            || self.counts.background_prefills < self.counts.up / GUEST_READERS
    }

    /// Whether one who is a background where the most urgent class comes is so here.
    pub(super) const fn is_background(&self, background: bool) -> bool {
        background && self.objective.background
    }

    /// Whether the board of background, or the other one, may be used now.
    pub(super) const fn is_open(&self, background: bool) -> bool {
        !self.is_background(background) || self.takes_background()
    }

    /// Nodes of search trees that were looked at.
    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        [&self.free, &self.background, &self.soon].into_iter().map(|board| board.visits.get()).sum()
    }

    /// The replicas that can take something.
    pub(super) const fn tree(&self, background: bool) -> &FitTree<ReplicaRank, ReplicaId> {
        if self.is_background(background) { &self.background } else { &self.free }
    }
}
