//! Section `pools.*.sleep`: when idle replicas sleep.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::syntax::units::Span;

/// Puts idle replicas to sleep, which gives the memory of their accelerators
/// to others, and wakes them when requests need them. For vLLM with
/// `--enable-sleep-mode`, with `VLLM_SERVER_DEV_MODE=1` in its environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SleepSection {
    /// How long a replica has no work before it sleeps, and stays awake after
    /// it woke.
    pub after_idle: Span,
    /// Replicas of the pool that stay awake in any case.
    pub keep_awake: u32,
    /// Time after which a wake counts as failed.
    pub wake_timeout: Span,
}

impl Default for SleepSection {
    fn default() -> Self {
        Self { after_idle: Span::secs(600), keep_awake: 1, wake_timeout: Span::secs(60) }
    }
}
