//! Policy: the validated rules that the core decides by. `config` builds the policy from the
//! configuration file. A field is optional only where "absent" is a decision of its own.

pub(crate) mod placement;
pub mod sleep;
pub mod tenants;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::rule::LimitRule;
use crate::model::id_table::IdTable;
use crate::model::ids::{ClassId, KeyId, ModelId, PoolId, ReplicaId, TenantId};
use crate::model::policy::placement::{PlacementRules, PoolTraits};
use crate::model::policy::sleep::SleepPolicy;
use crate::model::policy::wire::exact;

/// Policy: everything that the core needs to know, swapped as a whole.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Policy {
    /// Number of the policy: 1 at the start, one more with each reload.
    pub generation: u64,
    pub classes: IdTable<ClassId, Class>,
    pub tenants: IdTable<TenantId, Tenant>,
    /// Credentials that have limits of their own.
    pub keys: IdTable<KeyId, ()>,
    pub models: IdTable<ModelId, Model>,
    pub pools: IdTable<PoolId, Pool>,
    /// Replicas, named `<pool>/<url>`.
    pub replicas: IdTable<ReplicaId, Replica>,
    /// Replicas that are about to go: they get no new work.
    pub draining: BTreeSet<ReplicaId>,
    /// The part of `draining` whose machines will be taken away.
    pub spot_notices: BTreeSet<ReplicaId>,
    /// Bounds of the whole queue.
    pub bounds: QueueBounds,
    /// Limits of tenants, keys and models; at most one for each id.
    pub limits: Vec<LimitRule>,
    pub retry: RetryPolicy,
    pub health: HealthPolicy,
    /// Stickiness of sessions; absent = sessions do not keep to a replica.
    pub sessions: Option<StickySessions>,
}

/// Latency class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Order of service, 0 first. Classes of equal rank are served in the order of their ids.
    pub rank: u32,
    /// Share of the dispatched work, `0.0..=1.0`, that this class gets under any load of the
    /// classes before it.
    #[serde(with = "exact")]
    pub min_share: f64,
    /// Time in which past use of a tenant comes to count half against it; absent = only what is
    /// used while it waits counts.
    pub usage_half_life: Option<Duration>,
    /// The longest wait in the queue before the job goes on in a slower class or is refused.
    pub max_wait: Duration,
    /// How long a job may wait for a pool that has to start, counted from the start of this wait;
    /// absent = up to the job's deadline.
    pub cold_start_tolerance: Option<Duration>,
    pub ttft_objective: Duration,
    pub itl_objective: Duration,
    /// The slower class in which a job goes on when it cannot keep its deadline in this class and
    /// its tenant may use the slower one; absent = the job is refused.
    pub demote_to: Option<ClassId>,
    /// Where the work of the class may go.
    pub placement: PlacementRules,
    /// Whether the jobs take only spare capacity: each job starts at once or is refused, and none
    /// is held for a pool start.
    pub scavenger: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Share against the other tenants with the same parent, greater than zero.
    #[serde(with = "exact")]
    pub weight: f64,
    /// The tenant of whose share this one gets a part; absent = it shares with all others that have
    /// no parent.
    pub parent: Option<TenantId>,
    /// The class of a request that asks for none.
    pub default_class: ClassId,
    /// Every class that the tenant may use; contains `default_class`.
    pub classes: BTreeSet<ClassId>,
    /// The models that the tenant may use; absent = all.
    pub models: Option<BTreeSet<ModelId>>,
    /// Bounds of the tenant's own queue.
    pub bounds: QueueBounds,
    /// Part of the replicas that the tenant may hold.
    pub quota: Quota,
    /// Where the tenant's work may go, within what the class allows.
    pub placement: PlacementRules,
}

/// Quota of a tenant and all its children: their part of the sequences that the replicas of a pool group can run, in the
/// manner of cohorts. An idle guarantee is lent. All values are fractions of that capacity,
/// `0.0..=1.0`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    /// Part that is guaranteed. A tenant below its guarantee goes before every tenant that is above
    /// its own.
    #[serde(with = "exact")]
    pub guarantee: f64,
    /// Part that the tenant may hold beyond its guarantee, of what others do not use.
    #[serde(with = "exact")]
    pub borrow: f64,
    /// Part of the idle guarantee that others may use; at most `guarantee` takes effect.
    #[serde(with = "exact")]
    pub lend: f64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { guarantee: 0.0, borrow: 1.0, lend: 1.0 }
    }
}

