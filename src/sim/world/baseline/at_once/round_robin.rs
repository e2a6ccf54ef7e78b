//! Weighted round robin: the engines in turn, by their weights.

use crate::world::arrival::Arrival;
use crate::world::baseline::at_once::EnginePick;
use crate::world::baseline::flights::InFlightRequests;
use crate::world::router::ReplicaIndex;

/// Smooth weighted round robin: engines take turns by their weights, spread
/// evenly. On each turn every engine gains its weight as credit. The first
/// engine with the most credit is chosen and pays the sum of all weights.
#[derive(Debug)]
pub struct RoundRobin {
    weights: Vec<f64>,
    credit: Vec<f64>,
}

impl RoundRobin {
    /// Engines with these weights. If the weights are equal, the first turn is
    /// that of engine `first`, modulo their count.
    pub fn new(weights: Vec<f64>, first: usize) -> Self {
        let count = weights.len().max(1);
        let place = |index: usize| (index + count - first % count) % count;
        // The start credit is far below any weight; it only orders engines of
        // equal credit.
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
        // `max_by` returns the last of equal maxima; the reversed order makes
        // it the first.
        let chosen = open.iter().rev().max_by(richer).copied().unwrap_or(0);
        self.credit[chosen] -= total;
        chosen
    }
}
