//! Holding designs: routers that keep requests back while every engine is at
//! its cap.

use std::collections::VecDeque;
use std::fmt::Debug;

use crate::world::arrival::Arrival;
use crate::world::baseline::at_once::least;
use crate::world::baseline::flights::{FailureOutcome, InFlightRequests, UnsentRequest};
use crate::world::router::{Input, ReplicaIndex, Router, RouterCommand};
use penstock_core::model::time::Tick;

/// Order of the waiting requests.
pub trait WaitOrder: Send + Debug {
    /// Adds a waiting request.
    fn push(&mut self, request: UnsentRequest);
    /// Removes the next request to send.
    fn pop(&mut self) -> Option<UnsentRequest>;
    /// Reports the end of a sent request, whose real output is known now.
    fn ended(&mut self, _arrival: &Arrival) {}
}

#[derive(Debug, Default)]
pub struct Fifo(VecDeque<UnsentRequest>);

impl WaitOrder for Fifo {
    fn push(&mut self, request: UnsentRequest) {
        self.0.push_back(request);
    }

    fn pop(&mut self) -> Option<UnsentRequest> {
        self.0.pop_front()
    }
}

/// Cap of one engine for one router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    /// Most requests in flight.
    pub requests: u64,
    /// Prompt tokens of requests without a token yet: from this number on no
    /// more requests are sent there.
    pub prefill: u64,
}

/// A router with a cap for each engine and one queue for all of them. The next
/// request of the queue goes to the engine with the fewest requests in flight.
#[derive(Debug)]
pub struct HeldRouter<L> {
    queue: L,
    /// Requests that failed at an engine; these go first.
    retries: VecDeque<UnsentRequest>,
    cap: Cap,
    flights: InFlightRequests,
    turn: usize,
}

impl<L: WaitOrder> HeldRouter<L> {
    /// A router with an empty queue.
    pub fn new(replicas: usize, cap: Cap, line: L) -> Self {
        Self { queue: line, retries: VecDeque::new(), cap, flights: InFlightRequests::new(replicas), turn: 0 }
    }

    fn pick_free(&mut self, now: Tick) -> Option<ReplicaIndex> {
        self.flights.refresh_candidates(now);
        let full = |replica: usize| {
            let engine = &self.flights.engines[replica];
            engine.in_flight >= self.cap.requests || engine.prefill >= self.cap.prefill
        };
        let load = |replica: usize| (full(replica), self.flights.engines[replica].in_flight);
        let best = least(&self.flights, self.turn, load);
        if full(best) {
            return None;
        }
        self.turn = best + 1;
        Some(best)
    }

    fn send_waiting(&mut self, now: Tick, out: &mut Vec<RouterCommand>) {
        while let Some(replica) = self.pick_free(now) {
            let Some(next) = self.retries.pop_front().or_else(|| self.queue.pop()) else { return };
            out.push(RouterCommand::Send { job: next.job, replica, priority: 0 });
            self.flights.record_send(next, replica);
        }
    }
}

impl<L: WaitOrder> Router for HeldRouter<L> {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        match input {
            Input::Arrived { job, arrival } => self.queue.push(UnsentRequest::new(job, arrival)),
            Input::Failed { job, .. } => match self.flights.remove_failed(now, job) {
                FailureOutcome::Again(request) => self.retries.push_back(request),
                FailureOutcome::AttemptsUsed => out.push(RouterCommand::Refuse { job, retry_after: None }),
                FailureOutcome::Cut => {}
            },
            Input::Finished { job, .. } => {
                if let Some(flight) = self.flights.remove(job) {
                    self.queue.ended(&flight.arrival);
                }
            }
            other => self.flights.observe(&other),
        }
        self.send_waiting(now, out);
    }
}
