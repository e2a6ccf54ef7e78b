//! Head wait: what a job whose turn it is waits for, and until when.
//!
//! A job that finds no replica in a decision waits for one of four things. An event that concerns
//! its pool group always leads to a new decision: a job ends, a prompt is prefilled, a replica
//! reports. Where time alone can change the answer, a timer does, too.
//!
//! Three waits come before this one. A job of a tenant at its ceiling has no head in the order. A job
//! whose pools have no replica yet waits for their start (`admit::pool_start`). A job that small
//! ones or other adapters shut out gets a replica of its own (`hold`).

use crate::model::ids::ReplicaId;
use crate::model::snapshot::Obstacle;
use crate::model::time::Tick;

/// Reason why a job takes no replica now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scheduler) enum WaitReason {
    /// No replica that it may go to has room for it. Only an event ends the wait.
    NoRoom,
    /// This replica prefills prompts now, and will be sooner than any free one. Only an event ends
    /// the wait: the end of a prefill there is one.
    SoonerReplica(ReplicaId),
    /// This replica has the job's session, and is not too late for it. The longer the job waits, the
    /// less later the replica may be: a timer ([`WakeReason::SessionWait`]) ends the wait.
    ///
    /// [`WakeReason::SessionWait`]: crate::scheduler::timers::WakeReason::SessionWait
    SessionReplica(ReplicaId),
    /// The job's rules let it wait for the pools that it wants most. From half of its TTFT objective
    /// until the objective has passed, it takes others: timers of its lane
    /// ([`WakeReason::HeadUpdate`]) mark both.
    ///
    /// [`WakeReason::HeadUpdate`]: crate::scheduler::timers::WakeReason::HeadUpdate
    PreferredPools,
}

impl WaitReason {
    /// The replica that the job waits for, if it is one.
    pub(in crate::scheduler) const fn replica(self) -> Option<ReplicaId> {
        match self {
            Self::SoonerReplica(replica) | Self::SessionReplica(replica) => Some(replica),
            Self::NoRoom | Self::PreferredPools => None,
        }
    }

    /// The reason as operators are told it.
    pub(in crate::scheduler) const fn obstacle(self) -> Obstacle {
        match self {
            Self::NoRoom => Obstacle::NoRoom,
            Self::SoonerReplica(_) | Self::SessionReplica(_) => Obstacle::Sooner,
            Self::PreferredPools => Obstacle::Rule,
        }
    }
}

/// Wait of a job for which free replicas are no choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scheduler) struct HeadWait {
    pub(in crate::scheduler) reason: WaitReason,
    /// When time alone leads to a new decision; `None` where only an event does.
    pub(in crate::scheduler) until: Option<Tick>,
}
