//! Pool group: its classes in the order of service with the heads of all their lanes, its drain rate,
//! retry budget, quotas and held replicas.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use smallvec::SmallVec;

use crate::model::bit_set::BitSet;
use crate::model::ids::{ClassId, ClassIndex, PoolId, PoolSetIndex, TenantId};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::{self, GroupShape};
use crate::queue::drain::DrainRate;
use crate::queue::drain::tenants::DrainRates;
use crate::queue::fairness::gateways::share::GatewayShare;
use crate::queue::lane_key::LanePart;
use crate::queue::quota::TenantQuotas;
use crate::queue::retry_budget::RetryBudget;

use crate::queue::order::class_order::{ACTIVE_FOR, ClassOrder};
#[cfg(test)]
use crate::queue::order::head_tree::HeadTree;
use crate::queue::order::heads::{Candidate, HeldReplica, ObjectiveInputs, tree_index};

/// One pool group: its classes in the order of service, and the replicas held for jobs of
/// several sequences.
#[derive(Debug, Clone, Default)]
pub struct PoolGroup {
    /// The group's pools and pool sets.
    pub shape: GroupShape,
    /// The group's pools by number.
    pub pools: BitSet,
    /// The pools of each pool set.
    pub(super) pool_set_pools: Vec<PoolSetMembers>,
    /// The pool sets that contain each of the pools.
    pub(super) pool_sets_at: Vec<BitSet>,
    /// The pool sets that share a pool with each pool set, including itself.
    overlaps: Vec<BitSet>,
    pub(super) classes: Vec<ClassOrder>,
    /// Dispatched jobs per second.
    pub drain_rate: DrainRate,
    pub retries: RetryBudget,
    /// Replicas held for jobs; at most one per pool.
    pub held_replicas: Vec<HeldReplica>,
    pub quotas: TenantQuotas,
    urgent: Option<ClassIndex>,
    /// The earliest time at which a job that is first, but waits for the replica of its session,
    /// stops waiting for that replica.
    pub session_wait_until: Option<Tick>,
    /// When a replica may next be sought to open beyond its ITL limit.
    pub open_at: Tick,
    /// The inputs from which the objectives of the group's pools were last computed.
    pub objective_inputs: Option<ObjectiveInputs>,
    /// How many jobs this gateway may have at replicas while jobs wait at others.
    pub gateway_share: GatewayShare,
    /// Waiting jobs with several sequences: the number of jobs for each number of sequences.
    jobs_by_sequences: BTreeMap<u32, u32>,
}

/// The two most urgent active classes that may use a pool.
#[derive(Debug, Clone, Copy)]
pub struct UrgentClasses {
    pub pool: PoolId,
    pub first: Option<ClassIndex>,
    pub second: Option<ClassIndex>,
}

/// The pools of a pool set.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolSetMembers {
    /// By their numbers.
    pub(super) numbers: BitSet,
    /// By their indexes in the group.
    pub(super) indexes: Vec<usize>,
}

