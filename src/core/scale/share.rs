//! Which pools serve what the lines ask for: the one wanted most as far as it
//! goes, then the next.

use crate::core::ids::PoolId;

use super::want::Asked;
use super::{PoolView, Reason};

/// What one line asks for, and of whom.
#[derive(Debug, Clone, PartialEq)]
pub struct LineView {
    /// Its pools, the one wanted most first.
    pub order: Vec<PoolId>,
    /// What it asks for.
    pub asked: Asked,
    /// Jobs that wait in it.
    pub waiting: u64,
}

/// What a pool is to do.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Part {
    /// Replicas, as a number between whole ones.
    pub replicas: f64,
    /// What most of them are for.
    pub reason: Reason,
    /// Those that most of them are for.
    largest: f64,
    /// It is to do something, and what its replicas can do is not known.
    pub unknown: bool,
    /// Replicas that would have met what came and could not wait.
    pub hopeless: f64,
}

/// What each of the pools is to do, in their order. Lines with the least choice
/// go first. What is more than all of a line's pools may have goes to the last
/// of them that is not short.
#[must_use]
pub fn share(lines: &[LineView], pools: &[PoolView]) -> Vec<Part> {
    let mut parts = vec![Part::default(); pools.len()];
    let place = |id: PoolId| pools.iter().position(|pool| pool.pool == id);
    let mut sorted: Vec<&LineView> = lines.iter().filter(|line| line.asked.work > 0.0).collect();
    sorted.sort_by_key(|line| line.order.len());
    for line in sorted {
        let places: Vec<usize> = line.order.iter().filter_map(|id| place(*id)).collect();
        let known = places.iter().find_map(|at| pools[*at].cost);
        let Some(known) = known else {
            let first = places.iter().find(|at| !pools[**at].short).or_else(|| places.first());
            first.into_iter().for_each(|at| parts[*at].unknown = true);
            continue;
        };
        let cost = |at: usize| pools[at].cost.unwrap_or(known);
        let mut rest = line.asked.work;
        for at in &places {
            let most = most(&pools[*at]);
            let room = (most - parts[*at].replicas).max(0.0);
            let wanted = rest * cost(*at);
            let given = wanted.min(room);
            parts[*at].add(given, line.asked.reason);
            rest = ((wanted - given) / cost(*at)).max(0.0);
        }
        if let Some(first) = places.first() {
            parts[*first].hopeless += line.asked.hopeless * cost(*first);
        }
        // Pools that are short go on wanting what others do for them meanwhile.
        for at in places.iter().filter(|at| pools[**at].short) {
            let missing = line.asked.work * cost(*at) - parts[*at].replicas;
            parts[*at].add(missing, line.asked.reason);
        }
        let last = places.iter().rev().find(|at| !pools[**at].short);
        if let Some(at) = last.filter(|_| rest > 0.0) {
            parts[*at].add(rest * cost(*at), line.asked.reason);
        }
    }
    parts
}

fn most(pool: &PoolView) -> f64 {
    let most = if pool.short { Some(pool.ready) } else { pool.max };
    most.map_or(f64::INFINITY, f64::from)
}

impl Part {
    fn add(&mut self, replicas: f64, reason: Reason) {
        if replicas <= 0.0 {
            return;
        }
        if replicas > self.largest {
            (self.largest, self.reason) = (replicas, reason);
        }
        self.replicas += replicas;
    }
}