/// A public model name and where it is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Pools that serve the model, in the order of the configuration file; never empty.
    pub pools: Vec<PoolId>,
    /// Context window in tokens as configured; absent = the engine's own value.
    pub max_model_len: Option<u32>,
}

/// Pool: replicas that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pool {
    /// The pool's replicas, in the order of the configuration file.
    pub replicas: Vec<ReplicaId>,
    /// The models that the pool serves.
    pub models: BTreeSet<ModelId>,
    /// Requests that may wait inside each engine beyond its sequence limit, usually 0.
    pub engine_buffer: u32,
    /// Whether the engines order requests by their priority, so that work of a slower class does
    /// not delay a faster one.
    pub engine_priority: bool,
    /// Expected cold start: the time from the first job that waits for the pool to the first token,
    /// when the pool has no replica; absent = unknown until measured.
    pub cold_start: Option<Duration>,
    /// Whether the replicas' addresses stay while nothing runs there. When none of them answers,
    /// the pool has no replica and has to start.
    pub scales_to_zero: bool,
    /// The least number of replicas that the scale signal asks for.
    pub min_replicas: u32,
    /// The largest number of replicas that the scale signal asks for; absent = no bound.
    pub max_replicas: Option<u32>,
    /// When the replicas sleep; absent = the gateway puts none to sleep.
    pub sleep: Option<SleepPolicy>,
    /// Traits of the pool that placement rules look at.
    pub traits: PoolTraits,
    /// Models of the pool that are adapters, which its replicas load on demand.
    pub adapters: BTreeSet<ModelId>,
    /// Adapters that a replica computes with at once (at least 1); absent = what the engine
    /// reports.
    pub adapter_slots: Option<u32>,
    /// Time that a replica takes to load an adapter; absent = measured.
    pub adapter_load: Option<Duration>,
}

/// Sticky sessions: a session keeps to the replica that it was sent to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickySessions {
    /// How much later the first token may come at that replica than at the best other replica.
    pub max_delay: Duration,
    /// The most sessions that are remembered, at least 1.
    pub max_sessions: usize,
}

/// Replica: one engine endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    pub pool: PoolId,
    /// Sequences that the replica can run at once, when the operator says so (at least 1).
    pub max_seqs: Option<u32>,
    /// Capacity of the KV cache in tokens, when the operator says so (at least 1).
    pub kv_tokens: Option<u64>,
}

/// Queue bounds. A job that would exceed any of them is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueBounds {
    pub requests: u64,
    /// Bytes of waiting request bodies.
    pub bytes: u64,
    /// Tokens (prompt and requested output) of waiting requests.
    pub tokens: u64,
}

impl Default for QueueBounds {
    fn default() -> Self {
        Self { requests: u64::MAX, bytes: u64::MAX, tokens: u64::MAX }
    }
}

/// Retry policy: what happens to a job whose replica failed before the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How often a job may reach an engine that then fails it, the first attempt included. Refused
    /// connections, and answers of engines that are busy or shut down, do not count: the engine did
    /// no work for them.
    pub max_attempts: u32,
    /// Retry budget: retries allowed for each 1000 requests of the last ten seconds, within a pool
    /// group.
    pub budget_permille: u32,
    /// Retries allowed in ten seconds, however few requests there are.
    pub budget_floor: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 4, budget_permille: 200, budget_floor: 100 }
    }
}

/// Health policy: how a replica is ejected, probed, readmitted and drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthPolicy {
    /// Time from an ejection to the first probe; doubles up to `probe_max`.
    pub probe_min: Duration,
    /// Longest time between two probes.
    pub probe_max: Duration,
    /// Time over which the limit of a new or readmitted replica grows to its full size.
    pub slow_start: Duration,
    /// How long a replica that answered "busy" without a Retry-After gets no new work. The time
    /// doubles with each further such answer, up to four seconds.
    pub busy_backoff: Duration,
    /// Thousandths of a pool's replicas that may be out of service when one more is ejected that
    /// answers badly or is silent. One replica may always be ejected.
    pub max_ejected_permille: u32,
    /// Time after which requests without a first token leave a replica that left the policy.
    /// Streams that can continue elsewhere leave a replica that left the policy or is drained after
    /// the same time.
    pub drain: Duration,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            probe_min: Duration::from_millis(200),
            probe_max: Duration::from_secs(1),
            slow_start: Duration::from_secs(5),
            busy_backoff: Duration::from_millis(250),
            max_ejected_permille: 500,
            drain: Duration::from_secs(30),
        }
    }
}