impl PoolGroup {
    /// A group that takes over the accounts of the group that had its pools before. Counters of
    /// different groups cannot be compared: when several groups had these pools, every tenant
    /// starts anew.
    pub fn new(policy: &Policy, shape: &GroupShape, before: &[Self]) -> Self {
        let mut donors = before.iter().filter(|old| old.shape.pools.iter().any(|p| shape.pools.contains(p)));
        let donor = match (donors.next(), donors.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        };
        let mut rows: Vec<_> =
            policy.classes.iter().map(|(id, _, row)| (row.rank, id, row.min_share)).collect();
        rows.sort_unstable_by_key(|(rank, id, _)| (*rank, *id));
        let classes = rows.into_iter().map(|(_, id, min_share)| {
            let old = donor.and_then(|donor| donor.classes.iter().find(|class| class.id == id));
            ClassOrder::new(id, min_share, old, policy, shape)
        });
        let reach = |pool_set: &placement::PoolSet| {
            let indexes = pool_set.pools.iter().filter_map(|pool| shape.pools.binary_search(pool).ok());
            PoolSetMembers {
                numbers: pool_set.pools.iter().map(|pool| pool.index()).collect(),
                indexes: indexes.collect(),
            }
        };
        let reaches: Vec<PoolSetMembers> = shape.pool_sets.iter().map(reach).collect();
        let pool_sets_at = |pool: usize| {
            let pool_sets = reaches.iter().enumerate().filter(|(_, reach)| reach.indexes.contains(&pool));
            pool_sets.map(|(pool_set, _)| pool_set).collect()
        };
        let pool_sets_at: Vec<BitSet> = (0..shape.pools.len()).map(pool_sets_at).collect();
        let overlaps = reaches.iter().map(|reach| {
            reach.indexes.iter().fold(BitSet::default(), |mut all, index| {
                all.union(&pool_sets_at[*index]);
                all
            })
        });
        Self {
            overlaps: overlaps.collect(),
            pools: shape.pools.iter().map(|pool| pool.index()).collect(),
            pool_sets_at,
            pool_set_pools: reaches,
            shape: shape.clone(),
            classes: classes.collect(),
            drain_rate: donor.map(|donor| donor.drain_rate).unwrap_or_default(),
            retries: donor.map(|donor| donor.retries).unwrap_or_default(),
            held_replicas: Vec::new(),
            quotas: TenantQuotas::new(policy),
            urgent: None,
            session_wait_until: None,
            open_at: Tick::default(),
            objective_inputs: None,
            gateway_share: GatewayShare::default(),
            jobs_by_sequences: BTreeMap::new(),
        }
    }

    /// Index of a class in the order of service.
    pub fn class(&self, id: ClassId) -> Option<ClassIndex> {
        self.classes.iter().position(|class| class.id == id).map(ClassIndex::from)
    }

    /// Indexes of the classes, in the order of service.
    pub fn class_indexes(&self) -> impl Iterator<Item = ClassIndex> + use<> {
        (0..self.classes.len()).map(ClassIndex::from)
    }

    /// What each tenant used lately in a class with a half-life, in tokens.
    pub fn past_use(&self, class: ClassIndex, now: Tick) -> impl Iterator<Item = (TenantId, u64)> {
        self.classes[class.index()].counters.past_use(now)
    }

    pub fn class_mut(&mut self, class: ClassIndex) -> &mut ClassOrder {
        &mut self.classes[class.index()]
    }

    /// A tenant's virtual counter in a class.
    pub fn counter(&self, class: ClassIndex, tenant: TenantId) -> u128 {
        self.classes[class.index()].counters.get(tenant)
    }

    /// Waiting jobs of a class by tenant, with their drain rates.
    pub fn drain_rates(&self, class: ClassIndex) -> &DrainRates {
        &self.classes[class.index()].drain_rates
    }

    /// Drain rate of a tenant's jobs in a class, in jobs per second while some wait; `None` before
    /// it is known.
    pub fn drain_rate_of(&self, class: ClassIndex, tenant: TenantId, now: Tick) -> Option<f64> {
        self.classes[class.index()].drain_rates.per_second(tenant, now)
    }

    pub fn forget_drain_rates_of(&mut self, tenant: TenantId, now: Tick) {
        self.classes.iter_mut().for_each(|class| class.drain_rates.restart(tenant, now));
    }

    /// Notes whether all replicas of the group are out of service from now on.
    pub fn set_halted(&mut self, halted: bool, now: Tick) {
        self.classes.iter_mut().for_each(|class| class.drain_rates.halt(halted, now));
    }

    /// Forgets the drain rates of all tenants.
    pub fn forget_drain_rates(&mut self, now: Tick) {
        self.drain_rate = DrainRate::default();
        self.classes.iter_mut().for_each(|class| class.drain_rates.restart_all(now));
    }

    /// Waiting jobs of the group.
    pub fn waiting(&self) -> u64 {
        self.classes.iter().map(|class| class.waiting).sum()
    }

    /// Waiting jobs that may use the pool.
    pub fn waiting_for(&self, pool: PoolId) -> u64 {
        let pool_index = self.pool_index(pool);
        self.classes.iter().map(|class| class.waiting_at(pool_index)).sum()
    }

