//! Seen prefixes: a router's guess of the prompts that an engine has cached.

use std::collections::{BTreeMap, HashMap};

/// Hashes of prompt blocks that an engine received. The least recently used
/// hashes are forgotten.
#[derive(Debug)]
pub struct SeenPrefixes {
    capacity: usize,
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    next: u64,
}

impl SeenPrefixes {
    /// An empty set with room for `capacity` hashes.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, stamps: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    /// Number of leading hashes that are known.
    pub fn matched(&self, prefix: &[u64]) -> usize {
        prefix.iter().take_while(|hash| self.stamps.contains_key(hash)).count()
    }

    /// Records that the engine received this prompt.
    pub fn note(&mut self, prefix: &[u64]) {
        for hash in prefix {
            self.next += 1;
            if let Some(old) = self.stamps.insert(*hash, self.next) {
                self.order.remove(&old);
            }
            self.order.insert(self.next, *hash);
        }
        while self.stamps.len() > self.capacity
            && let Some((_, hash)) = self.order.pop_first()
        {
            self.stamps.remove(&hash);
        }
    }
}
