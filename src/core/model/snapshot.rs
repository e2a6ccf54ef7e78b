//! Snapshot: the state of the scheduler at one moment, for people and for metrics.

use std::time::Duration;

use crate::billing::pool_account::PoolTimes;
use crate::model::ids::{ClassId, GroupIndex, ModelId, PoolId, ReplicaId, TenantId};
pub use crate::model::overrides::ActiveOverride;
use crate::queue::quota::QuotaUse;
use crate::replica::affinity::adapter_slots::AdapterState;
use crate::replica::bottleneck::{Bottleneck, SlotCounts};
use crate::replica::speed::pool_best::PoolBest;

/// State of the scheduler: everything that waits and runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// One row per tenant, class and model with waiting jobs.
    pub queues: Vec<QueueSnapshot>,
    /// One row per pool of the policy.
    pub pools: Vec<PoolSnapshot>,
    /// One row per replica of the policy, and per removed replica that still runs jobs.
    pub replicas: Vec<ReplicaSnapshot>,
    /// Operators' overrides of the policy.
    pub overrides: Vec<ActiveOverride>,
    /// Jobs in any phase.
    pub jobs: u64,
    /// Invariants found broken since the start; 0 in a healthy process.
    pub broken_invariants: u64,
}

/// Waiting jobs of one tenant, class and model.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueSnapshot {
    pub tenant: TenantId,
    pub class: ClassId,
    pub model: ModelId,
    /// Waiting jobs.
    pub waiting: u64,
    /// Bytes of their request bodies.
    pub bytes: u64,
    /// Prompt tokens and requested output tokens of the waiting jobs.
    pub tokens: u64,
    /// Age of the oldest waiting job.
    pub oldest: Duration,
}

/// Queue of one tenant, class and model: what waits and runs, and what its next job waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueStatus {
    pub tenant: TenantId,
    pub class: ClassId,
    pub model: ModelId,
    /// Group of pools for whose replicas the jobs compete; absent when no pool serves the model.
    pub group: Option<GroupIndex>,
    /// Waiting jobs.
    pub waiting: u64,
    /// Sequences at replicas.
    pub running: u64,
    /// Longest wait of a waiting job.
    pub oldest: Duration,
    /// Predicted wait of a job that arrives now; absent while no rate is known.
    pub predicted_wait: Option<Duration>,
    /// The tenant's quota in the group; absent without one.
    pub quota: Option<QuotaUse>,
    /// What the next waiting job waits for.
    pub obstacle: Option<Obstacle>,
}

/// State of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSnapshot {
    pub pool: PoolId,
    pub state: PoolStatus,
    /// Waiting jobs that may use the pool.
    pub waiting: u64,
    /// Duration of the pool's latest starts, from the first held job to the first token; absent
    /// before the first start.
    pub cold_start: Option<Duration>,
    /// Duration of the latest wake-ups of the pool's replicas; absent before the first.
    pub wake: Option<Duration>,
    /// The best that the pool has shown in the last one to two hours.
    pub best: PoolBest,
    /// Time that the pool's replicas were present and had work, since the start.
    pub times: PoolTimes,
}

/// Status of a pool: whether it can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolStatus {
    /// The pool has no replica, and no job waits for one.
    Cold,
    /// Jobs are held for the pool, since it had no replica, or none awake. Its first token has not
    /// come yet.
    Starting,
    /// A replica is in service.
    Ready,
    /// All replicas of the pool have left the policy and finish what they run.
    Draining,
    /// The pool's replicas sleep.
    Asleep,
    /// The pool has replicas, and none is in service.
    Down,
}

impl PoolStatus {
    /// Every status.
    pub const ALL: [Self; 6] =
        [Self::Cold, Self::Starting, Self::Ready, Self::Draining, Self::Asleep, Self::Down];

    /// A short stable name for metrics and the admin API.
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

/// Prompt tokens for which a replica's prediction is shown.
pub const SAMPLE_PROMPT_TOKENS: u64 = 1000;

/// State and ledger of one replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaSnapshot {
    pub replica: ReplicaId,
    pub state: ReplicaStatus,
    /// Sequences booked at the replica.
    pub running: u32,
    /// Sequences that the replica may have now.
    pub limit: u32,
    /// Prompt tokens sent to the replica whose first token has not come. For plain answers: whose
    /// first token is not due.
    pub prefill_tokens: u64,
    /// KV tokens booked at the replica (prompt and expected output).
    pub kv_tokens: u64,
    /// Speed factor: the multiplier of predicted times. 2 = half as fast as the reference.
    pub speed_factor: f64,
    /// Whether the speed factor was learned from answers of this replica.
    pub speed_known: bool,
    /// Predicted TTFT of a prompt of [`SAMPLE_PROMPT_TOKENS`] tokens sent to the replica now.
    pub expected: Duration,
    /// Age of the last scrape; absent before the first.
    pub report_age: Option<Duration>,
    /// What keeps the replica from taking a job of the urgent class.
    pub bottleneck: Option<Bottleneck>,
    /// What keeps the replica from taking a job of a less urgent class.
    pub background_bottleneck: Option<Bottleneck>,
    /// Use of the replica's slots.
    pub slots: SlotCounts,
}

