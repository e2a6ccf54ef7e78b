//! Section `pools.*.sleep`: when idle replicas sleep.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::Span;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::core::replica::health::sleep::SleepPolicy;
use crate::engines::EngineKind;

const MIN_IDLE_MILLIS: u128 = 1000;

/// Puts idle replicas to sleep, which gives the memory of their accelerators
/// to others, and wakes them when requests need them. For vLLM with
/// `--enable-sleep-mode`, with `VLLM_SERVER_DEV_MODE=1` in its environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SleepSection {
    /// How long a replica has no work before it sleeps, at least 1 s. A replica that woke stays
    /// awake for at least this time, too.
    pub after_idle: Span,
    /// Replicas of the pool that stay awake in any case.
    pub keep_awake: u32,
    /// Longest time for a replica to wake. A replica that is not awake then is ejected.
    pub wake_timeout: Span,
}

impl Default for SleepSection {
    fn default() -> Self {
        Self { after_idle: Span::secs(600), keep_awake: 1, wake_timeout: Span::secs(60) }
    }
}

/// The rules, for engines that can sleep.
pub(in crate::config) fn validate(
    written: &SleepSection,
    engine: EngineKind,
    known: bool,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Option<SleepPolicy> {
    if written.after_idle.0.as_millis() < MIN_IDLE_MILLIS {
        findings.error(&field.key("after_idle"), "is too short", "write 1s or more; minutes are usual");
    }
    let wake_timeout = numbers::positive(written.wake_timeout, &field.key("wake_timeout"), findings);
    if engine.spec().sleep.is_none() {
        if known {
            let message = format!("{} is never put to sleep", engine.name());
            findings.error(field, message, "take the key away; only vLLM sleeps as this key means");
        }
        return None;
    }
    Some(SleepPolicy { after_idle: written.after_idle.0, keep_awake: written.keep_awake, wake_timeout })
}
