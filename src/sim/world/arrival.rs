//! Arrivals: the requests of the world, with the facts that no router is told.

use std::sync::Arc;
use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::engine::BLOCK_TOKENS;
use crate::sim::rng::Rng;
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
    /// Tokens the engine will generate for each choice; no router is told.
    pub output: u32,
    /// Choices that it asks for, at least 1.
    pub n: u32,
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
    /// How long its engine works on it before it is queued there, whatever the
    /// reason: an image, a grammar. No router is told.
    pub held: Duration,
    /// When its client leaves if it is not served by then, counted from its arrival;
    /// absent = it stays. No router is told before.
    pub leaves: Option<Duration>,
    /// When its stream falls silent; absent = never. No router is told.
    pub pause: Option<Pause>,
}

/// A stream that falls silent while its engine goes on, as one whose tool call is
/// sent only when it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// The last token before it, at least 1.
    pub after: u32,
    /// How long it lasts; then everything comes at once.
    pub lasts: Duration,
}

/// Tokens of one hash in [`Arrival::prefix`].
pub const PREFIX_BLOCK: u32 = 256;

impl Arrival {
    /// Gives the request a prompt whose first `shared` tokens are those of every
    /// other request of the same `family`; the others are its `own`.
    #[must_use]
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
