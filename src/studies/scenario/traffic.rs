//! Traffic of a world: the arrivals of all streams, merged in order of time.

use std::sync::Arc;
use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::arrivals::{Conversations, Pattern, Sizes, Synthetic};
use crate::sim::engine::BLOCK_TOKENS;
use crate::sim::rng::Rng;
use crate::sim::trace::{TraceCall, TrafficTrace, reblock};
use crate::sim::world::arrival::{Arrival, PREFIX_BLOCK, Pause};
use crate::studies::scenario::file::SystemRow;

/// Requests of a synthetic stream that sets neither a number nor a time.
const USUAL_COUNT: usize = 5_000;
/// Seed offset: the traits of requests are drawn independently of their times.
const TRAITS_SEED: u64 = 0x68_6162_6974;
/// Seed offset of the models.
const MODELS_SEED: u64 = 0x6D_6F64_656C;

#[derive(Debug, Clone)]
pub(super) enum CallSource {
    Recorded(Arc<TrafficTrace>),
    Made(Pattern, Sizes),
    /// Conversations; the stream sets their rate and span.
    Talks(Conversations),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum CallRate {
    /// The load of the run.
    OfRun,
    /// Calls per second.
    Fixed(f64),
    /// Share of capacity.
    OfCapacity(f64),
}

/// Tenants of calls.
#[derive(Debug, Clone)]
pub(super) enum CallOwner {
    One(u32),
    Drawn(Vec<TenantShare>),
    /// The scenario's tenant for each tenant number of the trace.
    OfTrace(Vec<u32>),
}

/// A tenant's share of a stream's calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct TenantShare {
    pub(super) tenant: u32,
    pub(super) share: f64,
}

#[derive(Debug, Clone)]
pub(super) struct TrafficStream {
    pub(super) source: CallSource,
    pub(super) rate: CallRate,
    pub(super) count: Option<usize>,
    pub(super) span: Option<Duration>,
    pub(super) start: Duration,
    pub(super) class: u32,
    pub(super) owner: CallOwner,
    /// Shares of the models, by number; empty = all ask for the first.
    pub(super) models: Vec<f64>,
    pub(super) max_output: u32,
    pub(super) patience: Option<Duration>,
    pub(super) habits: RequestTraits,
}

/// Traits of requests, except their sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTraits {
    /// Share of requests whose answers are not streamed, `0.0..=1.0`.
    pub(super) plain: f64,
    /// Choices per request.
    pub(super) n: u32,
    /// Requests that their engine holds before queueing them.
    pub(super) held: Option<Delay>,
    /// Streams whose engine pauses.
    pub(super) pauses: Option<Delay>,
    /// Streams whose client stops reading.
    pub(super) unread: Option<Delay>,
    pub(super) system: Option<SystemRow>,
}

/// Delay of some requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delay {
    /// Share of the requests, `0.0..=1.0`.
    pub(super) share: f64,
    pub(super) lasts: Duration,
}

/// All arrivals of the streams at this load.
pub(super) fn arrivals(streams: &[TrafficStream], load: f64, capacity: f64, seed: u64) -> Vec<Arrival> {
    let of_stream = |(index, stream): (usize, &TrafficStream)| {
        let own = Rng::new(seed.wrapping_mul(1_000_003).wrapping_add(index as u64)).bits();
        stream.arrivals(load * capacity, capacity, seed, own)
    };
    let mut all: Vec<Arrival> = streams.iter().enumerate().flat_map(of_stream).collect();
    all.sort_by_key(|arrival| arrival.at);
    all
}

