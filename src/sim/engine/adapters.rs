//! LoRA adapter slots of an engine: a few adapters compute at a time. The
//! engine loads another adapter when it starts a request with that adapter, as
//! vLLM does with `--max-loras`.

use std::time::Duration;

use super::SimEngine;
use crate::engine::seq::PriorityKey;

impl SimEngine {
    /// Whether the sequence can start beside the running ones. That holds when
    /// a running sequence uses the same adapter, or when the running sequences
    /// leave a slot free.
    pub(super) fn adapter_fits(&self, key: PriorityKey) -> bool {
        let Some(adapter) = self.adapter_of(key) else { return true };
        let running = self.running_adapters();
        running.contains(&adapter) || running.len() < self.options.max_loras.max(1) as usize
    }

    /// Puts the adapter of a starting sequence into a slot. Loading an absent
    /// adapter lengthens the planned step.
    pub(super) fn use_adapter(&mut self, key: PriorityKey) {
        let Some(adapter) = self.adapter_of(key) else { return };
        let running = self.running_adapters();
        let held = &mut self.adapters.held;
        let known = held.iter().position(|other| *other == adapter);
        match known {
            Some(at) => drop(held.remove(at)),
            None => {
                self.adapters.loads += 1;
                self.adapters.loading += self.options.lora_load;
                if held.len() >= self.options.max_loras.max(1) as usize
                    && let Some(idle) = held.iter().position(|other| !running.contains(other))
                {
                    held.remove(idle);
                }
            }
        }
        self.adapters.held.push(adapter);
    }

    /// Takes the time that adapter loads add to the planned step.
    pub(super) fn take_load_time(&mut self) -> Duration {
        std::mem::take(&mut self.adapters.loading)
    }

    /// The adapters of running sequences, without duplicates.
    pub fn running_adapters(&self) -> Vec<u32> {
        self.adapters_among(self.running.iter())
    }

    /// The adapters of waiting sequences, without duplicates.
    pub fn waiting_adapters(&self) -> Vec<u32> {
        self.adapters_among(self.waiting.iter())
    }

    fn adapters_among<'a>(&self, keys: impl Iterator<Item = &'a PriorityKey>) -> Vec<u32> {
        if !self.adapters.in_use {
            return Vec::new();
        }
        let mut found: Vec<u32> = keys.filter_map(|key| self.adapter_of(*key)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn adapter_of(&self, key: PriorityKey) -> Option<u32> {
        self.slots[key.slot].as_ref()?.adapter
    }
}
