//! Pool shares: the preferred pool serves a pool set up to its maximum, then the next pool.

use crate::model::ids::PoolId;

use super::{ScaleReason, ScalingPool};
use crate::autoscale::class_demand::PoolSetNeed;

/// Need of one pool set, and the pools that may meet it.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSetDemand {
    /// Pools of the pool set, the preferred one first.
    pub order: Vec<PoolId>,
    pub need: PoolSetNeed,
    /// Jobs that wait in the pool set.
    pub waiting: u64,
}

/// Share of a pool: its part of the needs of all pool sets.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PoolShare {
    /// Replicas, as a fractional number.
    pub replicas: f64,
    /// Reason of the largest part of `replicas`.
    pub reason: ScaleReason,
    /// Size of the largest part, in replicas.
    largest: f64,
    /// True when the pool has a share and the work of one of its replicas is not known.
    pub unknown: bool,
    /// Replicas that would have met the hopeless bursts.
    pub hopeless: f64,
    /// True when waiting work must not wait longer for a start.
    pub due: bool,
    /// True when urgent jobs have waited for long.
    pub strained: bool,
    /// True when a pool set's demand is unmet and this pool is the one to grow.
    pub unmet: bool,
}

/// Shares of the pools, in the order of `pools`. Pool sets with the fewest pools go first. Work
/// beyond the maximum of all pools of a pool set goes to the last of them that is not short.
pub fn share(pool_sets: &[PoolSetDemand], pools: &[ScalingPool]) -> Vec<PoolShare> {
    let mut parts = vec![PoolShare::default(); pools.len()];
    let place = |id: PoolId| pools.iter().position(|pool| pool.pool == id);
    for pool_set in pool_sets.iter().filter(|pool_set| pool_set.need.due) {
        pool_set.order.iter().filter_map(|id| place(*id)).for_each(|at| parts[at].due = true);
    }
    let mut sorted: Vec<&PoolSetDemand> =
        pool_sets.iter().filter(|pool_set| pool_set.need.work > 0.0).collect();
    sorted.sort_by_key(|pool_set| pool_set.order.len());
    for pool_set in sorted {
        let places: Vec<usize> = pool_set.order.iter().filter_map(|id| place(*id)).collect();
        places.iter().for_each(|at| parts[*at].strained |= pool_set.need.strained);
        let grows =
            |at: &&usize| !pools[**at].short && pools[**at].max.is_none_or(|max| pools[**at].ready < max);
        let grown = places.iter().find(grows).filter(|_| pool_set.need.unmet);
        grown.into_iter().for_each(|at| parts[*at].unmet = true);
        let known = places.iter().find_map(|at| pools[*at].cost);
        let Some(known) = known else {
            let first = places.iter().find(|at| !pools[**at].short).or_else(|| places.first());
            first.into_iter().for_each(|at| parts[*at].unknown = true);
            continue;
        };
        let cost = |at: usize| pools[at].cost.unwrap_or(known);
        let mut rest = pool_set.need.work;
        for at in &places {
            let most = max_replicas(&pools[*at]);
            let room = (most - parts[*at].replicas).max(0.0);
            let wanted = rest * cost(*at);
            let given = wanted.min(room);
            parts[*at].add(given, pool_set.need.reason);
            rest = ((wanted - given) / cost(*at)).max(0.0);
        }
        if let Some(first) = places.first() {
            parts[*first].hopeless += pool_set.need.hopeless * cost(*first);
        }
        // A short pool keeps asking for the work that other pools do for it meanwhile.
        for at in places.iter().filter(|at| pools[**at].short) {
            let missing = pool_set.need.work * cost(*at) - parts[*at].replicas;
            parts[*at].add(missing, pool_set.need.reason);
        }
        let last = places.iter().rev().find(|at| !pools[**at].short);
        if let Some(at) = last.filter(|_| rest > 0.0) {
            parts[*at].add(rest * cost(*at), pool_set.need.reason);
        }
    }
    parts
}

fn max_replicas(pool: &ScalingPool) -> f64 {
    let most = if pool.short { Some(pool.ready) } else { pool.max };
    most.map_or(f64::INFINITY, f64::from)
}

impl PoolShare {
    /// The same share without its replicas, where the waiting work is left for later.
    pub fn deferred(self) -> Self {
        Self { replicas: 0.0, unknown: false, ..self }
    }

