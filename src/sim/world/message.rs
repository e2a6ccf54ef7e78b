//! Messages between routers and engines.

use crate::sim::engine::{EngineEvent, RequestId};
use crate::sim::world::router::{JobIndex, ReplicaIndex};

/// Event of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExchangeStep {
    /// The attempt reaches its engine and is queued there.
    Entry { request: RequestId, replica: ReplicaIndex, priority: i64 },
    /// The engine learns that the attempt is cancelled.
    Cancelled { request: RequestId, replica: ReplicaIndex },
    /// The oldest reply of this engine that is on its way arrives.
    ReplyArrives(ReplicaIndex),
    /// A paused stream goes on.
    StreamResumes(RequestId),
    /// A client leaves.
    Leaves(JobIndex),
}

/// Reply of an engine about an attempt.
#[derive(Debug, Clone, Copy)]
pub(super) enum EngineReply {
    /// The engine computed something of the attempt.
    Event(EngineEvent),
    /// The engine takes no connection.
    Refused(RequestId),
    /// The request can never fit the engine's KV cache; the reply is a plain
    /// answer that says so.
    TooLarge(RequestId),
    /// The engine died.
    Broken(RequestId),
}

impl EngineReply {
    pub(super) const fn request(&self) -> RequestId {
        match self {
            Self::Event(event) => event.request,
            Self::Refused(request) | Self::TooLarge(request) | Self::Broken(request) => *request,
        }
    }
}
