//! `pools.*.sleep`.

use crate::config::file::sleep::SleepSection as Written;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::core::replica::health::sleep::SleepPolicy;
use crate::engines::EngineKind;

const MIN_IDLE_MILLIS: u128 = 1000;

/// The rules, for engines that can sleep.
pub(in crate::config::validate) fn validate(
    written: &Written,
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
