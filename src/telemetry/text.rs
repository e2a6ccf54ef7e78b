//! Texts and names as events show them.

use std::time::Duration;

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::policy::Policy;

/// Longest text of a client or an engine in a log line, in bytes.
pub(super) const MAX_TEXT: usize = 128;

/// Converts a duration to milliseconds, rounded to the microsecond.
pub(super) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Cuts a text to [`MAX_TEXT`] bytes, at a character boundary.
pub(in crate::telemetry) fn shorten(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Turns the empty name, which the policy returns for an unknown id, into `None`.
pub(in crate::telemetry) fn known(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}

pub(super) fn pool_of(policy: &Policy, replica: ReplicaId) -> Option<PoolId> {
    policy.replicas.get(replica).map(|row| row.pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("short"), "short");
        let long = "é".repeat(100);
        assert_eq!(shorten(&long), "é".repeat(64));
        let odd = format!("x{long}");
        assert_eq!(shorten(&odd).len(), 127);
    }
}
