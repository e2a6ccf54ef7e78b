//! Events that the scheduler takes, and actions that it decides.

use std::sync::Arc;
use std::time::Duration;

use crate::core::billing::bill::StayBill;
use crate::core::limits::LimitExceeded;
use crate::core::limits::rule::{LimitId, LimitPeriod};
use crate::core::model::ids::{ClassId, JobId, ModelId, PoolId, ReplicaId};
use crate::core::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::core::model::overrides::{Override, OverrideTarget};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::placement::choose::PlacementReason;
use crate::core::replica::affinity::adapter_slots::AdapterState;
use crate::core::replica::health::sleep::SleepResult;

/// Something happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request passed the door. Answered by `Dispatch` or `Reject`, at once
    /// or later.
    Arrived(JobSpec, PromptPrefix),
    /// The client is gone. Ends the job in whatever phase it is.
    ClientLeft {
        /// The job.
        job: JobId,
        /// What was consumed for it.
        usage: JobUsage,
    },
    /// The first token of a stream was seen: its prefill is done, and it can no
    /// longer be moved without the client noticing. Never said of plain answers,
    /// of which nothing is seen before their end.
    FirstToken {
        /// The job.
        job: JobId,
    },
    /// The engine's answer is over, for better or worse.
    Finished {
        /// The job.
        job: JobId,
        /// How it went.
        outcome: AttemptOutcome,
    },
    /// What the streams of a replica showed since the last such event. Sent a
    /// few times a second for each replica that streams.
    ItlSampled {
        /// The replica.
        replica: ReplicaId,
        /// What was seen.
        pace: ItlSample,
    },
    /// Bytes came from the replica's engine since the last such event, or the last
    /// `Paced`. Sent at most a few times a second for each replica.
    BytesReceived {
        /// The replica.
        replica: ReplicaId,
    },
    /// So many of the replica's streams wait for their clients to read, and owe
    /// nothing meanwhile. Sent when the number has changed.
    StreamsPaused {
        /// The replica.
        replica: ReplicaId,
        /// Streams that wait.
        streams: u32,
    },
    /// A scrape of the replica's own view arrived.
    ReplicaReported {
        /// The replica.
        replica: ReplicaId,
        /// Its view.
        report: ReplicaReport,
    },
    /// A scrape of what the replica says of its adapters arrived.
    AdaptersReported {
        /// The replica.
        replica: ReplicaId,
        /// Adapters that it computes with at once, if it says so.
        slots: Option<u32>,
        /// Those that it runs requests with.
        running: Vec<ModelId>,
    },
    /// A probe that the core asked for failed, or an operator took the
    /// replica away.
    ReplicaLost {
        /// The replica.
        replica: ReplicaId,
        /// Whether something is there that answers.
        answers: bool,
    },
    /// A probe that the core asked for succeeded.
    ReplicaFound {
        /// The replica.
        replica: ReplicaId,
    },
    /// What came of `Action::Sleep` or `Action::Wake`.
    SleepAnswered {
        /// The replica.
        replica: ReplicaId,
        /// Whether it sleeps.
        rested: SleepResult,
    },
    /// An operator's required goes before the policy for a time. A drain or spot
    /// notice vacates the replicas that it closes.
    Overridden(Override),
    /// What an operator had overridden is as the policy says again.
    Restored(OverrideTarget),
    /// A day or month of the limits has begun. `ends` is when it does; at the
    /// start of the gateway the one that is under way is told too.
    PeriodBegan {
        /// Which.
        period: LimitPeriod,
        /// Its end.
        ends: Tick,
    },
    /// What was used before the start of a limit's day or month.
    UsedBefore {
        /// The limit.
        rule: LimitId,
        /// In its unit.
        amount: u64,
    },
    /// New rules are in force.
    PolicyChanged(Arc<Policy>),
    /// No new work is taken; what waits or runs may end. Sent once, at the
    /// start of a drain.
    Draining,
    /// `Scheduler::next_deadline` was reached.
    Timer,
}

/// How a dispatched job ended at its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The engine answered; a refusal that is the client's fault included.
    Done(JobUsage),
    /// The engine failed it. Before the first token the job goes back to the
    /// queue, after it the job ends.
    Failed {
        /// What went wrong.
        fault: EngineFault,
        /// What was consumed.
        usage: JobUsage,
    },
    /// The engine failed it after the first token, and another one can go on
    /// from there: the job goes back to the queue all the same.
    Interrupted {
        /// What went wrong.
        fault: EngineFault,
        /// What was consumed.
        usage: JobUsage,
        /// Output tokens that the client has: part of the prompt from now on.
        output: u64,
    },
}

