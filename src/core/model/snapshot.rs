//! A picture of the scheduler at one moment, for people and for metrics.

use std::sync::Arc;
use std::time::Duration;

use crate::core::billing::pool_account::PoolTimes;
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::overrides::OverrideChange;
use crate::core::replica::affinity::adapter_slots::AdapterState;
use crate::core::replica::bottleneck::{Bottleneck, SlotCounts};
use crate::core::replica::speed::pool_best::PoolBest;

/// Everything that waits and runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// One row per tenant, class and model with waiting jobs.
    pub queues: Vec<QueueSnapshot>,
    /// One row per pool of the policy.
    pub pools: Vec<PoolSnapshot>,
    /// One row per replica of the policy, and per removed one that still runs
    /// something.
    pub replicas: Vec<ReplicaSnapshot>,
    /// What operators have set apart from the policy.
    pub overrides: Vec<ActiveOverride>,
    /// Jobs in any phase.
    pub jobs: u64,
    /// Invariants found broken since the start; 0 in a healthy process.
    pub broken_invariants: u64,
}

/// One queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueSnapshot {
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

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Which.
    pub pool: PoolId,
    /// Whether it can be used.
    pub state: PoolStatus,
    /// Jobs that wait and may go there.
    pub waiting: u64,
    /// How long its starts took as of late, from the first job that was held to
    /// the first token; absent before the first.
    pub cold_start: Option<Duration>,
    /// How long its replicas took to wake as of late; absent before the first.
    pub wake: Option<Duration>,
    /// The best that it has shown in the last one to two hours.
    pub best: PoolBest,
    /// How long its replicas were there and had work, since the start.
    pub times: PoolTimes,
}

/// Whether a pool can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolStatus {
    /// It has no replica, and nobody waits for one.
    Cold,
    /// Jobs have been held for it since it had none, or none awake, and its first
    /// token has not come.
    Starting,
    /// A replica is in service.
    Ready,
    /// It has no replica any more but those that finish what they run.
    Draining,
    /// Its replicas sleep.
    Asleep,
    /// It has replicas, and none is in service.
    Down,
}

impl PoolStatus {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Cold, Self::Starting, Self::Ready, Self::Draining, Self::Asleep, Self::Down];

    /// A short stable name for metrics and the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Asleep => "asleep",
            Self::Down => "down",
        }
    }
}

/// Tokens of the prompt that a replica's prediction is shown for.
pub const SAMPLE_PROMPT: u64 = 1000;

/// One replica's ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaSnapshot {
    /// Which.
    pub replica: ReplicaId,
    /// Whether it gets work.
    pub state: ReplicaStatus,
    /// Sequences booked there.
    pub running: u32,
    /// How many it may have now.
    pub limit: u32,
    /// Prompt tokens sent there whose first token has not come or, for plain
    /// answers, is not due.
    pub prefill_tokens: u64,
    /// KV tokens booked there (prompt and expected output).
    pub kv_tokens: u64,
    /// What predicted times are multiplied by: 2 = half as fast as the
    /// reference.
    pub speed_factor: f64,
    /// Predicted time to the first token of a prompt of [`SAMPLE_PROMPT`]
    /// tokens sent there now.
    pub expected: Duration,
    /// Age of the last scrape, if there was one.
    pub report_age: Option<Duration>,
    /// What keeps it from a job of the urgent class.
    pub bottleneck: Option<Bottleneck>,
    /// What keeps it from a job of a less urgent class.
    pub background_bottleneck: Option<Bottleneck>,
    /// What its places are used for.
    pub slots: SlotCounts,
}

/// An override in force.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveOverride {
    /// What it does.
    pub change: OverrideChange,
    /// The operator's words.
    pub reason: Arc<str>,
    /// How long it has been in force.
    pub age: Duration,
    /// When it ends by itself; `None` = not at all.
    pub left: Option<Duration>,
}

/// Whether a replica gets work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaStatus {
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
    /// No, until it is woken.
    Asleep,
    /// No, it was told to wake and will be there in a moment.
    Waking,
    /// No, until a probe succeeds.
    Ejected,
    /// The same, and nothing has answered there for a minute.
    Gone,
    /// No: it left the policy and only finishes what it runs.
    Removed,
}

impl ReplicaStatus {
    /// Every state.
    pub const ALL: [Self; 10] = [
        Self::Serving,
        Self::SlowStart,
        Self::Busy,
        Self::Cordoned,
        Self::Draining,
        Self::Asleep,
        Self::Waking,
        Self::Ejected,
        Self::Gone,
        Self::Removed,
    ];

    /// A short stable name for logs, metrics and the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::SlowStart => "slow_start",
            Self::Busy => "busy",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Asleep => "asleep",
            Self::Waking => "waking",
            Self::Ejected => "ejected",
            Self::Gone => "gone",
            Self::Removed => "removed",
        }
    }
}

/// What an operator's required came to.
#[derive(Debug, Clone, PartialEq)]
pub struct OverrideResult {
    /// The picture before it.
    pub before: Snapshot,
    /// The picture after it, in the same instant.
    pub after: Snapshot,
    /// Jobs that were taken back from replicas.
    pub requeued: u64,
}

/// Why a job waits.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitExplanation {
    /// How long it has waited, over all its tries.
    pub queued: Duration,
    /// How long it may still wait.
    pub left: Duration,
    /// The class in which it waits.
    pub class: ClassId,
    /// The class it came in, if that is another one.
    pub demoted_from: Option<ClassId>,
    /// Jobs before it of the same tenant, class and model.
    pub ahead: u64,
    /// Jobs that wait for the same group of models.
    pub waiting: u64,
    /// What is in its way.
    pub obstacle: Obstacle,
    /// Replicas that serve its model.
    pub replicas_in_all: usize,
    /// The most promising of them, the best first.
    pub replicas: Vec<ReplicaOption>,
}

/// What keeps a job from a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// Its tenant is paused.
    Paused,
    /// Its tenant holds all that its quota allows.
    Quota,
    /// The pools that serve its model have to start first.
    Starting,
    /// No replica that serves its model is in service.
    NoReplica,
    /// None of those in service has room for it.
    NoRoom,
    /// Its rules let it wait for the pools that it wants most, which are busy;
    /// others have room.
    Rule,
    /// A replica that is busy now, or has its session, promises to be sooner than
    /// one that is free.
    Sooner,
    /// Others go before it.
    Turn,
}

impl Obstacle {
    /// A short stable name for the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paused => "tenant_paused",
            Self::Quota => "quota_reached",
            Self::Starting => "pool_is_starting",
            Self::NoReplica => "no_replica_in_service",
            Self::NoRoom => "no_room",
            Self::Rule => "waits_for_wanted_pools",
            Self::Sooner => "waits_for_sooner_replica",
            Self::Turn => "not_its_turn",
        }
    }
}

/// A replica that a waiting job might go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaOption {
    /// Which.
    pub replica: ReplicaId,
    /// Whether it gets work.
    pub state: ReplicaStatus,
    /// Sequences booked there.
    pub running: u32,
    /// How many it may have now.
    pub limit: u32,
    /// Whether it has room for the job.
    pub fits: bool,
    /// What keeps it from taking one more job like it, if anything does.
    pub bottleneck: Option<Bottleneck>,
    /// Whether it failed the job, which therefore keeps away from it.
    pub tried: bool,
    /// How the job's model stands to it, if it is an adapter there.
    pub adapter: Option<AdapterState>,
    /// Predicted time to the job's first token there.
    pub expected: Duration,
}
