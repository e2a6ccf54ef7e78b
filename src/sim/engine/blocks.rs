//! KV block pool with its prefix cache.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use penstock_core::model::number_map::NumberMap;

/// Tokens in one KV block.
pub const BLOCK_TOKENS: u32 = 16;

/// Blocks that hold `tokens` tokens.
pub(super) fn blocks_for(tokens: u32) -> u64 {
    u64::from(tokens.div_ceil(BLOCK_TOKENS))
}

#[derive(Debug, Clone, Copy)]
struct Cached {
    refs: u32,
    /// The block's stamp in `idle` while `refs` is zero.
    stamp: u64,
}

#[derive(Debug, Clone, Copy)]
struct IdleBlock {
    hash: u64,
    stamp: u64,
}

/// A fixed number of KV blocks. Each block is free, private to one sequence, or
/// cached under a hash. A cached block is shared by `refs` sequences, or idle
/// and evictable; the block idle for longest is evicted first.
#[derive(Debug)]
pub(super) struct BlockPool {
    total: u64,
    free: u64,
    cached: NumberMap<u64, Cached>,
    /// Blocks that became idle, the oldest first. A block that is shared again
    /// leaves its entry behind; an entry is valid only while its stamp is the
    /// block's.
    idle: VecDeque<IdleBlock>,
    idle_blocks: u64,
    /// Most idle blocks that are kept.
    most_idle: u64,
    stamps: u64,
}

