//! Immediate designs: routers that send a request on when it arrives.

pub mod least_request;
pub mod power_of_two;
pub mod random;
pub mod round_robin;
pub mod shortest_scraped;

use std::fmt::Debug;

use crate::world::arrival::Arrival;
use crate::world::baseline::flights::{FailureOutcome, InFlightRequests, UnsentRequest};
use crate::world::router::{Input, ReplicaIndex, Router, RouterCommand};
use penstock_core::model::time::Tick;

pub trait EnginePick: Send + Debug {
    /// Returns one of [`InFlightRequests::candidates`], of which there is at
    /// least one.
    fn pick(&mut self, arrival: &Arrival, flights: &InFlightRequests) -> ReplicaIndex;
}

/// A router that sends each request at once to the engine that its
/// [`EnginePick`] returns.
#[derive(Debug)]
pub struct AtOnce<P> {
    pick: P,
    flights: InFlightRequests,
}

impl<P: EnginePick> AtOnce<P> {
    /// A router with nothing in flight.
    pub fn new(replicas: usize, pick: P) -> Self {
        Self { pick, flights: InFlightRequests::new(replicas) }
    }

    fn send(&mut self, now: Tick, request: UnsentRequest, out: &mut Vec<RouterCommand>) {
        self.flights.refresh_candidates(now);
        let replica = self.pick.pick(&request.arrival, &self.flights);
        out.push(RouterCommand::Send { job: request.job, replica, priority: 0 });
        self.flights.record_send(request, replica);
    }
}

impl<P: EnginePick> Router for AtOnce<P> {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        match input {
            Input::Arrived { job, arrival } => self.send(now, UnsentRequest::new(job, arrival), out),
            Input::Failed { job, .. } => match self.flights.remove_failed(now, job) {
                FailureOutcome::Again(request) => self.send(now, request, out),
                FailureOutcome::AttemptsUsed => out.push(RouterCommand::Refuse { job, retry_after: None }),
                FailureOutcome::Cut => {}
            },
            other => self.flights.observe(&other),
        }
    }
}

/// The candidate with the least score. Ties go to the first candidate from
/// `turn` on, so that they go round.
pub(super) fn least<K: Ord>(
    flights: &InFlightRequests,
    turn: usize,
    score: impl Fn(ReplicaIndex) -> K,
) -> ReplicaIndex {
    let count = flights.engines.len().max(1);
    let turned = |replica: usize| (replica + count - turn % count) % count;
    let chosen =
        flights.candidates().iter().copied().min_by_key(|replica| (score(*replica), turned(*replica)));
    chosen.unwrap_or(0)
}