/// What can be wrong with an engine's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineFault {
    /// The connection was refused or did not come about in time.
    Refused,
    /// The connection broke before the answer was whole.
    Reset,
    /// A 5xx that is neither "busy" nor a drain text.
    ServerError,
    /// The engine is shutting down.
    Draining,
    /// The engine aborted the request (`finish_reason: abort`, or a stream
    /// that ends without a finish reason).
    Aborted,
    /// An error event inside a stream.
    ErrorEvent,
    /// Bytes that are not the protocol: a bad chunk, a redirect, no JSON.
    Malformed,
    /// No byte for longer than the policy allows.
    Silent,
    /// An answer that is not a stream was not whole in the time that it may take.
    /// It says nothing of the replica, and the job ends with it.
    Overtime,
    /// 429 or 503: healthy, but it can take no more just now.
    Busy {
        /// The engine's own Retry-After.
        retry_after: Option<Duration>,
    },
}

impl EngineFault {
    /// Whether a replica that has it is there and answers, though badly: what it
    /// was asked may be to blame, or what all replicas depend on.
    #[must_use]
    pub const fn is_answered(self) -> bool {
        matches!(self, Self::ServerError | Self::Aborted | Self::ErrorEvent | Self::Malformed)
    }

    /// A short stable name for logs and metric labels.
    #[must_use]
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
            Self::Overtime => "overtime",
            Self::Busy { .. } => "busy",
        }
    }

    /// Whether the engine did (or may have done) work for the request, so
    /// that the try counts against the job's attempts.
    #[must_use]
    pub const fn counts_as_attempt(self) -> bool {
        !matches!(self, Self::Refused | Self::Draining | Self::Busy { .. })
    }

    /// Whether one such fault is enough to stop sending work to the replica.
    #[must_use]
    pub const fn ejects(self) -> bool {
        !matches!(self, Self::Busy { .. } | Self::Malformed | Self::Overtime)
    }
}

/// Gaps between the tokens of streams, as they reached the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItlSample {
    /// Gaps seen, at least 1.
    pub gaps: u64,
    /// Their sum.
    pub total: Duration,
}

/// A replica's own view of itself. Absent = it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReplicaReport {
    /// Sequences it runs.
    pub running: Option<u64>,
    /// Requests it holds back.
    pub waiting: Option<u64>,
    /// Use of its KV cache, `0.0..=1.0`.
    pub kv_usage: Option<f64>,
    /// Sequences it can run at once.
    pub slots: Option<u32>,
    /// Tokens its KV cache holds.
    pub kv_tokens: Option<u64>,
    /// Context window in tokens.
    pub max_model_len: Option<u32>,
    /// A counter that moves while it works.
    pub progress: Option<u64>,
    /// Whether it sleeps: it accepts requests and answers none.
    pub asleep: Option<bool>,
}

/// Something the edge must do, with the reason for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// About a job: for the request that owns it.
    Job(JobAction),
    /// About a replica, a pool or an override: for the parts of the process that watch them.
    Replica(ReplicaAction),
}

/// What is to become of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JobAction {
    /// Send the job to the replica now; its credit is booked.
    Dispatch {
        /// The job.
        job: JobId,
        /// Where to.
        replica: ReplicaId,
        /// Why there and why now.
        why: DispatchReason,
    },
    /// Refuse the job; it is over.
    Reject {
        /// The job.
        job: JobId,
        /// Why.
        why: Rejection,
    },
    /// The job is back at the head of its queue; a later `Dispatch` or
    /// `Reject` ends the wait.
    Requeue {
        /// The job.
        job: JobId,
        /// The replica that failed it.
        replica: ReplicaId,
        /// Why.
        why: EngineFault,
    },
    /// The job is taken away from its replica before the client has seen
    /// anything of it, and waits again: end the exchange. A later `Dispatch`
    /// or `Reject` ends the wait.
    Preempt {
        /// The job.
        job: JobId,
        /// Where it was.
        replica: ReplicaId,
        /// Why.
        why: PreemptReason,
    },
    /// Another replica is to go on with the job's stream, of which the client
    /// has a part: end the exchange and say `Finished(Interrupted)` with the
    /// fault of the reason. A stream that cannot go on elsewhere after all stays
    /// where it is; at a replica that has stalled, for a few seconds more. Asked
    /// at most once for each dispatch.
    Migrate {
        /// The job.
        job: JobId,
        /// Where it is.
        replica: ReplicaId,
        /// Why.
        why: PreemptReason,
    },
    /// A stay of the job at a replica is over, and this is what it came to. One
    /// for each `Dispatch`, before whatever else is said of the stay's end.
    Billed {
        /// The job.
        job: JobId,
        /// The stay's bill.
        bill: StayBill,
    },
}

