//! The heads of all lanes of a group, in the order of service.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use smallvec::SmallVec;

use crate::core::backlog::Backlogs;
use crate::core::board::{Board, Entry, Rank, Size};
use crate::core::estimate::DrainRate;
use crate::core::fairness::{Counters, Guarantee};
use crate::core::ids::{ClassId, JobId, PoolId, ReplicaId, TenantId};
use crate::core::placement::GroupShape;
use crate::core::policy::Policy;
use crate::core::queue::{LaneKey, Part, Place};
use crate::core::quota::{Quotas, Standing};
use crate::core::reserve::Reserve;
use crate::core::retries::RetryBudget;
use crate::core::time::Tick;

/// Order within a class and line: who has less than its guarantee first, then
/// the least counter, then by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadKey {
    /// How the tenant stands to its quota.
    pub standing: Standing,
    /// The tenant's virtual counter; 0 for returned jobs, which have paid.
    pub counter: u128,
    /// The job's place in its lane.
    pub place: Place,
    /// The counter again. A floor of keys has the least one here, whoever has
    /// it, for the tenants to come.
    least: u128,
}

impl HeadKey {
    /// The key of a head.
    #[must_use]
    pub const fn new(standing: Standing, counter: u128, place: Place) -> Self {
        Self { standing, counter, place, least: counter }
    }
}

impl Rank for HeadKey {
    type Query = ();
    type Cost = Self;

    fn cost(&self, (): ()) -> Self {
        *self
    }

    fn floor(self, other: Self) -> Self {
        let first = if other < self { other } else { self };
        Self { least: self.least.min(other.least), ..first }
    }
}

/// The head of a part of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The job.
    pub job: JobId,
    /// Its lane.
    pub lane: LaneKey,
    /// Its part of the lane.
    pub part: Part,
}

/// A head with its place on a board.
pub type HeadEntry = Entry<HeadKey, Head>;

/// What waits in one class for one set of pools.
#[derive(Debug, Clone, Default)]
struct Line {
    parts: [Board<HeadKey, Head>; 2],
    waiting: u64,
    /// The largest counter with which a tenant was served here.
    served: u128,
    /// The tier of pools that the last job went to.
    tier: Option<usize>,
}

/// How long a class stays urgent after its last job.
const LINGER: Duration = Duration::from_secs(5);

/// One class within a group.
#[derive(Debug, Clone)]
pub struct ClassOrder {
    /// Which class.
    pub id: ClassId,
    min_share: f64,
    /// How much each tenant has had in it.
    pub counters: Counters,
    /// How fast each tenant's jobs go.
    pub backlogs: Backlogs,
    guarantee: Guarantee,
    /// Jobs of it at replicas.
    running: u64,
    /// When it was last seen waiting or running.
    seen: Option<Tick>,
    reserve: Reserve,
    /// Whether it may use each of the group's pools.
    reach: Vec<bool>,
    lines: Vec<Line>,
}

impl ClassOrder {
    fn waiting(&self) -> u64 {
        self.lines.iter().map(|line| line.waiting).sum()
    }

    fn waits_in(&self, lines: &[usize]) -> bool {
        lines.iter().any(|line| self.lines[*line].waiting > 0)
    }

    fn is_active(&self, now: Tick) -> bool {
        self.seen.is_some_and(|seen| now.since(seen) < LINGER)
    }
}

/// A replica that is kept free for a job that needs more room than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The replica.
    pub replica: ReplicaId,
    /// Its pool.
    pub pool: PoolId,
    /// The job.
    pub job: JobId,
}

/// Who may go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its class, by place in the order of service.
    pub class: usize,
    /// Its line.
    pub line: usize,
    /// Its head.
    pub head: Head,
    /// Its place in its lane.
    pub place: Place,
    /// What it needs.
    pub need: Size,
    /// Whether its class goes first because it is owed its share.
    pub guaranteed: bool,
    /// Whether a more urgent class uses the replicas.
    pub guest: bool,
    /// How its tenant stands to its quota.
    pub standing: Standing,
}

/// What the pools of a line can take at most, of guests or of others.
pub type Room<'a> = &'a dyn Fn(&[PoolId], bool) -> Option<Size>;

/// One group: its classes in the order of service, and what is held.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// Its pools and lines.
    pub shape: GroupShape,
    classes: Vec<ClassOrder>,
    /// Dispatched jobs per second.
    pub drain: DrainRate,
    /// How many failed tries may be repeated.
    pub retries: RetryBudget,
    /// At most one per pool.
    pub holds: Vec<Hold>,
    /// What each tenant may hold.
    pub quotas: Quotas,
    urgent: Option<usize>,
    /// When a job that waits for the pools it wants most looks at others.
    pub spill_at: Option<Tick>,
}

