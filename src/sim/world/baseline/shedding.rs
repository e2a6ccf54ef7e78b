//! Shedding: any design with early refusal added. A request is refused when its
//! first token would come after its deadline at the engine that the design
//! chose. The prediction is generous: it uses the engine's true step times.

use std::collections::HashMap;
use std::time::Duration;

use crate::engine::profile::{StepLoad, StepProfile};
use crate::world::arrival::Arrival;
use crate::world::baseline::flights::{InFlightRequests, KnownEngine, UnsentRequest};
use crate::world::router::{Input, JobIndex, Router, RouterCommand};
use penstock_core::model::time::Tick;

/// A design with early refusal.
#[derive(Debug)]
pub struct Shedding {
    inner: Box<dyn Router>,
    profiles: Vec<StepProfile>,
    /// Deadlines by class number.
    deadlines: Vec<Duration>,
    flights: InFlightRequests,
    /// Requests that the design keeps back.
    waiting: HashMap<JobIndex, Arrival>,
    spare: Vec<RouterCommand>,
}

impl Shedding {
    /// Adds early refusal to the design. `profiles` are those of its engines.
    /// `deadlines` are those of the classes by number, from arrival to first
    /// token. A class without a deadline is never refused.
    pub fn new(inner: Box<dyn Router>, profiles: Vec<StepProfile>, deadlines: Vec<Duration>) -> Self {
        let flights = InFlightRequests::new(profiles.len());
        Self { inner, profiles, deadlines, flights, waiting: HashMap::new(), spare: Vec::new() }
    }

    /// Passes on the design's commands, with refusals in place of late sends.
    fn filter_commands(&mut self, now: Tick, mut wanted: Vec<RouterCommand>, out: &mut Vec<RouterCommand>) {
        let mut next = 0;
        while next < wanted.len() {
            let command = wanted[next];
            next += 1;
            let RouterCommand::Send { job, replica, .. } = command else {
                if let RouterCommand::Refuse { job, .. } = command {
                    self.waiting.remove(&job);
                }
                out.push(command);
                continue;
            };
            let Some(arrival) = self.waiting.remove(&job) else { continue };
            let waited = now.since(arrival.at);
            let expected =
                waited + first_token(&self.profiles[replica], &self.flights.engines[replica], arrival.prompt);
            let deadline = self.deadlines.get(arrival.class as usize);
            if deadline
                .is_some_and(|deadline| expected > arrival.patience.unwrap_or(*deadline).min(*deadline))
            {
                out.push(RouterCommand::Refuse { job, retry_after: None });
                // For the design a refused request is finished; the design may
                // have another request to send.
                self.inner.handle(now, Input::Finished { job, replica, cached: None }, &mut wanted);
                continue;
            }
            self.flights.record_send(UnsentRequest { job, arrival, attempt: 1 }, replica);
            out.push(command);
        }
        wanted.clear();
        self.spare = wanted;
    }

    /// Notes a failed request, which may be sent again.
    fn keep_for_retry(&mut self, job: JobIndex) {
        if let Some(flight) = self.flights.remove(job)
            && !flight.has_token
        {
            self.waiting.insert(job, flight.arrival);
        }
    }
}

impl Router for Shedding {
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>) {
        match input {
            Input::Arrived { job, arrival } => {
                self.waiting.insert(job, arrival.clone());
            }
            Input::Failed { job, .. } => self.keep_for_retry(job),
            other => self.flights.observe(&other),
        }
        let mut wanted = std::mem::take(&mut self.spare);
        self.inner.handle(now, input, &mut wanted);
        self.filter_commands(now, wanted, out);
    }

    fn next_wake(&self) -> Option<Tick> {
        self.inner.next_wake()
    }

    fn broken_invariants(&self) -> u64 {
        self.inner.broken_invariants()
    }
}

/// Time until a prompt that joins the engine now has its first token: the rest
/// of the step in flight, then full steps for the prompts before it and for
/// itself.
pub fn first_token(profile: &StepProfile, engine: &KnownEngine, prompt: u32) -> Duration {
    let decodes = engine.decodes;
    let room = u64::from(profile.max_tokens).saturating_sub(decodes).max(1);
    let mut left = engine.prefill + u64::from(prompt);
    let mean = left as f64 / (engine.in_flight - decodes + 1) as f64;
    let step = |prefill: u64| {
        profile.step_ms(&StepLoad {
            prefill_tokens: prefill,
            decodes,
            decode_kv: engine.context,
            prefill_area: prefill as f64 * mean / 2.0,
        })
    };
    // On average half of the step in flight is left.
    let mut millis = if engine.prefill + decodes > 0 { step(0) / 2.0 } else { 0.0 };
    for _ in 0..1_000 {
        let chunk = left.min(room);
        millis += step(chunk);
        left -= chunk;
        if left == 0 {
            break;
        }
    }
    Duration::from_secs_f64((millis / 1e3).min(1e6))
}
