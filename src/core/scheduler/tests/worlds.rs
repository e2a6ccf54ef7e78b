//! Random worlds: policies and operations for the property tests.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};

use crate::limits::rule::{LimitId, LimitPeriod, LimitRule, LimitScope, LimitUnit};
use crate::model::event::{EngineFault, ItlSample, ReplicaReport};
use crate::model::id_table::IdTable;
use crate::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix, TokenCounts};
use crate::model::overrides::{Closed, OverrideChange, OverrideTarget};
use crate::model::policy::{
    Class, HealthPolicy, Model, Policy, Pool, QueueBounds, Quota, Replica, RetryPolicy, StickySessions,
    Tenant,
};
use crate::placement;
use crate::placement::rules::PoolTraits;
use crate::queue::fairness::gateways::load::GatewayLoad;
use crate::replica::health::sleep::{SleepPolicy, SleepResult};
use crate::scheduler::tests::{class, tenant, used};

/// The names that every policy of a run gives the same ids.
const NAMES: [&str; 9] = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];

/// Tokens of a block of a prompt.
const BLOCK_TOKENS: u32 = 16;

/// Sequences and KV tokens, where configured.
type Limits = (Option<u32>, Option<u64>);

/// Rank, percent of the work, and the class to go on in, sensible or not.
pub(super) type ClassRow = (u32, u8, Option<u32>);
/// Weight, bound of waiting requests, and percents of its quota.
pub(super) type TenantRow = (u8, u64, Option<[u8; 3]>);

#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) classes: Vec<Option<ClassRow>>,
    pub(super) tenants: Vec<Option<TenantRow>>,
    /// Limits, by pool, of up to three replicas each.
    pub(super) replicas: Vec<Vec<Option<Limits>>>,
    /// Those that are about to go, one bit each.
    pub(super) draining: u16,
    pub(super) models: Vec<Option<u8>>,
    pub(super) bound: u64,
    pub(super) attempts: u32,
    pub(super) slow_start: u64,
    pub(super) buffer: u32,
    /// Milliseconds: what pools are expected to take to start, what classes
    /// tolerate of it.
    pub(super) starts: [Option<u64>; 2],
    /// Milliseconds of idle time, and how many stay awake.
    pub(super) sleep: Option<(u64, u32)>,
    pub(super) places: Places,
    pub(super) limits: Vec<LimitRule>,
    pub(super) affinity: Affinity,
}

/// Adapters and sessions; absent = none.
#[derive(Debug, Clone, Default)]
pub(super) struct Affinity {
    /// For each pool those of its models that are adapters, one bit each.
    adapters: Vec<u8>,
    slots: Option<u32>,
    /// Milliseconds.
    load: Option<u64>,
    /// Milliseconds and sessions.
    sessions: Option<(u64, usize)>,
}

impl Affinity {
    fn sessions(&self) -> Option<StickySessions> {
        let (millis, bound) = self.sessions?;
        Some(StickySessions { max_delay: Duration::from_millis(millis), max_sessions: bound })
    }

    fn row(&self, pool: usize) -> Pool {
        Pool {
            adapters: models_of(self.adapters.get(pool).copied().unwrap_or(0)),
            adapter_slots: self.slots,
            adapter_load: self.load.map(Duration::from_millis),
            ..Pool::default()
        }
    }
}

fn affinity() -> impl Strategy<Value = Affinity> {
    let rows = (
        vec(0u8..8, 0..4),
        prop::option::weighted(0.8, 1u32..3),
        prop::option::weighted(0.9, 0u64..500),
        prop::option::of((0u64..2000, 1usize..5)),
    );
    rows.prop_map(|(adapters, slots, load, sessions)| Affinity { adapters, slots, load, sessions })
}

/// What pools are, and where classes and tenants may go; absent = as usual.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    pub(super) supplies: Vec<PoolTraits>,
    pub(super) classes: Vec<placement::rules::PlacementRules>,
    pub(super) tenants: Vec<placement::rules::PlacementRules>,
}

fn places() -> impl Strategy<Value = Places> {
    let rules = || vec(prop_oneof![Just(Default::default()), placement::tests::rules()], 0..5);
    let rows = (vec(placement::tests::supply(), 0..4), rules(), rules());
    rows.prop_map(|(supplies, classes, tenants)| Places { supplies, classes, tenants })
}

fn quota() -> impl Strategy<Value = [u8; 3]> {
    let part = || prop_oneof![Just(0u8), Just(100u8), 0u8..=100];
    [part(), part(), part()]
}

