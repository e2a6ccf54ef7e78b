//! A job: one admitted request, as much of it as decisions need.

use std::sync::Arc;

use crate::core::model::ids::{ClassId, JobId, KeyId, ModelId, TenantId};
use crate::core::model::time::Tick;

/// What the edge says of a request when it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSpec {
    /// Given by the edge; never used twice.
    pub id: JobId,
    /// Who it is for.
    pub tenant: TenantId,
    /// The credential that it came with, where that has limits of its own.
    pub key: Option<KeyId>,
    /// The promise it is served under.
    pub class: ClassId,
    /// What it asks for.
    pub model: ModelId,
    /// Prompt tokens, counted or estimated.
    pub prompt_tokens: u64,
    /// Output tokens that the request allows, over all its choices; 0 for
    /// work without output (embeddings, rerank, ...).
    pub max_output_tokens: u64,
    /// Sequences it occupies in the engine (`n`), at least 1.
    pub sequences: u32,
    /// Bytes of its body.
    pub bytes: u64,
    /// Whether the client gets tokens as they come. What does not stream has
    /// been sent nothing until it ends, so it can be moved until then.
    pub streams: bool,
    /// When the request came. Earlier than its event for a retry that takes
    /// the place of the try it repeats.
    pub arrived: Tick,
    /// The latest moment at which its wait may end.
    pub deadline: Tick,
    /// The last moment at which its client still waits for the first token;
    /// [`Tick::NEVER`] when the client did not say. At least `deadline`.
    pub patience: Tick,
    /// Whether it goes on as another model when it is refused. Then it does not
    /// wait while no replica of its own is in service, and its refusal gives
    /// back what its tenant was charged for it.
    pub has_fallback: bool,
    /// Whether another engine can go on with its stream after the first token,
    /// as far as the request and the engines are concerned.
    pub resumable: bool,
    /// Tokens of context that it asks for, prompt and limit on its output: as
    /// far as known, 0 where nothing is.
    pub context: u64,
    /// How many of its model's context windows are too small for it; the
    /// scheduler finds out.
    pub context_group: u8,
    /// What stands for its tenant, model and content, to know the same request
    /// when it is sent again; absent where that cannot be told.
    pub fingerprint: Option<u64>,
    /// What stands for the tenant and the session that it belongs to, where
    /// sessions keep to a replica; absent when it names none.
    pub session: Option<u64>,
}

/// The start of a prompt in blocks of equal size, to find the replica that has
/// computed it before. Empty where nothing is known of the prompt's text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptPrefix {
    /// One hash for each full block from the start; each covers all blocks
    /// before it.
    pub blocks: Arc<[u64]>,
    /// Tokens in a block, counted or estimated; at least 1 unless empty.
    pub block_tokens: u32,
}

/// Tokens as the engine counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenCounts {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// The part of `input` that came from the prefix cache.
    pub cached: u64,
    /// Generated tokens.
    pub output: u64,
}

/// What is known of a job's consumption when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobUsage {
    /// The engine's own count.
    Exact(TokenCounts),
    /// From a stream that ended early: a lower bound of its output. An engine
    /// that has not said how long the prompt is has it as 0.
    Partial(TokenCounts),
    /// Nothing is known; never to be read as zero.
    #[default]
    Unknown,
}

impl JobUsage {
    /// The counted tokens, if any were.
    #[must_use]
    pub fn tokens(self) -> Option<TokenCounts> {
        match self {
            Self::Exact(tokens) | Self::Partial(tokens) => Some(tokens),
            Self::Unknown => None,
        }
    }

    /// With the prompt as it was counted before, where a stream ended before its
    /// engine said how long it is: whoever leaves early has had it read.
    #[must_use]
    pub fn with_prompt(self, counted: u64) -> Self {
        match self {
            Self::Partial(tokens) if tokens.input == 0 => {
                Self::Partial(TokenCounts { input: counted, ..tokens })
            }
            _ => self,
        }
    }
}