impl BlockPool {
    pub(super) fn new(total: u64, most_idle: u64) -> Self {
        let (cached, idle) = (NumberMap::default(), VecDeque::new());
        Self { total, free: total, cached, idle, idle_blocks: 0, most_idle, stamps: 0 }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Blocks that any sequence holds.
    pub(super) fn used(&self) -> u64 {
        self.total - self.available()
    }

    /// Blocks that can be handed out, idle cached ones included.
    pub(super) fn available(&self) -> u64 {
        self.free + self.idle_blocks
    }

    /// Number of leading blocks of `hashes` that are cached, and how many of
    /// these are idle now.
    pub(super) fn match_prefix(&self, hashes: &[u64]) -> (usize, u64) {
        let mut idle = 0;
        for (index, hash) in hashes.iter().enumerate() {
            match self.cached.get(hash) {
                Some(block) => idle += u64::from(block.refs == 0),
                None => return (index, idle),
            }
        }
        (hashes.len(), idle)
    }

    /// Shares a block that `match_prefix` found.
    pub(super) fn share(&mut self, hash: u64) {
        let Some(block) = self.cached.get_mut(&hash) else {
            debug_assert!(false, "shared a block that is not cached");
            return;
        };
        if block.refs == 0 {
            self.idle_blocks -= 1;
        }
        block.refs += 1;
    }

    /// Takes `count` private blocks, evicting idle blocks as needed. Takes all
    /// of them or none.
    pub(super) fn take(&mut self, count: u64) -> bool {
        if count > self.available() {
            return false;
        }
        while self.free < count && self.evict() {}
        self.free -= count;
        true
    }

    /// Evicts the block that is idle for longest; false when none is idle.
    fn evict(&mut self) -> bool {
        while let Some(block) = self.idle.pop_front() {
            if is_idle(&self.cached, block) {
                self.cached.remove(&block.hash);
                self.idle_blocks -= 1;
                self.free += 1;
                return true;
            }
        }
        false
    }

    /// Gives private blocks back.
    pub(super) fn give_back(&mut self, count: u64) {
        self.free += count;
        debug_assert!(self.available() <= self.total);
    }

    /// Turns one private block of the caller into a shared one under `hash`.
    /// When the hash is already cached, the private block becomes free.
    pub(super) fn publish(&mut self, hash: u64) {
        match self.cached.entry(hash) {
            Entry::Vacant(entry) => {
                entry.insert(Cached { refs: 1, stamp: 0 });
            }
            Entry::Occupied(_) => {
                self.give_back(1);
                self.share(hash);
            }
        }
    }

    /// Drops one share of the cached block.
    pub(super) fn release(&mut self, hash: u64) {
        let Some(block) = self.cached.get_mut(&hash) else {
            debug_assert!(false, "released a block that is not cached");
            return;
        };
        block.refs -= 1;
        if block.refs == 0 {
            self.stamps += 1;
            block.stamp = self.stamps;
            self.idle.push_back(IdleBlock { hash, stamp: self.stamps });
            self.idle_blocks += 1;
            while self.idle_blocks > self.most_idle && self.evict() {}
            self.compact_idle();
        }
    }

    /// Drops stale entries of `idle` once they are the majority.
    fn compact_idle(&mut self) {
        if self.idle.len() as u64 > 2 * self.idle_blocks + 1_024 {
            self.idle.retain(|block| is_idle(&self.cached, *block));
        }
    }

    /// Drops every idle cached block.
    pub(super) fn forget_idle(&mut self) {
        self.cached.retain(|_, block| block.refs > 0);
        self.free += self.idle_blocks;
        (self.idle, self.idle_blocks) = (VecDeque::new(), 0);
    }
}

fn is_idle(cached: &NumberMap<u64, Cached>, entry: IdleBlock) -> bool {
    cached.get(&entry.hash).is_some_and(|block| block.refs == 0 && block.stamp == entry.stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_block_is_evicted_first() {
        let mut pool = BlockPool::new(3, u64::MAX);
        assert!(pool.take(3));
        for hash in [7, 8, 9] {
            pool.publish(hash);
        }
        assert_eq!((pool.used(), pool.available()), (3, 0));
        for hash in [8, 7, 9] {
            pool.release(hash);
        }
        assert_eq!(pool.match_prefix(&[7, 8, 9]), (3, 3));
        assert!(pool.take(1));
        assert_eq!(pool.match_prefix(&[7, 8, 9]), (1, 1), "8 was idle longest");
        assert!(!pool.take(3), "all or none");
        assert_eq!(pool.used(), 1);
        pool.forget_idle();
        assert_eq!(pool.match_prefix(&[7]), (0, 0));
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn use_makes_young_and_entries_left_behind_do_not_pile_up() {
        let mut pool = BlockPool::new(2, u64::MAX);
        assert!(pool.take(2));
        [1, 2].into_iter().for_each(|hash| pool.publish(hash));
        [1, 2].into_iter().for_each(|hash| pool.release(hash));
        for _ in 0..10_000 {
            pool.share(1);
            pool.release(1);
        }
        assert!(pool.idle.len() < 2_000, "{}", pool.idle.len());
        assert!(pool.take(1));
        assert_eq!((pool.match_prefix(&[1]), pool.match_prefix(&[2])), ((1, 1), (0, 0)));
        assert_eq!((pool.used(), pool.available()), (1, 1));
    }

    #[test]
    fn a_small_cache_keeps_the_latest_idle_blocks() {
        let mut pool = BlockPool::new(4, 2);
        assert!(pool.take(3));
        for hash in [7, 8, 9] {
            pool.publish(hash);
        }
        assert_eq!(pool.match_prefix(&[7, 8, 9]), (3, 0), "blocks in use are all kept");
        for hash in [9, 8, 7] {
            pool.release(hash);
        }
        assert_eq!(pool.match_prefix(&[7, 8, 9]), (2, 2));
        assert_eq!((pool.used(), pool.available()), (0, 4));
    }

    #[test]
    fn a_block_that_two_computed_is_kept_once() {
        let mut pool = BlockPool::new(4, u64::MAX);
        assert!(pool.take(2));
        pool.publish(1);
        pool.publish(1);
        assert_eq!(pool.used(), 1);
        pool.release(1);
        assert_eq!(pool.used(), 1);
        pool.release(1);
        assert_eq!(pool.used(), 0);
    }
}
