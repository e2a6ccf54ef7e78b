//! Reasons: why the scheduler dispatched, preempted or rejected a job; faults of engines.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::LimitExceeded;
use crate::model::ids::{ClassId, JobId, PoolId};
use crate::placement::choose_tier::PlacementReason;
use crate::replica::affinity::adapter_slots::AdapterState;
use crate::replica::scores::ReplicaScores;
use crate::replica::scores::Score;

/// A pool that the job preferred to the one that it was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedOverPool {
    /// The pool; one of them, where several are equally preferred.
    pub pool: PoolId,
    /// Whether the pool had no room. Otherwise its first token would have come too late.
    pub busy: bool,
}

/// Reason for a dispatch: why the job went where it went, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchReason {
    /// Time that the job waited, over all its attempts.
    pub queued: Duration,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Jobs that waited in the same pool group when this job was chosen.
    pub behind: u64,
    /// Replicas that could have taken the job.
    pub candidates: u32,
    /// Outstanding work of the chosen replica before this job, in tokens.
    pub outstanding_tokens: u64,
    /// Prompt tokens that the replica is expected to have in its prefix cache.
    pub cached_tokens: u64,
    /// Predicted time from now to the first token.
    pub expected: Duration,
    /// Sequences running at the replica before this job.
    pub running: u32,
    /// Sequence limit of the replica at that moment.
    pub limit: u32,
    /// What let the job go before others.
    pub order: OrderReason,
    /// Why the job went to that pool.
    pub placement: PlacementReason,
    /// A pool that is cheaper, or that the job's rules prefer.
    pub passed_over: Option<PassedOverPool>,
    /// Scores of the chosen replica and of a few others.
    pub scores: ReplicaScores,
    /// State of the job's adapter at the replica; absent when the model is not an adapter there.
    pub adapter: Option<AdapterState>,
    /// The class that the job is served in.
    pub class: ClassId,
    /// The class that the job arrived in, when it could not keep that class's deadline.
    pub demoted_from: Option<ClassId>,
}

impl DispatchReason {
    /// A first attempt of a job that was alone.
    pub const ALONE: Self = Self {
        queued: Duration::ZERO,
        attempt: 1,
        behind: 0,
        candidates: 1,
        outstanding_tokens: 0,
        cached_tokens: 0,
        expected: Duration::ZERO,
        running: 0,
        limit: 1,
        order: OrderReason::Alone,
        placement: PlacementReason::Only,
        passed_over: None,
        scores: ReplicaScores::new(Score::ZERO),
        adapter: None,
        class: ClassId::new(0),
        demoted_from: None,
    };

    /// The class that the job is served in, when the job arrived in another one.
    pub fn demoted_to(&self) -> Option<ClassId> {
        self.demoted_from.map(|_| self.class)
    }
}

/// What let a job go before the other waiting jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderReason {
    /// No other job waited for the same replicas.
    Alone,
    /// The class is first, and the tenant has the least counter in it.
    Fair,
    /// The class was owed its guaranteed share.
    GuaranteedShare,
    /// The tenant holds less of the replicas than its quota guarantees.
    OwnQuota,
    /// The job is back from a replica that failed it.
    Requeued,
}

impl OrderReason {
    /// A short stable name for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Fair => "fair",
            Self::GuaranteedShare => "guaranteed_share",
            Self::OwnQuota => "own_quota",
            Self::Requeued => "requeued",
        }
    }
}

/// Reason for taking a job or stream from its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptReason {
    /// The replica shows no sign of life.
    Stalled,
    /// A more urgent job needs the slot.
    Preempted {
        /// The more urgent job.
        by: JobId,
    },
    /// The replica is closed to work that it has not begun: by an operator, because it is about to
    /// go, or because it left the policy long enough ago.
    Drained,
    /// As `Drained`, since the machine will be taken away.
    SpotNotice,
    /// The replica sleeps.
    Asleep,
}

impl PreemptReason {
    /// Every name, in the order of the variants.
    pub const NAMES: [&'static str; 5] = ["stalled", "preempted", "drained", "spot_notice", "asleep"];

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::Preempted { .. } => "preempted",
            Self::Drained => "drained",
            Self::SpotNotice => "spot_notice",
            Self::Asleep => "asleep",
        }
    }

    /// The fault of a stream that is migrated for this reason.
    pub const fn fault(self) -> EngineFault {
        match self {
            Self::Stalled => EngineFault::Silent,
            Self::Preempted { .. } | Self::Drained | Self::SpotNotice | Self::Asleep => EngineFault::Draining,
        }
    }
}

/// Refusal of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    pub reason: RejectReason,
    /// Time that the job had waited.
    pub queued: Duration,
    /// Retry-After: the time in which the measured drain rate empties the queue. Absent when a
    /// retry is pointless.
    pub retry_after: Option<Duration>,
}

/// Reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The job would exceed a limit of its tenant, key or model.
    Limited(LimitExceeded),
    /// The job exceeds this bound of the tenant's own queue.
    TenantQueueFull(QueueBound),
    /// The job exceeds this bound of the whole queue.
    QueueFull(QueueBound),
    /// The deadline passed before a replica could take the job.
    DeadlineExceeded,
    /// The first token cannot come before the deadline: the jobs before this one take too long.
    Unmeetable,
    /// No pool that may serve the job has a replica, and none starts in time.
    ColdStart,
    /// The queue is full, and the tenant has most in it for its weight.
    Displaced,
    /// The tenant is paused for longer than the job can wait.
    Paused,
    /// No replica of the model is in service, and another model may serve the job.
    NoReplica,
    /// The class takes only spare capacity, and there is none now.
    NoRoom,
    /// The job asks for more sequences than any replica of the model runs at once.
    TooManySequences {
        /// Sequences that the largest replica runs.
        most: u32,
    },
    /// No pool serves the model (any more).
    NoPool,
    /// The tenant or class is no longer in the policy.
    Withdrawn,
    /// Too many engines failed the job.
    AttemptsExhausted(EngineFault),
    /// An engine failed the job, and the retry budget is used up.
    RetryBudgetSpent(EngineFault),
    /// The gateway is shutting down.
    Draining,
}

impl RejectReason {
    /// Every name, in the order of the variants.
    pub const NAMES: [&'static str; 17] = [
        "quota_spent",
        "rate_limited",
        "tenant_queue_full",
        "queue_full",
        "deadline_exceeded",
        "deadline_unmeetable",
        "cold_start",
        "displaced",
        "tenant_paused",
        "no_replica",
        "no_room",
        "too_many_sequences",
        "no_pool",
        "withdrawn",
        "attempts_exhausted",
        "retries_spent",
        "draining",
    ];

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limited(why) if why.is_quota() => "quota_spent",
            Self::Limited(_) => "rate_limited",
            Self::TenantQueueFull(_) => "tenant_queue_full",
            Self::QueueFull(_) => "queue_full",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unmeetable => "deadline_unmeetable",
            Self::ColdStart => "cold_start",
            Self::Displaced => "displaced",
            Self::Paused => "tenant_paused",
            Self::NoReplica => "no_replica",
            Self::NoRoom => "no_room",
            Self::TooManySequences { .. } => "too_many_sequences",
            Self::NoPool => "no_pool",
            Self::Withdrawn => "withdrawn",
            Self::AttemptsExhausted(_) => "attempts_exhausted",
            Self::RetryBudgetSpent(_) => "retries_spent",
            Self::Draining => "draining",
        }
    }

    /// Whether another model may serve a job that was refused for this reason.
    pub const fn may_fall_back(self) -> bool {
        !matches!(self, Self::Limited(_) | Self::Paused | Self::Withdrawn | Self::Draining)
    }
}

/// Queue bound that a job exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueBound {
    Requests,
    /// Bytes of waiting request bodies.
    Bytes,
    /// Prompt tokens and requested output tokens of waiting requests.
    Tokens,
}

/// Fault of an engine's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineFault {
    /// The connection was refused or not established in time.
    Refused,
    /// The connection broke before the answer was complete.
    Reset,
    /// A 5xx status other than 501 that means neither "busy" nor "draining", or 401, 403, 408 or 424.
    ServerError,
    /// The engine is shutting down.
    Draining,
    /// The engine aborted the request (`finish_reason: abort`, or a stream that ends without a
    /// finish reason).
    Aborted,
    /// An error event inside a stream.
    ErrorEvent,
    /// Bytes that violate the protocol: a bad chunk, a redirect, no JSON.
    Malformed,
    /// No byte for longer than the policy allows.
    Silent,
    /// A plain answer was not complete within the time allowed. The fault says nothing about the
    /// replica, and the job ends with it.
    AnswerTimeout,
    /// 429, 503 or 529: the engine is healthy, but can take no more requests just now. Also when the
    /// gateway itself lacks file descriptors or memory.
    Busy {
        /// The engine's own Retry-After.
        retry_after: Option<Duration>,
    },
}

impl EngineFault {
    /// Every name, in the order of the variants.
    pub const NAMES: [&'static str; 10] = [
        "refused",
        "reset",
        "server_error",
        "draining",
        "aborted",
        "error_event",
        "malformed",
        "silent",
        "overtime",
        "busy",
    ];

    /// Whether a replica with this fault still answers, though badly. The cause may be the request,
    /// or something that all replicas depend on.
    pub const fn is_still_answering(self) -> bool {
        matches!(self, Self::ServerError | Self::Aborted | Self::ErrorEvent | Self::Malformed)
    }

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::ServerError => "server_error",
            Self::Draining => "draining",
            Self::Aborted => "aborted",
            Self::ErrorEvent => "error_event",
            Self::Malformed => "malformed",
            Self::Silent => "silent",
            Self::AnswerTimeout => "overtime",
            Self::Busy { .. } => "busy",
        }
    }

    /// Whether the engine did, or may have done, work for the request. The attempt then counts
    /// against the job's attempts.
    pub const fn counts_as_attempt(self) -> bool {
        !matches!(self, Self::Refused | Self::Draining | Self::Busy { .. })
    }

    /// Whether one such fault is enough to eject the replica.
    pub const fn ejects(self) -> bool {
        !matches!(self, Self::Busy { .. } | Self::Malformed | Self::AnswerTimeout)
    }
}
