//! The validated rules that the core decides by. `config` builds it from the
//! file; nothing here is optional unless "absent" is a decision of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::limits::rule::LimitRule;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, KeyId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::placement::rules::{PlacementRules, PoolTraits};
use crate::core::replica::health::sleep::SleepPolicy;

/// Everything the core needs to know, swapped as a whole.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Counts the reloads, from 1 at the start.
    pub generation: u64,
    /// Latency classes.
    pub classes: IdTable<ClassId, Class>,
    /// Tenants.
    pub tenants: IdTable<TenantId, Tenant>,
    /// Credentials that have limits of their own.
    pub keys: IdTable<KeyId, ()>,
    /// Public models.
    pub models: IdTable<ModelId, Model>,
    /// Pools.
    pub pools: IdTable<PoolId, Pool>,
    /// Replicas, named `<pool>/<url>`.
    pub replicas: IdTable<ReplicaId, Replica>,
    /// Replicas that are about to go: they get no new work.
    pub draining: BTreeSet<ReplicaId>,
    /// Those of them whose machines will be taken away.
    pub spot_notices: BTreeSet<ReplicaId>,
    /// What may wait in all.
    pub bounds: QueueBounds,
    /// What tenants, keys and models may use; at most one for each id.
    pub limits: Vec<LimitRule>,
    /// What happens to a job whose replica failed.
    pub retry: RetryPolicy,
    /// How replicas come and go.
    pub health: HealthPolicy,
    /// Whether sessions keep to a replica.
    pub sessions: Option<StickySessions>,
}

/// The promise a request is served under.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Order of service, 0 first. Classes of equal rank are served in the
    /// order of their ids.
    pub rank: u32,
    /// Share of the dispatched work, `0.0..=1.0`, that this class gets under
    /// any load of the classes before it.
    pub min_share: f64,
    /// The longest wait in the queue before the job is refused.
    pub max_wait: Duration,
    /// How long a job may be held for a pool that has to start, counted from when
    /// it is; absent = up to its deadline.
    pub cold_start_tolerance: Option<Duration>,
    /// First token objective.
    pub ttft_objective: Duration,
    /// Inter-token objective.
    pub itl_objective: Duration,
    /// The slower class in which a job goes on that cannot keep its deadline
    /// in this one, if its tenant may use it; absent = it is refused.
    pub demote_to: Option<ClassId>,
    /// Where its work may go.
    pub placement: PlacementRules,
    /// Whether its jobs take only what nobody else needs: each starts at once or
    /// is refused, and none is held for a pool's start.
    pub scavenger: bool,
}

/// Who the work is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Share against the other tenants, greater than zero.
    pub weight: f64,
    /// The class of a request that asks for none.
    pub default_class: ClassId,
    /// Every class the tenant may use; holds `default_class`.
    pub classes: BTreeSet<ClassId>,
    /// The models the tenant may use; absent = all.
    pub models: Option<BTreeSet<ModelId>>,
    /// What may wait for this tenant.
    pub bounds: QueueBounds,
    /// What it may hold of the replicas.
    pub quota: Quota,
    /// Where its work may go, of what the class allows.
    pub placement: PlacementRules,
}

/// A tenant's part in the sequences that the replicas of a group of models
/// can run, in the manner of cohorts: what is guaranteed and idle is lent.
/// Fractions of that capacity, `0.0..=1.0`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quota {
    /// Served before every tenant that has more than its own guarantee.
    pub guarantee: f64,
    /// What it may hold beyond its guarantee, of what others do not use.
    pub borrow: f64,
    /// How much of its idle guarantee others may use; at most `guarantee`
    /// takes effect.
    pub lend: f64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { guarantee: 0.0, borrow: 1.0, lend: 1.0 }
    }
}

/// A public model name and where it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Pools that serve it, in the order of the file; never empty.
    pub pools: Vec<PoolId>,
    /// Context window in tokens as configured; absent = the engine's word.
    pub max_model_len: Option<u32>,
}

