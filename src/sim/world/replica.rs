//! World replica: an engine of the world with its faults.

use std::collections::VecDeque;
use std::time::Duration;

use smallvec::SmallVec;

use crate::core::model::event::ReplicaReport;
use crate::core::model::time::Tick;
use crate::sim::engine::profile::StepProfile;
use crate::sim::engine::{BLOCK_TOKENS, EngineEvent, EngineOptions, SimEngine};
use crate::sim::world::exchange::EngineReply;
use crate::sim::world::router::PolledLoad;

/// Latencies that an engine remembers for polls.
const SHOWN: usize = 64;
/// How many of them answer a poll.
const NEAREST: usize = 9;

/// One engine as the world is told of it.
#[derive(Debug, Clone)]
pub struct ReplicaSetup {
    /// Its timing.
    pub profile: StepProfile,
    /// Its limits.
    pub options: EngineOptions,
    /// Its steps take this many times as long as the profile says.
    pub slowness: f64,
    /// What befalls it.
    pub fault: Option<WorldFault>,
    /// What it costs for an hour.
    pub price: f64,
    /// How long a word takes on the way to it, and as long on the way back. Scrapes
    /// and probes take no time.
    pub trip: Duration,
}

impl ReplicaSetup {
    /// A healthy engine.
    #[must_use]
    pub fn new(profile: StepProfile, options: EngineOptions) -> Self {
        Self { profile, options, slowness: 1.0, fault: None, price: 0.0, trip: Duration::ZERO }
    }
}

/// What befalls an engine, once or again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorldFault {
    /// When it begins.
    pub at: Tick,
    /// How long it lasts.
    pub lasts: Duration,
    /// From one beginning to the next, longer than it lasts; absent = once.
    pub every: Option<Duration>,
    /// What it is.
    pub kind: WorldFaultKind,
}

/// Ways to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorldFaultKind {
    /// It stands still, and its health check still answers.
    Frozen,
    /// Its requests are lost, and it refuses connections.
    Crashed,
}

/// A running engine.
#[derive(Debug)]
pub(super) struct WorldReplica {
    pub(super) engine: SimEngine,
    setup: ReplicaSetup,
    /// The end of the step in flight that the world knows of.
    pub(super) step: Option<Tick>,
    pub(super) crashed: bool,
    frozen_until: Option<Tick>,
    /// What it said that is still on its way, in order.
    pub(super) said: VecDeque<EngineReply>,
    /// Lately: requests inside when one came, and its time to the first token.
    latencies: VecDeque<(u64, Duration)>,
    /// Most requests that waited inside it after a step was planned.
    pub(super) most_waiting: u64,
    /// How long its steps took together.
    pub(super) busy: Duration,
}

impl WorldReplica {
    pub(super) fn new(setup: &ReplicaSetup) -> Self {
        let mut engine = SimEngine::new(setup.profile, setup.options);
        engine.set_pace(setup.slowness);
        Self {
            engine,
            setup: setup.clone(),
            step: None,
            crashed: false,
            frozen_until: None,
            said: VecDeque::new(),
            latencies: VecDeque::new(),
            most_waiting: 0,
            busy: Duration::ZERO,
        }
    }

    pub(super) fn trip(&self) -> Duration {
        self.setup.trip
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

    /// Everything it had is gone, and it is as new.
    pub(super) fn renew(&mut self) {
        let mut engine = SimEngine::new(self.setup.profile, self.setup.options);
        engine.set_pace(self.setup.slowness);
        self.engine = engine;
        self.latencies.clear();
        (self.step, self.crashed) = (None, false);
    }

    pub(super) fn crash(&mut self) {
        self.renew();
        self.crashed = true;
    }

    /// Starts a step if none is in flight; says when it ends if it is new.
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

    /// A request that found so many others had its first token after `latency`.
    pub(super) fn shown(&mut self, others: u64, latency: Duration) {
        if self.latencies.len() == SHOWN {
            self.latencies.pop_front();
        }
        self.latencies.push_back((others, latency));
    }

    /// What a poll shows: the median latency of the samples taken nearest to
    /// the present number of requests.
    pub(super) fn load(&self) -> PolledLoad {
        let in_flight = self.engine.requests();
        let mut samples: SmallVec<[(u64, Duration); SHOWN]> = self.latencies.iter().copied().collect();
        samples.sort_by_key(|(others, _)| others.abs_diff(in_flight));
        samples.truncate(NEAREST);
        samples.sort_unstable_by_key(|(_, latency)| *latency);
        let latency = samples.get(samples.len() / 2).map_or(Duration::ZERO, |(_, latency)| *latency);
        PolledLoad { in_flight, latency }
    }

    /// What a scrape shows.
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
            asleep: None,
        }
    }
}
