//! Power of two choices: the less loaded of two engines drawn at random.

use crate::rng::Rng;
use crate::world::arrival::Arrival;
use crate::world::baseline::at_once::EnginePick;
use crate::world::baseline::at_once::random::draw_candidate;
use crate::world::baseline::flights::InFlightRequests;
use crate::world::router::ReplicaIndex;

/// Power of two choices on this router's own count of requests in flight.
#[derive(Debug)]
pub struct PowerOfTwo(Rng);

impl PowerOfTwo {
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }
}

impl EnginePick for PowerOfTwo {
    fn pick(&mut self, _arrival: &Arrival, flights: &InFlightRequests) -> ReplicaIndex {
        let (one, two) = (draw_candidate(&mut self.0, flights), draw_candidate(&mut self.0, flights));
        let load = |replica: usize| flights.engines[replica].in_flight;
        if load(two) < load(one) { two } else { one }
    }
}
