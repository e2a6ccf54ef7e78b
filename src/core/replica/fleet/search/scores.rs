//! Scores of the replica that a job goes to and of a few others, for those who ask why it went there.

use std::iter;

use smallvec::SmallVec;

use crate::model::ids::{PoolId, ReplicaId};
use crate::model::time::Tick;
use crate::queue::fit_tree::FitSize;
use crate::replica::fleet::search::rank::RoutingDemand;
use crate::replica::scores::{MAX_OTHERS, OtherReplica, ReplicaScores, Score, WhyNot};
use crate::replica::speed::ttft_model;

use crate::replica::fleet::Fleet;
use crate::replica::fleet::search::requirements::ReplicaRequirements;

/// Replicas with the job's prompt, adapter or session that are rated.
const MAX_WARM: usize = 8;
/// Replicas with room that are rated in each tree of the chosen replica's pool, and of each other pool.
const MAX_NEAR: (usize, usize) = (MAX_OTHERS + 1, 2);
/// Pools that are looked at.
const MAX_POOLS: usize = 4;

impl Fleet {
    /// Scores of `chosen` and of a few other replicas of the pools: those that the job could prefer,
    /// and those with room that a search meets first. Looks at no more of them, however large the
    /// pools. `held` = the room of `chosen` was kept for the job; `avoided` tells why the job avoids a
    /// replica.
    pub fn scores(
        &self,
        pools: &[PoolId],
        required: &ReplicaRequirements<'_>,
        chosen: ReplicaId,
        held: bool,
        avoided: &dyn Fn(ReplicaId) -> Option<WhyNot>,
        now: Tick,
    ) -> ReplicaScores {
        let best = self.cost(chosen, required).unwrap_or(u64::MAX);
        let mut scores = ReplicaScores::new(Score::from_nanos(best));
        let Some(own_pool) = self.pool_of(chosen) else { return scores };
        let mut add = |id: ReplicaId, pool: PoolId, has_room: bool| {
            let Some(cost) = self.cost(id, required) else { return };
            let why_not = avoided(id).unwrap_or_else(|| match cost {
                _ if !has_room && self.is_reserved(id) => WhyNot::Reserved,
                _ if !has_room => WhyNot::NoRoom,
                _ if held => WhyNot::Held,
                _ if cost > best => WhyNot::Higher,
                _ if pool != own_pool => WhyNot::Pool,
                _ => WhyNot::Equal,
            });
            scores.add(OtherReplica {
                replica: id,
                score: Score::from_nanos(cost),
                ttft: Score::from_nanos(self.ttft(id, required)),
                cached_tokens: u32::try_from(required.cached_at(id)).unwrap_or(u32::MAX),
                why_not,
            });
        };
        let mut seen: SmallVec<[ReplicaId; MAX_WARM + 1]> = SmallVec::new();
        seen.push(chosen);
        let session = required.session.map(|session| session.replica);
        for id in session.into_iter().chain(self.affinity_candidates(pools, required)).take(MAX_WARM) {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            if let Some(pool) = self.pool_of(id).filter(|pool| pools.contains(pool) && self.is_up(id)) {
                add(id, pool, self.fits_or_returns(id, required, false, now));
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
                    if !seen.contains(&entry.value) {
                        add(entry.value, pool, true);
                    }
                });
            }
        }
        scores
    }

    /// Whether the replica's room is kept for one job: one that waits for it, or the one that tries
    /// whether it has recovered.
    fn is_reserved(&self, id: ReplicaId) -> bool {
        self.node(id).is_some_and(|node| node.admission.held || node.health.is_on_trial())
    }
}
