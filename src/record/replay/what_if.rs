//! What-if replay: the recorded requests at a simulated fleet, under the recorded policy and under
//! another one.
//!
//! The simulation under the recorded policy says how far the model is from what happened, and corrects
//! the engines (`PoolFit::correct`). Requests come when they came: a client that would have sent less,
//! or more, at other waits is not known. A request that was refused, or whose client left, gets the
//! answer length of another request of its tenant, class and model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::core::model::event::{Event, ReplicaReport};
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::job::JobSpec;
use crate::core::model::overrides::Override;
use crate::core::model::policy::{Policy, Replica};
use crate::core::model::time::Tick;
use crate::record::replay::fit::{PoolFit, PoolSamples, ServiceSums};
use crate::record::replay::history::{History, JobEnd, OutsideEvent, PastJob, PastOutage};
use crate::record::replay::policies::{PolicyNames, discovers, with_fleet};
use crate::record::replay::router::{ReplayGateway, SimOutage};
use crate::sim::engine::EngineOptions;
use crate::sim::engine::profile::StepProfile;
use crate::sim::world::arrival::{Arrival, PREFIX_BLOCK};
use crate::sim::world::gateway::SimGateway;
use crate::sim::world::replica::ReplicaSetup;
use crate::sim::world::router::{ReplicaIndex, Router};
use crate::sim::world::run::run;
use crate::sim::world::setup::Setup;

/// Simulations that correct the engines.
const CORRECTIONS: usize = 3;
/// Time between two scrapes of an engine that reported less than twice.
const USUAL_SCRAPE: Duration = Duration::from_secs(5);
/// Time after the last arrival at which a simulation ends in any case.
const TAIL: Duration = Duration::from_secs(3600);

/// The recorded requests under two policies, simulated.
#[derive(Debug)]
pub struct Prediction {
    /// Under the recorded policy.
    pub model: History,
    /// Under the other policy.
    pub other: History,
    /// Recorded tenant and class of the requests that the other policy does not know.
    pub unknown: Vec<(TenantId, ClassId)>,
    /// What the reader has to know.
    pub notes: Vec<String>,
}

/// Simulates the recorded requests under the recorded policy, and under `policy`. Tells `progress`
/// before each simulation.
pub fn predict(past: &History, policy: &Policy, progress: &dyn Fn(&str)) -> Prediction {
    let mut notes = Vec::new();
    let mut fits = fits(past, policy, &mut notes);
    let recorded = ReplayWorld::recorded(past);
    for _ in 0..CORRECTIONS {
        progress("the recorded configuration, to fit the engines");
        let simulated = recorded.simulate(past, &fits);
        correct(&mut fits, past, &simulated);
    }
    progress("the recorded configuration");
    let model = recorded.simulate(past, &fits);
    progress("the other configuration");
    let (other, unknown) = ReplayWorld::of_file(past, policy);
    let other = other.simulate(past, &fits);
    Prediction { model, other, unknown, notes }
}

/// Engines like those of each pool, by name.
type PoolFits = BTreeMap<String, PoolFit>;

fn fits(past: &History, policy: &Policy, notes: &mut Vec<String>) -> PoolFits {
    let answers_tell = |pool: PoolId| {
        past.jobs.iter().any(|job| {
            job.attempt.is_some_and(|attempt| attempt.pool == pool)
                && job.usage.tokens().is_some_and(|tokens| tokens.cached.is_some())
        })
    };
    let mut fits = PoolFits::new();
    for (id, samples) in &past.samples {
        let name = past.policy.pools.name(*id);
        fits.extend(PoolFit::new(samples, answers_tell(*id)).map(|fit| (name.to_owned(), fit)));
    }
    let usual = fits.values().find(|fit| fit.is_measured).copied();
    let usual = usual.or_else(|| PoolFit::new(&PoolSamples::default(), false));
    let pools = past.policy.pools.iter().chain(policy.pools.iter());
    for name in pools.map(|(_, name, _)| name).collect::<BTreeSet<_>>() {
        if !fits.get(name).is_some_and(|fit| fit.is_measured) {
            notes.push(format!("Pool {name}: the record shows no speed of it; another one's is assumed."));
            fits.extend(usual.map(|fit| (name.to_owned(), fit)));
        }
    }
    fits
}

