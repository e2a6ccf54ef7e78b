//! The ledger of every replica, its state, and what it can still take.

use std::collections::BTreeSet;

use crate::core::board::{Board, Entry, Size};
use crate::core::event::Report;
use crate::core::ids::{PoolId, ReplicaId};
use crate::core::limits::{LearnedSeqs, full_seqs, ramped};
use crate::core::policy::{Health, Policy};
use crate::core::routing::{Booking, Ledger, RouteKey};
use crate::core::snapshot::{ReplicaState, ReplicaView};
use crate::core::time::Tick;
use crate::core::vitals::Vitals;

/// One replica.
#[derive(Debug, Clone)]
struct Node {
    pool: PoolId,
    present: bool,
    configured_seqs: Option<u32>,
    configured_kv: Option<u64>,
    ledger: Ledger,
    vitals: Vitals,
    learned: LearnedSeqs,
    report: Option<(Tick, Report)>,
    held: bool,
    last_chosen: u64,
    slot: Option<usize>,
    wake: Option<Tick>,
    up: bool,
}

/// One pool: its replicas with free credit, in the order of routing.
#[derive(Debug, Clone, Default)]
struct PoolState {
    buffer: u32,
    members: Vec<ReplicaId>,
    free: Board<RouteKey, ReplicaId>,
    up: u32,
}

/// What is known of a replica at the moment it is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Outstanding work in tokens.
    pub work: u64,
    /// Sequences there.
    pub running: u32,
    /// Its sequence limit.
    pub limit: u32,
    /// See [`Vitals::epoch`].
    pub epoch: u32,
}

/// All replicas of the policy, and removed ones that still run something.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    rules: Health,
    nodes: Vec<Option<Node>>,
    pools: Vec<PoolState>,
    wakes: BTreeSet<(Tick, ReplicaId)>,
    chosen: u64,
}

impl Fleet {
    /// Takes over a policy: new replicas start in service, removed ones get no
    /// more work and are forgotten when they run nothing.
    pub fn apply(&mut self, policy: &Policy, now: Tick) {
        self.rules = policy.health;
        self.pools = vec![PoolState::default(); policy.pools.capacity()];
        for (id, _, pool) in policy.pools.iter() {
            self.pools[id.index()].buffer = pool.engine_buffer;
        }
        if self.nodes.len() < policy.replicas.capacity() {
            self.nodes.resize(policy.replicas.capacity(), None);
        }
        for index in 0..self.nodes.len() {
            let id = ReplicaId::from(index);
            let row = policy.replicas.get(id).filter(|row| policy.pools.get(row.pool).is_some());
            if let Some(node) = &mut self.nodes[index] {
                (node.slot, node.up, node.held) = (None, false, false);
                if row.is_some() && !node.present {
                    node.vitals.renew();
                }
                node.present = row.is_some();
            }
            if let Some(row) = row {
                let node = self.nodes[index].get_or_insert_with(|| Node::new(row.pool));
                node.pool = row.pool;
                (node.configured_seqs, node.configured_kv) = (row.max_seqs, row.kv_tokens);
                self.pools[row.pool.index()].members.push(id);
            }
            self.refresh(id, now);
        }
    }

    /// The pool of a replica that is known.
    #[must_use]
    pub fn pool_of(&self, id: ReplicaId) -> Option<PoolId> {
        self.node(id).map(|node| node.pool)
    }

    /// How the replica stands.
    #[must_use]
    pub fn standing(&self, id: ReplicaId, now: Tick) -> Option<Standing> {
        let node = self.node(id)?;
        let (work, running) = (node.ledger.work(), node.ledger.seqs);
        Some(Standing { work, running, limit: self.limit(node, now), epoch: node.vitals.epoch() })
    }

    /// How often the replica came back; see [`Vitals::epoch`].
    #[must_use]
    pub fn epoch(&self, id: ReplicaId) -> Option<u32> {
        self.node(id).map(|node| node.vitals.epoch())
    }