/// Status of a replica: whether it gets work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaStatus {
    /// The replica gets work.
    Serving,
    /// The replica gets less work than it could take, since it came back a moment ago.
    SlowStart,
    /// The replica gets no work for a moment, since it answered "busy".
    Busy,
    /// The replica gets no work until an operator or time ends its cordon; it finishes what it has.
    Cordoned,
    /// The replica gets no work, as when cordoned. Jobs whose answer had not begun went to other
    /// replicas.
    Draining,
    /// The replica gets no work until it is woken.
    Asleep,
    /// The replica gets no work. It was asked to wake and will be ready in a moment.
    Waking,
    /// A replica was ejected and gets no work until a probe succeeds.
    Ejected,
    /// As `Ejected`, and nothing has answered at its address for a minute.
    Gone,
    /// The replica left the policy and only finishes what it runs.
    Removed,
}

impl ReplicaStatus {
    /// Every status.
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

#[derive(Debug, Clone, PartialEq)]
pub struct OverrideResult {
    /// State of the scheduler before the override.
    pub before: Snapshot,
    /// State of the scheduler after the override, in the same instant.
    pub after: Snapshot,
    /// Jobs that were taken back from replicas.
    pub requeued: u64,
}

/// Explanation of a wait: why a job waits.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitExplanation {
    /// Time that the job has waited, over all its attempts.
    pub queued: Duration,
    /// Time that the job may still wait.
    pub left: Duration,
    /// The class in which the job waits.
    pub class: ClassId,
    /// The class in which the job arrived, if that is another one.
    pub demoted_from: Option<ClassId>,
    /// Jobs before this one of the same tenant, class and model; absent in the middle of a long queue,
    /// where they are not counted.
    pub ahead: Option<u64>,
    /// Waiting jobs of the same pool group.
    pub waiting: u64,
    pub obstacle: Obstacle,
    /// The busy replica that the job waits for although others have room.
    pub waits_for: Option<ReplicaId>,
    /// Time until the job is looked at again although nothing has happened; absent where only an
    /// event at its pools leads to that.
    pub decides_again_in: Option<Duration>,
    /// Predicted time until the job starts; absent while it is not known.
    pub starts_in: Option<Duration>,
    /// Number of replicas that serve the job's model.
    pub replicas_in_all: usize,
    /// The most promising of these replicas, the best first.
    pub replicas: Vec<ReplicaOption>,
}

/// Short form of a [`WaitExplanation`], which costs no look at every replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitSummary {
    /// Time that the job has waited, over all its attempts.
    pub queued: Duration,
    /// Time that the job may still wait.
    pub left: Duration,
    /// Jobs that go before this one in its lane; absent when the job is far from both ends of it.
    pub ahead: Option<u64>,
    pub obstacle: Obstacle,
    /// Predicted time until the job starts; absent while it is not known.
    pub starts_in: Option<Duration>,
}

/// Obstacle between a job and a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The job's tenant is paused.
    Paused,
    /// The job's tenant holds all that its quota allows.
    Quota,
    /// Tenants at other gateways are due the places.
    OtherGateways,
    /// The pools that serve the job's model have to start first.
    Starting,
    /// No replica that serves the job's model is in service.
    NoReplica,
    /// No replica in service has room for the job.
    NoRoom,
    /// The job's rules let it wait for its preferred pools, which are busy; other pools have room.
    Rule,
    /// A busy replica, or the replica of the job's session, is predicted to be sooner than a free
    /// one.
    Sooner,
    /// Other jobs go first.
    NotItsTurn,
}

impl Obstacle {
    /// A short stable name for the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paused => "tenant_paused",
            Self::Quota => "quota_reached",
            Self::OtherGateways => "due_at_other_gateways",
            Self::Starting => "pool_is_starting",
            Self::NoReplica => "no_replica_in_service",
            Self::NoRoom => "no_room",
            Self::Rule => "waits_for_wanted_pools",
            Self::Sooner => "waits_for_sooner_replica",
            Self::NotItsTurn => "not_its_turn",
        }
    }
}

/// A replica that a waiting job might go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaOption {
    pub replica: ReplicaId,
    pub state: ReplicaStatus,
    /// Sequences booked at the replica.
    pub running: u32,
    /// Sequences that the replica may have now.
    pub limit: u32,
    /// Whether the replica has room for the job.
    pub fits: bool,
    /// What keeps the replica from taking the job, if anything does.
    pub bottleneck: Option<Bottleneck>,
    /// Whether the replica failed the job, which avoids it therefore.
    pub failed_before: bool,
    /// State of the job's adapter at the replica; absent when the model is not an adapter there.
    pub adapter: Option<AdapterState>,
    /// Predicted time to the job's first token at the replica.
    pub expected: Duration,
}