/// Corrects the engines of each pool by the requests that one attempt served in both histories.
fn correct(fits: &mut PoolFits, past: &History, simulated: &History) {
    let (recorded, simulated) = (service(past), service(simulated));
    for (name, fit) in fits {
        if let (Some(recorded), Some(simulated)) = (recorded.get(name), simulated.get(name)) {
            fit.correct(recorded, simulated);
        }
    }
}

fn service(history: &History) -> BTreeMap<String, ServiceSums> {
    let mut pools = BTreeMap::<String, ServiceSums>::new();
    for job in history.jobs.iter().filter(|job| job.end == JobEnd::Done && job.attempts == 1) {
        let (Some(attempt), Some(ended)) = (job.attempt, job.ended) else { continue };
        let sums = pools.entry(history.policy.pools.name(attempt.pool).to_owned()).or_default();
        match job.first {
            Some(first) => {
                sums.streams += 1.0;
                sums.first += first.since(attempt.at).as_secs_f64();
                sums.rest += ended.since(first).as_secs_f64();
            }
            None => {
                sums.plain += 1.0;
                sums.whole += ended.since(attempt.at).as_secs_f64();
            }
        }
    }
    pools
}

/// What a simulation needs beside the engines.
struct ReplayWorld {
    /// Policy at the begin.
    policy: Policy,
    /// Every replica that there is at some time, by id: its row and the name of its pool.
    fleet: Policy,
    /// The job of each arrival.
    specs: Vec<JobSpec>,
    arrivals: Vec<Arrival>,
    outside: Vec<OutsideEvent>,
    down: Vec<SimOutage>,
}

impl ReplayWorld {
    /// The recorded requests under the recorded policies.
    fn recorded(past: &History) -> Self {
        let begin = begin_of(past);
        let outputs = OutputSamples::new(past);
        let world = |job: &PastJob| since_begin(job, begin);
        let arrivals = past.jobs.iter().enumerate();
        let down = past.down.iter().map(|outage| sim_outage(outage.replica.index(), outage, begin));
        Self {
            policy: Policy::clone(&past.first_policy),
            fleet: Policy::clone(&past.policy),
            specs: past.jobs.iter().map(world).collect(),
            arrivals: arrivals.map(|(place, job)| arrival(job, place, begin, &outputs)).collect(),
            outside: past.outside.iter().cloned().filter_map(|outside| moved(outside, begin)).collect(),
            down: down.collect(),
        }
        .with_losses()
    }

