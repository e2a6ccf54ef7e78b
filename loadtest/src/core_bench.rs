//! `loadtest core-bench`: the cost of one event in a scheduler with a full queue.
//!
//! All replicas are busy and a fixed number of jobs waits. A turn is what one
//! request brings: a running job ends, which sends the next one; that one's
//! first token comes; a new job arrives and waits.
//!
//! With several pools the world is a mixed one (`core_bench/fleets`): a place that is
//! free may suit no job, or several go at once.

mod fleets;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use penstock::core::autoscale::demand_report::PeerDemand;
use penstock::core::autoscale::observer::DemandObserver;
use penstock::core::model::event::{Action, AttemptOutcome, Event, JobAction};
use penstock::core::model::ids::{ClassId, JobId, ModelId, TenantId};
use penstock::core::model::job::{JobSpec, JobUsage, PromptPrefix, TokenCounts};
use penstock::core::model::policy::Tenant;
use penstock::core::model::time::Tick;
use penstock::core::placement::PreparedPolicy;
use penstock::core::scheduler::Scheduler;
use tokio::time::Instant;

use penstock::sim::rng::Rng;

/// Arguments of `loadtest core-bench`.
#[derive(Debug, Clone, Args)]
pub struct CoreBenchArgs {
    /// Tenants; each job belongs to one of them at random.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub tenants: u32,
    /// Replicas, over all pools.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub replicas: u32,
    /// Pools. More than one differ in kind and price, and classes and tenants
    /// have rules for them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub pools: u32,
    /// Models, each served by several of the pools.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub models: u32,
    /// Sequences of a replica.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_seqs: u32,
    /// Jobs that wait, all the time.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub waiting: u64,
    /// Turns in a round.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub turns: u64,
    /// Rounds; the median is printed, with the range.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

/// What one kind of event took, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Costs {
    /// A job arrives and waits.
    pub arrive: f64,
    /// A first token.
    pub first_token: f64,
    /// A job ends, and the next one is sent.
    pub finish: f64,
    /// The same, exceeded by one turn in a hundred.
    pub finish_p99: f64,
    /// A picture of the whole state, for admin and metrics.
    pub snapshot: f64,
    /// The part of an evaluation of the demand for which the dispatcher's lock is held.
    pub demand_locked: f64,
    /// The whole evaluation of the demand.
    pub demand: f64,
    /// The facts of one turn, observed outside the lock.
    pub observe: f64,
    /// The locked part of a reload, by what it changes.
    pub reloads: [f64; RELOADS.len()],
}

/// Replicas that a measured reload removes, and the next one adds.
const RELOADED_REPLICAS: u32 = 100;

/// What the measured reloads change.
const RELOADS: [&str; 5] =
    ["reload, same", "  a weight", "  100 replicas leave", "  100 replicas come", "  a tenant comes"];

/// Jobs that arrive at most to fill the world, in those that it holds.
const MOST_ARRIVALS: u64 = 3;

/// A line of the report: its name, and the cost that it shows.
type Column = (&'static str, fn(&Costs) -> f64);

/// Runs `loadtest core-bench`.
///
/// # Errors
/// When the scheduler did not do what the world is built for.
pub fn command(args: &CoreBenchArgs) -> Result<()> {
    let mut world = World::new(args)?;
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        rounds.push(world.round(args.turns)?);
    }
    let CoreBenchArgs { tenants, replicas, pools, waiting, .. } = args;
    println!("{tenants} tenants, {replicas} replicas in {pools} pools, {waiting} jobs wait; ns");
    let columns: [Column; 14] = [
        ("arrive", |costs| costs.arrive),
        ("first token", |costs| costs.first_token),
        ("finish and send", |costs| costs.finish),
        ("  its p99", |costs| costs.finish_p99),
        ("a request", |costs| costs.arrive + costs.first_token + costs.finish),
        ("snapshot", |costs| costs.snapshot),
        ("demand, locked", |costs| costs.demand_locked),
        ("demand, whole", |costs| costs.demand),
        ("facts of a turn", |costs| costs.observe),
        (RELOADS[0], |costs| costs.reloads[0]),
        (RELOADS[1], |costs| costs.reloads[1]),
        (RELOADS[2], |costs| costs.reloads[2]),
        (RELOADS[3], |costs| costs.reloads[3]),
        (RELOADS[4], |costs| costs.reloads[4]),
    ];
    for (name, column) in columns {
        let mut costs: Vec<f64> = rounds.iter().map(column).collect();
        costs.sort_by(f64::total_cmp);
        let median = costs[costs.len() / 2];
        println!("{name:<20} {median:>8.0}   {:.0}-{:.0}", costs[0], costs[costs.len() - 1]);
    }
    Ok(())
}

