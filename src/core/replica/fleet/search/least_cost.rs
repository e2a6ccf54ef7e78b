//! The replica of least cost, and a busy one that is worth waiting for.
//!
//! The search trees rank replicas that have nothing of the job cached. Replicas with its prompt, its
//! adapter or its session are few, so each of them is rated by itself.

use crate::model::ids::{PoolId, ReplicaId};
use crate::queue::fit_tree::{FitSize, FitTree};
use crate::replica::fleet::Fleet;
use crate::replica::fleet::pool_state::PoolState;
use crate::replica::fleet::replica_parts::FreeCapacity;
use crate::replica::fleet::search::rank::{ReplicaCost, ReplicaRank, RoutingDemand, worth_waiting};
use crate::replica::fleet::search::requirements::{ReplicaMatch, ReplicaRequirements};
use crate::replica::speed::ttft_model;

/// Free capacity of a replica for a job, background or not; `None` if there is none of the kind.
type CapacityOf = fn(&FreeCapacity, &PoolState, bool) -> Option<FitSize>;

/// Search for the replica of one job.
#[derive(Clone, Copy)]
pub(super) struct ReplicaSearch<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) pools: &'a [PoolId],
    pub(super) required: &'a ReplicaRequirements<'a>,
    /// Replicas that the job must not get.
    pub(super) avoid: &'a dyn Fn(ReplicaId) -> bool,
}

impl ReplicaSearch<'_> {
    /// The replica for the job: the one of least cost among those with free capacity and those that
    /// have its prompt, adapter or session. Where none of these decides, the load decides among waits
    /// below the tolerance. `wait_for` names a busy replica that is worth waiting for.
    pub(super) fn select(self) -> Option<ReplicaMatch> {
        let free = self.best_free(0);
        let usual = free.into_iter().chain(self.best_warm(FreeCapacity::now)).min()?;
        let beyond_limit = self.best_with_prompt(usual.replica, |free, _, _| free.overcommit_now());
        let best = beyond_limit.map_or(usual, |cost| cost.min(usual));
        // Where no cache, adapter or session decides, the load does among waits that nobody notices.
        let is_cold = free.is_some_and(|free| free.replica == best.replica);
        let chosen = if is_cold { self.best_free(self.required.wait_tolerance) } else { None };
        let replica = chosen.unwrap_or(best).replica;
        let wait_for = if self.required.background { None } else { self.worth_waiting_for(best, usual) };
        Some(ReplicaMatch { replica, ttft: self.fleet.ttft(replica, self.required), wait_for })
    }

    /// The best replica with free capacity, by the search trees. `tolerance`: see
    /// [`ReplicaRequirements::wait_tolerance`].
    fn best_free(self, tolerance: u64) -> Option<ReplicaCost> {
        let pools = self.fleet.pools(self.pools);
        let best = pools.flat_map(|pool| {
            let trees = pool.trees(self.required.background);
            trees.filter_map(move |tree| self.first_of(pool, tree, tolerance))
        });
        best.min()
    }

    /// The first replica of a tree that has room for the whole prompt.
    fn first_of(
        self,
        pool: &PoolState,
        tree: &FitTree<ReplicaRank, ReplicaId>,
        wait_tolerance: u64,
    ) -> Option<ReplicaCost> {
        let weight = ttft_model::weight(self.required.prompt, 0);
        let need = FitSize { prefill: weight, ..self.required.size }.complement();
        let demand = RoutingDemand {
            weight,
            output: self.required.output,
            wait_tolerance,
            needs_load: pool.adapters.contains(&self.required.model),
        };
        let (cost, entry) = tree.first(demand, need, &|id| (self.avoid)(*id))?;
        entry.key.can_load(demand).then_some(cost)
    }

    /// The best replica that has a prefix of the prompt, the adapter or the session of the job.
    fn best_warm(self, capacity: CapacityOf) -> Option<ReplicaCost> {
        self.best_of(self.fleet.affinity_candidates(self.pools, self.required), capacity)
    }

    /// The best replica with so much of the prompt cached, compared with `elsewhere`, that it may run
    /// more sequences than its ITL limit allows.
    fn best_with_prompt(self, elsewhere: ReplicaId, capacity: CapacityOf) -> Option<ReplicaCost> {
        self.best_of(self.fleet.prefix_replicas(self.required, elsewhere), capacity)
    }

    fn best_of(self, replicas: impl Iterator<Item = ReplicaId>, capacity: CapacityOf) -> Option<ReplicaCost> {
        let allowed = replicas.filter(|id| !(self.avoid)(*id));
        allowed.filter_map(|id| self.fleet.cost_if_room(id, self.pools, self.required, capacity)).min()
    }

    /// A replica that is only busy with prefills, and promises the first token so much sooner than the
    /// best free one that the job waits for it.
    fn worth_waiting_for(self, best: ReplicaCost, usual: ReplicaCost) -> Option<ReplicaId> {
        let pools = self.fleet.pools(self.pools);
        let soon = pools
            .filter_map(|pool| self.first_of(pool, &pool.soon, 0))
            .chain(self.best_warm(|free, _, _| free.soon))
            .chain(self.best_with_prompt(usual.replica, |free, _, _| free.overcommit_soon()))
            .min()?;
        worth_waiting(best.nanos, soon.nanos).then_some(soon.replica)
    }
}
