//! No-harm matrix in virtual time, the twin of `loadtest no-harm`. Each cell of
//! the [matrix] is a closed loop of patient clients. The clients send straight
//! to the engines (in turn, or to the engine with the fewest requests,
//! whichever is better), and then through the scheduler. The scheduler's policy
//! comes from a configuration that names only the engines' addresses.

use std::path::Path;
use std::time::Duration;

use crate::config::load;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::sim::engine::EngineOptions;
use crate::sim::engine::profile::StepTimeFactor;
use crate::sim::rng::Rng;
use crate::sim::world::arrival::Arrival;
use crate::sim::world::baseline::at_once::AtOnce;
use crate::sim::world::baseline::at_once::least_request::LeastRequest;
use crate::sim::world::baseline::at_once::round_robin::RoundRobin;
use crate::sim::world::gateway::SimGateway;
use crate::sim::world::replica::ReplicaSetup;
use crate::sim::world::router::Router;
use crate::sim::world::run::run;
use crate::sim::world::setup::Setup;
use crate::studies::no_harm::matrix::{CellClass, CellRequests, MatrixCell, MatrixFleet, RequestKind};

/// Requests per second: more than any fleet of the matrix answers.
const MOST_PER_SECOND: f64 = 400.0;
/// Time over which the clients send their first requests.
const BEGIN: Duration = Duration::from_secs(1);
/// Answers are up to this share shorter or longer than the cell says, so that
/// clients do not stay in step.
const SPREAD: f64 = 0.2;
/// Time between two scrapes of an engine, as in the gateway's defaults.
const SCRAPE: Duration = Duration::from_secs(2);

/// Conditions of a cell's measurement, and properties of its engines.
#[derive(Debug, Clone, PartialEq)]
pub struct CellConditions {
    /// Time under load before output tokens are counted.
    pub warmup: Duration,
    /// Time in which output tokens are counted.
    pub window: Duration,
    /// Round-trip time to an engine.
    pub rtt: Duration,
    /// Factors on constants of the engines' step time.
    pub step_time_factors: Vec<StepTimeFactor>,
    /// Whether engines have a prefix cache.
    pub prefix_cache: bool,
    /// Seed of the sizes.
    pub seed: u64,
}

impl Default for CellConditions {
    fn default() -> Self {
        Self {
            warmup: Duration::from_secs(15),
            window: Duration::from_secs(45),
            rtt: Duration::ZERO,
            step_time_factors: Vec::new(),
            prefix_cache: true,
            seed: 1,
        }
    }
}

/// Result of one cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CellRow {
    pub cell: MatrixCell,
    /// Output tokens per second straight at the engines.
    pub direct: f64,
    /// Output tokens per second through the scheduler.
    pub through: f64,
    /// Requests that the scheduler refused.
    pub refused: usize,
}

impl CellRow {
    /// Tokens per second through the scheduler, over straight at the engines.
    pub fn ratio(&self) -> f64 {
        self.through / self.direct.max(1e-9)
    }
}

/// Result of one side of a cell.
struct CellSide {
    tokens_per_second: f64,
    refused: usize,
}

/// Measures these requests at this fleet, in each of the classes.
///
/// # Errors
///
/// When the fleet cannot be made into a configuration, or an invariant of the scheduler broke.
pub fn measure(
    fleet: &'static MatrixFleet,
    kind: RequestKind,
    classes: &[&'static CellClass],
    conditions: &CellConditions,
) -> Result<Vec<CellRow>, String> {
    let policy = policy(fleet)?;
    let setup = setup(fleet, &fleet.requests(kind), conditions);
    let engines = setup.replicas.len();
    let in_turn = side(&setup, Box::new(AtOnce::new(engines, RoundRobin::new(vec![1.0; engines], 0))))?;
    let to_least = side(&setup, Box::new(AtOnce::new(engines, LeastRequest::default())))?;
    let direct = in_turn.tokens_per_second.max(to_least.tokens_per_second);
    let row = |&class: &&'static CellClass| {
        let mut setup = setup.clone();
        let id = policy.classes.id(class.name).ok_or("no such class")?;
        setup.arrivals.iter_mut().for_each(|arrival| arrival.class = id.index() as u32);
        let through = side(&setup, Box::new(SimGateway::new(policy.clone())))?;
        Ok(CellRow {
            cell: MatrixCell { fleet, kind, class },
            direct,
            through: through.tokens_per_second,
            refused: through.refused,
        })
    };
    classes.iter().map(row).collect()
}

