//! Engine model, sans I/O: continuous batching with chunked prefill, a paged KV
//! cache with preemption, and a prefix cache. The caller owns the clock.
//! [`SimEngine::next_step`] returns the end of the step that starts now;
//! [`SimEngine::finish_step`] applies the step's result.
//!
//! One step holds, within the profile's token limit, in this order: one token
//! for each running sequence whose prompt is computed, prompt chunks of the
//! other running sequences, and new sequences in queue order. When a decode
//! finds no free block, the last running sequence in queue order loses its
//! blocks and is computed again later. A new sequence starts only when its
//! whole prompt fits.

use self::seq::{PriorityKey, Seq};
mod adapter_slots;
mod adapters;
mod blocks;
mod in_flight;
mod plan;
pub mod profile;
mod request;
mod seq;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::blocks::BLOCK_TOKENS;
pub use self::request::{
    EngineEvent, EngineEventKind, EngineOptions, EngineRequest, RequestId, SimCounters, SimGauges,
    SubmitError,
};

use self::blocks::BlockPool;
use crate::engine::adapter_slots::Adapters;
use crate::engine::in_flight::InFlight;
use crate::engine::profile::{StepLoad, StepProfile};
use penstock_core::model::time::Tick;

/// One simulated engine.
#[derive(Debug)]
pub struct SimEngine {
    profile: StepProfile,
    options: EngineOptions,
    max_seqs: usize,
    max_tokens: u32,
    pace: f64,
    slots: Vec<Option<Seq>>,
    vacant: Vec<usize>,
    requests: HashMap<RequestId, SmallVec<[usize; 1]>>,
    waiting: BTreeSet<PriorityKey>,
    /// Running sequences in queue order.
    running: Vec<PriorityKey>,
    pool: BlockPool,
    arrivals: u64,
    in_flight: Option<InFlight>,
    pending: Vec<EngineEvent>,
    counters: SimCounters,
    adapters: Adapters,
}

impl SimEngine {
    /// An idle engine.
    pub fn new(profile: StepProfile, options: EngineOptions) -> Self {
        let kv_tokens = options.kv_tokens.unwrap_or(profile.kv_tokens);
        Self {
            profile,
            options,
            max_seqs: options.max_seqs.unwrap_or(profile.max_seqs).max(1) as usize,
            max_tokens: options.max_tokens.unwrap_or(profile.max_tokens).max(1),
            pace: 1.0,
            slots: Vec::new(),
            vacant: Vec::new(),
            requests: HashMap::new(),
            waiting: BTreeSet::new(),
            running: Vec::new(),
            pool: BlockPool::new(
                (kv_tokens / u64::from(BLOCK_TOKENS)).max(1),
                options.cache_tokens.map_or(u64::MAX, |tokens| tokens / u64::from(BLOCK_TOKENS)),
            ),
            arrivals: 0,
            in_flight: None,
            pending: Vec::new(),
            counters: SimCounters::default(),
            adapters: Adapters::default(),
        }
    }