    /// Waiting jobs of one class that may use the pool.
    pub fn class_waiting_for(&self, class: ClassIndex, pool: PoolId) -> u64 {
        let pool_index = self.pool_index(pool);
        self.classes.get(class.index()).map_or(0, |class| class.waiting_at(pool_index))
    }

    /// Index of a pool among those of the group.
    pub(super) fn pool_index(&self, pool: PoolId) -> Option<usize> {
        self.shape.pools.binary_search(&pool).ok()
    }

    /// Counts a tenant's jobs that begin to wait in a pool set.
    pub fn joined(
        &mut self,
        class: ClassIndex,
        pool_set: PoolSetIndex,
        tenant: TenantId,
        jobs: u64,
        now: Tick,
    ) {
        let class = &mut self.classes[class.index()];
        class.pool_sets[pool_set.index()].waiting += jobs;
        class.waiting += jobs;
        let members = &self.pool_set_pools[pool_set.index()];
        members.indexes.iter().for_each(|index| class.waiting_by_pool[*index] += jobs);
        class.drain_rates.joined(tenant, jobs, now);
    }

    /// Counts a tenant's job that leaves a pool set. Returns false when the pool set had no waiting
    /// job.
    pub fn left(&mut self, class: ClassIndex, pool_set: PoolSetIndex, tenant: TenantId, now: Tick) -> bool {
        let class = &mut self.classes[class.index()];
        class.drain_rates.left(tenant, now);
        let Some(rest) = class.pool_sets[pool_set.index()].waiting.checked_sub(1) else { return false };
        class.pool_sets[pool_set.index()].waiting = rest;
        class.waiting -= 1;
        self.pool_set_pools[pool_set.index()]
            .indexes
            .iter()
            .for_each(|index| class.waiting_by_pool[*index] -= 1);
        if class.waiting == 0 {
            class.guaranteed_share.forget();
        }
        true
    }

    /// Counts a waiting job with several sequences.
    pub fn add_multi_sequence(&mut self, seqs: u32) {
        if seqs > 1 {
            *self.jobs_by_sequences.entry(seqs).or_default() += 1;
        }
    }

    /// Stops counting a job that [`Self::add_multi_sequence`] counted.
    pub fn remove_multi_sequence(&mut self, seqs: u32) {
        if let Entry::Occupied(mut jobs) = self.jobs_by_sequences.entry(seqs) {
            *jobs.get_mut() -= 1;
            if *jobs.get() == 0 {
                jobs.remove();
            }
        }
    }

    /// The largest number of sequences of a waiting job, at least 1.
    pub fn max_sequences(&self) -> u32 {
        self.jobs_by_sequences.last_key_value().map_or(1, |(seqs, _)| *seqs)
    }

    /// Lifts the counter of a tenant that begins to wait in a pool set, and those of its groups that
    /// begin to wait there with it. The floor is the least counter of the siblings who wait for one
    /// of its pools, in this pool set or in another; when nobody does, the largest counter served
    /// at its pools. Returns whether a counter changed.
    pub fn lift(&mut self, class: ClassIndex, pool_set: PoolSetIndex, tenant: TenantId) -> bool {
        let tree = &self.quotas.tree;
        let home = tree.group_of(tenant);
        let floor = self.floor(class, pool_set, home);
        let mut lifted = self.classes[class.index()].counters.lift(tenant, floor);
        for group in self.quotas.tree.groups_of(tenant) {
            let here = &self.classes[class.index()].pool_sets[pool_set.index()].trees;
            let waits =
                [false, true].iter().any(|bound| here[tree_index(LanePart::New, *bound)].holds(group));
            if !waits {
                let floor = self.floor(class, pool_set, self.quotas.tree.parent(group));
                lifted |= self.classes[class.index()].counters.lift_group(group, floor);
            }
        }
        lifted
    }