fn limits() -> impl Strategy<Value = Vec<LimitRule>> {
    let scope = prop_oneof![
        (0u32..4).prop_map(|tenant| LimitScope::Tenant(TenantId::new(tenant))),
        (0u32..4, 0u32..3)
            .prop_map(|(tenant, model)| LimitScope::Model(TenantId::new(tenant), ModelId::new(model))),
    ];
    let units = [LimitUnit::Requests, LimitUnit::InputTokens, LimitUnit::OutputTokens, LimitUnit::Tokens];
    let periods = [LimitPeriod::Now, LimitPeriod::Minute, LimitPeriod::Day];
    let id =
        (scope, prop::sample::select(units.to_vec()), prop::sample::select(periods.to_vec()), any::<bool>());
    let rule = (id, 0u64..2_000).prop_map(|((scope, unit, period, shadow), amount)| LimitRule {
        id: LimitId { scope, unit, period, shadow },
        amount,
    });
    prop_oneof![2 => Just(Vec::new()), 1 => vec(rule, 0..6)]
}

/// Any policy.
pub(super) fn rules() -> impl Strategy<Value = Rules> {
    let replica = prop::option::weighted(0.8, (prop::option::of(1u32..5), prop::option::of(30u64..300)));
    (
        vec(prop::option::weighted(0.9, (0u32..3, 0u8..40, prop::option::of(0u32..3))), 1..4),
        vec(prop::option::weighted(0.9, (1u8..5, 0u64..12, prop::option::of(quota()))), 1..5),
        vec(vec(replica, 0..4), 1..4),
        vec(prop::option::weighted(0.9, 1u8..8), 1..4),
        (
            0u64..40,
            1u32..5,
            0u64..4000,
            0u32..2,
            prop_oneof![2 => Just(0u16), 1 => 0u16..512],
            [prop::option::of(0u64..2000), prop::option::of(0u64..2000)],
            prop::option::of((1u64..1500, 0u32..2)),
        ),
        (prop_oneof![Just(Places::default()), places()], prop_oneof![Just(Affinity::default()), affinity()]),
        limits(),
    )
        .prop_map(
            |(
                classes,
                tenants,
                replicas,
                models,
                (bound, attempts, slow_start, buffer, draining, starts, sleep),
                (places, affinity),
                limits,
            )| Rules {
                classes,
                tenants,
                replicas,
                draining,
                models,
                bound,
                attempts,
                slow_start,
                buffer,
                starts,
                sleep,
                places,
                limits,
                affinity,
            },
        )
}

fn table<I: Copy + From<usize> + Into<usize>, T>() -> IdTable<I, T> {
    let mut table = IdTable::default();
    for name in NAMES {
        table.id_or_new(name);
    }
    table
}

fn sleep((idle, keep_awake): (u64, u32)) -> SleepPolicy {
    let (after_idle, wake_timeout) = (Duration::from_millis(idle), Duration::from_secs(2));
    SleepPolicy { after_idle, keep_awake, wake_timeout }
}

/// The policy that the rules describe.
pub(super) fn build(rules: &Rules) -> Arc<Policy> {
    let mut policy = Policy {
        generation: 1,
        classes: table(),
        tenants: table(),
        models: table(),
        pools: table(),
        replicas: table(),
        keys: table(),
        limits: rules.limits.clone(),
        draining: (0..9usize).filter(|bit| rules.draining & (1 << bit) != 0).map(ReplicaId::from).collect(),
        spot_notices: Default::default(),
        bounds: QueueBounds { requests: rules.bound, ..QueueBounds::default() },
        retry: RetryPolicy { max_attempts: rules.attempts, ..RetryPolicy::default() },
        health: HealthPolicy {
            slow_start: Duration::from_millis(rules.slow_start),
            ..HealthPolicy::default()
        },
        sessions: rules.affinity.sessions(),
    };
    let [cold_start, tolerance] = rules.starts.map(|millis| millis.map(Duration::from_millis));
    for (index, row) in rules.classes.iter().enumerate() {
        if let Some((rank, share, demote_to)) = row {
            let row = class(*rank, f64::from(*share) / 100.0);
            let placement = rules.places.classes.get(index).cloned().unwrap_or_default();
            let cold_start_tolerance = tolerance;
            let row =
                Class { demote_to: demote_to.map(ClassId::new), placement, cold_start_tolerance, ..row };
            policy.classes.insert(NAMES[index], row);
        }
    }
    put_tenants(rules, &mut policy);
    for (pool, members) in rules.replicas.iter().enumerate() {
        let supply = rules.places.supplies.get(pool).copied().unwrap_or_default();
        let mut replicas = Vec::new();
        for (index, row) in members.iter().enumerate() {
            if let Some((max_seqs, kv_tokens)) = row {
                let row = Replica { pool: PoolId::from(pool), max_seqs: *max_seqs, kv_tokens: *kv_tokens };
                replicas.push(policy.replicas.insert(NAMES[pool * 3 + index], row));
            }
        }
        let sleep = rules.sleep.map(sleep);
        let row = Pool {
            replicas,
            engine_buffer: rules.buffer,
            cold_start,
            sleep,
            traits: supply,
            ..rules.affinity.row(pool)
        };
        policy.pools.insert(NAMES[pool], row);
    }
    for (index, mask) in rules.models.iter().enumerate() {
        if let Some(mask) = mask {
            let pools = (0..3usize).filter(|pool| mask & (1 << pool) != 0).map(PoolId::from).collect();
            policy.models.insert(NAMES[index], Model { pools, max_model_len: None });
        }
    }
    Arc::new(policy)
}

