//! Shortest scraped queue: the engine whose last scrape shows the fewest
//! requests.

use crate::rng::Rng;
use crate::world::arrival::Arrival;
use crate::world::baseline::at_once::EnginePick;
use crate::world::baseline::flights::InFlightRequests;
use crate::world::router::ReplicaIndex;

/// Join the shortest queue on scraped gauges: running and waiting requests.
/// Ties are drawn.
#[derive(Debug)]
pub struct ShortestScraped {
    /// Whether requests that this router sent since the scrape are added, and
    /// those that ended subtracted.
    own: bool,
    rng: Rng,
}

impl ShortestScraped {
    pub fn new(own: bool, seed: u64) -> Self {
        Self { own, rng: Rng::new(seed) }
    }
}

impl EnginePick for ShortestScraped {
    fn pick(&mut self, _arrival: &Arrival, flights: &InFlightRequests) -> ReplicaIndex {
        let load = |replica: usize| {
            let engine = &flights.engines[replica];
            let seen =
                engine.report.map_or(0, |report| report.running.unwrap_or(0) + report.waiting.unwrap_or(0));
            seen as i64 + if self.own { engine.since_report } else { 0 }
        };
        let open = flights.candidates();
        let best = open.iter().map(|replica| load(*replica)).min();
        let ties: Vec<usize> = open.iter().copied().filter(|replica| Some(load(*replica)) == best).collect();
        ties.get(self.rng.below(ties.len() as u64) as usize).copied().unwrap_or(0)
    }
}
