//! Requests, options, events, gauges and counters of the engine model.

use std::time::Duration;

use thiserror::Error;

use crate::core::model::time::Tick;

/// Names a request within one engine; never used twice.
pub type RequestId = u64;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineRequest {
    /// Its name.
    pub id: RequestId,
    /// Prompt tokens; 0 is taken as 1.
    pub prompt_tokens: u32,
    /// One hash for each full block of [`BLOCK_TOKENS`](super::BLOCK_TOKENS)
    /// prompt tokens, from the start; each hash must cover all blocks before it.
    pub prefix: Vec<u64>,
    /// Tokens to generate; 0 for work that ends with the prompt (embeddings).
    pub output_tokens: u32,
    /// Sequences to generate, at least 1.
    pub n: u32,
    /// With priority scheduling, the smallest goes first.
    pub priority: i64,
    /// The LoRA adapter to compute with.
    pub adapter: Option<u32>,
}

/// Limits that differ from the profile's, and switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Sequences that may run at once.
    pub max_seqs: Option<u32>,
    /// Tokens of one step.
    pub max_tokens: Option<u32>,
    /// Tokens the KV cache holds.
    pub kv_tokens: Option<u64>,
    /// Keep finished prompt blocks for later requests.
    pub prefix_cache: bool,
    /// Order by `priority` before arrival.
    pub priority_scheduling: bool,
    /// `--max-loras`: adapters to compute with at once; 0 is taken as 1.
    pub max_loras: u32,
    /// How much longer a step takes for each adapter that is loaded in it.
    pub lora_load: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_seqs: None,
            max_tokens: None,
            kv_tokens: None,
            prefix_cache: true,
            priority_scheduling: false,
            max_loras: 1,
            lora_load: Duration::from_millis(200),
        }
    }
}

/// Why a request cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// It could never run, however long it waited.
    #[error("{needed} tokens do not fit the KV cache of {capacity} tokens")]
    TooLarge {
        /// Prompt and output of one sequence.
        needed: u64,
        /// KV tokens of the engine.
        capacity: u64,
    },
    /// The id is in use.
    #[error("request {0} is already there")]
    Duplicate(RequestId),
}

/// Something happened to one sequence of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineEvent {
    /// When.
    pub at: Tick,
    /// Whose.
    pub request: RequestId,
    /// Which of its `n` sequences, from 0.
    pub choice: u32,
    /// What.
    pub kind: EngineEventKind,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineEventKind {
    /// It left the waiting queue. After a preemption this comes again.
    Scheduled {
        /// Prompt tokens taken from the prefix cache.
        cached_tokens: u32,
    },
    /// One token was generated.
    Token {
        /// No more will come.
        last: bool,
    },
    /// A request without output has its prompt computed.
    Computed,
    /// It lost its KV blocks and waits again.
    Preempted,
}

/// The engine at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimGauges {
    /// Sequences that run.
    pub running: u64,
    /// Sequences that wait, preempted ones included.
    pub waiting: u64,
    /// KV blocks in use.
    pub blocks_used: u64,
    /// KV blocks in all.
    pub blocks_total: u64,
    /// Prompt tokens that are still to be computed, of all sequences.
    pub prefill_tokens: u64,
}

/// What the engine did since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimCounters {
    /// Steps.
    pub steps: u64,
    /// Prompt tokens of scheduled sequences, cached ones included.
    pub prompt_tokens: u64,
    /// The part of `prompt_tokens` that came from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub generated_tokens: u64,
    /// Sequences that finished.
    pub finished: u64,
    /// Sequences that lost their KV blocks.
    pub preemptions: u64,
    /// Sequences cancelled before they finished.
    pub cancelled: u64,
    /// Adapters that were loaded into a slot.
    pub adapter_loads: u64,
}
