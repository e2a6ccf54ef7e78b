//! Fleet trials: simulations of fleets under the demand, and the search for the
//! smallest fleet that meets the objectives.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::sim::world::gateway::SimGateway;
use crate::sim::world::record::{Objectives, Summary, WorldRecord, quantile};
use crate::sim::world::router::Router;
use crate::sim::world::run::run;
use crate::sim::world::setup::Setup;
use crate::studies::plan::demand::TraceStretch;
use crate::studies::plan::setting::{MOST_REPLICAS, Setting};

/// Fleets that a search tries at a time. Not the number of cores: the result
/// must not depend on the machine.
const AT_ONCE: usize = 2;

/// Result of one fleet.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TriedFleet {
    /// Replicas of all pools.
    pub replicas: usize,
    /// Cost of the replicas per hour.
    pub cost_per_hour: f64,
    /// Share of requests within their objectives, of those that an idle replica
    /// serves within them.
    pub kept: f64,
    /// Share of all requests within their objectives: the goodput.
    pub goodput: f64,
    /// Share of all requests that were refused.
    pub refused: f64,
    /// Median TTFT, in milliseconds.
    pub ttft_p50_ms: f64,
    /// 99th percentile of the TTFT, in milliseconds.
    pub ttft_p99_ms: f64,
    /// Median of the requests' mean ITL, in milliseconds.
    pub itl_p50_ms: f64,
    /// Share of the replicas' time without a step, while requests arrived.
    pub idle: f64,
    /// For each class the 99.9th percentile of the TTFT, in milliseconds.
    pub longest_ms: Vec<f64>,
    #[serde(skip)]
    pub counted: CountedRequests,
    /// Invariants of the scheduler that broke.
    #[serde(skip)]
    pub broken: u64,
}

/// Requests that count for the share of requests within their objectives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountedRequests {
    pub all: u64,
    /// Requests that met their objectives.
    pub kept: u64,
}

impl CountedRequests {
    /// Share of requests that met their objectives; 0 without requests.
    pub fn share(self) -> f64 {
        self.kept as f64 / self.all.max(1) as f64
    }
}

/// Runs simulations of fleets.
pub struct FleetTrials<'a> {
    pub setting: &'a Setting,
    /// Simulations that run at once.
    pub threads: usize,
    /// Receives a text after each simulation.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

impl std::fmt::Debug for FleetTrials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl<'a> FleetTrials<'a> {
    /// The same trials for another setting.
    pub fn with(&self, setting: &'a Setting) -> Self {
        Self { setting, threads: self.threads, progress: self.progress }
    }

    /// Runs one fleet; `fleet` has the number of replicas of each pool.
    pub fn run(&self, stretch: &TraceStretch, fleet: &[usize], what: &str) -> TriedFleet {
        let setup = Setup {
            replicas: self.setting.replicas(fleet),
            arrivals: stretch.arrivals.clone(),
            late: true,
            ..Setup::default()
        };
        let mut routers: Vec<Box<dyn Router>> = vec![Box::new(SimGateway::new(self.setting.policy(fleet)))];
        let outcome = run(&setup, &mut routers);
        let goals = self.setting.goals();
        let keepable = stretch.servable_when_idle(self.setting);
        let good: Vec<bool> = outcome
            .records
            .iter()
            .map(|record| goals.get(record.class as usize).is_some_and(|goal| record.met_objectives(goal)))
            .collect();
        let counted = CountedRequests {
            all: keepable.iter().filter(|can| **can).count() as u64,
            kept: keepable.iter().zip(&good).filter(|(can, good)| **can && **good).count() as u64,
        };
        let summary =
            Summary::of(outcome.records.iter(), &Objectives { ttft: Duration::MAX, itl: Duration::MAX });
        let replicas = setup.replicas.len();
        let span = stretch.span.as_secs_f64().max(1e-9) * replicas as f64;
        let busy: f64 = outcome.busy.iter().map(Duration::as_secs_f64).sum();
        (self.progress)(&format!("{what}: {replicas} replicas"));
        TriedFleet {
            replicas,
            cost_per_hour: self.setting.cost(fleet),
            kept: counted.share(),
            goodput: good.iter().filter(|good| **good).count() as f64 / good.len().max(1) as f64,
            refused: summary.refused,
            ttft_p50_ms: summary.ttft_p50,
            ttft_p99_ms: summary.ttft_p99,
            itl_p50_ms: median_itl_ms(&outcome.records),
            idle: (1.0 - busy / span).clamp(0.0, 1.0),
            longest_ms: (0..goals.len()).map(|class| ttft_p999_ms(&outcome.records, class)).collect(),
            counted,
            broken: outcome.broken_invariants,
        }
    }

    /// Runs all of the fleets, several at once.
    pub fn run_all(&self, stretch: &TraceStretch, fleets: &[Vec<usize>], what: &str) -> Vec<TriedFleet> {
        in_parallel(self.threads, fleets, |fleet| self.run(stretch, fleet, what))
    }

    /// Whether the run reached the required share of requests within their
    /// objectives.
    pub fn meets_target(&self, tried: &TriedFleet) -> bool {
        tried.kept >= self.setting.objective_share && tried.counted.all > 0
    }

