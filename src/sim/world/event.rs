//! Events of the world in time order, and the messages between routers and engines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::{EngineEvent, RequestId};
use crate::world::router::{JobIndex, ReplicaIndex};
use penstock_core::model::time::Tick;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WorldEvent {
    Arrival(JobIndex),
    Exchange(ExchangeStep),
    StepEnd(ReplicaIndex),
    FaultBegins(ReplicaIndex),
    FaultEnds(ReplicaIndex),
    Scrape(ReplicaIndex),
    ItlDue,
    Beat(ScaleTimer),
    Wake(usize),
}

/// Timer of an autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScaleTimer {
    /// KEDA polls.
    Poll,
    /// The HPA syncs.
    Sync,
    /// Knative's autoscaler takes a sample.
    Sample,
    /// The gateway recomputes its own number, as its scaler keeps it up to
    /// date.
    Recompute,
    /// The start of a replica is over; the number is that of its order.
    Ready(ReplicaIndex, u64),
}

/// Events that are still to come. Events of the same moment come in the order in which they were
/// scheduled.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Reverse<ScheduledEvent>>,
    scheduled: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduledEvent {
    at: Tick,
    /// Number of events scheduled before it, and 1.
    number: u64,
    event: WorldEvent,
}

impl EventQueue {
    pub(super) fn push(&mut self, at: Tick, event: WorldEvent) {
        self.scheduled += 1;
        self.heap.push(Reverse(ScheduledEvent { at, number: self.scheduled, event }));
    }

    pub(super) fn pop(&mut self) -> Option<(Tick, WorldEvent)> {
        self.heap.pop().map(|Reverse(next)| (next.at, next.event))
    }

    pub(super) fn peek(&self) -> Option<(Tick, WorldEvent)> {
        self.heap.peek().map(|Reverse(next)| (next.at, next.event))
    }
}

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
