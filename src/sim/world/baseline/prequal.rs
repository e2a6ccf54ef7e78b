//! Prequal (NSDI 2024): a probe returns an engine's requests in flight and the
//! latency that the engine has lately shown at about that number. An engine is
//! hot when its number is above a quantile of the numbers in the pool of
//! probes. The cold engine with the least latency wins, or the least loaded
//! engine when all are hot.

use std::time::Duration;

use crate::rng::Rng;
use crate::world::baseline::at_once::random::draw_candidate;
use crate::world::baseline::flights::{FailureOutcome, InFlightRequests, UnsentRequest};
use crate::world::router::{Input, PolledLoad, ReplicaIndex, Router, RouterCommand};
use penstock_core::model::time::Tick;

/// Probes per request.
const PROBES: usize = 3;
/// Probes kept in asynchronous mode.
const POOL: usize = 16;
/// Age after which a probe is of no use.
const OLDEST: Duration = Duration::from_secs(1);
/// The hot quantile, asynchronous mode.
const HOT_ASYNC: f64 = 0.84;
/// The hot quantile, synchronous mode.
const HOT_SYNC: f64 = 0.5;

#[derive(Debug, Clone, Copy)]
struct PrequalProbe {
    at: Tick,
    replica: ReplicaIndex,
    load: PolledLoad,
}

#[derive(Debug)]
pub struct Prequal {
    /// Whether each request waits for probes of its own (synchronous mode).
    sync: bool,
    pool: Vec<PrequalProbe>,
    probing: Option<ProbedRequest>,
    /// Whether the worst probe is dropped next, not the oldest.
    drop_worst: bool,
    flights: InFlightRequests,
    rng: Rng,
}

/// A request that waits for probes of its own.
#[derive(Debug)]
struct ProbedRequest {
    request: UnsentRequest,
    /// Probes that are out.
    probes: usize,
}

impl Prequal {
    /// A router with an empty pool of probes.
    pub fn new(replicas: usize, sync: bool, seed: u64) -> Self {
        Self {
            sync,
            pool: Vec::new(),
            probing: None,
            drop_worst: false,
            flights: InFlightRequests::new(replicas),
            rng: Rng::new(seed),
        }
    }

    fn arrived(&mut self, now: Tick, request: UnsentRequest, out: &mut Vec<RouterCommand>) {
        self.flights.refresh_candidates(now);
        let probes = PROBES.min(self.flights.candidates().len());
        if self.sync {
            self.pool.clear();
            self.probing = Some(ProbedRequest { request, probes });
        } else {
            self.send(now, request, out);
        }
        let mut unasked: Vec<ReplicaIndex> = self.flights.candidates().to_vec();
        for _ in 0..probes {
            let chosen = self.rng.below(unasked.len() as u64) as usize;
            out.push(RouterCommand::Poll { replica: unasked.swap_remove(chosen) });
        }
    }

    fn send(&mut self, now: Tick, request: UnsentRequest, out: &mut Vec<RouterCommand>) {
        self.pool.retain(|probe| now.since(probe.at) <= OLDEST);
        let replica = match self.best() {
            // In synchronous mode each probe's answer is used once.
            Some(place) => self.pool.swap_remove(place).replica,
            None => draw_candidate(&mut self.rng, &self.flights),
        };
        for probe in self.pool.iter_mut().filter(|probe| probe.replica == replica) {
            // The load that this request adds is known without another probe.
            probe.load.in_flight += 1;
        }
        if !self.sync {
            self.drop_probe();
        }
        out.push(RouterCommand::Send { job: request.job, replica, priority: 0 });
        self.flights.record_send(request, replica);
    }

    /// Requests in flight above which an engine is hot.
    fn threshold(&self) -> u64 {
        let mut numbers: Vec<u64> = self.pool.iter().map(|probe| probe.load.in_flight).collect();
        numbers.sort_unstable();
        let hot = if self.sync { HOT_SYNC } else { HOT_ASYNC };
        let rank = (hot * numbers.len() as f64).ceil() as usize;
        numbers.get(rank.max(1) - 1).copied().unwrap_or(u64::MAX)
    }

    /// Rank of a probe: cold before hot, then cold probes by latency and hot
    /// ones by load.
    fn rank(&self, probe: &PrequalProbe, threshold: u64) -> (bool, u128, u64) {
        let hot = probe.load.in_flight > threshold;
        let latency = if hot { 0 } else { probe.load.latency.as_nanos() };
        (hot, latency, probe.load.in_flight)
    }

    /// Place of the best probe whose engine may get work.
    fn best(&self) -> Option<usize> {
        let threshold = self.threshold();
        let open = |place: &usize| self.flights.candidates().contains(&self.pool[*place].replica);
        (0..self.pool.len()).filter(open).min_by_key(|place| self.rank(&self.pool[*place], threshold))
    }

    /// Drops the oldest probe and the worst probe by turns, so that no engine
    /// stays in the pool for ever.
    fn drop_probe(&mut self) {
        let threshold = self.threshold();
        let places = 0..self.pool.len();
        self.drop_worst = !self.drop_worst;
        let chosen = match self.drop_worst {
            true => places.max_by_key(|place| self.rank(&self.pool[*place], threshold)),
            false => places.min_by_key(|place| self.pool[*place].at),
        };
        if let Some(place) = chosen {
            self.pool.swap_remove(place);
        }
    }

    fn polled(
        &mut self,
        now: Tick,
        replica: ReplicaIndex,
        load: Option<PolledLoad>,
        out: &mut Vec<RouterCommand>,
    ) {
        if let Some(load) = load {
            self.pool.push(PrequalProbe { at: now, replica, load });
        }
        while self.pool.len() > POOL
            && let Some(oldest) = (0..self.pool.len()).min_by_key(|place| self.pool[*place].at)
        {
            self.pool.swap_remove(oldest);
        }
        if let Some(ProbedRequest { request, probes }) = self.probing.take() {
            match probes - 1 {
                0 => self.send(now, request, out),
                probes => self.probing = Some(ProbedRequest { request, probes }),
            }
        }
    }
}

impl Router for Prequal {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        match input {
            Input::Arrived { job, arrival } => self.arrived(now, UnsentRequest::new(job, arrival), out),
            Input::Polled { replica, load } => self.polled(now, replica, load, out),
            Input::Failed { job, .. } => match self.flights.remove_failed(now, job) {
                FailureOutcome::Again(request) => self.arrived(now, request, out),
                FailureOutcome::AttemptsUsed => out.push(RouterCommand::Refuse { job, retry_after: None }),
                FailureOutcome::Cut => {}
            },
            other => self.flights.observe(&other),
        }
    }
}
