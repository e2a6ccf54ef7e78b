//! Weighted round robin: the engines in turn, by their weights.

use crate::sim::world::arrival::Arrival;
use crate::sim::world::baseline::at_once::EnginePick;
use crate::sim::world::baseline::flights::InFlightRequests;
use crate::sim::world::router::ReplicaIndex;

/// Engines in turn by their weights, spread evenly (smooth weighted round
/// robin): each gains its weight, the first of the richest pays for all.
#[derive(Debug)]
pub struct RoundRobin {
    weights: Vec<f64>,
    credit: Vec<f64>,
}

impl RoundRobin {
    /// With these weights; the first turn is that of engine `first`, modulo
    /// their count, if the weights are equal.
    #[must_use]
    pub fn new(weights: Vec<f64>, first: usize) -> Self {
        let count = weights.len().max(1);
        let place = |index: usize| (index + count - first % count) % count;
        // Far below any weight: it only orders equals.
        let credit = (0..weights.len()).map(|index| place(index) as f64 * -1e-9).collect();
        Self { credit, weights }
    }
}

impl EnginePick for RoundRobin {
    fn pick(&mut self, _arrival: &Arrival, flights: &InFlightRequests) -> ReplicaIndex {
        let open = flights.candidates();
        let mut total = 0.0;
        for replica in open {
            self.credit[*replica] += self.weights[*replica];
            total += self.weights[*replica];
        }
        let richer = |one: &&usize, two: &&usize| self.credit[**one].total_cmp(&self.credit[**two]);
        // Of equals the last maximum would win: look from the back.
        let chosen = open.iter().rev().max_by(richer).copied().unwrap_or(0);
        self.credit[chosen] -= total;
        chosen
    }
}
