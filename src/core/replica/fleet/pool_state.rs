//! Pool state: a pool's replicas with free capacity, in the order of routing.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::model::ids::{ModelId, ReplicaId};
use crate::core::queue::fit_tree::FitTree;
use crate::core::replica::affinity::adapter_slots::AdapterLoadTime;
use crate::core::replica::health::sleep::SleepPolicy;
use crate::core::replica::ledger::ReplicaRank;
use crate::core::replica::speed::PoolSpeeds;
use crate::core::replica::speed::pool_best::PoolBestTracker;

use crate::core::replica::fleet::replica_state::PoolContribution;

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
    pub(super) up: u32,
    pub(super) sleep: Option<SleepPolicy>,
    /// Replicas that said they are busy.
    pub(super) busy: u32,
    /// Replicas that are ejected.
    pub(super) out: u32,
    /// Replicas at which nothing answers, or that are about to go.
    pub(super) away: u32,
    /// Whether nothing answers at its addresses while it is scaled to zero.
    pub(super) starts: bool,
    /// Replicas that sleep or wake.
    pub(super) sleepers: u32,
    /// Those that can be woken.
    pub(super) can_wake: u32,
    /// Sequences that those take that wake.
    pub(super) waking: u64,
    /// Replicas that read a background's prompt just now.
    pub(super) background_prefills: u32,
    /// Sequences that those in service may have.
    pub(super) capacity: u64,
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
        self.up == 0 && self.busy == 0 && self.sleepers > 0
    }

    /// Whether it is scaled to zero.
    pub(super) fn is_away(&self) -> bool {
        self.starts && self.up == 0 && self.away as usize == self.members.len()
    }

    /// What it shows to those who choose.
    pub(super) const fn shown(&self) -> PoolSummary {
        PoolSummary { up: self.up, slowness: self.speeds.median() }
    }

    /// Counts a replica anew.
    pub(super) fn recount(&mut self, before: PoolContribution, after: PoolContribution) {
        self.busy = self.busy + u32::from(after.busy) - u32::from(before.busy);
        self.out = self.out + u32::from(after.out) - u32::from(before.out);
        self.away = self.away + u32::from(after.away) - u32::from(before.away);
        self.sleepers = self.sleepers + u32::from(after.sleeps) - u32::from(before.sleeps);
        self.can_wake = self.can_wake + u32::from(after.can_wake) - u32::from(before.can_wake);
        self.waking = self.waking + u64::from(after.waking) - u64::from(before.waking);
    }

    /// Whether one more replica may read a background's prompt.
    pub(super) const fn takes_background(&self) -> bool {
        self.background_prefills == 0 || self.background_prefills < self.up / GUEST_READERS
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
