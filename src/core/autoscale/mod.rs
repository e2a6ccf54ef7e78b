//! Autoscaling: the total number of replicas that each pool needs. It follows from the demand and
//! from the work that one replica can do, so that replicas which are starting are never counted
//! twice.
//!
//! [`replica_demand`] makes one number of what the classes of a pool set ask for, [`share`]
//! spreads it over the pools of the pool set, and [`desired`] keeps what comes of it
//! from falling too soon. Of several gateways one decides by the sum of what
//! they see ([`demand_report`], [`peers`]).

pub mod class_demand;
pub mod demand;
pub mod demand_report;
pub mod desired;
pub mod peers;
pub mod pool_start;
pub mod replica_demand;
pub mod share;

use std::time::Duration;

use crate::core::model::ids::PoolId;

/// How long a start is taken to be of which nothing is known.
pub const DEFAULT_START: Duration = Duration::from_secs(120);
/// The shortest slow window.
const MIN_WINDOW: Duration = Duration::from_secs(60);
/// The shortest time for which the most that was needed is kept.
const MIN_HOLD: Duration = Duration::from_secs(300);

/// The slow window where a start takes so long.
#[must_use]
pub fn window(start: Duration) -> Duration {
    start.max(MIN_WINDOW)
}

/// How long the most that was needed is kept where a start takes so long.
#[must_use]
pub fn hold(start: Duration) -> Duration {
    (start * 2).max(MIN_HOLD)
}

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ScaleReason {
    /// Nothing is asked for.
    #[default]
    Idle,
    /// Jobs wait, and nothing is in service.
    Start,
    /// Jobs wait that can be served in time by a start that comes later.
    Later,
    /// What is asked for all the time.
    Sustained,
    /// What waits can be served in time by replicas that start now.
    Burst,
    /// Patient work has to be done by its deadline.
    Deadline,
    /// Jobs were refused, or waited past their objective, for longer than a start
    /// takes, although all replicas that there are serve them.
    Unmet,
    /// The operator's least, or what bursts that come again and again have shown.
    Floor,
    /// It was needed a while ago.
    Hold,
    /// Demand has not been watched for long enough to take away what is there.
    HoldRestart,
    /// The operator's most.
    Clamp,
}

impl ScaleReason {
    /// A short stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Start => "start",
            Self::Later => "later",
            Self::Sustained => "sustained",
            Self::Burst => "burst",
            Self::Deadline => "deadline",
            Self::Unmet => "unmet",
            Self::Floor => "floor",
            Self::Hold => "hold",
            Self::HoldRestart => "hold_restart",
            Self::Clamp => "clamp",
        }
    }

    /// The reason of such a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [
            Self::Idle,
            Self::Start,
            Self::Later,
            Self::Sustained,
            Self::Burst,
            Self::Deadline,
            Self::Unmet,
            Self::Floor,
            Self::Hold,
            Self::HoldRestart,
            Self::Clamp,
        ];
        all.into_iter().find(|reason| reason.name() == name)
    }
}

/// One pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingPool {
    /// Which.
    pub pool: PoolId,
    /// Seconds of one of its replicas for a unit of work; `None` = not measured.
    pub cost: Option<f64>,
    /// How long a start takes.
    pub start: Duration,
    /// Replicas in service.
    pub ready: u32,
    /// The most that there may be.
    pub max: Option<u32>,
    /// It has not got what it needs, and does not seem to.
    pub short: bool,
}