/// A scheduler with work for all its replicas.
#[derive(Debug)]
pub struct World {
    scheduler: Scheduler,
    observer: DemandObserver,
    actions: Vec<Action>,
    running: VecDeque<JobId>,
    rng: Rng,
    args: CoreBenchArgs,
    classes: u64,
    arrived: u64,
}

impl World {
    /// Fills the replicas, then the queue.
    ///
    /// # Errors
    /// When they cannot be filled.
    pub fn new(args: &CoreBenchArgs) -> Result<Self> {
        let policy = fleets::policy(args);
        let classes = policy.classes.capacity() as u64;
        let mut scheduler = Scheduler::new(Arc::new(policy));
        scheduler.record_demand();
        let mut world = Self {
            args: args.clone(),
            classes,
            scheduler,
            observer: DemandObserver::default(),
            actions: Vec::new(),
            running: VecDeque::new(),
            rng: Rng::new(1),
            arrived: 0,
        };
        let slots = u64::from(args.replicas) * u64::from(args.max_seqs);
        let most = MOST_ARRIVALS * (slots + args.waiting);
        while world.scheduler.waiting().requests < args.waiting {
            world.arrive();
            for job in world.sent() {
                world.handle(Event::FirstToken { job });
            }
            if world.scheduler.must_flush_demand_facts() {
                world.scheduler.flush_demand_facts(&mut world.observer);
                world.observer.observe();
            }
            if world.arrived > most {
                bail!("only {} jobs wait", world.scheduler.waiting().requests);
            }
        }
        let running = world.running.len() as u64;
        if running * 5 < slots * 4 {
            bail!("{running} jobs run at {slots} places");
        }
        Ok(world)
    }

    /// Plays so many turns.
    ///
    /// # Errors
    /// When more than one turn in twenty did not send a job.
    pub fn round(&mut self, turns: u64) -> Result<Costs> {
        let mut spent = [Duration::ZERO; 3];
        let mut decisions = Vec::with_capacity(usize::try_from(turns).unwrap_or_default());
        let (mut idle, mut observing) = (0, Duration::ZERO);
        for _ in 0..turns {
            let tokens = TokenCounts { input: 600, cached: None, output: 40 + self.rng.below(60) };
            let Some(job) = self.running.pop_front() else { bail!("nothing runs") };
            let begun = Instant::now();
            self.handle(Event::Finished { job, outcome: AttemptOutcome::Done(JobUsage::Exact(tokens)) });
            let finished = Instant::now();
            let next = self.sent();
            idle += u64::from(next.is_empty());
            let sent = Instant::now();
            for job in next {
                self.handle(Event::FirstToken { job });
            }
            let told = Instant::now();
            self.arrive();
            let arrived = Instant::now();
            for job in self.sent() {
                self.handle(Event::FirstToken { job });
            }
            spent[0] += arrived - told;
            spent[1] += told - sent;
            spent[2] += finished - begun;
            decisions.push((finished - begun).as_nanos() as f64);
            if self.scheduler.must_flush_demand_facts() {
                let begun = Instant::now();
                self.scheduler.flush_demand_facts(&mut self.observer);
                self.observer.observe();
                observing += begun.elapsed();
            }
        }
        if self.scheduler.broken_invariants() > 0 {
            bail!("{} invariants were broken", self.scheduler.broken_invariants());
        }
        if idle * 20 > turns {
            bail!("{idle} of {turns} free places were not used");
        }
        let begun = Instant::now();
        let snapshot = self.scheduler.snapshot(self.now());
        let pictured = begun.elapsed();
        drop(snapshot);
        let snapshot = pictured.as_nanos() as f64;
        let [arrive, first_token, finish] = spent.map(|spent| spent.as_nanos() as f64 / turns as f64);
        let (demand_locked, demand) = self.demand();
        let observe = observing.as_nanos() as f64 / turns as f64;
        decisions.sort_by(f64::total_cmp);
        let finish_p99 = decisions.get(decisions.len() * 99 / 100).copied().unwrap_or_default();
        let reloads = self.reloads();
        Ok(Costs {
            arrive,
            first_token,
            finish,
            finish_p99,
            snapshot,
            demand_locked,
            demand,
            observe,
            reloads,
        })
    }

