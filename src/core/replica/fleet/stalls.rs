//! Stalls in the fleet: what a replica owes, and the signs of life of its engine.

use std::time::Duration;

use crate::core::model::ids::ReplicaId;
use crate::core::model::time::Tick;
use crate::core::replica::health::stall_detector::StallVerdict;

use super::Fleet;
use crate::core::replica::fleet::replica_state::ReplicaState;

/// How much longer than a stream an answer may be silent that is not one: only
/// the engine's gauges tell how far it is.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

impl ReplicaState {
    /// Whether something should come from the engine, or move in it. What a
    /// client does not read is not owed; nothing is heard of an answer that is
    /// not a stream, so it is watched only where gauges show progress.
    pub(super) fn owes(&self) -> bool {
        self.owes_streams() || (self.ledger.watched_answers > 0 && self.gauges.show_progress())
    }

    fn owes_streams(&self) -> bool {
        self.ledger.watched_streams > self.paused
    }

    /// How long it may be silent now.
    pub(super) fn patience(&self, now: Tick) -> Duration {
        let gap = self.itl_limit.mean().map_or(0, |mean| mean as u64);
        let gap = self.speed.is_known().then_some(gap);
        let patience = self.stall_detector.patience(self.outlook().wait, gap, now);
        if self.owes_streams() { patience } else { patience.saturating_add(ANSWER_PATIENCE) }
    }
}

impl Fleet {
    /// Bytes came from the replica's engine. What is derived of it stays as it
    /// is: the watch looks for signs when its time comes.
    pub fn bytes_received(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall_detector.sign(now);
        }
    }

    /// So many of the replica's streams wait for their clients.
    pub fn pause(&mut self, id: ReplicaId, streams: u32, now: Tick) {
        self.change(id, now, |node| node.paused = streams);
    }

    /// Streams of the replica that wait for their clients.
    #[must_use]
    pub fn paused(&self, id: ReplicaId) -> u32 {
        self.node(id).map_or(0, |node| node.paused)
    }

    /// Whether the replica owes something and has been silent for too long; looks
    /// when it is time to.
    pub fn check_stall(&mut self, id: ReplicaId, now: Tick) -> StallVerdict {
        let patience = self.patience(id, now);
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else {
            return StallVerdict::Alive;
        };
        let look = node.stall_detector.check(now, patience);
        self.refresh(id, now);
        look
    }

    /// How long the replica may be silent now.
    #[must_use]
    pub fn patience(&self, id: ReplicaId, now: Tick) -> Duration {
        self.node(id).map_or(Duration::MAX, |node| node.patience(now))
    }

    /// Whether the replica's engine has shown life since then, and lately.
    #[must_use]
    pub fn is_alive(&self, id: ReplicaId, since: Tick, now: Tick) -> bool {
        self.node(id).is_some_and(|node| node.stall_detector.is_alive(since, now, self.patience(id, now)))
    }

    /// The last sign of life of the replica's engine.
    #[must_use]
    pub fn last_sign(&self, id: ReplicaId) -> Tick {
        self.node(id).map_or(Tick::ZERO, |node| node.stall_detector.last_sign())
    }

    /// Whether the replica's reports show whether it works.
    #[must_use]
    pub fn shows_progress(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.gauges.show_progress())
    }

    /// The replica was ejected for its silence, which may have been a mistake.
    pub fn note_stall(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall_detector.note_stall(now);
        }
    }

    /// A first token did not come in time.
    pub fn miss(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall_detector.miss(now);
        }
    }

    /// When a first token was first missed at the replica since its last sign of
    /// life.
    #[must_use]
    pub fn missed(&self, id: ReplicaId) -> Option<Tick> {
        self.node(id)?.stall_detector.missed()
    }
}
