//! A picture of the scheduler at one moment, for people and for metrics.

use std::sync::Arc;
use std::time::Duration;

use crate::core::ids::{ClassId, ModelId, ReplicaId, TenantId};
use crate::core::overrides::Measure;

/// Everything that waits and runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// One row per tenant, class and model with waiting jobs.
    pub queues: Vec<QueueView>,
    /// One row per replica of the policy, and per removed one that still runs
    /// something.
    pub replicas: Vec<ReplicaView>,
    /// What operators have set apart from the policy.
    pub overrides: Vec<OverrideView>,
    /// Jobs in any phase.
    pub jobs: u64,
    /// Invariants found broken since the start; 0 in a healthy process.
    pub broken_invariants: u64,
}

/// One queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueView {
    /// Whose.
    pub tenant: TenantId,
    /// In which class.
    pub class: ClassId,
    /// For which model.
    pub model: ModelId,
    /// Waiting jobs.
    pub waiting: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Age of the oldest.
    pub oldest: Duration,
}

/// One replica's ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaView {
    /// Which.
    pub replica: ReplicaId,
    /// Whether it gets work.
    pub state: ReplicaState,
    /// Sequences booked there.
    pub running: u32,
    /// How many it may have now.
    pub limit: u32,
    /// Prompt tokens sent there whose first token has not come.
    pub prefill_tokens: u64,
    /// KV tokens booked there (prompt and expected output).
    pub kv_tokens: u64,
    /// Age of the last scrape, if there was one.
    pub report_age: Option<Duration>,
}

/// An override in force.
#[derive(Debug, Clone, PartialEq)]
pub struct OverrideView {
    /// What it does.
    pub measure: Measure,
    /// The operator's words.
    pub reason: Arc<str>,
    /// How long it has been in force.
    pub age: Duration,
    /// When it ends by itself; `None` = not at all.
    pub left: Option<Duration>,
}

/// Whether a replica gets work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaState {
    /// Yes.
    Serving,
    /// Yes, fewer than it could take: it came back a moment ago.
    SlowStart,
    /// Not for a moment: it said it was busy.
    Busy,
    /// No, until an operator or time ends its cordon; it finishes what it has.
    Cordoned,
    /// No, as when cordoned; what it had not begun to answer went to others.
    Draining,
    /// No, until a probe succeeds.
    Ejected,
    /// No: it left the policy and only finishes what it runs.
    Removed,
}

impl ReplicaState {
    /// A short stable name for logs, metrics and the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::SlowStart => "slow_start",
            Self::Busy => "busy",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Ejected => "ejected",
            Self::Removed => "removed",
        }
    }
}
