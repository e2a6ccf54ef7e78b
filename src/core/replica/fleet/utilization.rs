//! Utilization: the used part of a pool's capacity, and the size of that capacity; what each replica
//! shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::autoscale::demand::utilization::DIMENSIONS;
use crate::autoscale::inputs::PoolLoad;
use crate::model::ids::{PoolId, ReplicaId};
use crate::model::snapshot::{ReplicaSnapshot, SAMPLE_PROMPT_TOKENS};
use crate::model::time::Tick;
use crate::queue::fairness::gateways::load::ReplicaSequences;
use crate::replica::ledger::Ledger;
use crate::replica::seq_limit::max_request_seqs;
use crate::replica::speed::pool_best::PoolTypical;
use crate::replica::speed::ttft_model;

use super::Fleet;
use crate::replica::fleet::replica_state::ReplicaState;

/// Replicas of a pool, and what one of them takes; `None` where nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolSize {
    /// Replicas in service.
    pub up: u32,
    /// Median limit of a replica's sequences.
    pub max_seqs: Option<u32>,
    /// Fewest KV tokens of a replica.
    pub kv_tokens: Option<u64>,
}

impl Fleet {
    /// Sequences of this gateway at each replica that has some. Looks at every replica.
    pub fn booked_seqs(&self) -> Vec<ReplicaSequences> {
        let nodes = self.replicas.iter().enumerate().filter_map(|(index, node)| {
            let seqs = node.as_ref()?.ledger.seqs;
            (seqs > 0).then_some(ReplicaSequences { replica: ReplicaId::from(index), seqs })
        });
        nodes.collect()
    }

    /// Sets the sequences that other gateways have at replicas; those that are not named have none. Returns the
    /// replicas where the number has changed. Looks at every replica.
    pub fn set_remote_seqs(&mut self, seqs: &BTreeMap<ReplicaId, u32>, now: Tick) -> Vec<ReplicaId> {
        let nodes = self.replicas.iter().enumerate().filter_map(|(index, node)| {
            let replica = ReplicaId::from(index);
            let seqs = seqs.get(&replica).copied().unwrap_or(0);
            (node.as_ref()?.reported.remote_seqs != seqs).then_some(ReplicaSequences { replica, seqs })
        });
        let changed: Vec<ReplicaSequences> = nodes.collect();
        for ReplicaSequences { replica, seqs } in &changed {
            self.change(*replica, now, |node| node.reported.remote_seqs = *seqs);
        }
        changed.into_iter().map(|row| row.replica).collect()
    }

    /// Sequences that the replicas in service of these pools can run, those of other gateways included. Looks
    /// at every replica of the pools.
    pub fn full_capacity(&self, pools: &[PoolId]) -> u64 {
        let members = self.pools(pools).flat_map(|pool| pool.members.iter().map(move |id| (pool, *id)));
        let nodes = members.filter(|(_, id)| self.is_up(*id));
        nodes.filter_map(|(pool, id)| Some(u64::from(self.node(id)?.full(pool)))).sum()
    }

