//! Sequence: one request inside the simulated engine.

use std::sync::Arc;

use crate::engine::request::RequestId;

/// Position in the queue. Order: by priority, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PriorityKey {
    pub(super) priority: i64,
    /// Number of the arrival.
    pub(super) arrival: u64,
    pub(super) slot: usize,
}

#[derive(Debug)]
pub(super) struct Seq {
    pub(super) key: PriorityKey,
    pub(super) request: RequestId,
    pub(super) choice: u32,
    pub(super) prompt: u32,
    pub(super) output: u32,
    /// One hash for each full prompt block.
    pub(super) prefix: Arc<[u64]>,
    /// Leading blocks of `prefix` that this sequence shares.
    pub(super) shared: usize,
    /// Blocks that only this sequence holds.
    pub(super) private: u64,
    /// Tokens whose KV is computed.
    pub(super) computed: u32,
    pub(super) generated: u32,
    pub(super) running: bool,
    pub(super) adapter: Option<u32>,
}

impl Seq {
    /// Tokens of the sequence so far: prompt and generated. All need KV before
    /// the next token is sampled.
    pub(super) fn tokens(&self) -> u32 {
        self.prompt + self.generated
    }

    pub(super) fn decoding(&self) -> bool {
        self.generated > 0 && self.computed + 1 == self.tokens()
    }
}
