//! The heads of all lanes of a group, in the order of service.

mod count;
mod head_index;
mod heads;
mod search;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use smallvec::SmallVec;

use crate::core::model::bit_set::BitSet;
use crate::core::model::ids::{ClassId, PoolId, TenantId};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::placement::{self, GroupShape};
use crate::core::queue::LanePart;
use crate::core::queue::drain_rate::DrainRates;
use crate::core::queue::estimate::DrainRate;
use crate::core::queue::fairness::{FairCounters, GuaranteedShare};
use crate::core::queue::headroom::Headroom;
use crate::core::queue::quota::TenantQuotas;
use crate::core::queue::retry_budget::RetryBudget;

pub use self::heads::{
    Candidate, GroupObjective, HeadEntry, HeadKey, HeadPosition, HeldReplica, LaneHead, OpenRoom,
    PoolOpening, PoolOpenings, RoomIn,
};

use self::heads::{PoolSetQueue, tree};
use crate::core::queue::order::head_index::HeadIndex;

/// How long a class stays urgent after its last job.
const LINGER: Duration = Duration::from_secs(5);

/// One class within a group.
#[derive(Debug, Clone)]
pub struct ClassOrder {
    /// Which class.
    pub id: ClassId,
    min_share: f64,
    /// How much each tenant has had in it.
    pub counters: FairCounters,
    /// How fast each tenant's jobs go.
    pub backlogs: DrainRates,
    guarantee: GuaranteedShare,
    /// Jobs of it at replicas.
    running: u64,
    /// When it was last seen waiting or running.
    last_active: Option<Tick>,
    headroom: Headroom,
    /// Whether it may use each of the group's pools.
    reach: Vec<bool>,
    pool_sets: Vec<PoolSetQueue>,
    /// Lines with heads, by the number of the board.
    busy: [BitSet; 4],
    /// What a payment moves.
    head_positions: HeadIndex,
    /// Its jobs that wait.
    waiting: u64,
    /// Those of them that may use each of the group's pools.
    waits_for: Vec<u64>,
}

impl ClassOrder {
    /// A class that goes on with the accounts of `old`, if there is one.
    fn new(id: ClassId, min_share: f64, old: Option<&Self>, policy: &Policy, shape: &GroupShape) -> Self {
        let is_known = |tenant: TenantId| policy.tenants.get(tenant).is_some();
        let mut counters = old.map(|old| old.counters.clone()).unwrap_or_default();
        counters.retain(is_known);
        let served =
            old.and_then(|old| old.pool_sets.iter().map(|pool_set| pool_set.served).max()).unwrap_or(0);
        let own = shape.reach.get(&id);
        Self {
            id,
            min_share,
            counters,
            backlogs: old.map(|old| old.backlogs.emptied(is_known)).unwrap_or_default(),
            guarantee: old.map(|old| old.guarantee).unwrap_or_default(),
            running: old.map_or(0, |old| old.running),
            last_active: old.and_then(|old| old.last_active),
            headroom: old.map(|old| old.headroom).unwrap_or_default(),
            reach: shape.pools.iter().map(|pool| own.is_some_and(|own| own.contains(pool))).collect(),
            pool_sets: vec![PoolSetQueue { served, ..PoolSetQueue::default() }; shape.pool_sets.len()],
            busy: Default::default(),
            head_positions: HeadIndex::default(),
            waiting: 0,
            waits_for: vec![0; shape.pools.len()],
        }
    }

    fn waits_for(&self, place: Option<usize>) -> u64 {
        place.map_or(0, |place| self.waits_for[place])
    }

    fn is_active(&self, now: Tick) -> bool {
        self.last_active.is_some_and(|seen| now.since(seen) < LINGER)
    }
}