    /// See [`Self::lift`].
    fn floor(&self, class: ClassIndex, pool_set: PoolSetIndex, group: Option<TenantId>) -> u128 {
        let class = &self.classes[class.index()];
        let rivals = [false, true].into_iter().flat_map(|bound| {
            let tree = tree_index(LanePart::New, bound);
            let busy = class.pool_sets_with_heads[tree].intersection(&self.overlaps[pool_set.index()]);
            busy.map(move |other| (other, tree))
        });
        let waiting =
            rivals.filter_map(|(other, tree)| class.pool_sets[other].trees[tree].least_counter(group));
        let served = || match group {
            Some(group) => Some(class.counters.max_served(group)),
            None => self.pool_set_pools[pool_set.index()]
                .indexes
                .iter()
                .map(|index| class.max_served[*index])
                .max(),
        };
        waiting.min().or_else(served).unwrap_or(0)
    }

    /// How much more than another tenant one has received, as a difference of the counters by
    /// which the two compete: those of the outermost groups that they do not share.
    pub fn lead(&self, class: ClassIndex, tenant: TenantId, other: TenantId) -> u128 {
        let counters = &self.classes[class.index()].counters;
        let (own, others) = (self.quotas.tree.groups_of(tenant), self.quotas.tree.groups_of(other));
        let shared =
            own.iter().rev().zip(others.iter().rev()).take_while(|(own, other)| own == other).count();
        let counter = |tenant, groups: &[TenantId]| match groups.len().checked_sub(shared + 1) {
            Some(place) => counters.group(groups[place]),
            None => counters.get(tenant),
        };
        counter(tenant, &own).saturating_sub(counter(other, &others))
    }

    /// The ids of the classes, in the order of service.
    pub fn class_ids(&self) -> impl Iterator<Item = ClassId> {
        self.classes.iter().map(|class| class.id)
    }

    pub fn class_id(&self, class: ClassIndex) -> ClassId {
        self.classes[class.index()].id
    }

    /// Counts a job of the class that went to a replica.
    pub fn started(&mut self, class: ClassIndex) {
        self.classes[class.index()].running += 1;
    }

    /// Counts a job of the class that left its replica after `held`.
    pub fn stopped(&mut self, class: ClassIndex, held: Duration, now: Tick) {
        let class = &mut self.classes[class.index()];
        class.running = class.running.saturating_sub(1);
        class.last_active = Some(now);
        class.headroom.learn_hold(held);
    }

    /// Jobs of a class at replicas.
    pub fn running_in(&self, class: ClassIndex) -> u64 {
        self.classes[class.index()].running
    }

    /// Jobs of a class and of more urgent ones at replicas.
    pub fn running_up_to(&self, class: ClassIndex) -> u64 {
        self.classes[..=class.index()].iter().map(|class| class.running).sum()
    }

    /// Counts an arrival of a job with `seqs` sequences.
    pub fn arrived(&mut self, class: ClassIndex, seqs: u32, now: Tick) {
        self.classes[class.index()].headroom.arrived(now, seqs);
    }

    /// The most urgent active class, by index. Refreshes the activity of all classes.
    pub fn refresh_urgent(&mut self, now: Tick) -> Option<ClassIndex> {
        for class in &mut self.classes {
            if class.has_jobs() {
                class.last_active = Some(now);
            }
        }
        self.classes.iter().position(|class| class.is_active(now)).map(ClassIndex::from)
    }

    /// The active classes: those with jobs waiting or running, or with some within the last minute.
    pub fn active_classes(&self, now: Tick) -> BitSet {
        let classes = self.classes.iter().enumerate();
        classes.filter(|(_, class)| class.is_active(now)).map(|(place, _)| place).collect()
    }

    /// The classes whose waiting jobs are about to miss the objective of their class: those for which
    /// the last of them waits for more than half of it; once a class is one of them (`before`), for
    /// more than a quarter.
    pub fn delayed_classes(
        &self,
        objective: impl Fn(ClassId) -> Option<Duration>,
        before: Option<&BitSet>,
        now: Tick,
    ) -> BitSet {
        let is_delayed = |&(place, class): &(usize, &ClassOrder)| {
            let part = if before.is_some_and(|before| before.contains(place)) { 4 } else { 2 };
            let limit = objective(class.id).map(|objective| objective / part);
            limit.is_some_and(|limit| class.drain_rates.wait_of_all(now) > limit)
        };
        self.classes.iter().enumerate().filter(is_delayed).map(|(place, _)| place).collect()
    }