    /// Times of reloads under the lock, as [`RELOADS`] names them.
    fn reloads(&mut self) -> [f64; RELOADS.len()] {
        let CoreBenchArgs { tenants, replicas, .. } = self.args;
        let fewer = replicas.saturating_sub(RELOADED_REPLICAS).max(1);
        let steps = [
            (tenants, replicas, 1.0),
            (tenants, replicas, 2.0),
            (tenants, fewer, 2.0),
            (tenants, replicas, 2.0),
            (tenants + 1, replicas, 2.0),
        ];
        let times = steps.map(|step| self.reload(step));
        self.reload((tenants, replicas, 1.0));
        times
    }

    /// The time of a reload that leads to so many tenants and replicas, with this factor on the
    /// first tenant's weight.
    fn reload(&mut self, (tenants, replicas, factor): (u32, u32, f64)) -> f64 {
        let mut policy = fleets::policy(&CoreBenchArgs { tenants, replicas, ..self.args.clone() });
        policy.generation = self.scheduler.policy().generation + 1;
        let first = policy.tenants.iter().next().map(|(_, name, row)| (name.to_owned(), row.clone()));
        if let Some((name, row)) = first {
            policy.tenants.insert(&name, Tenant { weight: row.weight * factor, ..row });
        }
        let policy = PreparedPolicy::new(Arc::new(policy));
        let now = self.now();
        let begun = Instant::now();
        let before = self.scheduler.change_policy(now, policy, &mut self.actions);
        let took = begun.elapsed();
        drop(before);
        for job in self.sent() {
            self.handle(Event::FirstToken { job });
        }
        self.scheduler.flush_demand_facts(&mut self.observer);
        self.observer.observe();
        took.as_nanos() as f64
    }

    /// Time of the locked part and of the whole of an evaluation of the demand.
    fn demand(&mut self) -> (f64, f64) {
        let now = self.now();
        self.scheduler.flush_demand_facts(&mut self.observer);
        self.observer.observe();
        let begun = Instant::now();
        let inputs = self.scheduler.demand_inputs(&mut self.observer, now, false);
        let locked = begun.elapsed();
        let demands = self.observer.replica_demand(&inputs, &PeerDemand::default());
        let whole = begun.elapsed();
        drop(demands);
        (locked.as_nanos() as f64, whole.as_nanos() as f64)
    }

    fn arrive(&mut self) {
        self.arrived += 1;
        let spec = JobSpec {
            id: JobId::new(self.arrived),
            tenant: TenantId::new(self.rng.below(u64::from(self.args.tenants)) as u32),
            key: None,
            class: ClassId::new(self.rng.below(self.classes) as u32),
            model: ModelId::new(self.rng.below(u64::from(self.args.models)) as u32),
            prompt_tokens: 100 + self.rng.below(1_000),
            max_output_tokens: 100,
            sequences: 1,
            bytes: 2_048,
            streams: self.classes > 1,
            arrived: Tick::NEVER,
            deadline: self.now() + Duration::from_secs(100_000),
            client_deadline: Tick::NEVER,
            has_fallback: false,
            resumable: false,
            context: 0,
            context_group: 0,
            fingerprint: None,
            session: None,
        };
        self.handle(Event::Arrived(spec, PromptPrefix::default()));
    }

    /// The jobs that were sent since the last call.
    fn sent(&mut self) -> Vec<JobId> {
        let sent = self.actions.drain(..).filter_map(|action| match action {
            Action::Job(JobAction::Dispatch(grant)) => Some(grant.job),
            _ => None,
        });
        let sent: Vec<JobId> = sent.collect();
        self.running.extend(&sent);
        sent
    }

    fn handle(&mut self, event: Event) {
        let now = self.now();
        self.scheduler.handle(now, event, &mut self.actions);
    }

    /// A hundred microseconds pass between two arrivals; in the mixed world one,
    /// so that no engine seems to owe its streams something.
    fn now(&self) -> Tick {
        let each = if self.classes > 1 { 1 } else { 100 };
        Tick::ZERO + Duration::from_micros(each * self.arrived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_sends_one_job_and_queues_another() {
        let args = CoreBenchArgs {
            tenants: 5,
            replicas: 3,
            pools: 1,
            models: 1,
            max_seqs: 2,
            waiting: 40,
            turns: 100,
            rounds: 1,
        };
        let mut world = World::new(&args).expect("a full world");
        let costs = world.round(args.turns).expect("a round");
        assert!(costs.arrive > 0.0 && costs.first_token > 0.0 && costs.finish > 0.0);
        assert_eq!(world.scheduler.waiting().requests, 40);
        assert_eq!(world.running.len(), 6);
    }
}