    /// The share with at least so many replicas; `reason` where these are more.
    pub fn at_least(self, replicas: f64, reason: ScaleReason) -> Self {
        if replicas > self.replicas { Self { replicas, reason, ..self } } else { self }
    }

    fn add(&mut self, replicas: f64, reason: ScaleReason) {
        if replicas <= 0.0 {
            return;
        }
        if replicas > self.largest {
            (self.largest, self.reason) = (replicas, reason);
        }
        self.replicas += replicas;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const A: PoolId = PoolId::new(0);
    const B: PoolId = PoolId::new(1);

    fn pool(id: PoolId, cost: Option<f64>) -> ScalingPool {
        ScalingPool { pool: id, cost, start: Duration::from_secs(60), ready: 1, max: None, short: false }
    }

    fn pool_set(order: &[PoolId], work: f64) -> PoolSetDemand {
        let asked = PoolSetNeed {
            work,
            reason: ScaleReason::Sustained,
            hopeless: 0.0,
            due: false,
            strained: false,
            unmet: false,
        };
        PoolSetDemand { order: order.to_vec(), need: asked, waiting: 0 }
    }

    fn replicas(pool_sets: &[PoolSetDemand], pools: &[ScalingPool]) -> Vec<f64> {
        share(pool_sets, pools).iter().map(|part| part.replicas).collect()
    }

    #[test]
    fn the_pool_wanted_most_gets_all_that_it_may_have() {
        let (a, b) = (pool(A, Some(0.1)), pool(B, Some(0.05)));
        let pool_sets = [pool_set(&[A, B], 50.0)];
        assert_eq!(replicas(&pool_sets, &[a, b]), [5.0, 0.0]);
        let small = ScalingPool { max: Some(3), ..a };
        assert_eq!(replicas(&pool_sets, &[small, b]), [3.0, 1.0], "20 units at twice the speed");
        let both = [small, ScalingPool { max: Some(1), ..b }];
        assert_eq!(replicas(&[pool_set(&[A, B], 90.0)], &both), [3.0, 3.0], "more than there may be is told");
    }

    #[test]
    fn the_first_pool_that_may_grow_meets_what_is_unmet() {
        let mut one = pool_set(&[A, B], 5.0);
        one.need.unmet = true;
        let unmet = |pools: &[ScalingPool]| {
            share(&[one.clone()], pools).iter().map(|part| part.unmet).collect::<Vec<_>>()
        };
        let (a, b) = (pool(A, Some(0.1)), pool(B, Some(0.1)));
        assert_eq!(unmet(&[a, b]), [true, false]);
        assert_eq!(unmet(&[ScalingPool { max: Some(1), ..a }, b]), [false, true]);
        assert_eq!(
            unmet(&[ScalingPool { short: true, ..a }, ScalingPool { max: Some(1), ..b }]),
            [false, false]
        );
    }

    #[test]
    fn lines_without_a_choice_go_first() {
        let pools = [ScalingPool { max: Some(3), ..pool(A, Some(0.1)) }, pool(B, Some(0.1))];
        assert_eq!(replicas(&[pool_set(&[A, B], 20.0), pool_set(&[A], 20.0)], &pools), [3.0, 1.0]);
    }

    #[test]
    fn what_a_short_pool_lacks_is_made_up_for() {
        let spot = ScalingPool { ready: 2, short: true, ..pool(A, Some(0.1)) };
        let pool_sets = [pool_set(&[A, B], 50.0)];
        assert_eq!(replicas(&pool_sets, &[spot, pool(B, Some(0.1))]), [5.0, 3.0], "and it goes on asking");
    }

    #[test]
    fn what_was_never_measured_is_unknown_or_like_its_neighbour() {
        let pool_sets = [pool_set(&[A, B], 50.0)];
        let parts = share(&pool_sets, &[pool(A, None), pool(B, None)]);
        assert_eq!((parts[0].unknown, parts[1].unknown), (true, false));
        assert_eq!(replicas(&pool_sets, &[pool(A, None), pool(B, Some(0.1))]), [5.0, 0.0]);
        let short = ScalingPool { short: true, ready: 0, ..pool(A, None) };
        assert!(share(&pool_sets, &[short, pool(B, None)])[1].unknown);
    }
}
