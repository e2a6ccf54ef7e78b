//! Random choice: an engine drawn at random.

use crate::rng::Rng;
use crate::world::arrival::Arrival;
use crate::world::baseline::at_once::EnginePick;
use crate::world::baseline::flights::InFlightRequests;
use crate::world::router::ReplicaIndex;

#[derive(Debug)]
pub struct Random(Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }
}

impl EnginePick for Random {
    fn pick(&mut self, _arrival: &Arrival, flights: &InFlightRequests) -> ReplicaIndex {
        draw_candidate(&mut self.0, flights)
    }
}

/// A candidate drawn at random.
pub(in crate::world::baseline) fn draw_candidate(rng: &mut Rng, flights: &InFlightRequests) -> ReplicaIndex {
    let open = flights.candidates();
    open.get(rng.below(open.len() as u64) as usize).copied().unwrap_or(0)
}