    /// The recorded requests under the policy of a file, with the tenants and classes of those that
    /// the policy does not know.
    fn of_file(past: &History, file: &Policy) -> (Self, Vec<(TenantId, ClassId)>) {
        let begin = begin_of(past);
        let outputs = OutputSamples::new(past);
        let (mut specs, mut arrivals, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        let names = PolicyNames { recorded: &past.policy, other: file };
        for (place, job) in past.jobs.iter().enumerate() {
            match names.job(&job.spec) {
                Some(spec) => {
                    specs.push(since_begin(&PastJob { spec, ..job.clone() }, begin));
                    arrivals.push(arrival(job, place, begin, &outputs));
                }
                None => unknown.push((job.spec.tenant, job.spec.class)),
            }
        }
        let first = with_fleet(file, &past.first_policy, None);
        let mut fleet = first.clone();
        let mut outside = Vec::new();
        for OutsideEvent { at, event } in &past.outside {
            let event = match event {
                Event::PolicyChanged(recorded) if discovers(file) => {
                    fleet = with_fleet(file, recorded, Some(&fleet));
                    Some(Event::PolicyChanged(Arc::new(fleet.clone())))
                }
                Event::PolicyChanged(_) => None,
                other => names.outside(other),
            };
            outside.extend(event.and_then(|event| moved(OutsideEvent { at: *at, event }, begin)));
        }
        let down = past.down.iter().filter_map(|outage| {
            let id = fleet.replicas.id(past.policy.replicas.name(outage.replica))?;
            Some(sim_outage(id.index(), outage, begin))
        });
        let down = down.collect();
        (Self { policy: first, fleet, specs, arrivals, outside, down }.with_losses(), unknown)
    }

    /// Adds the losses of replicas to the events from outside.
    fn with_losses(mut self) -> Self {
        let lost = |outage: &SimOutage| OutsideEvent {
            at: outage.from,
            event: Event::ReplicaLost { replica: outage.replica.into(), answers: false },
        };
        self.outside.extend(self.down.iter().map(lost));
        self.outside.sort_by_key(|outside| outside.at);
        self
    }

    fn simulate(&self, past: &History, fits: &PoolFits) -> History {
        let history = Arc::new(Mutex::new(History::new(Arc::new(self.policy.clone()))));
        let (mut replicas, mut told) = (Vec::new(), Vec::new());
        for index in 0..self.fleet.replicas.capacity() {
            let (setup, says) = self.engine(index.into(), fits);
            replicas.push(setup);
            told.push(says);
        }
        let period = past.samples.values().find_map(PoolSamples::report_period);
        let last = self.arrivals.last().map_or(Tick::ZERO, |arrival| arrival.at);
        let setup = Setup {
            replicas,
            arrivals: self.arrivals.clone(),
            scrape: Some(period.unwrap_or(USUAL_SCRAPE)),
            late: true,
            horizon: Some(last.since(Tick::ZERO) + TAIL),
            ..Setup::default()
        };
        let gateway = SimGateway::new(self.policy.clone()).with_jobs(self.specs.clone());
        let router = ReplayGateway::new(gateway, &history, self.outside.clone(), self.down.clone(), told);
        run(&setup, &mut [Box::new(router) as Box<dyn Router>]);
        let empty = History::new(Arc::clone(&history.lock().policy));
        std::mem::replace(&mut *history.lock(), empty)
    }

    /// The engine of a replica, and what its reports repeat.
    fn engine(&self, id: ReplicaId, fits: &PoolFits) -> (ReplicaSetup, ReplicaReport) {
        let name = self.fleet.replicas.name(id);
        let pool_name = name.split('/').next().unwrap_or_default();
        let fit = fits.get(pool_name).or_else(|| fits.values().next());
        let pool = self.fleet.pools.id(pool_name).and_then(|pool| self.fleet.pools.get(pool));
        let row = self.fleet.replicas.get(id).cloned();
        let row = row.unwrap_or(Replica { pool: PoolId::new(0), max_seqs: None, kv_tokens: None });
        match fit {
            Some(fit) => (fit.engine(&row, &pool.cloned().unwrap_or_default()), fit.told),
            None => {
                let setup = ReplicaSetup::new(StepProfile::tiny(), EngineOptions::default());
                (setup, ReplicaReport::default())
            }
        }
    }
}

/// The begin of the simulated world.
fn begin_of(past: &History) -> Tick {
    past.span.map_or(Tick::ZERO, |span| span.first)
}

/// An instant of the record in the world's time. Instants before its begin become the begin.
fn since(at: Tick, begin: Tick) -> Tick {
    if at == Tick::NEVER { at } else { Tick::ZERO + at.since(begin) }
}

/// An outage in the world's time, of the replica that has this index there.
fn sim_outage(replica: ReplicaIndex, outage: &PastOutage, begin: Tick) -> SimOutage {
    let until = outage.until.map_or(Tick::NEVER, |until| since(until, begin));
    SimOutage { replica, from: since(outage.from, begin), until }
}

/// The job in the world's time.
fn since_begin(job: &PastJob, begin: Tick) -> JobSpec {
    let spec = job.spec;
    JobSpec {
        arrived: since(spec.arrived, begin),
        deadline: since(spec.deadline, begin),
        client_deadline: since(spec.client_deadline, begin),
        ..spec
    }
}

/// An event from outside in the world's time. The begin of a period whose end is over is left out.
fn moved(outside: OutsideEvent, begin: Tick) -> Option<OutsideEvent> {
    let event = match outside.event {
        Event::Overridden(wanted) => {
            Event::Overridden(Override { until: since(wanted.until, begin), ..wanted })
        }
        Event::PeriodBegan { period, ends } => Event::PeriodBegan { period, ends: since(ends, begin) },
        other => other,
    };
    Some(OutsideEvent { at: since(outside.at, begin), event })
}

/// Answer lengths of served requests, by tenant, class and model.
struct OutputSamples {
    groups: BTreeMap<(TenantId, ClassId, ModelId), Vec<u64>>,
    all: Vec<u64>,
}

impl OutputSamples {
    fn new(past: &History) -> Self {
        let mut samples = Self { groups: BTreeMap::new(), all: Vec::new() };
        for job in past.jobs.iter().filter(|job| job.end == JobEnd::Done) {
            let Some(tokens) = job.usage.tokens() else { continue };
            let group = (job.spec.tenant, job.spec.class, job.spec.model);
            samples.groups.entry(group).or_default().push(tokens.output);
            samples.all.push(tokens.output);
        }
        samples
    }

