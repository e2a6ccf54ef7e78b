//! Rank of replicas: the order in which the search tries them, soonest first token first.

use crate::model::ids::ReplicaId;
use crate::queue::fit_tree::FitRank;
use crate::replica::speed::ttft_model::TtftModel;

/// A job waits for a replica that is only busy with prefills when its cost there is below this part of
/// the cost at the best free replica.
pub(super) const WORTH_WAITING: f64 = 0.7;

/// Whether a job waits for a busy replica where it costs `soon` rather than take a free one where it
/// costs `free`.
pub(super) fn worth_waiting(free: u64, soon: u64) -> bool {
    (soon as f64) < free as f64 * WORTH_WAITING
}

/// Rank of a replica with free capacity: the lowest cost first. Among equals the least recently
/// chosen replica comes first, so that idle replicas take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::replica::fleet) struct ReplicaRank {
    /// What it promises.
    pub(in crate::replica::fleet) ttft_model: TtftModel,
    /// Cost of an adapter that is not loaded there, in nanoseconds; [`u64::MAX`] where none can be
    /// loaded now.
    pub(in crate::replica::fleet) adapter_cost: u64,
    /// Number of the dispatch that last chose the replica, 0 for none.
    pub(in crate::replica::fleet) last_chosen: u64,
    /// Makes the order total.
    pub(in crate::replica::fleet) replica: ReplicaId,
}

/// Cost of a job at a replica. The lowest goes first; the fields are compared in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::replica::fleet) struct ReplicaCost {
    /// Predicted time to the first token, with the cost of the other work there, in nanoseconds.
    pub(in crate::replica::fleet) nanos: u64,
    /// See [`ReplicaRank::last_chosen`].
    pub(in crate::replica::fleet) last_chosen: u64,
    pub(in crate::replica::fleet) replica: ReplicaId,
}

/// Properties of a job that the order of replicas depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::replica::fleet) struct RoutingDemand {
    /// Weight of the prompt.
    pub(in crate::replica::fleet) weight: u64,
    /// Expected output tokens of each sequence.
    pub(in crate::replica::fleet) output: u64,
    /// Nanoseconds up to which all waits are equal.
    pub(in crate::replica::fleet) wait_tolerance: u64,
    /// Whether an adapter has to be loaded.
    pub(in crate::replica::fleet) needs_load: bool,
}

impl ReplicaRank {
    /// Whether the replica can take the job, as far as adapters go.
    pub(in crate::replica::fleet) const fn can_load(&self, ask: RoutingDemand) -> bool {
        !ask.needs_load || self.adapter_cost < u64::MAX
    }
}

impl FitRank for ReplicaRank {
    type Query = RoutingDemand;
    type Cost = ReplicaCost;

    fn cost(&self, ask: RoutingDemand) -> Self::Cost {
        let miss = if ask.needs_load { self.adapter_cost } else { 0 };
        let cost = self.ttft_model.tolerant(ask.wait_tolerance).cost(ask.weight, ask.output);
        ReplicaCost { nanos: cost.saturating_add(miss), last_chosen: self.last_chosen, replica: self.replica }
    }

    fn floor(self, other: Self) -> Self {
        let (one, two) = (self.ttft_model, other.ttft_model);
        let ttft_model = TtftModel {
            wait: one.wait.min(two.wait),
            per_token: one.per_token.min(two.per_token),
            per_step: one.per_step.min(two.per_step),
        };
        Self {
            ttft_model,
            adapter_cost: self.adapter_cost.min(other.adapter_cost),
            last_chosen: self.last_chosen.min(other.last_chosen),
            replica: self.replica.min(other.replica),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_replicas_take_turns_and_long_prompts_go_to_fast_ones() {
        let key = |wait, per_token, last_chosen, id| ReplicaRank {
            ttft_model: TtftModel { wait, per_token, per_step: 0 },
            adapter_cost: 100 * u64::from(id),
            last_chosen,
            replica: ReplicaId::new(id),
        };
        let ask = |weight| RoutingDemand { weight, output: 1, wait_tolerance: 0, needs_load: false };
        assert!(key(5, 1, 1, 0).cost(ask(9)) > key(4, 1, 9, 1).cost(ask(9)));
        assert!(key(0, 1, 3, 0).cost(ask(9)) > key(0, 1, 2, 1).cost(ask(9)));
        let loads = RoutingDemand { weight: 9, output: 1, wait_tolerance: 0, needs_load: true };
        assert!(key(5, 1, 1, 0).cost(loads) < key(4, 1, 9, 1).cost(loads), "there it can be loaded sooner");
        let (slow, fast) = (key(0, 3, 0, 0), key(10, 1, 0, 1));
        assert!(slow.cost(ask(2)) < fast.cost(ask(2)) && slow.cost(ask(9)) > fast.cost(ask(9)));
        let floor = slow.floor(fast);
        assert!(
            [ask(0), ask(5), ask(9), loads]
                .into_iter()
                .all(|ask| floor.cost(ask) <= slow.cost(ask).min(fast.cost(ask)))
        );
    }
}
