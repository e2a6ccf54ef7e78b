//! Events that the scheduler takes, and actions that the scheduler decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::billing::bill::AttemptBill;
use crate::limits::LimitSubject;
use crate::limits::lease::LeaseGrant;
use crate::limits::rule::{LimitId, LimitPeriod};
use crate::model::ids::{JobId, ModelId, PoolId, ReplicaId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::model::overrides::{Override, OverrideTarget};
use crate::model::policy::Policy;
use crate::model::policy::sleep::SleepResult;
use crate::model::policy::wire::{exact, exact_option, shared};
pub use crate::model::reason::EngineFault;
pub use crate::model::reason::{
    DispatchReason, OrderReason, PassedOverPool, PreemptReason, QueueBound, RejectReason, Rejection,
};
use crate::model::time::Tick;
use crate::queue::fairness::gateways::load::GatewayLoad;
use crate::queue::fairness::service::{HeldSequences, ServiceReport};

/// An event that the scheduler takes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A request was admitted. `Dispatch` or `Reject` answers it, at once or later.
    Arrived(JobSpec, PromptPrefix),
    /// The request has no more use for its job, which ends in whatever phase it is: the client left, sent
    /// the request again or set a deadline that has passed, or the gateway stops.
    #[serde(rename = "client_left")]
    Abandoned {
        job: JobId,
        /// Tokens consumed for the job.
        usage: JobUsage,
    },
    /// First token of a stream. Its prefill is done, and the job can no longer move unnoticed. Plain
    /// answers send no such event.
    FirstToken { job: JobId },
    /// The attempt ended.
    Finished { job: JobId, outcome: AttemptOutcome },
    /// What the streams of a replica showed since the last such event. Sent a
    /// few times a second for each replica that streams.
    ItlSampled { replica: ReplicaId, sample: ItlSample },
    /// Bytes came from the replica's engine since the last such event, or the last
    /// `ItlSampled`. Sent at most a few times a second for each replica.
    BytesReceived { replica: ReplicaId },
    /// The number of the replica's streams that wait for their clients to read has changed. The
    /// engine owes these streams nothing meanwhile.
    StreamsPaused {
        replica: ReplicaId,
        /// Streams that wait for their clients.
        streams: u32,
    },
    /// A scrape of the replica's own view arrived.
    ReplicaReported { replica: ReplicaId, report: ReplicaReport },
    /// The gateway scraped what the replica reports about its adapters.
    AdaptersReported {
        replica: ReplicaId,
        /// Adapters that the replica computes with at once; absent when the replica does not say.
        slots: Option<u32>,
        /// Adapters that the replica runs requests with.
        running: Vec<ModelId>,
    },
    /// A probe that the core asked for failed, or an operator took the replica away.
    ReplicaLost {
        replica: ReplicaId,
        /// Whether the replica answered, though badly.
        answers: bool,
    },
    /// A probe that the core asked for succeeded.
    ProbeSucceeded { replica: ReplicaId },
    /// Result of `ReplicaAction::Sleep` or `ReplicaAction::Wake`.
    SleepAnswered {
        replica: ReplicaId,
        /// Whether it sleeps.
        result: SleepResult,
    },
    /// An operator's override replaces part of the policy for a time. A drain or spot notice
    /// vacates the replicas that it closes.
    Overridden(Override),
    /// An override has ended: the policy applies again.
    OverrideEnded(OverrideTarget),
    /// A day or month of the limits has begun. The event is also sent at the start of the gateway,
    /// for the current day and month.
    PeriodBegan {
        period: LimitPeriod,
        /// End of the day or month.
        ends: Tick,
    },
    /// Use of a limit's current day or month before the gateway started.
    UsageRestored {
        rule: LimitId,
        /// In the unit of the limit.
        amount: u64,
    },
    /// The operator's guardrails denied a prompt before its request became a job.
    PromptDenied {
        subject: LimitSubject,
        /// Tokens of the prompt.
        tokens: u64,
    },
    /// Start times of pools that were measured before the gateway started.
    StartsRestored(Vec<PoolStartTime>),
    /// The gateways that share the limits have agreed on leases. The first such event makes all
    /// limits shared; it may bring no lease.
    LimitsLeased {
        grants: Vec<LeaseGrant>,
        /// End of all leases unless another such event comes.
        until: Tick,
    },
    /// Work that other gateways dispatched for tenants and classes since the last such event.
    ServedElsewhere(Vec<ServiceReport>),
    /// What tenants used at other gateways before this one started, for classes with a half-life of use.
    UsedBeforeStart(Vec<ServiceReport>),
    /// Sequences that tenants hold at other gateways now, for their quotas. Replaces what the last such
    /// event said.
    HeldElsewhere(Vec<HeldSequences>),
    /// What other gateways have at replicas, and what waits there, by their ids. Replaces what the last such
    /// event said.
    LoadElsewhere(BTreeMap<String, GatewayLoad>),
    /// A new policy is in force.
    PolicyChanged(#[serde(with = "shared")] Arc<Policy>),
    /// The demand observer expects other numbers of replicas. Pools that are not named keep their
    /// growth.
    GrowthExpected(Vec<PoolGrowth>),
    /// The gateway takes no new work; waiting and running jobs may end. Sent once, at the start of
    /// a drain.
    Draining,
    /// `Scheduler::next_deadline` was reached.
    Timer,
}

/// Growth of a pool that the demand observer expects.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PoolGrowth {
    pub pool: PoolId,
    /// Desired replicas over replicas in service, where the missing ones may be expected to come;
    /// at least 1.
    #[serde(with = "exact")]
    pub factor: f64,
}