    /// Multiplies the length of the steps that start from now on; values that
    /// are not finite and positive are ignored.
    pub fn set_slowness(&mut self, factor: f64) {
        if factor.is_finite() && factor > 0.0 {
            self.pace = factor;
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    ///
    /// When the request's id is in use, or when one of its sequences exceeds
    /// the KV cache.
    pub fn submit(&mut self, request: EngineRequest) -> Result<(), SubmitError> {
        let prompt = request.prompt_tokens.max(1);
        let needed = u64::from(prompt) + u64::from(request.output_tokens);
        let capacity = self.pool.total() * u64::from(BLOCK_TOKENS);
        if needed > capacity.min(u64::from(u32::MAX)) {
            return Err(SubmitError::TooLarge { needed, capacity });
        }
        if self.requests.contains_key(&request.id) {
            return Err(SubmitError::Duplicate(request.id));
        }
        let full_blocks = (needed / u64::from(BLOCK_TOKENS)) as usize;
        let prefix: Arc<[u64]> = match self.options.prefix_cache {
            true => request.prefix.into_iter().take(full_blocks).collect(),
            false => Arc::default(),
        };
        let priority = if self.options.priority_scheduling { request.priority } else { 0 };
        self.adapters.in_use |= request.adapter.is_some();
        let mut slots = SmallVec::new();
        for choice in 0..request.n.max(1) {
            self.arrivals += 1;
            let slot = self.vacant.pop().unwrap_or(self.slots.len());
            let key = PriorityKey { priority, arrival: self.arrivals, slot };
            let seq = Seq {
                key,
                request: request.id,
                choice,
                prompt,
                output: request.output_tokens,
                prefix: prefix.clone(),
                shared: 0,
                private: 0,
                computed: 0,
                generated: 0,
                running: false,
                adapter: request.adapter,
            };
            if slot == self.slots.len() {
                self.slots.push(Some(seq));
            } else {
                self.slots[slot] = Some(seq);
            }
            self.waiting.insert(key);
            slots.push(slot);
        }
        self.requests.insert(request.id, slots);
        Ok(())
    }

    /// Removes what is left of a request at once; false when nothing was left.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let Some(slots) = self.requests.remove(&id) else { return false };
        for slot in slots {
            if self.slots[slot].as_ref().is_some_and(|seq| seq.request == id) {
                self.remove(slot);
                self.counters.cancelled += 1;
            }
        }
        true
    }

    /// The end of the step in flight, or of a new step that starts now. `None`
    /// when there is nothing to do.
    pub fn next_step(&mut self, now: Tick) -> Option<Tick> {
        if self.in_flight.is_none() {
            self.in_flight = self.plan(now);
        }
        self.in_flight.as_ref().map(|step| step.end)
    }

    /// Applies the step in flight if it has ended by `now`. Appends the events
    /// since the last call to `out`.
    pub fn finish_step(&mut self, now: Tick, out: &mut Vec<EngineEvent>) {
        let Some(step) = self.in_flight.take_if(|step| step.end <= now) else { return };
        self.counters.steps += 1;
        out.append(&mut self.pending);
        for chunk in &step.chunks {
            self.apply_chunk(*chunk, step.end, out);
        }
    }

    /// Running and waiting load now.
    pub fn gauges(&self) -> SimGauges {
        let owed = |seq: &Seq| u64::from(seq.tokens() - seq.computed) * u64::from(!seq.decoding());
        SimGauges {
            running: self.running.len() as u64,
            waiting: self.waiting.len() as u64,
            blocks_used: self.pool.used(),
            blocks_total: self.pool.total(),
            prefill_tokens: self.slots.iter().flatten().map(owed).sum(),
        }
    }

    /// Number of requests inside, waiting or running.
    pub fn requests(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Number of waiting sequences, preempted ones included.
    pub fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Totals since the start.
    pub fn counters(&self) -> SimCounters {
        SimCounters { adapter_loads: self.adapters.loads, ..self.counters }
    }

    /// Drops every cached prefix block that no sequence uses.
    pub fn reset_prefix_cache(&mut self) {
        self.pool.forget_idle();
    }

    fn duration(&self, load: &StepLoad) -> Duration {
        let nanos = self.profile.step_ms(load) * self.pace * 1e6;
        Duration::from_nanos((nanos.round() as u64).max(1))
    }

    /// Frees the slot with its blocks and its place in the queue.
    fn remove(&mut self, slot: usize) {
        self.release_blocks(slot);
        let Some(seq) = self.slots[slot].take() else { return };
        self.vacant.push(slot);
        if seq.running {
            self.unlist(seq.key);
        } else {
            self.waiting.remove(&seq.key);
        }
    }

    fn unlist(&mut self, key: PriorityKey) {
        if let Ok(index) = self.running.binary_search(&key) {
            self.running.remove(index);
        }
    }

    fn release_blocks(&mut self, slot: usize) {
        let Some(seq) = self.slots[slot].as_mut() else { return };
        self.pool.give_back(std::mem::take(&mut seq.private));
        let shared = std::mem::take(&mut seq.shared);
        for hash in seq.prefix[..shared].iter().rev() {
            self.pool.release(*hash);
        }
        seq.computed = 0;
    }
}