fn side(setup: &Setup, router: Box<dyn Router>) -> Result<CellSide, String> {
    let outcome = run(setup, &mut [router]);
    if outcome.records.len() == setup.arrivals.len() {
        return Err("clients ran out of requests".to_owned());
    }
    if outcome.broken_invariants > 0 {
        return Err(format!("{} invariants broke", outcome.broken_invariants));
    }
    let window = (Tick::ZERO + setup.horizon.unwrap_or_default()).since(setup.counted_from);
    Ok(CellSide {
        tokens_per_second: outcome.tokens as f64 / window.as_secs_f64(),
        refused: outcome.records.iter().filter(|record| record.refused).count(),
    })
}

/// The policy of a configuration that names the fleet's engines and nothing
/// else.
fn policy(fleet: &MatrixFleet) -> Result<Policy, String> {
    let mut text = "version: 1\nauth: {mode: off}\npools:\n".to_owned();
    let mut port = 1;
    for group in fleet.groups {
        let urls = (0..group.count).map(|_| {
            port += 1;
            format!("http://127.0.0.1:{port}")
        });
        let urls = urls.collect::<Vec<_>>().join(", ");
        text += &format!("  {}: {{engine: vllm, models: [sim], replicas: [{urls}]}}\n", group.profile);
    }
    let loaded = load::load_str(&text, "no-harm", Path::new("."), None).into_result();
    loaded.map(|loaded| Policy::clone(&loaded.settings.policy)).map_err(|report| report.to_string())
}

fn setup(fleet: &MatrixFleet, requests: &CellRequests, conditions: &CellConditions) -> Setup {
    let options = EngineOptions { prefix_cache: conditions.prefix_cache, ..EngineOptions::default() };
    let mut replicas = Vec::new();
    for mut profile in fleet.profiles() {
        conditions.step_time_factors.iter().for_each(|factor| factor.apply(&mut profile));
        replicas.push(ReplicaSetup { one_way: conditions.rtt / 2, ..ReplicaSetup::new(profile, options) });
    }
    let end = conditions.warmup + conditions.window;
    Setup {
        replicas,
        arrivals: arrivals(requests, end, conditions.seed),
        scrape: Some(SCRAPE),
        late: true,
        horizon: Some(end),
        clients: Some(requests.clients as usize),
        counted_from: Tick::ZERO + conditions.warmup,
        ..Setup::default()
    }
}

/// Arrivals: more than the clients can send by `end`.
fn arrivals(requests: &CellRequests, end: Duration, seed: u64) -> Vec<Arrival> {
    let clients = u64::from(requests.clients);
    let count = clients * 2 + (end.as_secs_f64() * MOST_PER_SECOND) as u64;
    let mut rng = Rng::new(seed);
    let arrival = |number: u64| {
        let output = f64::from(requests.output) * (1.0 + SPREAD * (2.0 * rng.unit() - 1.0));
        let output = (output.round() as u32).max(1);
        let begin = BEGIN.mul_f64(number as f64 / clients as f64);
        let arrival = Arrival {
            at: Tick::ZERO + if number < clients { begin } else { Duration::ZERO },
            prompt: requests.prompt,
            output,
            max_output: output,
            n: requests.n,
            streams: rng.unit() >= requests.plain,
            ..Arrival::default()
        };
        match requests.shared {
            0 => arrival,
            shared => arrival.with_prompt(seed, shared, rng.bits()),
        }
    };
    (0..count).map(arrival).collect()
}

pub mod matrix;
#[cfg(test)]
mod tests;
