//! Arrivals: the requests of the world, with the facts that no router is told.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::BLOCK_TOKENS;
use crate::rng::Rng;
use crate::trace::reblock;
use penstock_core::model::time::Tick;

#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub at: Tick,
    /// Number of the tenant.
    pub tenant: u32,
    /// Number of the latency class.
    pub class: u32,
    /// Number of the model.
    pub model: u32,
    pub prompt: u32,
    /// Tokens that the engine will generate for each choice. No router is told.
    pub output: u32,
    /// Choices that the request asks for, at least 1.
    pub n: u32,
    /// Output tokens that the request allows (`max_tokens`).
    pub max_output: u32,
    /// Whether the client gets tokens as they come. Otherwise the answer is
    /// plain: nobody outside the engine sees any of it before its end.
    pub streams: bool,
    /// One cumulative hash per [`PREFIX_BLOCK`] tokens of the prompt.
    pub prefix: Arc<[u64]>,
    /// One cumulative hash per engine block of [`BLOCK_TOKENS`] tokens, of the
    /// prompt or of prompt and answer; empty = derived from `prefix`. No router
    /// is told.
    pub blocks: Arc<[u64]>,
    /// Time that the client waits for the first token; absent = what the class
    /// allows.
    pub patience: Option<Duration>,
    /// Time for which the engine works on the request before queueing it, for
    /// whatever reason: an image, a grammar. No router is told.
    pub held: Duration,
    /// Time after arrival at which the client leaves if it is not served by
    /// then; absent = the client stays. No router is told before.
    pub leaves: Option<Duration>,
    /// Pause in the stream; absent = none. No router is told.
    pub pause: Option<Pause>,
}

/// A pause in a stream while its engine goes on: a tool call that is sent only
/// when it is whole, or a client that does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Number of the last token before the pause, at least 1.
    pub after: u32,
    /// Length of the pause; all held-back tokens come at its end.
    pub lasts: Duration,
    /// Whether the client does not read. Otherwise the engine sends nothing.
    pub by_client: bool,
}

/// Tokens of one hash in [`Arrival::prefix`].
pub const PREFIX_BLOCK: u32 = 256;

impl Arrival {
    /// Gives the request a prompt. Its first `shared` tokens are those of every
    /// request of the same `family`; the hashes of the others depend on `own`.
    pub fn with_prompt(self, family: u64, shared: u32, own: u64) -> Self {
        let hash = |whose: u64, block: u32| {
            Rng::new(whose.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(block)).bits()
        };
        let block = |block: u32| match (block + 1) * BLOCK_TOKENS <= shared {
            true => hash(family, block),
            false => hash(own, block),
        };
        let blocks: Arc<[u64]> = (0..self.prompt / BLOCK_TOKENS).map(block).collect();
        Self { prefix: reblock(&blocks, BLOCK_TOKENS, PREFIX_BLOCK).into(), blocks, ..self }
    }

    /// Prefix hashes of the engine's blocks.
    pub(super) fn engine_blocks(&self) -> Vec<u64> {
        let mut blocks = match self.blocks.is_empty() {
            true => reblock(&self.prefix, PREFIX_BLOCK, BLOCK_TOKENS),
            false => self.blocks.to_vec(),
        };
        if self.n > 1 {
            // Each choice has another answer.
            blocks.truncate((self.prompt / BLOCK_TOKENS) as usize);
        }
        blocks
    }
}

impl Default for Arrival {
    fn default() -> Self {
        Self {
            at: Tick::ZERO,
            tenant: 0,
            class: 0,
            model: 0,
            prompt: 1,
            output: 1,
            n: 1,
            max_output: 4096,
            streams: true,
            prefix: Arc::default(),
            blocks: Arc::default(),
            patience: None,
            held: Duration::ZERO,
            leaves: None,
            pause: None,
        }
    }
}