/// What is to be done, or said, about a replica, a pool or an override.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplicaAction {
    /// The replica gets no work until a probe succeeds.
    Eject {
        /// The replica.
        replica: ReplicaId,
        /// Why.
        why: EngineFault,
    },
    /// The replica is to blame for a fault, but too many of its pool are out of
    /// service already: it only pauses for a moment.
    WithholdEjection {
        /// The replica.
        replica: ReplicaId,
        /// What was wrong.
        why: EngineFault,
    },
    /// The last replica of the pool that was in service was ejected.
    PoolDown {
        /// The pool.
        pool: PoolId,
        /// What was wrong with that replica.
        why: EngineFault,
    },
    /// Ask the replica whether it is there; answer with `ReplicaFound` or
    /// `ReplicaLost`.
    Probe {
        /// The replica.
        replica: ReplicaId,
    },
    /// The replica owes something and is silent: scrape its gauges now. The
    /// answer is `ReplicaReported`.
    Scrape {
        /// The replica.
        replica: ReplicaId,
    },
    /// The replica gets work again, slowly at first.
    Readmit {
        /// The replica.
        replica: ReplicaId,
        /// How long it was out.
        after: Duration,
    },
    /// Put the replica to sleep; answer with `Rested`. It gets no work.
    Sleep {
        /// The replica.
        replica: ReplicaId,
    },
    /// Wake the replica; answer with `Rested`.
    Wake {
        /// The replica.
        replica: ReplicaId,
        /// Jobs that wait and may go there.
        waiting: u64,
    },
    /// A job is held for a pool that has no replica.
    PoolWanted {
        /// The pool.
        pool: PoolId,
        /// How long its start is expected to take; absent = nothing is known.
        expected: Option<Duration>,
    },
    /// A pool for which jobs were held gave its first token.
    PoolStarted {
        /// The pool.
        pool: PoolId,
        /// How long after the first of them.
        took: Duration,
    },
    /// An override has ended by itself: its time is over.
    OverrideExpired {
        /// What it had changed.
        target: OverrideTarget,
    },
}

/// A pool that a job wanted more than the one that it went to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedOverPool {
    /// The pool; one of them, where several are wanted as much.
    pub pool: PoolId,
    /// It had no room. Else its first token would have come too late.
    pub busy: bool,
}

/// Why a job went where it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchReason {
    /// How long it waited, over all its tries.
    pub queued: Duration,
    /// 1 for the first try.
    pub attempt: u32,
    /// Jobs that waited in the same group of models when it was chosen.
    pub behind: u64,
    /// Replicas that could have taken it.
    pub candidates: u32,
    /// Outstanding work (tokens) of the chosen replica before this job.
    pub outstanding_tokens: u64,
    /// Prompt tokens that the replica is expected to have in its cache.
    pub cached_tokens: u64,
    /// Predicted time from now to the first token.
    pub expected: Duration,
    /// Sequences running there before this job.
    pub running: u32,
    /// The replica's sequence limit at that moment.
    pub limit: u32,
    /// What let it go before others.
    pub turn: OrderReason,
    /// Why to that pool.
    pub choice: PlacementReason,
    /// A pool that is cheaper, or that rules want more.
    pub passed_over: Option<PassedOverPool>,
    /// How its model stood to the replica, if it is an adapter there.
    pub adapter: Option<AdapterState>,
    /// The class it is served in.
    pub class: ClassId,
    /// The class it came in, when it could not keep that one's deadline.
    pub demoted_from: Option<ClassId>,
}