impl TrafficStream {
    fn arrivals(&self, swept: f64, capacity: f64, seed: u64, own: u64) -> Vec<Arrival> {
        let rate = match self.rate {
            CallRate::OfRun => swept,
            CallRate::Fixed(rate) => rate,
            CallRate::OfCapacity(part) => part * capacity,
        };
        let mut trace = self.calls(rate, seed, own);
        if let Some(span) = self.span {
            trace.take_span(span);
        }
        if let Some(count) = self.count {
            trace.take(count);
        }
        if let CallOwner::Drawn(shares) = &self.owner {
            let shares: Vec<f64> = shares.iter().map(|of| of.share).collect();
            trace.draw_tenants(&shares, own);
        }
        let block = trace.prefix_block;
        let mut lot = Rng::new(own ^ TRAITS_SEED);
        let mut models = Rng::new(own ^ MODELS_SEED);
        let calls = trace.calls.iter();
        let arrival = |call| Arrival { model: self.model(&mut models), ..self.arrival(call, block) };
        calls.map(arrival).map(|arrival| self.habits.apply_to(arrival, &mut lot)).collect()
    }

    /// Draws a model.
    fn model(&self, lot: &mut Rng) -> u32 {
        if self.models.len() < 2 {
            return self.models.iter().position(|share| *share > 0.0).unwrap_or(0) as u32;
        }
        let mut left = lot.unit() * self.models.iter().sum::<f64>();
        let of = |share: &f64| {
            left -= share;
            left < 0.0
        };
        self.models.iter().position(of).unwrap_or(0) as u32
    }

    fn calls(&self, rate: f64, seed: u64, own: u64) -> TrafficTrace {
        match &self.source {
            CallSource::Recorded(trace) => {
                let mut trace = TrafficTrace::clone(trace);
                trace.rotate(seed);
                trace.scale_to(rate);
                trace
            }
            CallSource::Made(pattern, sizes) => {
                let in_span = self.span.map(|span| (span.as_secs_f64() * rate * 1.5) as usize + 200);
                let count = self.count.or(in_span).unwrap_or(USUAL_COUNT);
                Synthetic { pattern: *pattern, rate, count, sizes: sizes.clone() }.trace(own)
            }
            CallSource::Talks(talks) => {
                let count = self.count.unwrap_or(USUAL_COUNT) as f64;
                let span =
                    self.span.unwrap_or_else(|| Duration::from_secs_f64((count / rate * 1.2).min(1e7)));
                Conversations { rate, span, ..talks.clone() }.trace(own)
            }
        }
    }

    fn arrival(&self, call: &TraceCall, block: u32) -> Arrival {
        let tenant = match &self.owner {
            CallOwner::One(tenant) => *tenant,
            CallOwner::Drawn(shares) => shares.get(call.tenant as usize).map_or(0, |of| of.tenant),
            CallOwner::OfTrace(ids) => ids.get(call.tenant as usize).copied().unwrap_or(0),
        };
        Arrival {
            at: Tick::ZERO + self.start + call.at,
            tenant,
            class: self.class,
            prompt: call.prompt,
            output: call.output,
            max_output: self.max_output.max(call.output),
            prefix: reblock(call.prompt_hashes(block), block, PREFIX_BLOCK).into(),
            blocks: reblock(&call.prefix, block, BLOCK_TOKENS).into(),
            patience: self.patience,
            ..Arrival::default()
        }
    }
}

impl RequestTraits {
    /// The arrival with its drawn traits. A trait that no request of the stream
    /// has uses no random numbers.
    fn apply_to(&self, arrival: Arrival, lot: &mut Rng) -> Arrival {
        let mut befalls = |share: f64| share > 0.0 && lot.unit() < share;
        let streams = !befalls(self.plain);
        let held = self.held.filter(|held| befalls(held.share)).map_or(Duration::ZERO, |held| held.lasts);
        let mut befallen = |delay: Option<Delay>| delay.filter(|delay| befalls(delay.share));
        let by_engine = befallen(self.pauses);
        let delay = by_engine.or(befallen(self.unread));
        let pause = delay.map(|Delay { lasts, .. }| Pause {
            after: 1 + lot.below(u64::from(arrival.output.saturating_sub(1))) as u32,
            lasts,
            by_client: by_engine.is_none(),
        });
        let arrival = Arrival { streams, n: self.n, held, pause, ..arrival };
        match self.system {
            Some(SystemRow { prompts, tokens }) => {
                arrival.with_prompt(lot.below(u64::from(prompts)), tokens, lot.bits())
            }
            None => arrival,
        }
    }
}