/// Replicas that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// Its replicas, in the order of the file.
    pub replicas: Vec<ReplicaId>,
    /// The models it serves.
    pub models: BTreeSet<ModelId>,
    /// Requests that may wait inside each engine beyond its sequence limit,
    /// usually 0.
    pub engine_buffer: u32,
    /// Whether its engines order requests by the priority that they carry, so
    /// that work of a slower class does not delay a faster one.
    pub engine_priority: bool,
    /// How long it is expected to take from the first job that waits for it to
    /// its first token when it has no replica; absent = unknown until measured.
    pub cold_start: Option<Duration>,
    /// Whether its replicas are addresses that stay while nothing runs there: when
    /// none of them answers, it has no replica and has to start.
    pub scales_to_zero: bool,
    /// The least and the most replicas that the scale signal asks for.
    pub min_replicas: u32,
    /// Absent = no bound.
    pub max_replicas: Option<u32>,
    /// When its replicas sleep; absent = never by the gateway's doing.
    pub sleep: Option<SleepPolicy>,
    /// What it is, as far as rules ask.
    pub supply: PoolTraits,
    /// Those of its models that are adapters, which its replicas load when they
    /// are asked for.
    pub adapters: BTreeSet<ModelId>,
    /// Adapters that a replica computes with at once (at least 1); absent = what
    /// the engine says.
    pub adapter_slots: Option<u32>,
    /// How long a replica takes to load one; absent = measured.
    pub adapter_load: Option<Duration>,
}

/// Sessions keep to the replica that they were sent to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StickySessions {
    /// By how much later the first token may come there than at the best other
    /// replica.
    pub max_delay: Duration,
    /// Sessions that are remembered at most, at least 1.
    pub bound: usize,
}

/// One engine endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Sequences it can run at once, when the operator says so (at least 1).
    pub max_seqs: Option<u32>,
    /// Tokens its KV cache holds, when the operator says so (at least 1).
    pub kv_tokens: Option<u64>,
}

/// Queue bounds. A job is refused when it would pass any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBounds {
    /// Waiting requests.
    pub requests: u64,
    /// Bytes of waiting bodies.
    pub bytes: u64,
    /// Tokens (prompt and asked output) of waiting requests.
    pub tokens: u64,
}

impl Default for QueueBounds {
    fn default() -> Self {
        Self { requests: u64::MAX, bytes: u64::MAX, tokens: u64::MAX }
    }
}

/// What happens to a job whose replica failed before the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a job may reach an engine that then fails it, the first try
    /// included. Refused connections and the answers of engines that are busy
    /// or shut down do not count: the engine did no work for them.
    pub max_attempts: u32,
    /// How many tries that failed may be repeated for each 1000 requests of the
    /// last ten seconds, within a group of models that share replicas.
    pub budget_permille: u32,
    /// How many may be repeated in ten seconds however few requests there are.
    pub budget_floor: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 4, budget_permille: 200, budget_floor: 100 }
    }
}

/// How a replica comes, goes, and comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthPolicy {
    /// Time from an ejection to the first probe; doubles up to `probe_max`.
    pub probe_min: Duration,
    /// Longest time between two probes.
    pub probe_max: Duration,
    /// Time over which the limit of a new or re-admitted replica grows to its
    /// full size.
    pub slow_start: Duration,
    /// How long a replica that said "busy" without a time gets no new work;
    /// twice as long each time that it says so again, up to four seconds.
    pub busy_backoff: Duration,
    /// Thousandths of a pool's replicas that may be out of service when one more
    /// is ejected that answers, but badly, or is silent. One always may.
    pub max_ejected_permille: u32,
    /// How long requests without a first token may stay at a replica that left
    /// the policy, and streams that can go on elsewhere at one that left or is
    /// drained; then they go to others.
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