fn put_tenants(rules: &Rules, policy: &mut Policy) {
    for (index, row) in rules.tenants.iter().enumerate() {
        if let Some((weight, requests, quota)) = row {
            let bounds = QueueBounds { requests: *requests, ..QueueBounds::default() };
            let quota = quota.map(|parts| parts.map(|percent| f64::from(percent) / 100.0));
            let quota = quota.map(|[guarantee, borrow, lend]| Quota { guarantee, borrow, lend });
            let quota = quota.unwrap_or_default();
            let classes = (0..3).map(ClassId::new).collect();
            let placement = rules.places.tenants.get(index).cloned().unwrap_or_default();
            // In some worlds the first tenants are groups, in one of them in a circle.
            let parent = match (weight % 4, index) {
                (1, 1..) => Some(TenantId::new(0)),
                (2, 3..) => Some(TenantId::new(1)),
                (3, _) => Some(TenantId::new(2)),
                _ => None,
            };
            let row = Tenant { parent, bounds, quota, classes, placement, ..tenant(f64::from(*weight)) };
            policy.tenants.insert(NAMES[index], row);
        }
    }
}

/// The models of a mask.
pub(super) fn models_of<T: FromIterator<ModelId>>(mask: u8) -> T {
    (0..3usize).filter(|model| mask & (1 << model) != 0).map(ModelId::from).collect()
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Arrive {
        tenant: u32,
        class: u32,
        model: u32,
        prompt: u64,
        output: u64,
        sequences: u32,
        patience: u64,
        streams: bool,
        /// Whose prompts begin alike; absent = it has nothing in common with others.
        family: Option<u64>,
    },
    FirstToken(usize),
    Done(usize, JobUsage),
    Fail(usize, EngineFault),
    Interrupt(usize, EngineFault, u64),
    Left(usize),
    Pass(u64),
    Report(u32, ReplicaReport),
    /// A replica's slots and the adapters that it runs, one bit each.
    Adapters(u32, Option<u32>, u8),
    ItlSampled(u32, ItlSample),
    Answer(bool),
    /// To the first order that waits; absent = it is followed.
    Rest(Option<SleepResult>),
    Lost(u32),
    Stray(u64),
    Reload(usize),
    /// For so many milliseconds; absent = for ever.
    Override(OverrideChange, Option<u64>),
    Restore(OverrideTarget),
    /// What another gateway has at replicas, and what waits there.
    Elsewhere(GatewayLoad),
    Drain,
}

fn usage() -> impl Strategy<Value = JobUsage> {
    prop_oneof![
        3 => (0u64..100, 0u64..60).prop_map(|(input, output)| used(input, output)),
        1 => (0u64..100, 0u64..60)
            .prop_map(|(input, output)| JobUsage::Partial(TokenCounts { input, cached: None, output })),
        1 => Just(JobUsage::Unknown),
    ]
}

fn fault() -> impl Strategy<Value = EngineFault> {
    prop_oneof![
        Just(EngineFault::Refused),
        Just(EngineFault::Reset),
        Just(EngineFault::ServerError),
        Just(EngineFault::Draining),
        Just(EngineFault::Aborted),
        Just(EngineFault::ErrorEvent),
        Just(EngineFault::Malformed),
        Just(EngineFault::Silent),
        prop::option::of(0u64..60_000)
            .prop_map(|ms| EngineFault::Busy { retry_after: ms.map(Duration::from_millis) }),
    ]
}