    /// Whether a class less urgent than `host`, one of `delayed`, may use the pool.
    pub fn has_delayed_background(&self, pool: PoolId, host: ClassIndex, delayed: &BitSet) -> bool {
        let Some(index) = self.pool_index(pool) else { return false };
        let later = self.classes.iter().enumerate().skip(host.index() + 1);
        later.filter(|(place, _)| delayed.contains(*place)).any(|(_, class)| class.reach[index])
    }

    /// The most urgent classes of each pool.
    pub fn urgent_classes_by_pool(&self, now: Tick) -> impl Iterator<Item = UrgentClasses> {
        self.shape.pools.iter().enumerate().map(move |(index, pool)| {
            let classes = self.classes.iter().enumerate();
            let here = classes.filter(|(_, class)| class.is_active(now) && class.reach[index]);
            let mut here = here.map(|(class, _)| ClassIndex::from(class));
            UrgentClasses { pool: *pool, first: here.next(), second: here.next() }
        })
    }

    /// The tier of pools that the last job of a class in a pool set was dispatched to.
    pub fn last_tier(&self, class: ClassIndex, pool_set: PoolSetIndex) -> Option<usize> {
        self.classes[class.index()].pool_sets[pool_set.index()].last_tier
    }

    /// When the urgent class stops being active; `None` while it has jobs waiting or running, or is active at
    /// another gateway.
    pub fn urgent_until(&self) -> Option<Tick> {
        let class = &self.classes[self.urgent?.index()];
        class.last_active.filter(|_| !class.has_jobs()).map(|seen| seen + ACTIVE_FOR)
    }

    /// Headroom of a class over all replicas, in sequences that background classes leave free.
    pub fn headroom(&self, class: ClassIndex, now: Tick) -> u32 {
        let class = &self.classes[class.index()];
        let (own, remote) = (class.headroom.seqs(now), class.remote_headroom.unwrap_or(0));
        // Arrivals at gateways do not depend on each other, so that the squares add up.
        if remote == 0 { own } else { f64::from(own).hypot(f64::from(remote)).ceil() as u32 }
    }

    /// Sets the headroom of a class at other gateways; `None` = it is active at none. Returns whether it has
    /// changed.
    pub fn set_remote_headroom(&mut self, class: ClassIndex, seqs: Option<u32>) -> bool {
        let class = &mut self.classes[class.index()];
        std::mem::replace(&mut class.remote_headroom, seqs) != seqs
    }

    /// Headroom of a class for its jobs at this gateway; `None` when it is not active here.
    pub fn own_headroom(&self, class: ClassIndex, now: Tick) -> Option<u32> {
        let class = &self.classes[class.index()];
        let is_active = class.running > 0 || class.waiting > 0 || class.headroom.is_active(now);
        is_active.then(|| class.headroom.seqs(now))
    }

    /// Whether a more urgent class uses the replicas, so that this class has to leave it headroom.
    pub fn is_background(&self, class: ClassIndex) -> bool {
        self.urgent.is_some_and(|urgent| urgent < class)
    }

    /// The most urgent active class, by index.
    pub const fn urgent(&self) -> Option<ClassIndex> {
        self.urgent
    }

    pub const fn set_urgent(&mut self, urgent: Option<ClassIndex>) {
        self.urgent = urgent;
    }

    /// Whether a more urgent class has jobs waiting for the pool.
    pub fn has_more_urgent_waiting(&self, class: ClassIndex, pool: PoolId) -> bool {
        let pool_index = self.pool_index(pool);
        self.classes[..class.index()].iter().any(|before| before.waiting_at(pool_index) > 0)
    }

