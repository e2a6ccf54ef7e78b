//! Stalls in the fleet: the output that a replica owes, and the signs of life of its engine.

use std::time::Duration;

use crate::core::model::ids::ReplicaId;
use crate::core::model::time::Tick;
use crate::core::replica::health::stall_detector::StallVerdict;

use super::Fleet;
use crate::core::replica::fleet::replica_state::ReplicaState;

/// Additional patience for an answer that is not a stream, because only the engine's gauges show
/// its progress.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

impl ReplicaState {
    /// Whether the engine should send something, or a gauge of it should move. Streams that their
    /// clients do not read are not owed. Nothing arrives of an answer that is not a stream, so such
    /// answers are watched only where gauges show progress.
    pub(super) fn owes(&self) -> bool {
        self.owes_streams() || (self.ledger.watched_answers > 0 && self.gauges.show_progress())
    }

    fn owes_streams(&self) -> bool {
        self.ledger.watched_streams > self.paused
    }

    /// Patience: how long the engine may be silent now.
    pub(super) fn patience(&self, now: Tick) -> Duration {
        let gap = self.itl_limit.mean().map_or(0, |mean| mean as u64);
        let gap = self.speed.is_known().then_some(gap);
        let patience = self.stall_detector.patience(self.ttft_model().wait, gap, now);
        if self.owes_streams() { patience } else { patience.saturating_add(ANSWER_PATIENCE) }
    }
}

impl Fleet {
    /// Notes that bytes came from the replica's engine. The derived state is not updated, because
    /// the stall detector looks for signs of life when its check is due.
    pub fn bytes_received(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall_detector.note_sign(now);
        }
    }

    /// Sets the number of the replica's streams that wait for their clients.
    pub fn set_paused_streams(&mut self, id: ReplicaId, streams: u32, now: Tick) {
        self.change(id, now, |node| node.paused = streams);
    }

    /// Streams of the replica that wait for their clients.
    #[must_use]
    pub fn paused_streams(&self, id: ReplicaId) -> u32 {
        self.node(id).map_or(0, |node| node.paused)
    }

    /// Runs the stall check of the replica when it is due.
    pub fn check_stall(&mut self, id: ReplicaId, now: Tick) -> StallVerdict {
        let patience = self.patience(id, now);
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else {
            return StallVerdict::Alive;
        };
        let look = node.stall_detector.check(now, patience);
        self.refresh(id, now);
        look
    }

    /// Patience: how long the replica's engine may be silent now.
    #[must_use]
    pub fn patience(&self, id: ReplicaId, now: Tick) -> Duration {
        self.node(id).map_or(Duration::MAX, |node| node.patience(now))
    }

    /// Whether the replica's engine has shown a sign of life after `since`, and within its
    /// patience.
    #[must_use]
    pub fn is_alive(&self, id: ReplicaId, since: Tick, now: Tick) -> bool {
        self.node(id).is_some_and(|node| node.stall_detector.is_alive(since, now, self.patience(id, now)))
    }

    /// Last sign of life of the replica's engine.
    #[must_use]
    pub fn last_sign(&self, id: ReplicaId) -> Tick {
        self.node(id).map_or(Tick::ZERO, |node| node.stall_detector.last_sign())
    }

    /// Whether the replica's reports show whether its engine makes progress.
    #[must_use]
    pub fn shows_progress(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.gauges.show_progress())
    }

    /// Notes the length of the stall for which the replica is ejected. The ejection may be a
    /// mistake, so the engine gets more patience later.
    pub fn note_stall(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall_detector.note_stall(now);
        }
    }

    /// Notes that a first token did not come in time.
    pub fn note_missed_token(&mut self, id: ReplicaId, now: Tick) {
        if let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) {
            node.stall_detector.note_missed_token(now);
        }
    }

    /// When a first token was first missed at the replica since its last sign of life.
    #[must_use]
    pub fn missed_at(&self, id: ReplicaId) -> Option<Tick> {
        self.node(id)?.stall_detector.missed_at()
    }
}