    /// Output tokens of the request at this place, over all its choices.
    fn of(&self, job: &PastJob, place: usize) -> u64 {
        let most = job.spec.max_output_tokens;
        let known = job.usage.tokens().map(|tokens| tokens.output);
        if let (JobEnd::Done, Some(output)) = (job.end, known) {
            return output;
        }
        let group = self.groups.get(&(job.spec.tenant, job.spec.class, job.spec.model)).unwrap_or(&self.all);
        // Neighbours are often alike: a step that has no common divisor with most lengths mixes them.
        let drawn = group.get(place.wrapping_mul(7_919) % group.len().max(1)).copied();
        drawn.unwrap_or(most / 2).max(known.unwrap_or(0)).min(most)
    }
}

/// The arrival of a request in the world.
fn arrival(job: &PastJob, place: usize, begin: Tick, outputs: &OutputSamples) -> Arrival {
    let spec = &job.spec;
    let tokens = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
    let counted = job.usage.tokens().map(|tokens| tokens.input).filter(|input| *input > 0);
    let prompt = tokens(counted.unwrap_or(spec.prompt_tokens)).max(1);
    let sequences = spec.sequences.max(1);
    Arrival {
        at: since(job.at, begin),
        tenant: spec.tenant.index() as u32,
        class: spec.class.index() as u32,
        model: spec.model.index() as u32,
        prompt,
        output: tokens(outputs.of(job, place) / u64::from(sequences)),
        n: sequences,
        max_output: tokens(spec.max_output_tokens),
        streams: spec.streams,
        prefix: blocks(job, prompt),
        leaves: (job.end == JobEnd::Left).then(|| job.ended.unwrap_or(job.at).since(job.at)),
        ..Arrival::default()
    }
}

/// The prefix of a prompt in blocks of [`PREFIX_BLOCK`] tokens. Each gets the hash of the recorded block
/// in which it ends.
fn blocks(job: &PastJob, prompt: u32) -> Arc<[u64]> {
    let size = u64::from(job.prefix.block_tokens.max(1));
    let known = job.prefix.blocks.len() as u64 * size;
    let count = known.min(u64::from(prompt)) / u64::from(PREFIX_BLOCK);
    let block = |number: u64| {
        let end = (number + 1) * u64::from(PREFIX_BLOCK);
        let place = usize::try_from((end - 1) / size).unwrap_or(usize::MAX);
        job.prefix.blocks.get(place).copied().unwrap_or_default().wrapping_add(number)
    };
    (0..count).map(block).collect()
}
