//! Least request: the engine with the fewest requests in flight.

use crate::world::arrival::Arrival;
use crate::world::baseline::at_once::{EnginePick, least};
use crate::world::baseline::flights::InFlightRequests;
use crate::world::router::ReplicaIndex;

/// Fewest requests in flight by this router's own count; ties go round.
#[derive(Debug, Default)]
pub struct LeastRequest {
    turn: usize,
}

impl EnginePick for LeastRequest {
    fn pick(&mut self, _arrival: &Arrival, flights: &InFlightRequests) -> ReplicaIndex {
        let chosen = least(flights, self.turn, |replica| flights.engines[replica].in_flight);
        self.turn = chosen + 1;
        chosen
    }
}