/// One group: its classes in the order of service, and what is held.
#[derive(Debug, Clone, Default)]
pub struct PoolGroup {
    /// Its pools and pool sets.
    pub shape: GroupShape,
    /// The pools as a set.
    pub pools: BitSet,
    /// Those of each pool set as a set, and by their places in the group.
    reaches: Vec<(BitSet, Vec<usize>)>,
    /// The pool sets that reach each of the pools.
    pool_sets_at: Vec<BitSet>,
    classes: Vec<ClassOrder>,
    /// Dispatched jobs per second.
    pub drain: DrainRate,
    /// How many failed tries may be repeated.
    pub retries: RetryBudget,
    /// At most one per pool.
    pub holds: Vec<HeldReplica>,
    /// What each tenant may hold.
    pub quotas: TenantQuotas,
    urgent: Option<usize>,
    /// When the first of the jobs that were next, and stayed for the replica of
    /// their session, gives that up.
    pub session_until: Option<Tick>,
    /// From what its pools' promises were worked out last.
    pub objective: Option<GroupObjective>,
    /// How many jobs of each number of sequences wait, of those with several.
    wide_jobs: BTreeMap<u32, u32>,
}

impl PoolGroup {
    /// A group that goes on with the accounts of the one group that had its
    /// pools before. When there were several, their counters cannot be
    /// compared and every tenant starts anew.
    #[must_use]
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
            let places = pool_set.pools.iter().filter_map(|pool| shape.pools.binary_search(pool).ok());
            (pool_set.pools.iter().map(|pool| pool.index()).collect(), places.collect())
        };
        let reaches: Vec<(BitSet, Vec<usize>)> = shape.pool_sets.iter().map(reach).collect();
        let lines_at = |place: usize| {
            let pool_sets = reaches.iter().enumerate().filter(|(_, reach)| reach.1.contains(&place));
            pool_sets.map(|(pool_set, _)| pool_set).collect()
        };
        Self {
            pools: shape.pools.iter().map(|pool| pool.index()).collect(),
            pool_sets_at: (0..shape.pools.len()).map(lines_at).collect(),
            reaches,
            shape: shape.clone(),
            classes: classes.collect(),
            drain: donor.map(|donor| donor.drain).unwrap_or_default(),
            retries: donor.map(|donor| donor.retries).unwrap_or_default(),
            holds: Vec::new(),
            quotas: TenantQuotas::new(policy),
            urgent: None,
            session_until: None,
            objective: None,
            wide_jobs: BTreeMap::new(),
        }
    }

    /// The class's place in the order of service.
    #[must_use]
    pub fn class(&self, id: ClassId) -> Option<usize> {
        self.classes.iter().position(|class| class.id == id)
    }

    /// A class by its place.
    pub fn class_mut(&mut self, class: usize) -> &mut ClassOrder {
        &mut self.classes[class]
    }

    /// A tenant's counter in a class.
    #[must_use]
    pub fn counter(&self, class: usize, tenant: TenantId) -> u128 {
        self.classes[class].counters.get(tenant)
    }

    /// What waits in a class, and how fast it goes.
    #[must_use]
    pub fn backlogs(&self, class: usize) -> &DrainRates {
        &self.classes[class].backlogs
    }

    /// Jobs per second that go of a tenant's in a class while some wait; `None`
    /// before it is known.
    #[must_use]
    pub fn drain_of(&self, class: usize, tenant: TenantId, now: Tick) -> Option<f64> {
        self.classes[class].backlogs.per_second(tenant, now)
    }

    /// Forgets how fast a tenant's jobs went.
    pub fn restart_backlogs(&mut self, tenant: TenantId, now: Tick) {
        self.classes.iter_mut().for_each(|class| class.backlogs.restart(tenant, now));
    }

    /// Whether none of its pools has a replica in service from now on.
    pub fn halt(&mut self, halted: bool, now: Tick) {
        self.classes.iter_mut().for_each(|class| class.backlogs.halt(halted, now));
    }

    /// Forgets how fast jobs went.
    pub fn restart_drains(&mut self, now: Tick) {
        self.drain = DrainRate::default();
        self.classes.iter_mut().for_each(|class| class.backlogs.restart_all(now));
    }

    /// Jobs that wait in the group.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.classes.iter().map(|class| class.waiting).sum()
    }

    /// Jobs that wait for replicas of the pool.
    #[must_use]
    pub fn waiting_for(&self, pool: PoolId) -> u64 {
        let place = self.place_of(pool);
        self.classes.iter().map(|class| class.waits_for(place)).sum()
    }

    /// The same of one class.
    pub fn waiting_in_for(&self, class: usize, pool: PoolId) -> u64 {
        let place = self.place_of(pool);
        self.classes.get(class).map_or(0, |class| class.waits_for(place))
    }

    /// The place of a pool among those of the group.
    fn place_of(&self, pool: PoolId) -> Option<usize> {
        self.shape.pools.binary_search(&pool).ok()
    }

    /// A tenant's job joined a pool set.
    pub fn joined(&mut self, class: usize, pool_set: usize, tenant: TenantId, now: Tick) {
        let class = &mut self.classes[class];
        class.pool_sets[pool_set].waiting += 1;
        class.waiting += 1;
        self.reaches[pool_set].1.iter().for_each(|place| class.waits_for[*place] += 1);
        class.backlogs.joined(tenant, now);
    }

    /// A tenant's job left a pool set. False when the pool set had none.
    pub fn left(&mut self, class: usize, pool_set: usize, tenant: TenantId, now: Tick) -> bool {
        let class = &mut self.classes[class];
        class.backlogs.left(tenant, now);
        let Some(rest) = class.pool_sets[pool_set].waiting.checked_sub(1) else { return false };
        class.pool_sets[pool_set].waiting = rest;
        class.waiting -= 1;
        self.reaches[pool_set].1.iter().for_each(|place| class.waits_for[*place] -= 1);
        if class.waiting == 0 {
            class.guarantee.forget();
        }
        true
    }

    /// A job with so many sequences begins to wait.
    pub fn note_wide(&mut self, seqs: u32) {
        if seqs > 1 {
            *self.wide_jobs.entry(seqs).or_default() += 1;
        }
    }

    /// A job with so many sequences waits no longer.
    pub fn forget_wide(&mut self, seqs: u32) {
        if let Entry::Occupied(mut jobs) = self.wide_jobs.entry(seqs) {
            *jobs.get_mut() -= 1;
            if *jobs.get() == 0 {
                jobs.remove();
            }
        }
    }

    /// The sequences of the widest job that waits, at least 1.
    #[must_use]
    pub fn widest(&self) -> u32 {
        self.wide_jobs.last_key_value().map_or(1, |(seqs, _)| *seqs)
    }

    /// Lifts a tenant that starts to wait in a pool set to the least counter there,
    /// or to the largest one served there when nobody waits. Says whether
    /// that changed its counter.
    pub fn lift(&mut self, class: usize, pool_set: usize, tenant: TenantId) -> bool {
        let class = &mut self.classes[class];
        let pool_set = &class.pool_sets[pool_set];
        let fresh = [false, true].map(|bound| pool_set.trees[tree(LanePart::Fresh, bound)].least_key());
        let floor = fresh.into_iter().flatten().map(|key| key.least).min().unwrap_or(pool_set.served);
        class.counters.lift(tenant, floor)
    }

    /// The ids of the classes, in the order of service.
    pub fn class_ids(&self) -> impl Iterator<Item = ClassId> {
        self.classes.iter().map(|class| class.id)
    }

    /// The class's id.
    #[must_use]
    pub fn class_id(&self, class: usize) -> ClassId {
        self.classes[class].id
    }

    /// A job of the class went to a replica.
    pub fn started(&mut self, class: usize) {
        self.classes[class].running += 1;
    }

    /// A job of the class left its replica, which it had for so long.
    pub fn stopped(&mut self, class: usize, held: Duration, now: Tick) {
        let class = &mut self.classes[class];
        class.running = class.running.saturating_sub(1);
        class.last_active = Some(now);
        class.headroom.ended(held);
    }

    /// A job of the class with so many sequences arrived.
    pub fn arrived(&mut self, class: usize, seqs: u32, now: Tick) {
        self.classes[class].headroom.arrived(now, seqs);
    }

    /// The most urgent class that waits, runs or did so a moment ago.
    pub fn find_urgent(&mut self, now: Tick) -> Option<usize> {
        for class in &mut self.classes {
            if class.running > 0 || class.waiting > 0 {
                class.last_active = Some(now);
            }
        }
        self.classes.iter().position(|class| class.is_active(now))
    }

    /// The classes that wait, run or did so a moment ago.
    #[must_use]
    pub fn active(&self, now: Tick) -> BitSet {
        let classes = self.classes.iter().enumerate();
        classes.filter(|(_, class)| class.is_active(now)).map(|(place, _)| place).collect()
    }

    /// Each pool with the most urgent class that waits, runs or did so a moment
    /// ago and may use it.
    pub fn background_classes(&self, now: Tick) -> impl Iterator<Item = (PoolId, Option<usize>)> {
        let host = move |place: usize| {
            self.classes.iter().position(|class| class.is_active(now) && class.reach[place])
        };
        self.shape.pools.iter().enumerate().map(move |(place, pool)| (*pool, host(place)))
    }

    /// The tier of pools that the pool set's last job of a class went to.
    #[must_use]
    pub fn last_tier(&self, class: usize, pool_set: usize) -> Option<usize> {
        self.classes[class].pool_sets[pool_set].tier
    }

    /// When the urgent class stops being so, unless something of it runs or
    /// waits.
    #[must_use]
    pub fn urgent_until(&self) -> Option<Tick> {
        let class = &self.classes[self.urgent?];
        let idle = class.running == 0 && class.waiting == 0;
        class.last_active.filter(|_| idle).map(|seen| seen + LINGER)
    }

    /// Sequences that background leave free for a class, over all replicas.
    #[must_use]
    pub fn headroom(&self, class: usize, now: Tick) -> u32 {
        self.classes[class].headroom.seqs(now)
    }

    /// Whether a more urgent class uses the replicas, so that this one has to
    /// leave them room.
    #[must_use]
    pub fn is_background(&self, class: usize) -> bool {
        self.urgent.is_some_and(|urgent| urgent < class)
    }

    /// The most urgent class that uses the replicas, by place.
    #[must_use]
    pub const fn urgent(&self) -> Option<usize> {
        self.urgent
    }

    /// Sets the most urgent class that uses the replicas.
    pub const fn set_urgent(&mut self, urgent: Option<usize>) {
        self.urgent = urgent;
    }

    /// Whether a class before this one waits for the pool.
    #[must_use]
    pub fn overtaken(&self, class: usize, pool: PoolId) -> bool {
        let place = self.place_of(pool);
        self.classes[..class].iter().any(|before| before.waits_for(place) > 0)
    }

    /// Books work of a candidate that goes to the pool, before it leaves its
    /// pool set.
    pub fn account(&mut self, chosen: &Candidate, pool: PoolId, cost: u64) {
        let place = self.place_of(pool);
        for (index, class) in self.classes.iter_mut().enumerate() {
            if class.waits_for(place) > 0 {
                class.guarantee.accrue(cost, class.min_share);
            }
            if index == chosen.class {
                class.guarantee.pay(cost, chosen.guaranteed);
            }
        }
        let class = &mut self.classes[chosen.class];
        let tiers = &self.shape.pool_sets[chosen.pool_set].tiers;
        class.pool_sets[chosen.pool_set].tier = tiers.iter().position(|tier| tier.pools.contains(&pool));
        if chosen.head.part == LanePart::Fresh {
            let counter = class.counters.get(chosen.head.lane.tenant);
            let pool_set = &mut class.pool_sets[chosen.pool_set];
            pool_set.served = pool_set.served.max(counter);
        }
    }

    /// Whether a class is a background at its turn: one that is owed its share comes as
    /// none.
    #[must_use]
    pub fn is_background_arrival(&self, class: usize) -> bool {
        self.is_background(class) && !self.classes[class].guarantee.is_owed()
    }

    /// Classes in the order of service, and whether each is there because it
    /// is owed its share.
    fn turns(&self) -> SmallVec<[(usize, bool); 8]> {
        let classes = self.classes.iter().enumerate();
        let mut turns: SmallVec<_> =
            classes.map(|(index, class)| (index, class.guarantee.is_owed())).collect();
        let owed = |(class, owed): &(usize, bool)| owed.then(|| self.classes[*class].guarantee.owed());
        turns.sort_by(|a, b| owed(b).partial_cmp(&owed(a)).unwrap_or(Ordering::Equal));
        turns
    }
}
