//! Autoscaling: the total number of replicas that each pool needs. The total follows from the
//! demand and from the work that one replica can do, so replicas that are starting are never
//! counted twice.
//!
//! The [`observer`] measures demand from the scheduler's [`facts`] and evaluates it.
//! [`class_demand`] adds up what the classes of a pool set need. [`share`] spreads the sum over the
//! pools of the pool set. [`desired`] keeps a pool's number from falling too soon.
//! [`replica_demand`] holds the result as scalers read it. Of several gateways, one decides by the
//! sum of their demand reports ([`demand_report`], [`peers`]).

pub mod class_demand;
pub mod demand;
pub mod demand_report;
pub mod desired;
pub mod facts;
pub mod inputs;
pub mod observer;
pub mod peers;
pub mod pool_start;
pub mod replica_demand;
pub mod share;

use std::time::Duration;

use crate::model::ids::PoolId;

/// Start time of a pool of which no start is known.
pub const DEFAULT_START: Duration = Duration::from_secs(120);
/// Shortest slow window.
const MIN_WINDOW: Duration = Duration::from_secs(60);
/// Shortest time for which the largest need is kept.
const MIN_HOLD: Duration = Duration::from_secs(300);

/// Length of the slow window for a pool whose start takes this long.
pub fn window(start: Duration) -> Duration {
    start.max(MIN_WINDOW)
}

/// Time for which the largest need is kept, for a pool whose start takes this long: two starts, at
/// least five minutes.
pub fn hold(start: Duration) -> Duration {
    (start * 2).max(MIN_HOLD)
}

/// Reason of a number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ScaleReason {
    /// There is no demand.
    #[default]
    Idle,
    /// Jobs wait, and no replica is in service.
    Start,
    /// Jobs wait, and a later start can still serve them in time.
    Later,
    /// Sustained demand needs the replicas.
    Sustained,
    /// Replicas that start now can serve the waiting jobs in time.
    Burst,
    /// Patient work has to be done by its deadline.
    Deadline,
    /// The last two days needed the replicas at the time at which they will have started.
    Forecast,
    /// Jobs were refused, or waited past their objective, for longer than a start takes, although
    /// all replicas in service serve them.
    Unmet,
    /// The operator's minimum applies, or the floor that repeated bursts have raised.
    Floor,
    /// The number was needed a while ago and is held.
    Hold,
    /// Demand has not been watched for long enough since a restart to lower the number.
    HoldRestart,
    /// The operator's maximum applies.
    Clamp,
}

impl ScaleReason {
    /// Short stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Start => "start",
            Self::Later => "later",
            Self::Sustained => "sustained",
            Self::Burst => "burst",
            Self::Deadline => "deadline",
            Self::Forecast => "forecast",
            Self::Unmet => "unmet",
            Self::Floor => "floor",
            Self::Hold => "hold",
            Self::HoldRestart => "hold_restart",
            Self::Clamp => "clamp",
        }
    }

    /// Reason with this stable name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [
            Self::Idle,
            Self::Start,
            Self::Later,
            Self::Sustained,
            Self::Burst,
            Self::Deadline,
            Self::Forecast,
            Self::Unmet,
            Self::Floor,
            Self::Hold,
            Self::HoldRestart,
            Self::Clamp,
        ];
        all.into_iter().find(|reason| reason.name() == name)
    }
}

/// Pool, as the shares of pools see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingPool {
    pub pool: PoolId,
    /// Replica seconds for a unit of work; `None` = not measured.
    pub cost: Option<f64>,
    /// Time that a start takes.
    pub start: Duration,
    /// Replicas in service.
    pub ready: u32,
    /// Maximum number of replicas; `None` = no maximum.
    pub max: Option<u32>,
    /// True when replicas that the pool should have do not come, see
    /// [`desired::DesiredReplicas::update_shortage`].
    pub short: bool,
}
