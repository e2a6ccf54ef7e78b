//! Bill of a job's stay at a replica.

use std::time::Duration;

use crate::core::model::event::PreemptReason;
use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::placement::rules::Price;

/// One stay of a job at a replica, from its dispatch until it is gone from
/// there. Told exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StayBill {
    /// The replica's pool.
    pub pool: PoolId,
    /// Where it was.
    pub replica: ReplicaId,
    /// Its part of the replica's time, by [`crate::core::billing::meter`].
    pub time: Duration,
    /// What an hour of the replica costs; absent where the policy does not say.
    pub price: Option<Price>,
    /// What its time costs by that, in 1e-9 of the currency.
    pub money: u64,
    /// What was done for nobody; absent = nothing.
    pub waste: Option<Waste>,
}

/// Tokens that an engine read or wrote for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waste {
    /// How many: as counted, else the part of the prompt that was not cached.
    pub tokens: u64,
    /// Why.
    pub why: WasteCause,
}

/// Why work was done for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WasteCause {
    /// The client left before the end.
    ClientGone,
    /// The engine failed before the client saw anything: done again, or given
    /// up.
    Retry,
    /// Its stream broke, and went on elsewhere: what was read is read again.
    Interrupted,
    /// Its stream broke, and stayed so.
    Broken,
    /// It was taken away from an engine that stalled, or that is to be left.
    Recall,
    /// A more urgent one took its place.
    Preempted,
}

impl WasteCause {
    /// Each reason.
    pub const ALL: [Self; 6] =
        [Self::ClientGone, Self::Retry, Self::Interrupted, Self::Broken, Self::Recall, Self::Preempted];

    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::Retry => "retry",
            Self::Interrupted => "interrupted",
            Self::Broken => "broken",
            Self::Recall => "recall",
            Self::Preempted => "preempted",
        }
    }
}

impl From<PreemptReason> for WasteCause {
    fn from(why: PreemptReason) -> Self {
        match why {
            PreemptReason::Preempted { .. } => Self::Preempted,
            PreemptReason::Stalled
            | PreemptReason::Drained
            | PreemptReason::SpotNotice
            | PreemptReason::Asleep => Self::Recall,
        }
    }
}

/// Time in which replicas of a pool were there and ran nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTime {
    /// Of which.
    pub pool: PoolId,
    /// Since it was told last, over all its replicas.
    pub time: Duration,
    /// What an hour of a replica costs now; absent where the policy does not
    /// say.
    pub price: Option<Price>,
    /// What the time costs, in 1e-9 of the currency.
    pub money: u64,
}
