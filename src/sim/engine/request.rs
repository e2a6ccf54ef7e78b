//! Requests, options, events, gauges and counters of the engine model.

use std::time::Duration;

use thiserror::Error;

use penstock_core::model::time::Tick;

/// Id of a request within one engine; never used twice.
pub type RequestId = u64;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineRequest {
    pub id: RequestId,
    /// Prompt tokens; 0 is taken as 1.
    pub prompt_tokens: u32,
    /// One hash for each full block of [`BLOCK_TOKENS`](super::BLOCK_TOKENS)
    /// prompt tokens, from the start; each hash must cover all blocks before it.
    /// The hashes may go on with the blocks of the answer, for `n` = 1.
    pub prefix: Vec<u64>,
    /// Tokens to generate; 0 for work that ends with the prompt (embeddings).
    pub output_tokens: u32,
    /// Sequences to generate, at least 1.
    pub n: u32,
    /// With priority scheduling, the request with the smallest value goes
    /// first.
    pub priority: i64,
    /// The LoRA adapter to compute with.
    pub adapter: Option<u32>,
}

/// Limits that override the profile's, and switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Sequences that may run at once; absent = the profile's.
    pub max_seqs: Option<u32>,
    /// Tokens of one step; absent = the profile's.
    pub max_tokens: Option<u32>,
    /// Tokens that the KV cache holds; absent = the profile's.
    pub kv_tokens: Option<u64>,
    /// Whether finished prompt blocks are kept for later requests.
    pub prefix_cache: bool,
    /// Tokens that the prefix cache keeps when no request uses them; absent =
    /// all of the KV cache.
    pub cache_tokens: Option<u64>,
    /// Whether `priority` orders the queue before arrival.
    pub priority_scheduling: bool,
    /// `--max-loras`: adapters to compute with at once; 0 is taken as 1.
    pub max_loras: u32,
    /// Time that each adapter load adds to its step.
    pub lora_load: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_seqs: None,
            max_tokens: None,
            kv_tokens: None,
            prefix_cache: true,
            cache_tokens: None,
            priority_scheduling: false,
            max_loras: 1,
            lora_load: Duration::from_millis(200),
        }
    }
}

/// Reason for refusing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The request exceeds the KV cache and could never run.
    #[error("{needed} tokens do not fit the KV cache of {capacity} tokens")]
    TooLarge {
        /// Prompt and output tokens of one sequence.
        needed: u64,
        /// KV tokens of the engine.
        capacity: u64,
    },
    /// The id is in use.
    #[error("request {0} is already there")]
    Duplicate(RequestId),
}

/// An event of one sequence of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineEvent {
    pub at: Tick,
    pub request: RequestId,
    /// Index of the sequence among the request's `n`, from 0.
    pub choice: u32,
    pub kind: EngineEventKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineEventKind {
    /// The sequence left the waiting queue. Repeated after a preemption.
    Scheduled {
        /// Prompt tokens taken from the prefix cache.
        cached_tokens: u32,
    },
    /// One token was generated.
    Token {
        /// Whether this is the sequence's last token.
        last: bool,
    },
    /// The prompt of a request without output is computed.
    Computed,
    /// The sequence lost its KV blocks and waits again.
    Preempted,
}

/// Load of the engine at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimGauges {
    /// Running sequences.
    pub running: u64,
    /// Waiting sequences, preempted ones included.
    pub waiting: u64,
    /// KV blocks in use.
    pub blocks_used: u64,
    /// All KV blocks.
    pub blocks_total: u64,
    /// Prompt tokens still to be computed, over all sequences.
    pub prefill_tokens: u64,
}

/// Totals of the engine since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimCounters {
    pub steps: u64,
    /// Prompt tokens of scheduled sequences, cached ones included.
    pub prompt_tokens: u64,
    /// The part of `prompt_tokens` that came from the prefix cache.
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    /// Sequences that finished.
    pub finished: u64,
    /// Preemptions: sequences that lost their KV blocks.
    pub preemptions: u64,
    /// Sequences cancelled before they finished.
    pub cancelled: u64,
    /// Adapter loads into slots.
    pub adapter_loads: u64,
}
