//! Bills: the cost of an attempt, wasted tokens, and idle time.

use std::time::Duration;

use crate::model::ids::{PoolId, ReplicaId};
use crate::model::reason::PreemptReason;
use crate::placement::rules::Price;

/// Bill of one attempt, from the dispatch until the job has left the replica. Issued exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptBill {
    pub pool: PoolId,
    pub replica: ReplicaId,
    /// The job's part of the replica's time, by [`crate::billing::meter`].
    pub time: Duration,
    /// Price of an hour of the replica; absent where the policy does not say.
    pub price: Option<Price>,
    /// Cost of `time` at `price`, in 1e-9 of the currency.
    pub money: u64,
    /// Wasted work; absent = none.
    pub waste: Option<Waste>,
}

/// Tokens that an engine prefilled or decoded in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waste {
    /// Number of tokens: as counted, else the part of the prompt that was not cached.
    pub tokens: u64,
    pub why: WasteCause,
}

/// Cause of wasted work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WasteCause {
    /// The client left before the end of the answer or no longer wanted it (it sent the request again,
    /// or its own deadline passed), or the gateway stopped.
    ClientGone,
    /// The engine failed before the client saw anything. The work was repeated or given up.
    Retry,
    /// The stream broke and continued at another replica, which prefilled the same tokens again.
    Interrupted,
    /// The stream broke and did not continue.
    Broken,
    /// The job was taken back from an engine that stalled, sleeps, or is to be vacated.
    TakenBack,
    /// A more urgent job took the slot.
    Preempted,
}

impl WasteCause {
    pub const ALL: [Self; 6] =
        [Self::ClientGone, Self::Retry, Self::Interrupted, Self::Broken, Self::TakenBack, Self::Preempted];

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::Retry => "retry",
            Self::Interrupted => "interrupted",
            Self::Broken => "broken",
            Self::TakenBack => "recall",
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
            | PreemptReason::Asleep => Self::TakenBack,
        }
    }
}

/// Idle time: the time in which replicas of a pool were present and ran nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTime {
    pub pool: PoolId,
    /// Idle time since the last report, over all replicas of the pool.
    pub time: Duration,
    /// Price of an hour of a replica now; absent where the policy does not say.
    pub price: Option<Price>,
    /// Cost of the idle time, in 1e-9 of the currency.
    pub money: u64,
}