impl DispatchReason {
    /// A first try of a job that was alone.
    #[cfg(test)]
    pub(crate) const ALONE: Self = Self {
        queued: Duration::ZERO,
        attempt: 1,
        behind: 0,
        candidates: 1,
        outstanding_tokens: 0,
        cached_tokens: 0,
        expected: Duration::ZERO,
        running: 0,
        limit: 1,
        turn: OrderReason::Alone,
        choice: PlacementReason::Only,
        passed_over: None,
        adapter: None,
        class: ClassId::new(0),
        demoted_from: None,
    };

    /// The class it is served in, when that is not the one it came in.
    #[must_use]
    pub fn demoted_to(&self) -> Option<ClassId> {
        self.demoted_from.map(|_| self.class)
    }
}

/// What let a job go before the others that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderReason {
    /// Nobody else waited for the same replicas.
    Alone,
    /// Its class is first, and its tenant has had least in it.
    Fair,
    /// Its class was owed its guaranteed share.
    GuaranteedShare,
    /// Its tenant has less of the replicas than its quota guarantees.
    OwnQuota,
    /// It is back from a replica that failed it.
    Requeued,
}

impl OrderReason {
    /// A short stable name for logs.
    #[must_use]
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

/// Why a job was taken away from its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptReason {
    /// The replica shows no sign of life.
    Stalled,
    /// A more urgent job needs its place.
    Preempted {
        /// That job.
        by: JobId,
    },
    /// The replica is closed to work that it has not begun: by an operator,
    /// since it is about to go, or since it left the policy long enough ago.
    Drained,
    /// The same, since its machine will be taken away.
    SpotNotice,
    /// The replica sleeps.
    Asleep,
}

impl PreemptReason {
    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::Preempted { .. } => "preempted",
            Self::Drained => "drained",
            Self::SpotNotice => "spot_notice",
            Self::Asleep => "asleep",
        }
    }

    /// What a stream suffers that is handed over for this reason.
    #[must_use]
    pub const fn fault(self) -> EngineFault {
        match self {
            Self::Stalled => EngineFault::Silent,
            Self::Preempted { .. } | Self::Drained | Self::SpotNotice | Self::Asleep => EngineFault::Draining,
        }
    }
}

/// Why a job was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    /// The reason.
    pub reason: RejectReason,
    /// How long it had waited.
    pub queued: Duration,
    /// When another try makes sense: the time in which the measured drain rate
    /// empties what waits; absent when trying again is pointless.
    pub retry_after: Option<Duration>,
}

/// The reasons for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// It would pass a limit of its tenant or key.
    Limited(LimitExceeded),
    /// A bound of the tenant's own queue: which one.
    TenantQueueFull(QueueBound),
    /// A bound of the whole queue: which one.
    QueueFull(QueueBound),
    /// The deadline passed before a replica could take it.
    DeadlineExceeded,
    /// Its first token cannot come before the deadline: what waits before it
    /// takes too long.
    Unmeetable,
    /// No pool that may serve it has a replica, and none starts in time.
    ColdStart,
    /// The queue is full, and its tenant has most in it for its weight.
    Displaced,
    /// Its tenant is paused for longer than it can wait.
    Paused,
    /// No replica of the model is in service, and another model may serve it.
    NoReplica,
    /// It takes only what nobody else needs, and there is none of that now.
    NoRoom,
    /// It asks for more sequences than any replica of the model runs at once.
    TooManySequences {
        /// So many the largest one runs.
        most: u32,
    },
    /// No pool serves the model (any more).
    NoPool,
    /// The tenant or class is no longer in the policy.
    Withdrawn,
    /// Too many engines failed it.
    AttemptsExhausted(EngineFault),
    /// An engine failed it, and too many failed tries have been repeated lately.
    RetriesSpent(EngineFault),
    /// The gateway is shutting down.
    Draining,
}

impl RejectReason {
    /// A short stable name for logs and metric labels.
    #[must_use]
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
            Self::RetriesSpent(_) => "retries_spent",
            Self::Draining => "draining",
        }
    }

    /// Whether another model may serve what was refused so.
    #[must_use]
    pub const fn may_fall_back(self) -> bool {
        !matches!(self, Self::Limited(_) | Self::Paused | Self::Withdrawn | Self::Draining)
    }
}

/// Which queue bound was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueBound {
    /// Waiting requests.
    Requests,
    /// Waiting bytes.
    Bytes,
    /// Waiting tokens.
    Tokens,
}