    /// Whether a job runs there that failed elsewhere and has not got its first
    /// token yet.
    #[must_use]
    pub fn has_suspect(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.ledger.suspects > 0)
    }

    /// Whether the replica may get work, credit left or not.
    #[must_use]
    pub fn is_up(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.up)
    }

    /// How many replicas of the pools may get work.
    #[must_use]
    pub fn count_up(&self, pools: &[PoolId]) -> u64 {
        self.pools(pools).map(|pool| u64::from(pool.up)).sum()
    }

    /// The largest free credit in each respect over the pools; `None` when no
    /// replica has any.
    #[must_use]
    pub fn room(&self, pools: &[PoolId]) -> Option<Size> {
        let rooms = self.pools(pools).filter(|pool| !pool.free.is_empty());
        rooms.map(|pool| pool.free.least_size().complement()).reduce(Size::most)
    }

    /// The replica with the least outstanding work that can take `need`.
    pub fn best(&self, pools: &[PoolId], need: Size, avoid: &dyn Fn(ReplicaId) -> bool) -> Option<ReplicaId> {
        let skip = |id: &ReplicaId| avoid(*id);
        let firsts = self.pools(pools).filter_map(|pool| pool.free.first(need.complement(), &skip));
        firsts.min_by_key(|entry| entry.key).map(|entry| entry.value)
    }

    /// How many replicas of the pools can take `need` now.
    #[must_use]
    pub fn count_fitting(&self, pools: &[PoolId], need: Size) -> u32 {
        self.pools(pools).map(|pool| pool.free.count(need.complement())).sum()
    }

    /// Whether the replica can take `need` now; `held` replicas count when
    /// asked for.
    #[must_use]
    pub fn fits(&self, id: ReplicaId, need: Size, even_held: bool, now: Tick) -> bool {
        self.node(id)
            .filter(|node| even_held || !node.held)
            .and_then(|node| self.free(node, now))
            .is_some_and(|free| need.within(free))
    }

    /// The replica to hold for `need`: of those in the pool that are large
    /// enough for it as a whole, else of all, the one with the least
    /// outstanding work. Looks at every replica of the pool.
    #[must_use]
    pub fn to_hold(
        &self,
        pool: PoolId,
        need: Size,
        now: Tick,
        avoid: &dyn Fn(ReplicaId) -> bool,
    ) -> Option<ReplicaId> {
        let members = self.pools.get(pool.index())?.members.iter().copied().filter(|id| !avoid(*id));
        let ranked = members.filter_map(|id| {
            let node = self.node(id).filter(|node| node.up && !node.held)?;
            Some((!need.within(self.whole(node, now)), node.ledger.work(), id))
        });
        ranked.min().map(|(_, _, id)| id)
    }

    /// Holds a replica for one job, or lets it go.
    pub fn hold(&mut self, id: ReplicaId, held: bool, now: Tick) {
        self.change(id, now, |node| node.held = held);
    }

    /// Books a job that goes there.
    pub fn book(&mut self, id: ReplicaId, booking: &Booking, now: Tick) {
        self.chosen += 1;
        let chosen = self.chosen;
        self.change(id, now, |node| {
            node.ledger.add(booking);
            node.last_chosen = chosen;
        });
    }

    /// The job's first token came. False when its booking is not there.
    pub fn start(&mut self, id: ReplicaId, booking: &mut Booking, now: Tick) -> bool {
        let whole = self.change(id, now, |node| {
            let whole = node.ledger.take(booking);
            booking.started = true;
            if whole {
                node.ledger.add(booking);
            }
            whole
        });
        whole.unwrap_or(false)
    }

    /// The job is gone from there. False when its booking is not there.
    pub fn release(&mut self, id: ReplicaId, booking: &Booking, now: Tick) -> bool {
        self.change(id, now, |node| node.ledger.take(booking)).unwrap_or(false)
    }

    /// The replica's health, to change it; `None` when it is unknown or no
    /// longer in the policy.
    pub fn with_vitals<T>(
        &mut self,
        id: ReplicaId,
        now: Tick,
        act: impl FnOnce(&mut Vitals, &Health) -> T,
    ) -> Option<T> {
        self.node(id).filter(|node| node.present)?;
        let rules = self.rules;
        self.change(id, now, |node| act(&mut node.vitals, &rules))
    }

    /// The replica's own view arrived.
    pub fn report(&mut self, id: ReplicaId, report: Report, now: Tick) {
        let buffer = self.node(id).and_then(|node| self.pools.get(node.pool.index())).map_or(0, |p| p.buffer);
        self.change(id, now, |node| {
            node.learned.learn(&report, node.ledger.seqs, buffer);
            node.report = Some((now, report));
        });
    }

    /// The next replica for which something is due, if any is.
    pub fn due(&mut self, now: Tick) -> Option<ReplicaId> {
        let &(at, id) = self.wakes.first()?;
        (at <= now).then_some(id)
    }

    /// When something is due next.
    #[must_use]
    pub fn next_wake(&self) -> Option<Tick> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// One row per replica.
    pub fn views(&self, now: Tick) -> impl Iterator<Item = ReplicaView> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(move |(index, node)| {
            let node = node.as_ref()?;
            Some(ReplicaView {
                replica: ReplicaId::from(index),
                state: self.state(node, now),
                running: node.ledger.seqs,
                limit: self.limit(node, now),
                prefill_tokens: node.ledger.prefill,
                kv_tokens: node.ledger.kv,
                report_age: node.report.map(|(at, _)| now.since(at)),
            })
        })
    }

    /// The ledgers of all known replicas.
    pub fn ledgers(&self) -> impl Iterator<Item = (ReplicaId, Ledger)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(index, node)| Some((ReplicaId::from(index), node.as_ref()?.ledger)))
    }

    /// Whether each replica that waits for a moment has a timer for it, and no
    /// other has one.
    #[must_use]
    pub fn timers_agree(&self, now: Tick) -> bool {
        let nodes = self.nodes.iter().enumerate();
        let wanted: BTreeSet<(Tick, ReplicaId)> = nodes
            .filter_map(|(index, node)| {
                let node = node.as_ref().filter(|node| node.present)?;
                Some((node.vitals.next_wake(now, &self.rules)?, ReplicaId::from(index)))
            })
            .collect();
        wanted == self.wakes
    }

    /// Nodes of search trees that were looked at.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        self.pools.iter().map(|pool| pool.free.visits.get()).sum()
    }

    fn node(&self, id: ReplicaId) -> Option<&Node> {
        self.nodes.get(id.index())?.as_ref()
    }

    fn pools<'a>(&'a self, pools: &'a [PoolId]) -> impl Iterator<Item = &'a PoolState> {
        pools.iter().filter_map(|pool| self.pools.get(pool.index()))
    }

    fn state(&self, node: &Node, now: Tick) -> ReplicaState {
        if node.present { node.vitals.state(now, &self.rules) } else { ReplicaState::Removed }
    }

    fn limit(&self, node: &Node, now: Tick) -> u32 {
        let buffer = self.pools.get(node.pool.index()).map_or(0, |pool| pool.buffer);
        let reported = node.report.and_then(|(_, report)| report.slots);
        let full = full_seqs(node.configured_seqs, reported, node.learned, buffer);
        ramped(full, node.vitals.eighths(now, &self.rules))
    }

    /// What the replica can take; an empty one takes any one job, however
    /// large, since no other could do better.
    fn free(&self, node: &Node, now: Tick) -> Option<Size> {
        let state = self.state(node, now);
        if !matches!(state, ReplicaState::Serving | ReplicaState::SlowStart) {
            return None;
        }
        if node.ledger.jobs == 0 {
            return Some(Size::MAX);
        }
        let whole = self.whole(node, now);
        let seqs = whole.seqs.saturating_sub(node.ledger.seqs);
        let kv = if whole.kv == u64::MAX { u64::MAX } else { whole.kv.saturating_sub(node.ledger.kv) };
        (seqs > 0).then_some(Size { seqs, kv })
    }

    /// Its limits; no bound on KV tokens where nothing is known of them.
    fn whole(&self, node: &Node, now: Tick) -> Size {
        let reported = node.report.and_then(|(_, report)| report.kv_tokens);
        Size { seqs: self.limit(node, now), kv: node.configured_kv.or(reported).unwrap_or(u64::MAX) }
    }

    fn change<T>(&mut self, id: ReplicaId, now: Tick, act: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let result = act(self.nodes.get_mut(id.index())?.as_mut()?);
        self.refresh(id, now);
        Some(result)
    }

    /// Brings everything that is derived from a replica up to date.
    fn refresh(&mut self, id: ReplicaId, now: Tick) {
        let Some(node) = self.node(id) else { return };
        let up = matches!(self.state(node, now), ReplicaState::Serving | ReplicaState::SlowStart);
        let free = self.free(node, now).filter(|_| !node.held);
        let wake = node.vitals.next_wake(now, &self.rules).filter(|_| node.present);
        let key = RouteKey { work: node.ledger.work(), last_chosen: node.last_chosen, replica: id };
        let gone = !node.present && node.ledger.jobs == 0;

        let Some(node) = &mut self.nodes[id.index()] else { return };
        if let Some(pool) = self.pools.get_mut(node.pool.index()) {
            let entry = free.map(|free| Entry { key, size: free.complement(), value: id });
            node.slot = pool.free.put(node.slot, entry);
            pool.up = pool.up + u32::from(up) - u32::from(node.up);
        }
        node.up = up;
        if node.wake != wake {
            if let Some(before) = node.wake {
                self.wakes.remove(&(before, id));
            }
            self.wakes.extend(wake.map(|at| (at, id)));
            node.wake = wake;
        }
        if gone {
            self.nodes[id.index()] = None;
        }
    }
}

impl Node {
    fn new(pool: PoolId) -> Self {
        Self {
            pool,
            present: true,
            configured_seqs: None,
            configured_kv: None,
            ledger: Ledger::default(),
            vitals: Vitals::default(),
            learned: LearnedSeqs::default(),
            report: None,
            held: false,
            last_chosen: 0,
            slot: None,
            wake: None,
            up: false,
        }
    }
}