/// Measured start time of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStartTime {
    pub pool: PoolId,
    /// Mean time from the first job that waited for the pool to the pool's first token.
    pub took: Duration,
}

/// Outcome of one attempt at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The engine answered. A refusal that is the client's fault counts as an answer.
    Done(JobUsage),
    /// The engine failed the job. Before the first token the job returns to the queue; after it the
    /// job ends.
    Failed {
        fault: EngineFault,
        /// The tokens that the engine spent.
        usage: JobUsage,
    },
    /// The engine failed the job after the first token, and another replica can continue the
    /// stream: the job returns to the queue all the same.
    Interrupted {
        fault: EngineFault,
        /// The tokens that the engine spent.
        usage: JobUsage,
        /// Output tokens that the client has. They are part of the prompt from now on.
        output: u64,
    },
}

impl AttemptOutcome {
    /// The tokens that the engine spent.
    pub const fn usage(self) -> JobUsage {
        match self {
            Self::Done(usage) | Self::Failed { usage, .. } | Self::Interrupted { usage, .. } => usage,
        }
    }
}

/// Gaps between the tokens of streams, as they reached the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ItlSample {
    /// Number of gaps, at least 1.
    pub gaps: u64,
    /// Sum of the gaps.
    pub total: Duration,
}

/// A replica's own view of its load. An absent field means that the replica does not report it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// Sequences that the replica runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// Requests that wait inside the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// Use of the KV cache, `0.0..=1.0`.
    #[serde(default, with = "exact_option", skip_serializing_if = "Option::is_none")]
    pub kv_usage: Option<f64>,
    /// Sequences that the replica can run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Capacity of the KV cache in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<u64>,
    /// Context window in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
    /// A counter that changes while the engine works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// Prompt tokens that came from the prefix cache, since the engine's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Whether the replica sleeps: a sleeping replica accepts requests and answers none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<bool>,
}

/// An action for the edge, with the reason for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// Action on a job, for the request that owns the job.
    Job(JobAction),
    /// Action on a replica, pool or override, for the parts of the process that watch them.
    Replica(ReplicaAction),
}

/// Permission for a job to start at a replica. The grant passes unchanged from the scheduler to the
/// request that owns the job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DispatchGrant {
    pub job: JobId,
    /// Pool of the replica.
    pub pool: PoolId,
    /// The replica. The ledger already holds the job's booking there.
    pub replica: ReplicaId,
    /// Why there and why now. The number of the attempt identifies the grant among those of its job.
    pub why: DispatchReason,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JobAction {
    /// Send the job to the replica of the grant now.
    Dispatch(DispatchGrant),
    /// Refuse the job; it is over.
    Reject { job: JobId, why: Rejection },
    /// The job is back at the head of its lane. A later `Dispatch` or `Reject` ends the wait.
    Requeue {
        job: JobId,
        /// The replica that failed the job.
        replica: ReplicaId,
        why: EngineFault,
    },
    /// The job is taken back from its replica before the client has seen any of the answer, and
    /// waits again: end the exchange. A later `Dispatch` or `Reject` ends the wait.
    Preempt {
        job: JobId,
        /// The replica that the job was taken from.
        replica: ReplicaId,
        why: PreemptReason,
    },
    /// Move the job's stream, of which the client has a part, to another replica: end the exchange
    /// and send `Finished(Interrupted)` with the fault of the reason. A stream that cannot continue
    /// elsewhere stays where it is; at a stalled replica, for a few seconds more. Asked at most
    /// once for each dispatch.
    Migrate {
        job: JobId,
        /// The replica that the stream is to leave.
        replica: ReplicaId,
        why: PreemptReason,
    },
    /// Bill of an ended attempt, once per `Dispatch`, before the action that reports its end.
    Billed { job: JobId, bill: AttemptBill },
}

/// Action on, or notice about, a replica, a pool or an override.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplicaAction {
    /// A replica was ejected and gets no work until a probe succeeds.
    Eject { replica: ReplicaId, why: EngineFault },
    /// The replica is to blame for a fault, but too many of its pool are out of
    /// service already: it only pauses for a moment.
    WithholdEjection { replica: ReplicaId, why: EngineFault },
    /// The last replica of the pool that was in service was ejected.
    PoolDown { pool: PoolId, why: EngineFault },
    /// Ask the replica whether it is there; answer with `ProbeSucceeded` or
    /// `ReplicaLost`.
    Probe { replica: ReplicaId },
    /// Scrape the replica's gauges now: it owes something and is silent, or its learned number of
    /// slots is used up. The answer is `ReplicaReported`.
    Scrape { replica: ReplicaId },
    /// The replica gets work again, slowly at first.
    Readmit {
        replica: ReplicaId,
        /// Time that the replica was out of service.
        after: Duration,
    },
    /// Put the replica to sleep; answer with `SleepAnswered`. It gets no work.
    Sleep { replica: ReplicaId },
    /// Wake the replica; answer with `SleepAnswered`.
    Wake {
        replica: ReplicaId,
        /// Waiting jobs that may use the replica.
        waiting: u64,
    },
    /// A job is held for a pool that has no replica.
    PoolWanted {
        pool: PoolId,
        /// Expected time of the pool's start; absent = unknown.
        expected: Option<Duration>,
    },
    /// A pool for which jobs were held gave its first token.
    PoolStarted {
        pool: PoolId,
        /// Time from the first held job to that token.
        took: Duration,
    },
    /// An override has ended by itself: its time is over.
    OverrideExpired {
        /// What it had changed.
        target: OverrideTarget,
    },
}
