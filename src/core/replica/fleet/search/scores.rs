//! Scores of the replica that a job goes to and of a few others, for those who ask why it went there.

use std::iter;

use smallvec::SmallVec;

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::time::Tick;
use crate::core::queue::fit_tree::FitSize;
use crate::core::replica::ledger::RoutingDemand;
use crate::core::replica::scores::{MAX_OTHERS, OtherReplica, ReplicaScores, Score, WhyNot};
use crate::core::replica::speed::ttft_model;

use crate::core::replica::fleet::Fleet;
use crate::core::replica::fleet::search::requirements::ReplicaRequirements;

/// Replicas with the job's prompt, adapter or session that are rated.
const MAX_WARM: usize = 8;
/// Replicas with room that are rated in the chosen replica's pool, and in each other pool.
const MAX_NEAR: (usize, usize) = (MAX_OTHERS + 1, 2);
/// Pools that are looked at.
const MAX_POOLS: usize = 4;

/// A replica that was rated, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct RatedReplica {
    id: ReplicaId,
    pool: PoolId,
    cost: u64,
    ttft: u64,
    has_room: bool,
}

impl Fleet {
    /// Scores of `chosen` and of a few other replicas of the pools: those that the job could prefer,
    /// and those with room that a search meets first. Looks at no more of them, however large the
    /// pools. `held` = the room of `chosen` was kept for the job.
    #[must_use]
    pub fn scores(
        &self,
        pools: &[PoolId],
        required: &ReplicaRequirements<'_>,
        (chosen, held): (ReplicaId, bool),
        failed: &[ReplicaId],
        now: Tick,
    ) -> ReplicaScores {
        let best = self.cost(chosen, required).unwrap_or(u64::MAX);
        let mut scores = ReplicaScores::new(Score::from_nanos(best));
        let Some(own_pool) = self.pool_of(chosen) else { return scores };
        let mut add = |other: RatedReplica| {
            let why_not = match other {
                RatedReplica { id, .. } if failed.contains(&id) => WhyNot::Failed,
                RatedReplica { has_room: false, .. } => WhyNot::NoRoom,
                _ if held => WhyNot::Held,
                RatedReplica { cost, .. } if cost > best => WhyNot::Higher,
                RatedReplica { pool, .. } if pool != own_pool => WhyNot::Pool,
                _ => WhyNot::Equal,
            };
            scores.add(OtherReplica {
                replica: other.id,
                score: Score::from_nanos(other.cost),
                ttft: Score::from_nanos(other.ttft),
                cached_tokens: u32::try_from(required.cached_at(other.id)).unwrap_or(u32::MAX),
                why_not,
            });
        };
        let mut seen: SmallVec<[ReplicaId; MAX_WARM + 1]> = SmallVec::new();
        seen.push(chosen);
        for id in self.warm_candidates(pools, required).take(MAX_WARM) {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            let pool = self.pool_of(id).filter(|pool| pools.contains(pool) && self.is_up(id));
            if let Some((pool, cost)) = pool.zip(self.cost(id, required)) {
                let has_room = self.fits_or_returns(id, required, false, now);
                add(RatedReplica { id, pool, cost, ttft: self.ttft(id, required), has_room });
            }
        }
        let weight = ttft_model::weight(required.prompt, 0);
        let need = FitSize { prefill: weight, ..required.size }.complement();
        let others = pools.iter().copied().filter(|pool| *pool != own_pool);
        for pool in iter::once(own_pool).chain(others).take(MAX_POOLS) {
            let Some(state) = self.pools.get(pool.index()) else { continue };
            let ask = RoutingDemand {
                weight,
                output: required.output,
                wait_tolerance: 0,
                needs_load: state.adapters.contains(&required.model),
            };
            let most = if pool == own_pool { MAX_NEAR.0 } else { MAX_NEAR.1 };
            for tree in state.trees(required.background) {
                tree.near(ask, need, most, &mut |entry| {
                    let (id, model) = (entry.value, entry.key.ttft_model);
                    if seen.contains(&id) || !entry.key.can_load(ask) {
                        return;
                    }
                    let load = if ask.needs_load { entry.key.adapter_cost } else { 0 };
                    let cost = model.cost(weight, required.output).saturating_add(load);
                    let ttft = model.ttft(weight).saturating_add(load);
                    add(RatedReplica { id, pool, cost, ttft, has_room: true });
                });
            }
        }
        scores
    }
}
