//! Job: one admitted request, as far as decisions need it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::ids::{ClassId, JobId, KeyId, ModelId, TenantId};
use crate::model::policy::wire::shared;
use crate::model::time::Tick;

/// Properties of a request that the edge passes in when the request arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Given by the edge; never used twice.
    pub id: JobId,
    pub tenant: TenantId,
    /// The credential of the request, where the credential has limits of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The latency class that the request is served in.
    pub class: ClassId,
    /// The requested model.
    pub model: ModelId,
    /// Prompt tokens, counted or estimated.
    pub prompt_tokens: u64,
    /// Output tokens that the request allows, over all its choices; 0 for work without output
    /// (embeddings, rerank, ...).
    pub max_output_tokens: u64,
    /// Sequences that the job occupies in the engine (`n`), at least 1.
    pub sequences: u32,
    /// Bytes of the request body.
    pub bytes: u64,
    /// Whether the client gets tokens as they come. A plain answer sends nothing until it ends, so
    /// that its job can be moved until then.
    pub streams: bool,
    /// When the request arrived. For a repeated request that takes the place of its earlier one,
    /// this is the earlier arrival, before the event.
    pub arrived: Tick,
    /// The latest moment at which the job's wait may end.
    pub deadline: Tick,
    /// The last moment at which the client still waits for the first token; [`Tick::NEVER`] when
    /// the client did not say. At least `deadline`.
    #[serde(rename = "patience")]
    pub client_deadline: Tick,
    /// Whether a refused job goes on as another model. Such a job does not wait while no replica of
    /// its own model is in service, and a refusal returns what the tenant was charged for the job.
    pub has_fallback: bool,
    /// Whether another replica can continue the stream after the first token, as far as the request
    /// and the engines are concerned.
    pub resumable: bool,
    /// Context that the job asks for, in tokens: the prompt and the limit on its output, as far as
    /// known. 0 when nothing is known.
    pub context: u64,
    /// Number of the model's context windows that are too small for the job. The scheduler sets it.
    pub context_group: u8,
    /// Hash of tenant, model and content, which recognises the same request when it is sent again;
    /// absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<u64>,
    /// Hash of the tenant and the session of the request, where sessions keep to a replica; absent
    /// when the request names no session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
}

impl JobSpec {
    /// A stream of 10 prompt tokens and at most 10 output tokens, of the first tenant, in the first
    /// class, for the first model; the base of the jobs of tests.
    pub const fn example(id: u64) -> Self {
        Self {
            id: JobId::new(id),
            tenant: TenantId::new(0),
            key: None,
            class: ClassId::new(0),
            model: ModelId::new(0),
            prompt_tokens: 10,
            max_output_tokens: 10,
            sequences: 1,
            bytes: 100,
            streams: true,
            arrived: Tick::NEVER,
            deadline: Tick::NEVER,
            client_deadline: Tick::NEVER,
            has_fallback: false,
            resumable: false,
            context: 0,
            context_group: 0,
            fingerprint: None,
            session: None,
        }
    }
}

/// Start of a prompt in blocks of equal size, for finding the replica that has computed the prompt
/// before. Empty when nothing is known about the prompt's text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PromptPrefix {
    /// One hash for each full block from the start. Each hash covers all blocks before it, too.
    #[serde(with = "shared")]
    pub blocks: Arc<[u64]>,
    /// Tokens in a block, counted or estimated; at least 1 unless empty.
    pub block_tokens: u32,
}

/// Tokens as the engine counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// The part of `input` that came from the prefix cache; absent when the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Generated tokens.
    pub output: u64,
}

impl TokenCounts {
    /// The part of the prompt that came from the prefix cache, as far as the engine tells.
    pub fn from_cache(&self) -> u64 {
        self.cached.unwrap_or(0)
    }
}

/// Token use of a job, as far as it is known when the job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobUsage {
    /// The engine's own count.
    Exact(TokenCounts),
    /// Count of a stream that ended early: a lower bound of the output. `input` is 0 when the
    /// engine has not reported the prompt's length.
    Partial(TokenCounts),
    /// Nothing is known; never to be read as zero.
    #[default]
    Unknown,
}

impl JobUsage {
    /// The counted tokens, if any were counted.
    pub fn tokens(self) -> Option<TokenCounts> {
        match self {
            Self::Exact(tokens) | Self::Partial(tokens) => Some(tokens),
            Self::Unknown => None,
        }
    }

    /// The use with `counted` prompt tokens, when a stream ended before its engine reported the
    /// prompt's length. A client that leaves early is charged for the prompt.
    pub fn with_prompt(self, counted: u64) -> Self {
        match self {
            Self::Partial(tokens) if tokens.input == 0 => {
                Self::Partial(TokenCounts { input: counted, ..tokens })
            }
            _ => self,
        }
    }
}