    /// Finds the smallest fleet of one pool that meets the objectives; the
    /// search starts at `guess`. The result contains every run.
    pub fn smallest(&self, stretch: &TraceStretch, pool: usize, guess: usize, most: usize) -> FleetSearch {
        let mut tried = BTreeMap::new();
        let what = format!("smallest fleet of {}", self.setting.pools[pool].name);
        let smallest = smallest(guess, most.min(MOST_REPLICAS), AT_ONCE, |counts| {
            let fleets: Vec<Vec<usize>> =
                counts.iter().map(|count| self.single_pool_fleet(pool, *count)).collect();
            let results = self.run_all(stretch, &fleets, &what);
            let keeps = results.iter().map(|result| self.meets_target(result)).collect();
            tried.extend(counts.iter().copied().zip(results));
            keeps
        });
        FleetSearch { pool, smallest, tried }
    }

    /// A fleet of `count` replicas of one pool and none of the others.
    pub fn single_pool_fleet(&self, pool: usize, count: usize) -> Vec<usize> {
        let pools = 0..self.setting.pools.len();
        pools.map(|index| if index == pool { count } else { 0 }).collect()
    }
}

/// Result of a search.
#[derive(Debug, Clone, Default)]
pub struct FleetSearch {
    /// Index of the pool.
    pub pool: usize,
    /// Smallest number of replicas that meets the objectives; absent = no
    /// number does.
    pub smallest: Option<usize>,
    /// All runs of the search, by number of replicas.
    pub tried: BTreeMap<usize, TriedFleet>,
}

/// Median of the requests' mean ITL, in milliseconds.
fn median_itl_ms(records: &[WorldRecord]) -> f64 {
    let served = records.iter().filter(|record| record.served() && record.output > 1);
    let mut gaps: Vec<f64> = served.map(|record| record.itl.as_secs_f64() * 1e3).collect();
    quantile(&mut gaps, 0.5)
}

/// The 99.9th percentile of a class's TTFT, in milliseconds.
fn ttft_p999_ms(records: &[WorldRecord], class: usize) -> f64 {
    let of_class = records.iter().filter(|record| record.class as usize == class && record.served());
    let mut times: Vec<f64> =
        of_class.filter_map(|record| record.ttft).map(|ttft| ttft.as_secs_f64() * 1e3).collect();
    quantile(&mut times, 0.999)
}

/// Does the work for every item, several at once, and keeps the items' order.
pub(super) fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The smallest number from 1 to `most` for which `keeps` is true. Every larger
/// number must be true, too. Asks for up to `at_once` numbers at a time, the
/// first near `guess`.
pub fn smallest(
    guess: usize,
    most: usize,
    at_once: usize,
    mut keeps: impl FnMut(&[usize]) -> Vec<bool>,
) -> Option<usize> {
    let at_once = at_once.max(1);
    // Invariant: `low` does not suffice, `high` does.
    let (mut low, mut next) = (0, guess.clamp(1, most.max(1)));
    let mut high = loop {
        let mut counts = vec![next];
        while counts.len() < at_once && counts[counts.len() - 1] < most {
            let last = counts[counts.len() - 1];
            counts.push((last + last.div_ceil(2)).min(most));
        }
        let answers = keeps(&counts);
        let first = answers.iter().position(|keeps| *keeps);
        if let Some(first) = first {
            low = if first > 0 { counts[first - 1] } else { low };
            break counts[first];
        }
        low = counts[counts.len() - 1];
        if low >= most {
            return None;
        }
        next = (low + low.div_ceil(2)).min(most);
    };
    while high - low > 1 {
        let (gap, parts) = (high - low, at_once.min(high - low - 1));
        let mut counts: Vec<usize> = (1..=parts).map(|part| low + gap * part / (parts + 1)).collect();
        counts.retain(|count| *count > low);
        counts.dedup();
        let answers = keeps(&counts);
        match answers.iter().position(|keeps| *keeps) {
            Some(first) => {
                high = counts[first];
                low = if first > 0 { counts[first - 1] } else { low };
            }
            None => low = counts.last().copied().unwrap_or(low),
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_is_found_from_any_guess() {
        for wanted in [1, 2, 3, 7, 64, 100] {
            for guess in [0, 1, 2, 50, 100, 500] {
                for at_once in [1, 2, 3, 8] {
                    let mut asked = 0;
                    let found = smallest(guess, 100, at_once, |counts| {
                        asked += counts.len();
                        assert!(counts.len() <= at_once && counts.iter().all(|c| (1..=100).contains(c)));
                        counts.iter().map(|count| *count >= wanted).collect()
                    });
                    assert_eq!(found, Some(wanted), "{guess} {at_once}");
                    assert!(asked <= 40, "{asked}");
                }
            }
        }
        assert_eq!(smallest(3, 100, 2, |counts| vec![false; counts.len()]), None);
    }

    #[test]
    fn work_in_parallel_keeps_its_order() {
        let items: Vec<u64> = (0..50).collect();
        assert_eq!(in_parallel(4, &items, |item| item * 2), (0..50).map(|x| x * 2).collect::<Vec<_>>());
        assert!(in_parallel(4, &[] as &[u64], |item| *item).is_empty());
    }
}
