//! What arrives in the world.

use std::sync::Arc;
use std::time::Duration;

use crate::core::time::Tick;
use crate::sim::engine::BLOCK_TOKENS;
use crate::sim::trace::reblock;

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// When it arrives.
    pub at: Tick,
    /// Whose it is, by number.
    pub tenant: u32,
    /// Its latency class, by number.
    pub class: u32,
    /// Prompt tokens.
    pub prompt: u32,
    /// Tokens the engine will generate; no router is told.
    pub output: u32,
    /// Output tokens that the request allows.
    pub max_output: u32,
    /// Whether its tokens go to the client as they come. Else the answer is
    /// plain: nobody outside the engine sees anything of it before its end.
    pub streams: bool,
    /// One cumulative hash per [`PREFIX_BLOCK`] tokens of the prompt.
    pub prefix: Arc<[u64]>,
    /// The same for each of the engine's blocks of [`BLOCK_TOKENS`]; empty =
    /// what follows from `prefix`. No router is told.
    pub blocks: Arc<[u64]>,
    /// How long the client waits for its first token; absent = as long as its
    /// class allows.
    pub patience: Option<Duration>,
}

/// Tokens of one hash in [`Arrival::prefix`].
pub const PREFIX_BLOCK: u32 = 256;

impl Arrival {
    /// The hashes of the engine's blocks.
    pub(super) fn engine_blocks(&self) -> Vec<u64> {
        match self.blocks.is_empty() {
            true => reblock(&self.prefix, PREFIX_BLOCK, BLOCK_TOKENS),
            false => self.blocks.to_vec(),
        }
    }
}

impl Default for Arrival {
    fn default() -> Self {
        Self {
            at: Tick::ZERO,
            tenant: 0,
            class: 0,
            prompt: 1,
            output: 1,
            max_output: 4096,
            streams: true,
            prefix: Arc::default(),
            blocks: Arc::default(),
            patience: None,
        }
    }
}
