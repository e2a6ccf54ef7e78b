//! Every event that is worth a log line or a metric, as a struct. Logic builds
//! the struct and emits it; what is written and counted for it stands here.
//!
//! No event carries a key, prompt text or generated text.

mod cost;
mod discovery;
mod identity;
mod limits;
mod objective;
mod overrides;
mod pool;
mod process;
mod replica;
mod request;
mod scale;
mod shadow;
mod sleep;
mod usage;

pub use cost::StayBilled;
pub use discovery::{ReplicasChanged, SourceBack, SourceEmpty, SourceLost, SourceTooLarge};
pub use identity::{AdminRefused, CertificateLoaded, HandshakeFailed, IssuerKeysFetched, IssuerKeysLost};
pub use limits::LimitMet;
pub use objective::ObjectiveUnattainable;
pub use overrides::{OverrideChanged, OverrideExpired};
pub use pool::{PoolDown, PoolStarted, PoolWanted};
pub use process::{
    AnswerCutOff, ConfigAudited, ConfigRejected, ConfigReloaded, ConfigUnchanged, ConnectionRefused,
    InvariantBroken, ServerDraining, ServerStarted, ServerStopped,
};
pub use replica::{
    EjectionWithheld, ModelMismatch, ProbeFailed, ReplicaEjected, ReplicaReadmitted, ScrapeFailed,
    ScrapeRecovered,
};
pub use request::{
    AuthFailed, EngineTimings, RequestFellBack, RequestOutcome, RequestRecalled, RequestRequeued,
    RequestSummary, StreamBroken, StreamContinuation, Timings,
};
pub use scale::{
    DeciderChanged, DemandNotKept, DemandRestored, DesiredChanged, PeerHeard, PeerLost, PeersSeen,
    ScalerAnswered, ScalerAsked, ScalerKeyUnknown,
};
pub use shadow::{ShadowCompared, ShadowSide, ShadowSkipped};
pub use sleep::{SleepOrderDone, SleepOrderFailed, SleepStateChanged, SleepUnsupported};
pub use usage::{
    UsageCounted, UsageDatabaseFound, UsageDatabaseLost, UsageDropping, UsageJournalBack, UsageJournalLost,
    UsageLinesBroken, UsageRowsDropped,
};

use std::time::Duration;

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::policy::Policy;

/// Longest text of foreign origin in a log line, in bytes.
const MAX_TEXT: usize = 128;

/// A duration in milliseconds, to the microsecond.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// The start of a text, cut at a character.
pub(in crate::telemetry) fn shorten(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A name from the policy, unless the id was never given.
pub(in crate::telemetry) fn known(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}

fn pool_of(policy: &Policy, replica: ReplicaId) -> Option<PoolId> {
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
