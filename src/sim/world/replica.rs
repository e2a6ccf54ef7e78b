//! World replica: an engine of the world with its faults.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use smallvec::SmallVec;

use crate::engine::profile::StepProfile;
use crate::engine::{BLOCK_TOKENS, EngineEvent, EngineOptions, SimEngine};
use crate::world::event::EngineReply;
use crate::world::router::PolledLoad;
use penstock_core::model::event::ReplicaReport;
use penstock_core::model::time::Tick;

/// Latest latency samples that an engine keeps for polls.
const MAX_SAMPLES: usize = 64;
/// Number of samples that answer a poll.
const NEAREST: usize = 9;

/// Setup of one engine of the world.
#[derive(Debug, Clone)]
pub struct ReplicaSetup {
    /// Step-time profile.
    pub profile: StepProfile,
    /// Limits and switches.
    pub options: EngineOptions,
    /// Factor on the profile's step times.
    pub slowness: f64,
    pub fault: Option<WorldFault>,
    /// Price per hour.
    pub price: f64,
    /// Time that a message takes in each direction. Scrapes and probes take no
    /// time.
    pub one_way: Duration,
    /// Where the engine tells how many prompt tokens were cached.
    pub told_hits: CacheHitReporting,
}

/// Where an engine tells how many prompt tokens were cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheHitReporting {
    Nowhere,
    /// In a counter that scrapes read, as vLLM does.
    #[default]
    Counter,
    /// In each answer, and in the counter.
    Answers,
}

impl ReplicaSetup {
    /// An engine without faults, delays or a price.
    pub fn new(profile: StepProfile, options: EngineOptions) -> Self {
        Self {
            profile,
            options,
            slowness: 1.0,
            fault: None,
            price: 0.0,
            one_way: Duration::ZERO,
            told_hits: CacheHitReporting::default(),
        }
    }
}

/// Fault of an engine, once or repeated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorldFault {
    /// Begin of the first occurrence.
    pub at: Tick,
    /// Length of each occurrence.
    pub lasts: Duration,
    /// Time from one begin to the next, longer than `lasts`; absent = the fault
    /// occurs once.
    pub every: Option<Duration>,
    pub kind: WorldFaultKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorldFaultKind {
    /// The engine stands still; its health check still answers.
    Frozen,
    /// The engine loses its requests and refuses connections.
    Crashed,
}

/// A running engine.
#[derive(Debug)]
pub(super) struct WorldReplica {
    pub(super) engine: SimEngine,
    setup: ReplicaSetup,
    /// The end of the step in flight for which the world has planned an event.
    pub(super) step: Option<Tick>,
    pub(super) crashed: bool,
    frozen_until: Option<Tick>,
    /// Replies that are still on their way, in order.
    pub(super) replies_in_transit: VecDeque<EngineReply>,
    /// Latest samples.
    latencies: VecDeque<LatencySample>,
    /// Most requests that waited inside the engine after a step was planned.
    pub(super) most_waiting: u64,
    /// Total length of the steps.
    pub(super) busy: Duration,
}

#[derive(Debug, Clone, Copy)]
struct LatencySample {
    /// Requests that were inside when the request came.
    others: u64,
    /// Time to the first token.
    ttft: Duration,
}

impl WorldReplica {
    pub(super) fn new(setup: &ReplicaSetup) -> Self {
        let mut engine = SimEngine::new(setup.profile, setup.options);
        engine.set_slowness(setup.slowness);
        Self {
            engine,
            setup: setup.clone(),
            step: None,
            crashed: false,
            frozen_until: None,
            replies_in_transit: VecDeque::new(),
            latencies: VecDeque::new(),
            most_waiting: 0,
            busy: Duration::ZERO,
        }
    }

    pub(super) fn one_way(&self) -> Duration {
        self.setup.one_way
    }

    /// What an answer tells of the cached tokens of its prompt.
    pub(super) fn told_cached(&self, cached: u32) -> Option<u32> {
        (self.setup.told_hits == CacheHitReporting::Answers).then_some(cached)
    }

    pub(super) fn fault(&self) -> Option<WorldFault> {
        self.setup.fault
    }

    pub(super) fn freeze(&mut self, until: Tick) {
        self.frozen_until = Some(until);
        if let Some(step) = &mut self.step {
            *step = (*step).max(until);
        }
    }

    /// Replaces the engine by a new one; its requests and cache are gone.
    pub(super) fn replace_engine(&mut self) {
        let mut engine = SimEngine::new(self.setup.profile, self.setup.options);
        engine.set_slowness(self.setup.slowness);
        self.engine = engine;
        self.latencies.clear();
        (self.step, self.crashed) = (None, false);
    }

    pub(super) fn crash(&mut self) {
        self.replace_engine();
        self.crashed = true;
    }

    /// Starts a step if none is in flight. Returns the step's end if the step
    /// is new.
    pub(super) fn start_step(&mut self, now: Tick) -> Option<Tick> {
        if self.step.is_some() || self.crashed || self.frozen_until.is_some_and(|until| until > now) {
            return None;
        }
        let end = self.engine.next_step(now)?;
        self.step = Some(end);
        self.busy += end.since(now);
        self.most_waiting = self.most_waiting.max(self.engine.waiting());
        Some(end)
    }

    pub(super) fn finish_step(&mut self, now: Tick, out: &mut Vec<EngineEvent>) {
        self.step = None;
        self.engine.finish_step(now, out);
    }

    /// Records a sample: a request that found `others` requests inside had its
    /// first token after `ttft`.
    pub(super) fn record_latency(&mut self, others: u64, ttft: Duration) {
        if self.latencies.len() == MAX_SAMPLES {
            self.latencies.pop_front();
        }
        self.latencies.push_back(LatencySample { others, ttft });
    }

    /// The engine's answer to a poll: the median latency of the samples that
    /// are nearest to the present number of requests.
    pub(super) fn load(&self) -> PolledLoad {
        let in_flight = self.engine.requests();
        let mut samples: SmallVec<[LatencySample; MAX_SAMPLES]> = self.latencies.iter().copied().collect();
        samples.sort_by_key(|sample| sample.others.abs_diff(in_flight));
        samples.truncate(NEAREST);
        samples.sort_unstable_by_key(|sample| sample.ttft);
        let latency = samples.get(samples.len() / 2).map_or(Duration::ZERO, |sample| sample.ttft);
        PolledLoad { in_flight, latency }
    }

    /// The engine's answer to a scrape.
    pub(super) fn report(&self) -> ReplicaReport {
        let gauges = self.engine.gauges();
        let counters = self.engine.counters();
        ReplicaReport {
            running: Some(gauges.running),
            waiting: Some(gauges.waiting),
            kv_usage: Some(gauges.blocks_used as f64 / gauges.blocks_total.max(1) as f64),
            slots: None,
            kv_tokens: Some(gauges.blocks_total * u64::from(BLOCK_TOKENS)),
            max_model_len: None,
            progress: Some(counters.generated_tokens + counters.prompt_tokens),
            cached_tokens: (self.setup.told_hits != CacheHitReporting::Nowhere)
                .then_some(counters.cached_tokens),
            asleep: None,
        }
    }
}