fn report() -> impl Strategy<Value = ReplicaReport> {
    let count = || prop_oneof![2 => Just(Some(0)), 3 => prop::option::of(0u64..8)];
    let asleep = prop::option::weighted(0.3, any::<bool>());
    (count(), count(), prop::option::of(0u32..6), prop::option::of(20u64..300), asleep).prop_map(
        |(running, waiting, slots, kv_tokens, asleep)| ReplicaReport {
            running,
            waiting,
            slots,
            kv_tokens,
            asleep,
            ..ReplicaReport::default()
        },
    )
}

fn sleep_result() -> impl Strategy<Value = Option<SleepResult>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(SleepResult::Failed)),
        1 => Just(Some(SleepResult::Unable)),
        1 => Just(Some(SleepResult::Awake)),
        1 => Just(Some(SleepResult::Asleep)),
    ]
}

fn itl_sample() -> impl Strategy<Value = ItlSample> {
    (1u64..200, 0u64..200)
        .prop_map(|(gaps, each)| ItlSample { gaps, total: Duration::from_millis(each * gaps) })
}

fn measure() -> impl Strategy<Value = OverrideChange> {
    let how = || prop_oneof![Just(Closed::Cordoned), Just(Closed::Drained), Just(Closed::SpotNotice)];
    prop_oneof![
        1 => (0usize..3, how()).prop_map(|(pool, how)| OverrideChange::ClosePool(PoolId::from(pool), how)),
        3 => (0u32..9, how()).prop_map(|(id, how)| OverrideChange::CloseReplica(ReplicaId::new(id), how)),
        2 => (0u32..5).prop_map(|id| OverrideChange::Pause(TenantId::new(id))),
        1 => (0u32..5, any::<f64>()).prop_map(|(id, by)| OverrideChange::Boost(TenantId::new(id), by)),
    ]
}

/// Any operation.
pub(super) fn op() -> impl Strategy<Value = Op> {
    let sequences = prop_oneof![6 => Just(1u32), 1 => 0u32..7];
    let streams = prop::bool::weighted(0.6);
    let prompt = prop_oneof![8 => 0u64..120, 1 => 400u64..3000];
    let family = prop::option::of(0u64..4);
    let kind = (streams, family);
    let arrive = (0u32..5, 0u32..3, 0u32..3, prompt, 0u64..60, sequences, 0u64..3000, kind).prop_map(
        |(tenant, class, model, prompt, output, sequences, patience, (streams, family))| Op::Arrive {
            tenant,
            class,
            model,
            prompt,
            output,
            sequences,
            patience,
            streams,
            family,
        },
    );
    prop_oneof![
        24 => arrive,
        6 => (0usize..64).prop_map(Op::FirstToken),
        10 => (0usize..64, usage()).prop_map(|(which, usage)| Op::Done(which, usage)),
        6 => (0usize..64, fault()).prop_map(|(which, fault)| Op::Fail(which, fault)),
        3 => (0usize..64, fault(), 0u64..40)
            .prop_map(|(which, fault, output)| Op::Interrupt(which, fault, output)),
        3 => (0usize..64).prop_map(Op::Left),
        8 => (0u64..1500).prop_map(Op::Pass),
        3 => (0u32..9, report()).prop_map(|(replica, report)| Op::Report(replica, report)),
        2 => (0u32..9, prop::option::of(1u32..4), 0u8..8)
            .prop_map(|(replica, slots, running)| Op::Adapters(replica, slots, running)),
        4 => (0u32..9, itl_sample()).prop_map(|(replica, sample)| Op::ItlSampled(replica, sample)),
        8 => any::<bool>().prop_map(Op::Answer),
        4 => sleep_result().prop_map(Op::Rest),
        1 => (0u32..9).prop_map(Op::Lost),
        1 => (0u64..100).prop_map(Op::Stray),
        1 => (0usize..3).prop_map(Op::Reload),
        4 => (measure(), prop::option::of(0u64..3000)).prop_map(|(what, millis)| Op::Override(what, millis)),
        3 => measure().prop_map(|what| Op::Restore(what.target())),
    ]
}

/// A prompt of which three quarters are those of its model's family.
pub(super) fn prefix(spec: &JobSpec, family: u64) -> PromptPrefix {
    let (own, family) = (spec.id.index() as u64, 8 * spec.model.index() as u64 + family);
    let blocks = spec.prompt_tokens / u64::from(BLOCK_TOKENS);
    let hash = |block: u64| (if block * 4 < blocks * 3 { family } else { own }) * 1_000 + block;
    PromptPrefix { blocks: (0..blocks).map(hash).collect(), block_tokens: BLOCK_TOKENS }
}
