//! Events: one struct for each event that is worth a log line or a metric.
//!
//! Logic builds the struct and calls `emit`. Only this module decides which log line, audit entry
//! and metrics an event becomes.
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

pub use crate::telemetry::summary::ShadowSide;
pub use crate::telemetry::summary::{EngineTimings, RequestOutcome, RequestSummary, Timings};
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
    AuthFailed, RequestFellBack, RequestRecalled, RequestRequeued, StreamBroken, StreamContinuation,
};
pub use scale::{
    DeciderChanged, DemandNotKept, DemandRestored, DesiredChanged, PeerHeard, PeerLost, PeersSeen,
    ScalerAnswered, ScalerAsked, ScalerKeyUnknown,
};
pub use shadow::{ShadowCompared, ShadowSkipped};
pub use sleep::{SleepOrderDone, SleepOrderFailed, SleepStateChanged, SleepUnsupported};
pub use usage::{
    UsageCounted, UsageDatabaseFound, UsageDatabaseLost, UsageDropping, UsageJournalBack, UsageJournalLost,
    UsageLinesBroken, UsageRowsDropped,
};