    /// Books the work of a candidate that goes to the pool. To be called before the job leaves its
    /// pool set.
    pub fn book_dispatch(&mut self, chosen: &Candidate, pool: PoolId, cost: u64) {
        let pool_index = self.pool_index(pool);
        for (index, class) in self.classes.iter_mut().enumerate() {
            if class.waiting_at(pool_index) > 0 {
                class.guaranteed_share.accrue(cost, class.min_share);
            }
            if index == chosen.class.index() {
                class.guaranteed_share.pay(cost, chosen.guaranteed);
            }
        }
        let class = &mut self.classes[chosen.class.index()];
        let tiers = &self.shape.pool_set(chosen.pool_set).tiers;
        class.pool_sets[chosen.pool_set.index()].last_tier =
            tiers.iter().position(|tier| tier.pools.contains(&pool));
        if chosen.head.part == LanePart::New {
            let groups = self.quotas.tree.groups_of(chosen.head.lane.tenant);
            let counter = class.counters.note_served(chosen.head.lane.tenant, &groups);
            let served = pool_index.map(|index| &mut class.max_served[index]);
            served.into_iter().for_each(|served| *served = counter.max(*served));
        }
    }

    /// Books work of the class that other gateways dispatched to the pool.
    pub fn book_remote(&mut self, class: ClassIndex, pool: PoolId, cost: u64) {
        let pool_index = self.pool_index(pool);
        for (index, own) in self.classes.iter_mut().enumerate() {
            if own.waiting_at(pool_index) > 0 {
                own.guaranteed_share.accrue_remote(cost, own.min_share);
            }
            if index == class.index() {
                own.guaranteed_share.pay_remote(cost);
            }
        }
    }

    /// Whether an arriving job of the class counts as background. A class that is owed its
    /// guaranteed share does not.
    pub fn is_background_arrival(&self, class: ClassIndex) -> bool {
        self.is_background(class) && !self.classes[class.index()].guaranteed_share.is_owed()
    }

    /// Waiting jobs by class and pool set, to compare with the queue.
    pub fn waiting_by_pool_set(&self) -> BTreeMap<(ClassId, PoolSetIndex), u64> {
        let classes = self.classes.iter();
        let pool_sets = classes.flat_map(|class| {
            class.pool_sets.iter().enumerate().map(|(i, pool_set)| (class.id, i, pool_set))
        });
        pool_sets
            .filter(|(_, _, pool_set)| pool_set.waiting > 0)
            .map(|(id, i, pool_set)| ((id, PoolSetIndex::from(i)), pool_set.waiting))
            .collect()
    }

    /// Jobs of a class that wait in a pool set.
    pub fn waiting_in(&self, class: ClassIndex, pool_set: PoolSetIndex) -> u64 {
        self.classes
            .get(class.index())
            .and_then(|class| class.pool_sets.get(pool_set.index()))
            .map_or(0, |pool_set| pool_set.waiting)
    }

    /// Jobs of all classes that wait in a pool set.
    pub fn waiting_in_pool_set(&self, pool_set: PoolSetIndex) -> u64 {
        self.class_indexes().map(|class| self.waiting_in(class, pool_set)).sum()
    }

    /// Nodes of the search trees that were visited.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        let pool_sets = self.classes.iter().flat_map(|class| &class.pool_sets);
        pool_sets.flat_map(|pool_set| &pool_set.trees).map(HeadTree::visits).sum()
    }

    /// Classes in the order of service, and whether each is owed its guaranteed share.
    pub(super) fn service_order(&self) -> SmallVec<[(ClassIndex, bool); 8]> {
        let classes = self.classes.iter().enumerate();
        let mut turns: SmallVec<_> = classes
            .map(|(index, class)| (ClassIndex::from(index), class.guaranteed_share.is_owed()))
            .collect();
        let owed = |(class, owed): &(ClassIndex, bool)| {
            owed.then(|| self.classes[class.index()].guaranteed_share.owed())
        };
        turns.sort_by(|a, b| owed(b).partial_cmp(&owed(a)).unwrap_or(Ordering::Equal));
        turns
    }
}
