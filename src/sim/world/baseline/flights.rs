//! Requests in flight: the engine state that a baseline router keeps.

use std::collections::HashMap;
use std::time::Duration;

use crate::world::arrival::Arrival;
use crate::world::router::{Input, JobIndex, MemberState, ReplicaIndex};
use penstock_core::model::event::ReplicaReport;
use penstock_core::model::time::Tick;

/// Time without work for an engine that failed a request.
pub const PAUSE: Duration = Duration::from_secs(5);
/// Attempts that a request may have.
pub const MAX_ATTEMPTS: u32 = 4;

/// A request that a router is to send.
#[derive(Debug, Clone)]
pub struct UnsentRequest {
    pub job: JobIndex,
    pub arrival: Arrival,
    /// Number of the attempt that comes next, from 1.
    pub attempt: u32,
}

impl UnsentRequest {
    /// A request that has just arrived.
    pub fn new(job: JobIndex, arrival: &Arrival) -> Self {
        Self { job, arrival: arrival.clone(), attempt: 1 }
    }
}

#[derive(Debug, Clone)]
pub struct InFlightRequest {
    pub arrival: Arrival,
    pub replica: ReplicaIndex,
    /// Attempts so far.
    pub attempts: u32,
    /// Whether the first token has come.
    pub has_token: bool,
}

/// State of one engine as this router sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct KnownEngine {
    /// Requests of this router in flight at the engine.
    pub in_flight: u64,
    /// Prompt tokens of requests without a token yet.
    pub prefill: u64,
    /// Prompt tokens of requests that have a token.
    pub context: u64,
    /// Requests that have a token.
    pub decodes: u64,
    /// The last scrape.
    pub report: Option<ReplicaReport>,
    /// Requests sent, less those ended, since the last scrape.
    pub since_report: i64,
    /// Time before which the engine gets no work.
    pub(super) paused: Option<Tick>,
    /// Whether the engine is absent or about to leave.
    pub(super) absent: bool,
}

/// Outcome of a failed request.
#[derive(Debug)]
pub enum FailureOutcome {
    /// The request may be sent again.
    Again(UnsentRequest),
    /// The request has used all its attempts.
    AttemptsUsed,
    /// The client has seen part of the answer.
    Cut,
}

/// The engines and the requests in flight of one router.
#[derive(Debug)]
pub struct InFlightRequests {
    /// The engines by number.
    pub engines: Vec<KnownEngine>,
    jobs: HashMap<JobIndex, InFlightRequest>,
    open: Vec<ReplicaIndex>,
}

impl InFlightRequests {
    /// Engines with nothing in flight.
    pub fn new(replicas: usize) -> Self {
        Self { engines: vec![KnownEngine::default(); replicas], jobs: HashMap::new(), open: Vec::new() }
    }

    /// The engines that may get work now; all engines that are there when none
    /// may.
    pub fn refresh_candidates(&mut self, now: Tick) -> &[ReplicaIndex] {
        self.open.clear();
        let there = |index: &ReplicaIndex| !self.engines[*index].absent;
        let able = |index: &ReplicaIndex| self.engines[*index].paused.is_none_or(|until| until <= now);
        self.open.extend((0..self.engines.len()).filter(there).filter(able));
        if self.open.is_empty() {
            self.open.extend((0..self.engines.len()).filter(there));
        }
        &self.open
    }

    /// The last answer of `refresh_candidates`, for use while the engines are
    /// borrowed.
    pub fn candidates(&self) -> &[ReplicaIndex] {
        &self.open
    }

    /// Records that the request is sent to the engine.
    pub fn record_send(&mut self, request: UnsentRequest, replica: ReplicaIndex) {
        let UnsentRequest { job, arrival, attempt } = request;
        let engine = &mut self.engines[replica];
        engine.in_flight += 1;
        engine.since_report += 1;
        engine.prefill += u64::from(arrival.prompt);
        self.jobs.insert(job, InFlightRequest { arrival, replica, attempts: attempt, has_token: false });
    }

    /// Applies the inputs that every router gets.
    pub fn observe(&mut self, input: &Input<'_>) {
        match input {
            Input::FirstToken { job, .. } => self.begun(*job),
            Input::Finished { job, .. } | Input::ClientLeft { job } => {
                self.remove(*job);
            }
            Input::Reported { replica, report } => {
                let engine = &mut self.engines[*replica];
                (engine.report, engine.since_report) = (Some(*report), 0);
            }
            Input::Members { members } => {
                for (engine, member) in self.engines.iter_mut().zip(*members) {
                    engine.absent = *member != MemberState::Serving;
                    if *member == MemberState::Absent {
                        engine.report = None;
                    }
                }
            }
            _ => {}
        }
    }

    fn begun(&mut self, job: JobIndex) {
        let Some(flight) = self.jobs.get_mut(&job) else { return };
        let prompt = u64::from(flight.arrival.prompt);
        if !std::mem::replace(&mut flight.has_token, true) {
            let engine = &mut self.engines[flight.replica];
            engine.prefill -= prompt;
            engine.context += prompt;
            engine.decodes += 1;
        }
    }

    /// Removes a request that is no longer in flight.
    pub fn remove(&mut self, job: JobIndex) -> Option<InFlightRequest> {
        let flight = self.jobs.remove(&job)?;
        let engine = &mut self.engines[flight.replica];
        let prompt = u64::from(flight.arrival.prompt);
        engine.in_flight -= 1;
        engine.since_report -= 1;
        if flight.has_token {
            engine.context -= prompt;
            engine.decodes -= 1;
        } else {
            engine.prefill -= prompt;
        }
        Some(flight)
    }

    /// Removes a request that its engine failed, and pauses the engine.
    pub fn remove_failed(&mut self, now: Tick, job: JobIndex) -> FailureOutcome {
        let Some(flight) = self.remove(job) else { return FailureOutcome::Cut };
        self.engines[flight.replica].paused = Some(now + PAUSE);
        match flight.has_token {
            true => FailureOutcome::Cut,
            false if flight.attempts >= MAX_ATTEMPTS => FailureOutcome::AttemptsUsed,
            false => FailureOutcome::Again(UnsentRequest {
                job,
                arrival: flight.arrival,
                attempt: flight.attempts + 1,
            }),
        }
    }
}