    /// Loads of the pools given, in one pass over the replicas. When jobs wait for a pool
    /// (`contended`), a replica that can take nothing more counts as full in all ways. When other
    /// gateways count their own part (`shared`), only this gateway's part of each replica counts.
    pub fn pool_loads(
        &self,
        pools: impl Iterator<Item = PoolId>,
        contended: impl Fn(PoolId) -> bool,
        shared: bool,
    ) -> BTreeMap<PoolId, PoolLoad> {
        let load = |pool| {
            let ready = u32::try_from(self.count_up(&[pool])).unwrap_or(u32::MAX);
            (pool, (contended(pool), PoolLoad { ready, ..PoolLoad::default() }))
        };
        let mut loads: BTreeMap<PoolId, (bool, PoolLoad)> = pools.map(load).collect();
        for node in self.replicas.iter().flatten().filter(|node| node.ledger.jobs > 0) {
            let Some((contended, load)) = loads.get_mut(&node.pool) else { continue };
            // A replica that has left its pool may still run jobs.
            load.running += u64::from(node.ledger.jobs);
            let Some(state) = self.pools.get(node.pool.index()).filter(|_| node.config.present) else {
                continue;
            };
            load.active += 1;
            let full = *contended && node.indexed.free_capacity.urgent.is_none();
            let parts = match (full, shared) {
                (true, false) => [1.0; DIMENSIONS],
                (true, true) => [node.own_share(); DIMENSIONS],
                (false, _) => node.used(state, shared),
            };
            load.used.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part.min(1.0));
        }
        loads.into_iter().map(|(pool, (_, load))| (pool, load)).collect()
    }

    /// Usual prefill rate and ITL of the pool.
    pub fn typical(&self, pool: PoolId) -> PoolTypical {
        self.pools.get(pool.index()).map_or_else(PoolTypical::default, |pool| pool.bests.typical())
    }

    /// Size of the pool.
    pub fn pool_size(&self, pool: PoolId) -> PoolSize {
        let Some(state) = self.pools.get(pool.index()) else { return PoolSize::default() };
        let nodes = || state.members.iter().filter_map(|id| self.node(*id));
        let mut seqs: Vec<u32> = nodes().map(|node| node.full(state)).collect();
        seqs.sort_unstable();
        let kv = nodes().map(ReplicaState::kv).filter(|kv| *kv < u64::MAX).min();
        PoolSize { up: state.counts.up, max_seqs: seqs.get(seqs.len() / 2).copied(), kv_tokens: kv }
    }

    /// Whether the replica is to be scraped now: its learned number of slots is used up, and the
    /// engine has not shown how many it has. Asks at most once for each report.
    pub fn wants_report(&mut self, id: ReplicaId, now: Tick) -> bool {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return false };
        let buffer = self.pools.get(node.pool.index()).map_or(0, |pool| pool.slots.buffer);
        let learned = node.config.seqs.is_none() && node.reported.slots().is_none();
        learned
            && node.limits.seqs.shown().is_none()
            && node.limits.seqs.is_used_up(&node.ledger, node.reported.remote_seqs, buffer)
            && node.reported.ask(now)
    }

    /// Learns from a finished answer of `output` tokens, when `expected` tokens are expected of its
    /// like, how much of the expected output running answers hold in the KV cache. The derived state
    /// is updated with the next change of a replica.
    pub fn learn_output(&mut self, id: ReplicaId, output: u64, expected: u64) {
        let pool = self.node(id).map(|node| node.pool.index());
        if let Some(pool) = pool.and_then(|index| self.pools.get_mut(index)) {
            pool.output_progress.learn(output, expected);
        }
    }

    /// Whether some replica of the pools runs this many sequences at once, when it has nothing else
    /// to do. Pools without a replica may get one that does.
    pub fn runs(&self, pools: &[PoolId], sequences: u32) -> bool {
        let mut most = self.most_of(pools);
        most.any(|most| sequences <= most)
    }

    /// Most sequences that a replica of the pools runs at once.
    pub fn most_sequences(&self, pools: &[PoolId]) -> u32 {
        self.most_of(pools).max().unwrap_or(1)
    }

    fn most_of<'a>(&'a self, pools: &'a [PoolId]) -> impl Iterator<Item = u32> + 'a {
        self.pools(pools).flat_map(|pool| {
            let none = pool.members.is_empty().then(|| max_request_seqs(None, None, pool.slots.buffer));
            let members = pool.members.iter().filter_map(|id| self.node(*id));
            members.map(|node| node.most(pool)).chain(none)
        })
    }

    /// Snapshots of all known replicas.
    pub fn snapshots(&self, now: Tick) -> impl Iterator<Item = ReplicaSnapshot> {
        let nodes = self.replicas.iter().enumerate();
        nodes.filter_map(move |(index, node)| {
            let node = node.as_ref()?;
            let pool = self.pools.get(node.pool.index())?;
            let sample = ttft_model::weight(SAMPLE_PROMPT_TOKENS, 0);
            Some(ReplicaSnapshot {
                replica: ReplicaId::from(index),
                state: node.state(now, &self.rules),
                running: node.ledger.seqs,
                limit: node.limit(pool, now, &self.rules),
                prefill_tokens: node.ledger.prefill.saturating_add(node.ledger.ahead),
                kv_tokens: node.ledger.kv,
                speed_factor: node.speed.factor,
                speed_known: node.speed.learned.is_known(),
                expected: Duration::from_nanos(node.ttft_model().ttft(sample)),
                report_age: node.reported.latest.map(|latest| now.since(latest.at)),
                bottleneck: node.bottleneck(pool, now, &self.rules),
                background_bottleneck: node.background_bottleneck(pool, now, &self.rules),
                slots: node.slot_counts(pool, now, &self.rules),
            })
        })
    }

    /// Ledgers of all known replicas.
    pub fn ledgers(&self) -> impl Iterator<Item = (ReplicaId, Ledger)> {
        let nodes = self.replicas.iter().enumerate();
        nodes.filter_map(|(index, node)| Some((ReplicaId::from(index), node.as_ref()?.ledger)))
    }

    /// Whether each replica that waits for a time has a timer for it, and no other replica has one.
    pub fn timers_are_consistent(&self, now: Tick) -> bool {
        let nodes = self.replicas.iter().enumerate();
        let wanted: BTreeSet<(Tick, ReplicaId)> = nodes
            .filter_map(|(index, node)| {
                let node = node.as_ref().filter(|node| node.config.present)?;
                Some((node.next_wake(now, &self.rules)?, ReplicaId::from(index)))
            })
            .collect();
        wanted == self.timers
    }

    /// Whether each replica's meter has the weight of its running jobs, and each pool's account has
    /// the pool's replicas. For tests of invariants.
    pub fn meters_are_consistent(&self, weight: impl Fn(ReplicaId) -> u64) -> bool {
        let nodes = || self.replicas.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)));
        let counts = |pool: PoolId| {
            let here = nodes().filter(|(_, node)| node.pool == pool);
            here.map(|(_, node)| node.indexed.accounted).fold((0, 0), |(present, busy), next| {
                (present + u32::from(next.present), busy + u32::from(next.busy))
            })
        };
        let agrees = |id: usize, node: &ReplicaState| {
            let busy = node.ledger.jobs > 0;
            node.meter.weight() == weight(ReplicaId::from(id))
                && node.indexed.accounted.busy == busy
                && node.indexed.accounted.present >= busy
        };
        nodes().all(|(id, node)| agrees(id, node))
            && self.accounts.counts().all(|(pool, counted)| counted == counts(pool))
    }
}
