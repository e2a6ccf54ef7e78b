//! Unattainable objectives: objectives that no pool can keep, judged by the best that each pool has
//! shown.

use std::time::Duration;

use crate::model::ids::{ClassId, ModelId, PoolId};
use crate::model::policy::Policy;
use crate::placement::rules::eligible;
use crate::replica::speed::pool_best::PoolBest;

/// Samples of the TTFT after which the best of them counts as the best that the pool can do.
pub const ENOUGH_FIRST_TOKENS: u64 = 100;
/// The same number for the ITL.
pub const ENOUGH_GAPS: u64 = 2_000;

/// An objective of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectiveKind {
    Ttft,
    Itl,
}

impl ObjectiveKind {
    pub const ALL: [Self; 2] = [Self::Ttft, Self::Itl];

    /// The objective's key in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Itl => "itl",
        }
    }

    /// The objective in words, for people.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Ttft => "first token",
            Self::Itl => "mean time between tokens",
        }
    }

    /// The best value of a pool, and its number of samples; `None` with too few samples.
    fn best_of(self, best: &PoolBest) -> Option<(Duration, u64)> {
        let (shown, samples, enough) = match self {
            Self::Ttft => (best.first_token, best.first_tokens, ENOUGH_FIRST_TOKENS),
            Self::Itl => (best.gap, best.gaps, ENOUGH_GAPS),
        };
        shown.filter(|_| samples >= enough).map(|shown| (shown, samples))
    }
}

/// An objective that none of the pools that may serve the model has ever kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnattainableObjective {
    /// The class that has the objective.
    pub class: ClassId,
    /// The model for which the objective is not kept.
    pub model: ModelId,
    pub objective: ObjectiveKind,
    pub target: Duration,
    /// The pool that came nearest to the target.
    pub pool: PoolId,
    /// The best value of that pool.
    pub best: Duration,
    /// Number of samples behind `best`.
    pub samples: u64,
}

/// Every objective that some tenant may ask for and that no pool can keep. An objective is left out
/// while any of its pools has too few samples.
pub fn unattainable(
    policy: &Policy,
    best: impl Fn(PoolId) -> Option<PoolBest>,
) -> Vec<UnattainableObjective> {
    let mut found = Vec::new();
    for (class, _, row) in policy.classes.iter().filter(|(_, _, row)| !row.scavenger) {
        for (model, _, served) in policy.models.iter() {
            let asked = policy.tenants.iter().any(|(_, _, tenant)| {
                tenant.classes.contains(&class)
                    && tenant.models.as_ref().is_none_or(|models| models.contains(&model))
            });
            if !asked {
                continue;
            }
            let pools = eligible(policy, served, &row.placement, 0);
            for (aim, promised) in
                [(ObjectiveKind::Ttft, row.ttft_objective), (ObjectiveKind::Itl, row.itl_objective)]
            {
                let shown = |pool: PoolId| {
                    let (shown, samples) = aim.best_of(&best(pool)?)?;
                    Some((shown, pool, samples))
                };
                let all: Option<Vec<_>> = pools.iter().map(|pool| shown(*pool)).collect();
                let nearest = all.unwrap_or_default().into_iter().min();
                let Some((shown, pool, samples)) = nearest.filter(|(shown, ..)| *shown > promised) else {
                    continue;
                };
                found.push(UnattainableObjective {
                    class,
                    model,
                    objective: aim,
                    target: promised,
                    pool,
                    best: shown,
                    samples,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::{Class, Model, Pool, Tenant};
    use crate::placement::rules::PlacementRules;
    use crate::placement::tests::{class, tenant};

    /// Pools `a` and `b` serve one model; class `fast` may use both, class `slow` only `b`.
    fn two_pools() -> Policy {
        let mut made = Policy::default();
        let pools = ["a", "b"].map(|name| made.pools.insert(name, Pool::default()));
        made.models.insert("m", Model { pools: pools.into(), max_model_len: None });
        let objectives = |ttft: u64, placement| Class {
            ttft_objective: Duration::from_millis(ttft),
            itl_objective: Duration::from_millis(20),
            ..class(placement)
        };
        let only_b = PlacementRules { pools: Some([pools[1]].into()), ..PlacementRules::default() };
        let fast = made.classes.insert("fast", objectives(200, PlacementRules::default()));
        let slow = made.classes.insert("slow", objectives(2_000, only_b));
        let classes = [fast, slow].into();
        made.tenants.insert("t", Tenant { classes, ..tenant(PlacementRules::default()) });
        made
    }

    fn best(first_token: u64, gap: u64) -> PoolBest {
        let ms = |millis| Some(Duration::from_millis(millis));
        PoolBest {
            first_token: ms(first_token),
            first_tokens: ENOUGH_FIRST_TOKENS,
            gap: ms(gap),
            gaps: ENOUGH_GAPS,
            ..PoolBest::default()
        }
    }

    /// `class objective pool best` of each objective that the two pools do not keep.
    fn found(a: Option<PoolBest>, b: Option<PoolBest>) -> Vec<String> {
        let policy = two_pools();
        let name = |pool: PoolId| policy.pools.name(pool).to_owned();
        let list = unattainable(&policy, |pool| if name(pool) == "a" { a } else { b });
        let pool_set = |row: &UnattainableObjective| {
            let class = policy.classes.name(row.class);
            format!("{class} {} {} {}", row.objective.name(), name(row.pool), row.best.as_millis())
        };
        list.iter().map(pool_set).collect()
    }

    #[test]
    fn a_promise_is_kept_where_one_pool_keeps_it() {
        assert_eq!(found(Some(best(150, 10)), Some(best(900, 15))), [""; 0]);
        assert_eq!(found(Some(best(300, 10)), Some(best(900, 15))), ["fast ttft a 300"]);
        assert_eq!(
            found(Some(best(300, 10)), Some(best(250, 30))),
            ["fast ttft b 250", "slow itl b 30"],
            "the class that may use only one is not helped by the other"
        );
    }

    #[test]
    fn without_enough_evidence_of_every_pool_nothing_is_said() {
        let few = PoolBest { first_tokens: ENOUGH_FIRST_TOKENS - 1, gaps: ENOUGH_GAPS - 1, ..best(900, 90) };
        assert_eq!(found(Some(best(900, 90)), Some(few)), [""; 0]);
        assert_eq!(found(Some(best(900, 90)), None), [""; 0]);
        assert_eq!(found(None, Some(best(900, 90))), ["slow itl b 90"]);
    }
}
