//! To which of the pools that may serve it a job goes now.
//!
//! The cheapest that keeps its objective; else, as its rules say, the one with
//! the soonest first token or none for now. Work does not swing between pools:
//! it comes back to a more wanted one only when that keeps the objective with
//! something to spare, and leaves one for another of its rank only when that
//! is clearly cheaper.

use crate::core::model::time::Tick;
use crate::core::placement::rules::LatePolicy;

/// The part of the objective within which a pool must promise the first token
/// to win work back.
const RETURN: f64 = 0.8;
/// The part of the price of the pool in use below which another of its rank is
/// clearly cheaper.
const CHEAPER: f64 = 0.9;

/// What a tier of pools can do for a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierOffer {
    /// Its place among the job's tiers.
    pub tier: usize,
    /// See [`PoolTier::rank`](crate::core::placement::rules::PoolTier::rank).
    pub rank: usize,
    /// What its work costs there, to compare; infinite where unknown.
    pub cost: f64,
    /// Nanoseconds from now to the first token there; absent while it can take
    /// no such job.
    pub ttft: Option<u64>,
}

/// What the job needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTerms {
    /// Nanoseconds until its objective has passed.
    pub left: u64,
    /// It has time to wait for the tier that it wants most.
    pub patient: bool,
    /// What it does where none keeps the objective.
    pub otherwise: LatePolicy,
    /// The tier that the last job like it went to.
    pub last: Option<usize>,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementDecision {
    /// It goes to this tier.
    Start(usize, PlacementReason),
    /// It goes where its first token comes soonest.
    Soonest,
    /// It waits for the tier that it wants most.
    Wait,
}

/// Whether a job that waits for the pools that it wants most looks at no others
/// just now, and when that changes. It does from half of its objective on,
/// where they keep the rest of it: once it is late, none can.
#[must_use]
pub fn bound(arrived: Tick, goal: Tick, now: Tick) -> (bool, Option<Tick>) {
    let half = goal.before(goal.since(arrived) / 2);
    match now {
        _ if now < half => (true, Some(half)),
        _ if now < goal => (false, Some(goal)),
        _ => (true, None),
    }
}

/// Why a job went to its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlacementReason {
    /// All pools that may serve it are as good as each other, or there is one.
    Only,
    /// The same, and its replica has the start of its prompt in its cache.
    Prefix,
    /// The same, and its session was sent to its replica before.
    Session,
    /// It is the one wanted most, and keeps the objective.
    Preferred,
    /// Those wanted more cannot take it now, or not in time.
    Spilled,
    /// One wanted more could take it, but not by enough to change.
    Kept,
    /// No pool keeps the objective, and its first token comes soonest there.
    Fastest,
    /// No pool keeps the objective, and it waited for this one.
    Waited,
    /// Its replica was held for it, so that it did not starve behind others.
    Held,
}

impl PlacementReason {
    /// A short stable name for logs.
    #[must_use]
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
    /// Whether its first token comes within so many nanoseconds.
    fn within(&self, nanos: f64) -> bool {
        self.ttft.is_some_and(|ttft| ttft as f64 <= nanos)
    }

    /// The one wanted more comes first.
    #[must_use]
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank).then(self.cost.total_cmp(&other.cost)).then(self.tier.cmp(&other.tier))
    }

    /// Whether it is enough better than the tier in use to change to it.
    fn beats(&self, used: &Self, left: f64) -> bool {
        let cheaper = self.rank < used.rank || (self.rank == used.rank && self.cost < used.cost * CHEAPER);
        cheaper && self.within(left * RETURN)
    }
}

/// Chooses among the offers of a job's tiers. Depends on nothing else.
#[must_use]
pub fn choose(offers: &[TierOffer], terms: &JobTerms) -> PlacementDecision {
    let left = terms.left as f64;
    let Some(wanted) = offers.iter().min_by(|one, two| one.order(two)) else {
        return PlacementDecision::Wait;
    };
    if terms.patient && wanted.ttft.is_none() {
        return PlacementDecision::Wait;
    }
    let used = offers.iter().find(|offer| Some(offer.tier) == terms.last).filter(|used| used.within(left));
    let better = |offer: &&TierOffer| match used {
        Some(used) => offer.tier == used.tier || offer.beats(used, left),
        None => offer.within(left),
    };
    match offers.iter().filter(better).min_by(|one, two| one.order(two)) {
        Some(chosen) if chosen.tier == wanted.tier => {
            PlacementDecision::Start(chosen.tier, PlacementReason::Preferred)
        }
        Some(chosen) if wanted.within(left) => PlacementDecision::Start(chosen.tier, PlacementReason::Kept),
        Some(chosen) => PlacementDecision::Start(chosen.tier, PlacementReason::Spilled),
        None if terms.otherwise == LatePolicy::Fastest => PlacementDecision::Soonest,
        None if wanted.ttft.is_some() => PlacementDecision::Start(wanted.tier, PlacementReason::Waited),
        None => PlacementDecision::Wait,
    }
}
