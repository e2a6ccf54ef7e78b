//! Events: one struct for each event that is worth a log line or a metric.
//!
//! Logic builds the struct and calls `emit`. Only this module decides which log line, audit entry
//! and metrics an event becomes.
//!
//! No event carries a key, prompt text or generated text.

mod cost;
mod identity;
mod keys;
mod limits;
mod objective;
mod overrides;
mod process;
mod replicas;
mod request;
mod scale;
mod shadow;
mod usage;

pub use crate::telemetry::summary::ShadowSide;
pub use crate::telemetry::summary::{EngineTimings, RequestOutcome, RequestSummary, Timings};
pub use cost::AttemptBilled;
pub use identity::{
    AdminRefused, CertificateLoaded, HandshakeFailed, IssuerKeysFetched, IssuerKeysLost, SignInNotKnown,
};
pub use keys::{EXPIRES_SOON, KeyChanged, KeysCounted};
pub use limits::{
    ClusterSeen, LeasesEnded, LimitMet, LoadNotShared, MessagesNotShared, RefusalsCounted, ServiceNotShared,
    StoreBack, StoreLost,
};
pub use objective::ObjectiveUnattainable;
pub use overrides::{OverrideChanged, OverrideExpired, OverrideHeard};
pub use process::{
    AnswerCutOff, ConfigAudited, ConfigRejected, ConfigReloaded, ConfigUnchanged, ConnectionRefused,
    ConnectionsLowered, InvariantBroken, RecordBack, RecordLost, RecordStarted, ServerDraining,
    ServerStarted, ServerStopped,
};
pub use replicas::discovery::{ReplicasChanged, SourceBack, SourceEmpty, SourceLost, SourceTooLarge};
pub use replicas::pool::{PoolDown, PoolStarted, PoolWanted};
pub use replicas::replica::{
    EjectionWithheld, ModelMismatch, ProbeFailed, ReplicaEjected, ReplicaReadmitted, ScrapeFailed,
    ScrapeRecovered,
};
pub use replicas::sleep::{SleepOrderDone, SleepOrderFailed, SleepStateChanged, SleepUnsupported};
pub use request::{
    AuthFailed, RequestFellBack, RequestPreempted, RequestRequeued, StreamBroken, StreamContinuation,
};
pub use scale::{
    DeciderChanged, DemandNotKept, DemandNotShared, DemandRestored, DesiredChanged, PeerHeard, PeerLost,
    PeersSeen, ScalerAnswered, ScalerAsked, ScalerKeyUnknown,
};
pub use shadow::{ShadowCompared, ShadowSkipped};
pub use usage::{
    UsageCounted, UsageDatabaseFound, UsageDatabaseLost, UsageDropping, UsageJournalBack, UsageJournalLost,
    UsageLinesBroken, UsageRowsDropped, UsageRowsNotDeleted,
};
