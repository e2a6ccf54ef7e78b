//! Step planning: the chunks that one step computes, and the tokens and events
//! that a finished step yields.

use super::blocks::{BLOCK_TOKENS, blocks_for};
use super::{EngineEvent, EngineEventKind, SimEngine};
pub(super) use crate::engine::in_flight::InFlight;
use crate::engine::in_flight::StepChunk;
use crate::engine::profile::StepLoad;
use crate::engine::seq::PriorityKey;
use penstock_core::model::time::Tick;

impl SimEngine {
    /// Plans the next step; `None` when the engine has no work.
    pub(super) fn plan(&mut self, now: Tick) -> Option<InFlight> {
        let mut budget = self.max_tokens;
        let mut chunks = Vec::with_capacity(self.running.len() + 1);
        let preempted = self.plan_running(now, &mut budget, &mut chunks);
        if !preempted {
            self.plan_waiting(now, &mut budget, &mut chunks);
        }
        if chunks.is_empty() {
            return None;
        }
        let end = now + self.duration(&self.load(&chunks)) + self.take_load_time();
        Some(InFlight { end, chunks })
    }

    /// Gives every running sequence its tokens; true when a sequence was
    /// preempted.
    fn plan_running(&mut self, now: Tick, budget: &mut u32, chunks: &mut Vec<StepChunk>) -> bool {
        let mut preempted = false;
        let mut index = 0;
        while index < self.running.len() && *budget > 0 {
            let key = self.running[index];
            let Some(seq) = self.slots[key.slot].as_ref() else { break };
            let chunk = (seq.tokens() - seq.computed).min(*budget);
            let target = seq.computed + chunk;
            while !self.grow(key.slot, target) {
                preempted = true;
                self.preempt_last(now);
                if self.running.len() <= index {
                    return true;
                }
            }
            *budget -= chunk;
            chunks.push(StepChunk { key, tokens: chunk });
            index += 1;
        }
        preempted
    }

    /// Starts waiting sequences while slots, tokens and blocks last. A sequence
    /// whose adapter cannot be loaded now is skipped.
    fn plan_waiting(&mut self, now: Tick, budget: &mut u32, chunks: &mut Vec<StepChunk>) {
        let mut from = PriorityKey { priority: i64::MIN, arrival: 0, slot: 0 };
        while *budget > 0 && self.running.len() < self.max_seqs {
            let Some(&key) = self.waiting.range(from..).next() else { return };
            if !self.adapter_fits(key) {
                from = PriorityKey { slot: key.slot + 1, ..key };
                continue;
            }
            let Some(cached_tokens) = self.start(key) else { return };
            self.use_adapter(key);
            let Some(seq) = self.slots[key.slot].as_mut() else { return };
            let chunk = (seq.tokens() - seq.computed).min(*budget);
            *budget -= chunk;
            chunks.push(StepChunk { key, tokens: chunk });
            let (request, choice) = (seq.request, seq.choice);
            self.pending.push(EngineEvent {
                at: now,
                request,
                choice,
                kind: EngineEventKind::Scheduled { cached_tokens },
            });
        }
    }

    /// Moves a sequence from waiting to running with blocks for all of its
    /// tokens. Returns the tokens that the prefix cache saved. When the blocks
    /// do not suffice, nothing changes and the result is `None`.
    fn start(&mut self, key: PriorityKey) -> Option<u32> {
        let seq = self.slots[key.slot].as_mut()?;
        // At least one token is always computed, because sampling needs one.
        let usable = ((seq.tokens() - 1) / BLOCK_TOKENS) as usize;
        let candidates = &seq.prefix[..usable.min(seq.prefix.len())];
        let (hits, idle) = self.pool.match_prefix(candidates);
        let needed = blocks_for(seq.tokens()) - hits as u64;
        if needed + idle > self.pool.available() {
            return None;
        }
        for hash in &seq.prefix[..hits] {
            self.pool.share(*hash);
        }
        let taken = self.pool.take(needed);
        debug_assert!(taken, "the blocks were counted a moment ago");
        let cached = hits as u32 * BLOCK_TOKENS;
        seq.shared = hits;
        seq.private = needed;
        seq.computed = cached;
        seq.running = true;
        if seq.generated == 0 {
            self.counters.prompt_tokens += u64::from(seq.prompt);
            self.counters.cached_tokens += u64::from(cached);
        }
        self.waiting.remove(&key);
        let at = self.running.partition_point(|other| *other < key);
        self.running.insert(at, key);
        Some(cached)
    }

    /// Takes blocks for `target` tokens of KV; false when too few are left.
    fn grow(&mut self, slot: usize, target: u32) -> bool {
        let Some(seq) = self.slots[slot].as_mut() else { return false };
        let held = seq.shared as u64 + seq.private;
        let missing = blocks_for(target).saturating_sub(held);
        if missing == 0 {
            return true;
        }
        if !self.pool.take(missing) {
            return false;
        }
        seq.private += missing;
        true
    }

    fn preempt_last(&mut self, now: Tick) {
        let Some(key) = self.running.pop() else { return };
        self.release_blocks(key.slot);
        let Some(seq) = self.slots[key.slot].as_mut() else { return };
        seq.running = false;
        self.waiting.insert(key);
        self.counters.preemptions += 1;
        let (request, choice) = (seq.request, seq.choice);
        self.pending.push(EngineEvent { at: now, request, choice, kind: EngineEventKind::Preempted });
    }

    fn load(&self, chunks: &[StepChunk]) -> StepLoad {
        let mut load = StepLoad::default();
        for StepChunk { key, tokens } in chunks {
            let Some(seq) = self.slots[key.slot].as_ref() else { continue };
            if seq.decoding() {
                load.decodes += 1;
                load.decode_kv += u64::from(seq.computed);
            } else {
                load.prefill_tokens += u64::from(*tokens);
                let chunk = f64::from(*tokens);
                load.prefill_area += chunk * (f64::from(seq.computed) + chunk / 2.0);
            }
        }
        load
    }

    /// Applies one sequence's part of a finished step.
    pub(super) fn apply_chunk(&mut self, chunk: StepChunk, at: Tick, out: &mut Vec<EngineEvent>) {
        let StepChunk { key, tokens } = chunk;
        let Some(seq) = self.slots[key.slot].as_mut().filter(|seq| seq.key == key && seq.running) else {
            return;
        };
        seq.computed += tokens;
        let full = ((seq.computed / BLOCK_TOKENS) as usize).min(seq.prefix.len());
        while seq.shared < full {
            self.pool.publish(seq.prefix[seq.shared]);
            seq.shared += 1;
            seq.private -= 1;
        }
        if seq.computed < seq.tokens() {
            return;
        }
        let kind = match seq.output {
            0 => EngineEventKind::Computed,
            output => {
                seq.generated += 1;
                self.counters.generated_tokens += 1;
                EngineEventKind::Token { last: seq.generated >= output }
            }
        };
        out.push(EngineEvent { at, request: seq.request, choice: seq.choice, kind });
        if matches!(kind, EngineEventKind::Computed | EngineEventKind::Token { last: true }) {
            self.finish(key);
        }
    }

    fn finish(&mut self, key: PriorityKey) {
        let Some(request) = self.slots[key.slot].as_ref().map(|seq| seq.request) else { return };
        self.remove(key.slot);
        self.counters.finished += 1;
        if let Some(slots) = self.requests.get_mut(&request) {
            slots.retain(|slot| *slot != key.slot);
            if slots.is_empty() {
                self.requests.remove(&request);
            }
        }
    }
}
