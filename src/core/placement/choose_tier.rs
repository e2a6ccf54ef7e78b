//! Placement choice: the tier of pools that a job goes to now, among those that may serve it.
//!
//! The cheapest tier that keeps the job's objective wins. When no tier keeps the objective, the
//! job's rules decide between the tier with the soonest first token and a wait. Work does not swing
//! between pools: work returns to a preferred tier only when that tier keeps the objective with a
//! margin. Work leaves a tier for another of the same rank only when the other is clearly cheaper.

use crate::model::time::Tick;
use crate::placement::rules::LatePolicy;

/// The part of the remaining time within which a tier's first token must be predicted to win work
/// back.
const RETURN_MARGIN: f64 = 0.8;
/// A tier must cost less than this part of the tier in use, at the same rank, to count as clearly
/// cheaper.
const CHEAPER_FACTOR: f64 = 0.9;

/// What a tier of pools offers a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierOffer {
    /// Index of the tier among the job's tiers.
    pub tier: usize,
    /// See [`PoolTier::rank`](crate::placement::rules::PoolTier::rank).
    pub rank: usize,
    /// Cost of the job's work at this tier, for comparison only; infinite where unknown.
    pub cost: f64,
    /// Predicted nanoseconds from now to the first token; absent while the tier cannot take such a
    /// job.
    pub ttft: Option<u64>,
}

/// What a job asks of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTerms {
    /// Nanoseconds until the job's objective has passed.
    pub time_left: u64,
    /// Whether the job has time to wait for the tier that it wants most.
    pub can_wait: bool,
    /// What the job does when no tier keeps the objective.
    pub late_policy: LatePolicy,
    /// The tier that the last similar job went to.
    pub last: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementDecision {
    /// The job goes to this tier.
    Start(usize, PlacementReason),
    /// The job goes where its first token comes soonest.
    Soonest,
    /// The job waits for the tier that it wants most.
    Wait,
}

/// Whether a job that waits for its preferred pools ignores all others just now, and when that
/// changes. The job considers other pools from half of its objective until the objective has
/// passed: a late job cannot be in time anywhere.
pub fn preferred_only_until(arrived: Tick, goal: Tick, now: Tick) -> (bool, Option<Tick>) {
    let half = goal.earlier_by(goal.since(arrived) / 2);
    match now {
        _ if now < half => (true, Some(half)),
        _ if now < goal => (false, Some(goal)),
        _ => (true, None),
    }
}

/// Why a job went to its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlacementReason {
    /// Only one pool may serve the job, or all pools are equally good.
    Only,
    /// As `Only`, and the replica has the start of the prompt in its prefix cache.
    Prefix,
    /// As `Only`, and the job's session was sent to the replica before.
    Session,
    /// The pool is the one wanted most, and keeps the objective.
    Preferred,
    /// Preferred pools cannot take the job now, or not in time.
    Spilled,
    /// The pool is in use already. A preferred pool could take the job, but without the margin for
    /// a change.
    Kept,
    /// No pool keeps the objective, and the first token comes soonest at this pool.
    Fastest,
    /// No pool keeps the objective, and the job waited for this pool.
    Waited,
    /// The replica was held for the job, so that the job did not starve behind others.
    Held,
}

impl PlacementReason {
    /// A short stable name for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::Prefix => "prefix",
            Self::Session => "session",
            Self::Preferred => "wanted",
            Self::Spilled => "spilled",
            Self::Kept => "kept",
            Self::Fastest => "fastest",
            Self::Waited => "waited",
            Self::Held => "held",
        }
    }
}

impl TierOffer {
    /// Whether the first token is predicted within `nanos` nanoseconds.
    fn within(&self, nanos: f64) -> bool {
        self.ttft.is_some_and(|ttft| ttft as f64 <= nanos)
    }

    /// Order of preference: the tier that is wanted more comes first.
    pub fn cmp_preference(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank).then(self.cost.total_cmp(&other.cost)).then(self.tier.cmp(&other.tier))
    }

    /// Whether this tier is better than the tier in use by enough to change.
    fn beats(&self, used: &Self, left: f64) -> bool {
        let cheaper =
            self.rank < used.rank || (self.rank == used.rank && self.cost < used.cost * CHEAPER_FACTOR);
        cheaper && self.within(left * RETURN_MARGIN)
    }
}

/// Chooses the tier among the offers of a job's tiers. The result depends on the arguments only.
pub fn choose_tier(offers: &[TierOffer], terms: &JobTerms) -> PlacementDecision {
    let left = terms.time_left as f64;
    let Some(wanted) = offers.iter().min_by(|one, two| one.cmp_preference(two)) else {
        return PlacementDecision::Wait;
    };
    if terms.can_wait && wanted.ttft.is_none() {
        return PlacementDecision::Wait;
    }
    let used = offers.iter().find(|offer| Some(offer.tier) == terms.last).filter(|used| used.within(left));
    let better = |offer: &&TierOffer| match used {
        Some(used) => offer.tier == used.tier || offer.beats(used, left),
        None => offer.within(left),
    };
    match offers.iter().filter(better).min_by(|one, two| one.cmp_preference(two)) {
        Some(chosen) if chosen.tier == wanted.tier => {
            PlacementDecision::Start(chosen.tier, PlacementReason::Preferred)
        }
        Some(chosen) if wanted.within(left) => PlacementDecision::Start(chosen.tier, PlacementReason::Kept),
        Some(chosen) => PlacementDecision::Start(chosen.tier, PlacementReason::Spilled),
        None if terms.late_policy == LatePolicy::Fastest => PlacementDecision::Soonest,
        None if wanted.ttft.is_some() => PlacementDecision::Start(wanted.tier, PlacementReason::Waited),
        None => PlacementDecision::Wait,
    }
}
