//! Scorers: a weighted sum of scores, as inference-aware gateways of the
//! Kubernetes world route. Weights: queue 2, KV cache 2, prefix 3.

use crate::rng::Rng;
use crate::world::arrival::{Arrival, PREFIX_BLOCK};
use crate::world::baseline::at_once::EnginePick;
use crate::world::baseline::flights::InFlightRequests;
use crate::world::baseline::prefixes::SeenPrefixes;
use crate::world::router::ReplicaIndex;

const QUEUE: f64 = 2.0;
const KV: f64 = 2.0;
const PREFIX: f64 = 3.0;
/// Prompt tokens that the guess of an engine's cache remembers.
const REMEMBERED: usize = 2_000_000;

/// Highest sum of scores on scraped gauges; ties are drawn.
#[derive(Debug)]
pub struct Scorers {
    /// Whether the queue score uses this router's own requests in flight, not
    /// the scraped number of waiting requests.
    own: bool,
    caches: Vec<SeenPrefixes>,
    rng: Rng,
}

impl Scorers {
    pub fn new(replicas: usize, own: bool, seed: u64) -> Self {
        let cache = || SeenPrefixes::new(REMEMBERED / PREFIX_BLOCK as usize);
        Self { own, caches: (0..replicas).map(|_| cache()).collect(), rng: Rng::new(seed) }
    }

    fn queue(&self, replica: ReplicaIndex, flights: &InFlightRequests) -> u64 {
        let engine = &flights.engines[replica];
        let waiting = engine.report.and_then(|report| report.waiting);
        if self.own { engine.in_flight } else { waiting.unwrap_or(0) }
    }
}

impl EnginePick for Scorers {
    fn pick(&mut self, arrival: &Arrival, flights: &InFlightRequests) -> ReplicaIndex {
        let open = flights.candidates();
        let queues = || open.iter().map(|replica| self.queue(*replica, flights));
        let (shortest, longest) = (queues().min().unwrap_or(0), queues().max().unwrap_or(0));
        let score = |replica: usize| {
            let spread = (longest - shortest).max(1) as f64;
            let queue = 1.0 - (self.queue(replica, flights) - shortest) as f64 / spread;
            let usage = flights.engines[replica].report.and_then(|report| report.kv_usage).unwrap_or(0.0);
            let matched = self.caches[replica].matched(&arrival.prefix) as f64;
            let prefix = matched / arrival.prefix.len().max(1) as f64;
            QUEUE * queue + KV * (1.0 - usage) + PREFIX * prefix
        };
        let scores: Vec<(usize, f64)> = open.iter().map(|replica| (*replica, score(*replica))).collect();
        let best = scores.iter().map(|(_, score)| *score).fold(f64::MIN, f64::max);
        let ties: Vec<usize> =
            scores.iter().filter(|(_, score)| best - score < 1e-9).map(|(replica, _)| *replica).collect();
        let chosen = ties.get(self.rng.below(ties.len() as u64) as usize).copied().unwrap_or(0);
        self.caches[chosen].note(&arrival.prefix);
        chosen
    }
}