impl Group {
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
            let mut counters = old.map(|old| old.counters.clone()).unwrap_or_default();
            counters.retain(|tenant| policy.tenants.get(tenant).is_some());
            let backlogs = old.map(|old| old.backlogs.emptied(|tenant| policy.tenants.get(tenant).is_some()));
            let served = old.and_then(|old| old.lines.iter().map(|line| line.served).max()).unwrap_or(0);
            let line = Line { served, ..Line::default() };
            let guarantee = old.map(|old| old.guarantee).unwrap_or_default();
            let (running, seen) = old.map_or((0, None), |old| (old.running, old.seen));
            let reserve = old.map(|old| old.reserve).unwrap_or_default();
            let lines = vec![line; shape.lines.len()];
            let own = shape.reach.get(&id);
            let reach = shape.pools.iter().map(|pool| own.is_some_and(|own| own.contains(pool))).collect();
            let backlogs = backlogs.unwrap_or_default();
            ClassOrder { id, min_share, counters, backlogs, guarantee, running, seen, reserve, reach, lines }
        });
        Self {
            shape: shape.clone(),
            classes: classes.collect(),
            drain: donor.map(|donor| donor.drain).unwrap_or_default(),
            retries: donor.map(|donor| donor.retries).unwrap_or_default(),
            holds: Vec::new(),
            quotas: Quotas::new(policy),
            urgent: None,
            spill_at: None,
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

    /// Forgets how fast jobs went.
    pub fn restart_drains(&mut self, now: Tick) {
        self.drain = DrainRate::default();
        self.classes.iter_mut().for_each(|class| class.backlogs.restart_all(now));
    }

    /// Jobs that wait in the group.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.classes.iter().map(ClassOrder::waiting).sum()
    }

    /// Jobs that wait for replicas of the pool.
    #[must_use]
    pub fn waiting_for(&self, pool: PoolId) -> u64 {
        let lines = self.lines_with(pool);
        self.classes.iter().flat_map(|class| lines.iter().map(|line| class.lines[*line].waiting)).sum()
    }

    /// A tenant's job joined a line.
    pub fn joined(&mut self, class: usize, line: usize, tenant: TenantId, now: Tick) {
        self.classes[class].lines[line].waiting += 1;
        self.classes[class].backlogs.joined(tenant, now);
    }

    /// A tenant's job left a line. False when the line had none.
    pub fn left(&mut self, class: usize, line: usize, tenant: TenantId, now: Tick) -> bool {
        let class = &mut self.classes[class];
        class.backlogs.left(tenant, now);
        let Some(rest) = class.lines[line].waiting.checked_sub(1) else { return false };
        class.lines[line].waiting = rest;
        if class.waiting() == 0 {
            class.guarantee.forget();
        }
        true
    }

    /// Lifts a tenant that starts to wait in a line to the least counter there,
    /// or to the largest one served there when nobody waits. Says whether
    /// that changed its counter.
    pub fn lift(&mut self, class: usize, line: usize, tenant: TenantId) -> bool {
        let class = &mut self.classes[class];
        let line = &class.lines[line];
        let floor = line.parts[Part::Fresh as usize].least_key().map_or(line.served, |key| key.least);
        class.counters.lift(tenant, floor)
    }

    /// Sets, moves or clears a head; returns its slot.
    pub fn put(
        &mut self,
        class: usize,
        line: usize,
        part: Part,
        slot: Option<usize>,
        entry: Option<HeadEntry>,
    ) -> Option<usize> {
        self.classes[class].lines[line].parts[part as usize].put(slot, entry)
    }

    /// A head as it stands on its board.
    #[must_use]
    pub fn get(&self, class: usize, line: usize, part: Part, slot: usize) -> Option<&HeadEntry> {
        self.classes[class].lines[line].parts[part as usize].get(slot)
    }

    /// The first in the order of service among the heads that fit into the
    /// room of their line and are not to be skipped: classes that are owed
    /// their share, most owed first; then by rank. Within a class returned
    /// jobs by age, then the tenant with the least counter.
    pub fn first(&self, room: Room<'_>, skip: &dyn Fn(&Head) -> bool) -> Option<Candidate> {
        self.turns().into_iter().find_map(|(class, guaranteed)| {
            let lines = &self.classes[class].lines;
            let guest = self.is_guest(class) && !guaranteed;
            Part::ALL.into_iter().find_map(|part| {
                let firsts = lines.iter().zip(&self.shape.lines).enumerate();
                let firsts = firsts.filter_map(|(index, (line, shape))| {
                    let board = &line.parts[part as usize];
                    let room = room(&shape.pools, guest).filter(|_| !board.is_empty())?;
                    Some((self.first_allowed(board, room, skip)?, index))
                });
                let (entry, line) = firsts.min_by_key(|(entry, _)| entry.key)?;
                let (head, need, HeadKey { place, standing, .. }) = (entry.value, entry.size, entry.key);
                Some(Candidate { class, line, head, place, need, guaranteed, guest, standing })
            })
        })
    }

    /// Whether a head that may go is the first in the order of all that wait for
    /// the pool, whether they fit or not.
    #[must_use]
    pub fn leads(&self, chosen: &Candidate, pool: PoolId) -> bool {
        let lines = self.lines_with(pool);
        let parts = self.turns().into_iter().flat_map(|(class, _)| Part::ALL.map(|part| (class, part)));
        let mut firsts = parts.filter_map(|(class, part)| {
            let boards = lines.iter().map(|line| &self.classes[class].lines[*line].parts[part as usize]);
            boards.filter_map(Board::least_key).min()
        });
        firsts.next().is_some_and(|key| key.place.seq == chosen.place.seq)
    }

    /// The first on a board that fits and that the quotas let go. Who borrows
    /// comes after all others, so when it may not, only one with fewer
    /// sequences is left to look for.
    fn first_allowed(
        &self,
        board: &Board<HeadKey, Head>,
        room: Size,
        skip: &dyn Fn(&Head) -> bool,
    ) -> Option<HeadEntry> {
        let (_, entry) = board.first((), room, skip)?;
        let spare = self.quotas.spare();
        if entry.key.standing == Standing::Guaranteed || entry.size.seqs <= spare {
            return Some(entry);
        }
        let (_, entry) = board.first((), Size { seqs: room.seqs.min(spare), ..room }, skip)?;
        Some(entry)
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
        class.seen = Some(now);
        class.reserve.ended(held);
    }

    /// A job of the class with so many sequences arrived.
    pub fn arrived(&mut self, class: usize, seqs: u32, now: Tick) {
        self.classes[class].reserve.arrived(now, seqs);
    }

    /// The most urgent class that waits, runs or did so a moment ago.
    pub fn find_urgent(&mut self, now: Tick) -> Option<usize> {
        for class in &mut self.classes {
            if class.running > 0 || class.waiting() > 0 {
                class.seen = Some(now);
            }
        }
        self.classes.iter().position(|class| class.is_active(now))
    }

    /// Each pool with the most urgent class that waits, runs or did so a moment
    /// ago and may use it.
    pub fn hosts(&self, now: Tick) -> impl Iterator<Item = (PoolId, Option<usize>)> {
        let host = move |place: usize| {
            self.classes.iter().position(|class| class.is_active(now) && class.reach[place])
        };
        self.shape.pools.iter().enumerate().map(move |(place, pool)| (*pool, host(place)))
    }

    /// The tier of pools that the line's last job of a class went to.
    #[must_use]
    pub fn last_tier(&self, class: usize, line: usize) -> Option<usize> {
        self.classes[class].lines[line].tier
    }

    /// When the urgent class stops being so, unless something of it runs or
    /// waits.
    #[must_use]
    pub fn urgent_until(&self) -> Option<Tick> {
        let class = &self.classes[self.urgent?];
        let idle = class.running == 0 && class.waiting() == 0;
        class.seen.filter(|_| idle).map(|seen| seen + LINGER)
    }

    /// Sequences that guests leave free for a class, over all replicas.
    #[must_use]
    pub fn reserve(&self, class: usize, now: Tick) -> u32 {
        self.classes[class].reserve.seqs(now)
    }

    /// Whether a more urgent class uses the replicas, so that this one has to
    /// leave them room.
    #[must_use]
    pub fn is_guest(&self, class: usize) -> bool {
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

    /// The lines that the pool belongs to.
    #[must_use]
    pub fn lines_with(&self, pool: PoolId) -> SmallVec<[usize; 8]> {
        let lines = self.shape.lines.iter().enumerate();
        lines.filter(|(_, shape)| shape.pools.contains(&pool)).map(|(line, _)| line).collect()
    }

    /// Whether a class before this one waits for the pool.
    #[must_use]
    pub fn overtaken(&self, class: usize, pool: PoolId) -> bool {
        let lines = self.lines_with(pool);
        self.classes[..class].iter().any(|before| before.waits_in(&lines))
    }

    /// Books work of a candidate that goes to the pool, before it leaves its
    /// line.
    pub fn account(&mut self, chosen: &Candidate, pool: PoolId, cost: u64) {
        let lines = self.lines_with(pool);
        for (index, class) in self.classes.iter_mut().enumerate() {
            if class.waits_in(&lines) {
                class.guarantee.accrue(cost, class.min_share);
            }
            if index == chosen.class {
                class.guarantee.pay(cost, chosen.guaranteed);
            }
        }
        let class = &mut self.classes[chosen.class];
        let tiers = &self.shape.lines[chosen.line].tiers;
        class.lines[chosen.line].tier = tiers.iter().position(|tier| tier.pools.contains(&pool));
        if chosen.head.part == Part::Fresh {
            let counter = class.counters.get(chosen.head.lane.tenant);
            let line = &mut class.lines[chosen.line];
            line.served = line.served.max(counter);
        }
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

    /// Waiting jobs by class and line, to compare with the queue.
    pub fn tally(&self) -> BTreeMap<(ClassId, usize), u64> {
        let classes = self.classes.iter();
        let lines =
            classes.flat_map(|class| class.lines.iter().enumerate().map(|(i, line)| (class.id, i, line)));
        lines.filter(|(_, _, line)| line.waiting > 0).map(|(id, i, line)| ((id, i), line.waiting)).collect()
    }

    /// Nodes of search trees that were looked at.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        let lines = self.classes.iter().flat_map(|class| &class.lines);
        lines.flat_map(|line| &line.parts).map(|board| board.visits.get()).sum()
    }
}
